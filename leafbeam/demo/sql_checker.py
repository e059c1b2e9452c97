"""The referee: looks the answers up in the table of items, and never asks the index or the server."""

# pyarrow and duckdb carry no types.
# pyright: reportUnknownParameterType=false, reportOptionalMemberAccess=false

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

__all__ = ["SqlChecker"]


class SqlChecker:
    """The user's own table of items in a database of its own, and whether answers obey predicates there.

    Think of it as somebody with a printed price list: filters, index and server may be wrong, this list is not theirs.
    """

    def __init__(self, items: pa.Table) -> None:
        self._connection = duckdb.connect(":memory:")
        self._connection.register("source", items)
        self._connection.execute("CREATE TABLE items AS SELECT * FROM source").fetchall()
        self._connection.unregister("source")

    def rows(self, item_ids: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows of some items, in the order asked. KeyError where an item does not exist."""
        found = {row["item_id"]: row for row in self._select("TRUE", item_ids)}
        return [found[item_id] for item_id in item_ids]

    def broken(self, predicates: Sequence[str], item_ids: Sequence[Any]) -> int:
        """How many of the items break at least one predicate, or do not exist. Each is counted as often as it is named."""
        every = " AND ".join(f"coalesce(({predicate}), FALSE)" for predicate in predicates) or "TRUE"
        good = {row["item_id"] for row in self._select(every, item_ids)}
        return sum(item_id not in good for item_id in item_ids)

    def allowed(self, predicates: Sequence[str]) -> int:
        """How many items of the whole table obey all predicates."""
        every = " AND ".join(f"({predicate})" for predicate in predicates) or "TRUE"
        # DuckDB wants a result read to its end before the next question.
        ((count,),) = self._connection.execute(f"SELECT count(*) FROM items WHERE {every}").fetchall()
        return int(count)

    def set_stock(self, item_id: Any, stock: int) -> None:
        """Note on the list what was changed in the shop."""
        self._connection.execute("UPDATE items SET stock = ? WHERE item_id = ?", [stock, item_id]).fetchall()

    def _select(self, predicate: str, item_ids: Sequence[Any]) -> list[dict[str, Any]]:
        wanted = pa.table({"item_id": pa.array(list(dict.fromkeys(item_ids)))}) if item_ids else None
        if wanted is None:
            return []
        self._connection.register("wanted", wanted)
        query = f"SELECT * FROM items WHERE ({predicate}) AND item_id IN (SELECT item_id FROM wanted)"
        rows = self._connection.sql(query).to_arrow_table().to_pylist()
        self._connection.unregister("wanted")
        return rows
