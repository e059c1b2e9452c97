"""MemoryTexts: the texts of new and changed items, for the item memory that ranks them."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from leafbeam.catalog import Catalog
from leafbeam.index.items import decode_ids
from leafbeam.ingest.changes import Change
from leafbeam.retrieve import ItemMemory, LiveMemory
from leafbeam.semid.texts import texts


class MemoryTexts:
    """Keeps an item memory's texts those of the catalog. columns: of text, as it was fitted; none: it learns nothing."""

    def __init__(self, memory: ItemMemory | LiveMemory | None, columns: tuple[str, ...]) -> None:
        self._target, self._columns = memory, columns
        self._memory = memory.memory if isinstance(memory, LiveMemory) else memory

    def add_missing(self, catalog: Catalog) -> None:
        """Insert the items of the catalog that the memory does not have: those that came after it was fitted."""
        if self._memory is None:
            return
        version = catalog.index.version()
        ids = version.filter_of([None] * len(version.segments)).item_ids()
        self._insert(catalog, decode_ids(ids[self._memory.rows_of(ids) < 0]).tolist() if len(ids) else [])

    def observe(self, change: Change, catalog: Catalog) -> None:
        """Insert the items of a change that brings or changes their text."""
        if change.operation == "delete":
            return
        changes_text = [change.operation == "put" or not row.keys().isdisjoint(self._columns) for row in change.attributes]
        self._insert(catalog, [item_id for item_id, does in zip(change.item_ids, changes_text, strict=True) if does])

    def _insert(self, catalog: Catalog, item_ids: list[int | str]) -> None:
        memory, target = self._memory, self._target
        if not item_ids or memory is None or target is None or memory.encoder is None or not self._columns:
            return
        rows = catalog.lookup(item_ids, self._columns)
        target.insert(item_ids, texts=texts(rows, self._columns))
