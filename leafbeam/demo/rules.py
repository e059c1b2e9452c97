"""Rules that a table of items can support: stated from its columns, never from columns that it lacks."""

# pyarrow and duckdb carry no types.
# pyright: reportUnknownParameterType=false, reportOptionalMemberAccess=false

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

__all__ = ["Rule", "supported_rules", "write_rules"]

NEW_DAYS = 7
NEWEST = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named SQL predicate over the table of items, and what to call it in front of people."""

    name: str
    predicate: str
    title: str


def supported_rules(items: pa.Table) -> tuple[Rule, ...]:
    """The demo's rules that the columns of `items` can answer: `stock`, `price`, `first_seen` or `first_review`.

    "This week" counts back from the newest day in the catalog, not from today: a log is a photograph, and the rule
    should mean the same whenever it is looked at. Where only the first review is known, the newest 5 % stand for "new".
    """
    columns = set(items.column_names)
    rules: list[Rule] = []
    if "stock" in columns:
        rules.append(Rule(name="in_stock", predicate="stock > 0", title="in stock"))
    if "price" in columns:
        price = "TRY_CAST(price AS DOUBLE)" if _is_text(items.schema.field("price").type) else "price"
        rules.append(Rule(name="under_20", predicate=f"{price} < 20", title="under 20"))
    if "first_seen" in columns:
        newest = "(SELECT max(first_seen) FROM items)"
        predicate = f"first_seen > {newest} - INTERVAL {NEW_DAYS} DAY"
        rules.append(Rule(name="new_this_week", predicate=predicate, title="new this week"))
    elif "first_review" in columns:
        border = f"(SELECT quantile_disc(first_review, {NEWEST}) FROM items)"
        predicate = f"first_review >= {border}"
        rules.append(Rule(name="newest", predicate=predicate, title="newest 5 % by first review"))
    return tuple(rules)


def write_rules(path: Path, items: pa.Table) -> tuple[str, ...]:
    """Write a rules.toml with every supported rule; returns their names."""
    rules = supported_rules(items)
    lines = "".join(f'{rule.name} = "{rule.predicate}"\n' for rule in rules)
    head = "# A rule is an SQL predicate over the table `items` of catalog.duckdb. A request names rules, never SQL.\n"
    path.write_text(f"{head}[rules]\n{lines}", encoding="utf-8")
    return tuple(rule.name for rule in rules)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
