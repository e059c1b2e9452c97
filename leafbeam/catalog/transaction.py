"""What a transaction of a catalog changes: items with codes and attributes.

Shapes: n items of one call, L levels.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.errors import DataError, ItemIdError
from leafbeam.index import Version
from leafbeam.index.items import ItemIds, as_id_array
from leafbeam.live import Transaction

__all__ = ["Attributes", "CatalogTransaction"]

# One row for each item of the call, in its order; columns that are left out are NULL in new rows and stay in old ones.
Attributes = pa.Table | Sequence[Mapping[str, Any]]

Codes = NDArray[np.integer] | Sequence[Sequence[int]]


class CatalogTransaction:
    """Changes of items and attributes that come into force together: what `with catalog.transaction() as change:` gives.

    Think of it as a sheet of notes: calls are checked at once and made when the block ends. A call that raises has noted
    nothing.
    """

    def __init__(self, transaction: Transaction, version: Version) -> None:
        self._transaction = transaction
        self._version = version
        self._tables: list[tuple[list[Any], pa.Table]] = []
        self._owner: dict[Any, int | None] = {}  # of each touched id: its table, if it has one
        self._gone: set[Any] = set()

    def insert(self, codes: Codes, item_ids: ItemIds, attributes: Attributes | None = None) -> None:
        """New items. codes: (n, L); item_ids: n ids that are not in the index.

        attributes: n rows, or None for the rows that the table has, if any. Raises CodesError, ItemIdError, DataError.
        """
        ids = as_id_array(item_ids)
        table = None if attributes is None else _table_of(attributes, ids)
        self._transaction.insert(codes, item_ids)
        self._note(ids, table)

    def delete(self, item_ids: ItemIds) -> None:
        """Take items out of the index; their rows stay, unseen, and are theirs again if they come back. Raises ItemIdError."""
        self._transaction.delete(item_ids)
        keys = as_id_array(item_ids).tolist()
        self._gone.update(keys)
        for key in keys:
            self._owner.pop(key, None)

    def replace(self, codes: Codes, item_ids: ItemIds, attributes: Attributes | None = None) -> None:
        """Other codes for items, and if given other attributes. Raises CodesError, ItemIdError, DataError."""
        ids = as_id_array(item_ids)
        table = None if attributes is None else _table_of(attributes, ids)
        self._transaction.replace(codes, item_ids)
        if table is not None:
            self._note(ids, table)

    def update(self, item_ids: ItemIds, attributes: Attributes) -> None:
        """Other attributes for items. Raises ItemIdError where an id is not in the index or comes twice, DataError."""
        ids = as_id_array(item_ids)
        table = _table_of(attributes, ids)
        keys = ids.tolist()
        if len(set(keys)) < len(keys):
            raise ItemIdError("an item id comes more than once in one call: each needs its own row")
        known = self._version.knows(ids).tolist()
        strange = [
            key
            for key, is_known in zip(keys, known, strict=True)
            if not (is_known and key not in self._gone) and key not in self._owner
        ]
        if strange:
            shown = strange[0].decode("utf-8", "replace") if isinstance(strange[0], bytes) else strange[0]
            raise ItemIdError(
                f"{len(strange):,} of {len(keys):,} items are not in the catalog, {shown!r} among them: insert them"
            )
        self._note(ids, table)

    def touched(self) -> NDArray[np.generic]:
        """Ids of all items whose attributes are to be looked at again."""
        return as_id_array(list(self._owner))

    def tables(self) -> list[pa.Table]:
        """Attributes to write, with their `item_id`; no id comes twice."""
        parts: list[pa.Table] = []
        for number, (keys, table) in enumerate(self._tables):
            mine = [self._owner.get(key, -1) == number for key in keys]
            parts.append(table if all(mine) else table.filter(pa.array(mine, pa.bool_())))
        return [part for part in parts if part.num_rows]

    def _note(self, ids: NDArray[np.generic], table: pa.Table | None) -> None:
        keys = ids.tolist()
        self._owner.update(dict.fromkeys(keys, None if table is None else len(self._tables)))
        if table is not None:
            self._tables.append((keys, table))


def _table_of(attributes: Attributes, ids_n: NDArray[np.generic]) -> pa.Table:
    """The attributes as a table with an `item_id`. Raises DataError."""
    ids = pa.array(np.char.decode(ids_n.astype(np.bytes_), "utf-8") if ids_n.dtype.kind == "S" else ids_n)
    try:
        table = attributes if isinstance(attributes, pa.Table) else _of_mappings(attributes)
    except (pa.ArrowException, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"attributes have to be an Arrow table or a list of mappings with values of one type a column: {error}"
        ) from error
    if table.num_columns and table.num_rows != len(ids_n):
        raise DataError(f"there are {table.num_rows:,} rows of attributes for {len(ids_n):,} items: expected one for each")
    if "item_id" in table.column_names:
        if table.column("item_id").to_pylist() != ids.to_pylist():
            raise DataError(
                "the attributes have an item_id that differs from item_ids: leave it out, or put the rows in that order"
            )
        table = table.drop_columns(["item_id"])
    return table.add_column(0, "item_id", ids) if table.num_columns else pa.table({"item_id": ids})


def _of_mappings(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return pa.table({"item_id": pa.nulls(len(rows))}).drop_columns(["item_id"])
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
