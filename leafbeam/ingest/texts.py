"""MemoryTexts: the texts of new and changed items, for the item memory that ranks them."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from collections.abc import Mapping, Sequence

from leafbeam.catalog import Catalog
from leafbeam.index.items import decode_ids
from leafbeam.ingest.changes import Change
from leafbeam.json_reader import Json
from leafbeam.retrieve import ItemMemory, LiveMemory
from leafbeam.semid.texts import texts


class MemoryTexts:
    """Keeps the texts of an item memory equal to those of the catalog.

    columns: the columns of text with which the memory was fitted; without any, it learns no texts. Texts are not logged,
    because the table of items has them.
    """

    def __init__(self, memory: ItemMemory | LiveMemory | None, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self.memory = memory.memory if isinstance(memory, LiveMemory) else memory

    def add_missing(self, catalog: Catalog) -> None:
        """Insert the items of the catalog that the memory does not have, because they came after it was fitted."""
        if self.memory is None:
            return
        version = catalog.index.version()
        ids = version.all_items.item_ids()
        self._look_up(catalog, decode_ids(ids[self.memory.rows_of(ids) < 0]).tolist() if len(ids) else [])

    def ids_of(self, record: Json) -> list[int | str]:
        """Return the items whose text a change in the log has written."""
        if record["operation"] == "put":
            return list(record["item_ids"])
        if record["operation"] != "patch":
            return []
        rows = zip(record["item_ids"], record["attributes"], strict=True)
        return [item_id for item_id, row in rows if not row.keys().isdisjoint(self._columns)]

    def look_up_again(self, catalog: Catalog, item_ids: Sequence[int | str]) -> None:
        """Read the texts of known items again, because they may have changed since the file of the memory was written."""
        if self.memory is None or not item_ids:
            return
        is_known_n = (self.memory.rows_of(item_ids) >= 0) & catalog.index.version().knows(item_ids)
        self._look_up(catalog, [item_id for item_id, is_known in zip(item_ids, is_known_n.tolist(), strict=True) if is_known])

    def of_put(self, change: Change) -> dict[int | str, str]:
        """Return the texts of the items that a change puts, if it is a put. Raises DataError without a column of text."""
        if change.operation != "put" or not self._learns:
            return {}
        texts_of: dict[int | str, str] = {}
        for group in change.groups:
            ids = [change.item_ids[row] for row in group.rows.tolist()]
            texts_of |= zip(ids, texts(group.table, self._columns), strict=True)
        return texts_of

    def observe_patch(self, change: Change, catalog: Catalog) -> list[int | str]:
        """Insert the texts of the items whose text a patch has changed, and return these items."""
        return self._look_up(catalog, self.ids_of(change.record())) if change.operation == "patch" else []

    def insert(self, text_of: Mapping[int | str, str]) -> list[int | str]:
        """Insert items with their texts or replace their texts, and return the items whose text was replaced."""
        if not text_of or self.memory is None:
            return []
        known = self.memory.known(list(text_of))
        self.memory.insert(list(text_of), texts=list(text_of.values()))
        return known

    @property
    def _learns(self) -> bool:
        return self.memory is not None and self.memory.encoder is not None and bool(self._columns)

    def _look_up(self, catalog: Catalog, item_ids: list[int | str]) -> list[int | str]:
        if not item_ids or not self._learns:
            return []
        looked_up = texts(catalog.lookup(item_ids, self._columns), self._columns)
        return self.insert(dict(zip(item_ids, looked_up, strict=True)))
