"""Availability rules that the columns of an item table support, and checks of answers by them in SQL."""

# pyarrow and duckdb carry no types.
# pyright: reportUnknownParameterType=false
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

NEW_DAYS = 7
WIDER_DAYS = 30
NEWEST_QUANTILE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named SQL predicate over the table of items, and its title on the console."""

    name: str
    predicate: str
    title: str


def supported_rules(items: pa.Table) -> tuple[Rule, ...]:
    """Return the demo's rules for the columns `stock`, `price`, and `first_seen` or `first_review`, as far as `items` has them.

    "This week" counts back from the newest day of the catalog, not from today, so the rule means the same on any day. Where
    only the first review is known, the newest 5 % are "new".
    """
    columns = set(items.column_names)
    rules: list[Rule] = []
    if "stock" in columns:
        rules.append(Rule(name="in_stock", predicate="stock > 0", title="in stock"))
    if "price" in columns:
        dtype = items.schema.field("price").type
        is_text = pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
        price = "TRY_CAST(price AS DOUBLE)" if is_text else "price"
        rules.append(Rule(name="under_20", predicate=f"{price} < 20", title="under 20"))
    if "first_seen" in columns:
        predicate = f"first_seen > (SELECT max(first_seen) FROM items) - INTERVAL {NEW_DAYS} DAY"
        rules.append(Rule(name="new_this_week", predicate=predicate, title="new this week"))
    elif "first_review" in columns:
        predicate = f"first_review >= (SELECT quantile_disc(first_review, {NEWEST_QUANTILE}) FROM items)"
        rules.append(Rule(name="newest", predicate=predicate, title="newest 5 % by first review"))
    return tuple(rules)


def _wider(rule: Rule) -> Rule | None:
    """Return the same bound further out, with which the playground makes a slider."""
    if rule.name == "under_20":
        return Rule(name="under_50", predicate=rule.predicate.replace("20", "50"), title="under 50")
    if rule.name == "new_this_week":
        days = rule.predicate.replace(f"INTERVAL {NEW_DAYS} DAY", f"INTERVAL {WIDER_DAYS} DAY")
        return Rule(name="new_this_month", predicate=days, title="new this month")
    return None


def _boost(rule: Rule) -> str | None:
    """Return a line of a boost for the column of a bound: low prices, and items of the last month."""
    if rule.name == "under_50":
        price = rule.predicate.removesuffix(" < 50")
        return f'low_price = "CASE WHEN {price} BETWEEN 0 AND 1e9 THEN -ln(1 + {price}) END"\n'
    if rule.name == "new_this_month":
        return f'recent = "CASE WHEN {rule.predicate} THEN 1 END"\n'
    return None


def write_rules(path: Path, items: pa.Table) -> tuple[str, ...]:
    """Write a rules.toml with every supported rule, wider ones of price and age, and boosts; return the rules' names."""
    supported = supported_rules(items)
    rules = [*supported, *(wider for rule in supported if (wider := _wider(rule)))]
    lines = "".join(f'{rule.name} = "{rule.predicate}"\n' for rule in rules)
    boosts = "".join(boost for rule in rules if (boost := _boost(rule)))
    head = "# A rule is an SQL predicate over the table `items` of catalog.duckdb. A request names rules, never SQL.\n"
    head += (
        f"# A boost is a number for each item, which a request may add to the item's score.\n[boosts]\n{boosts}\n"
        if boosts
        else ""
    )
    path.write_text(f"{head}[rules]\n{lines}", encoding="utf-8")
    return tuple(rule.name for rule in rules)


class SqlChecker:
    """A copy of the item table in an in-memory database, on which predicates are evaluated."""

    def __init__(self, items: pa.Table) -> None:
        self._connection = duckdb.connect(":memory:")
        self._connection.register("source", items)
        self._connection.execute("CREATE TABLE items AS SELECT * FROM source").fetchall()
        self._connection.unregister("source")

    def rows(self, item_ids: Sequence[object]) -> list[dict[str, object]]:
        """Return the rows of some items, in the given order. Raises KeyError where an item does not exist."""
        by_id = {row["item_id"]: row for row in self._select("TRUE", item_ids)}
        return [by_id[item_id] for item_id in item_ids]

    def count_violations(self, predicates: Sequence[str], item_ids: Sequence[object]) -> int:
        """Return how many of the items (repeated ones counted each time) violate a predicate or do not exist; NULL violates."""
        conjunction = " AND ".join(f"coalesce(({predicate}), FALSE)" for predicate in predicates) or "TRUE"
        allowed = {row["item_id"] for row in self._select(conjunction, item_ids)}
        return sum(item_id not in allowed for item_id in item_ids)

    def count_allowed(self, predicates: Sequence[str]) -> int:
        """Return how many items of the table satisfy all predicates."""
        conjunction = " AND ".join(f"({predicate})" for predicate in predicates) or "TRUE"
        ((count,),) = self._connection.execute(f"SELECT count(*) FROM items WHERE {conjunction}").fetchall()
        return int(count)

    def set_stock(self, item_id: object, stock: int) -> None:
        """Apply a change of the shop's stock to the copy."""
        self._connection.execute("UPDATE items SET stock = ? WHERE item_id = ?", [stock, item_id]).fetchall()

    def _select(self, predicate: str, item_ids: Sequence[object]) -> list[dict[str, object]]:
        if not item_ids:
            return []
        self._connection.register("requested", pa.table({"item_id": pa.array(list(dict.fromkeys(item_ids)))}))
        query = f"SELECT * FROM items WHERE ({predicate}) AND item_id IN (SELECT item_id FROM requested)"
        rows = self._connection.sql(query).to_arrow_table().to_pylist()
        self._connection.unregister("requested")
        return rows
