"""CatalogTransaction: changes of items with their codes and attributes. Shapes: n items of one call, L levels."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.errors import DataError, counted
from leafbeam.index.items import ItemIds, as_id_array, decode_ids
from leafbeam.live import Transaction
from leafbeam.live.transaction import Codes, WriteSet

# One row for each item of the call, in its order; missing columns are NULL in new rows and unchanged in existing ones.
Attributes = pa.Table | Sequence[Mapping[str, object]]


class CatalogTransaction:
    """A `Transaction` with attributes: the target of `with catalog.transaction() as transaction:`.

    Args:
        transaction: The changes of the index.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._tables: list[tuple[list[int | str], pa.Table]] = []
        self._table_of: dict[int | str, int | None] = {}  # the table of each changed id, if it has one
        self._removed: dict[int | str, None] = {}  # ids whose rows go

    def insert(self, codes: Codes, item_ids: ItemIds, attributes: Attributes | None = None) -> None:
        """Add items (see Catalog.insert).

        Raises:
            CodesError: If the codes do not fit the index.
            ItemIdError: If an id is live already or occurs twice.
            DataError: If an attribute is unknown or of the wrong type.
        """
        ids, table = _checked(item_ids, attributes)
        self._transaction.insert(codes, item_ids)
        self._record(ids, table)

    def delete(self, item_ids: ItemIds, *, with_attributes: bool = False) -> None:
        """Remove items (see Catalog.delete).

        Args:
            item_ids: The ids.
            with_attributes: If true, their rows of the table are removed too.

        Raises:
            ItemIdError: If an id is not live or occurs twice.
        """
        self._transaction.delete(item_ids)
        keys = as_id_array(item_ids).tolist()
        for key in keys:
            self._table_of.pop(key, None)
        if with_attributes:
            self._removed.update(dict.fromkeys(keys))

    def replace(self, codes: Codes, item_ids: ItemIds, attributes: Attributes | None = None) -> None:
        """Give items other codes and, optionally, other attributes.

        Raises:
            CodesError: If the codes do not fit the index.
            ItemIdError: If an id is not live or occurs twice.
            DataError: If an attribute is unknown or of the wrong type.
        """
        ids, table = _checked(item_ids, attributes)
        self._transaction.replace(codes, item_ids)
        if table is not None:
            self._record(ids, table)

    def update(self, item_ids: ItemIds, attributes: Attributes) -> None:
        """Give items other attributes.

        Raises:
            ItemIdError: If an id is not live or occurs twice.
            DataError: If an attribute is unknown or of the wrong type.
        """
        ids, table = _checked(item_ids, attributes)
        self._transaction.check_live(item_ids)
        self._record(ids, table)

    def evaluate_again(self, item_ids: ItemIds) -> None:
        """Evaluate the rules for items whose attributes were changed by other means than this transaction.

        Raises:
            ItemIdError: If an id is not live.
        """
        self._transaction.check_live(item_ids)
        self._record(as_id_array(item_ids), None)

    def write_set(self) -> WriteSet:
        """Return the change of the index by all calls so far."""
        return self._transaction.write_set()

    def removed_ids(self) -> NDArray[np.generic]:
        """Return the ids of the items whose rows are to be removed."""
        return as_id_array(list(self._removed))

    def changed_ids(self) -> NDArray[np.generic]:
        """Return the ids of all items whose rules have to be evaluated again."""
        return as_id_array(list(self._table_of))

    def tables(self) -> list[pa.Table]:
        """Return the attributes to write, with their `item_id`; no id occurs twice."""
        parts: list[pa.Table] = []
        for number, (keys, table) in enumerate(self._tables):
            newest = [self._table_of.get(key, -1) == number for key in keys]
            parts.append(table if all(newest) else table.filter(pa.array(newest, pa.bool_())))
        return [part for part in parts if part.num_rows]

    def _record(self, ids: NDArray[np.generic], table: pa.Table | None) -> None:
        keys = ids.tolist()
        for key in self._removed.keys() & keys:
            del self._removed[key]
        self._table_of.update(dict.fromkeys(keys, None if table is None else len(self._tables)))
        if table is not None:
            self._tables.append((keys, table))


def _checked(item_ids: ItemIds, attributes: Attributes | None) -> tuple[NDArray[np.generic], pa.Table | None]:
    """Return the ids, and the attributes, if any, as a table with an `item_id`. Raises ItemIdError, DataError."""
    ids_n = as_id_array(item_ids)
    if attributes is None:
        return ids_n, None
    ids = pa.array(decode_ids(ids_n))
    try:
        table = attributes if isinstance(attributes, pa.Table) else _table_of_mappings(attributes)
    except (pa.ArrowException, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"expected an Arrow table or a list of mappings, with one type a column: {error}") from error
    if table.num_columns and table.num_rows != len(ids_n):
        raise DataError(
            f"there are {counted(table.num_rows, 'row')} of attributes for {counted(len(ids_n), 'item')}: expected one for each"
        )
    if "item_id" in table.column_names:
        if table.column("item_id").to_pylist() != ids.to_pylist():
            raise DataError("the attributes have an item_id that differs from item_ids: leave it out, or sort the rows")
        table = table.drop_columns(["item_id"])
    return ids_n, table.add_column(0, "item_id", ids) if table.num_columns else pa.table({"item_id": ids})


def _table_of_mappings(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
