"""Checks of answers in SQL on the user's own table of items, independent of index, filters and server."""

# pyarrow and duckdb carry no types.
# pyright: reportUnknownParameterType=false

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa


class SqlChecker:
    """A copy of the item table in an in-memory database, on which predicates are evaluated."""

    def __init__(self, items: pa.Table) -> None:
        self._connection = duckdb.connect(":memory:")
        self._connection.register("source", items)
        self._connection.execute("CREATE TABLE items AS SELECT * FROM source").fetchall()
        self._connection.unregister("source")

    def rows(self, item_ids: Sequence[object]) -> list[dict[str, Any]]:
        """Return the rows of some items, in the given order. Raises KeyError where an item does not exist."""
        found = {row["item_id"]: row for row in self._select("TRUE", item_ids)}
        return [found[item_id] for item_id in item_ids]

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
