"""MemoryTexts: the texts of new and changed items, for the item memory that ranks them."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from collections.abc import Mapping

from leafbeam.catalog import Catalog
from leafbeam.index.items import decode_ids
from leafbeam.ingest.changes import Change
from leafbeam.retrieve import ItemMemory, LiveMemory
from leafbeam.semid.texts import texts


class MemoryTexts:
    """Keeps an item memory's texts those of the catalog. columns: of text, as it was fitted; none: it learns nothing."""

    def __init__(self, memory: ItemMemory | LiveMemory | None, columns: tuple[str, ...]) -> None:
        self._target, self._columns = memory, columns
        self.memory = memory.memory if isinstance(memory, LiveMemory) else memory

    def add_missing(self, catalog: Catalog) -> None:
        """Insert the items of the catalog that the memory does not have: those that came after it was fitted."""
        if self.memory is None:
            return
        version = catalog.index.version()
        ids = version.filter_of([None] * len(version.segments)).item_ids()
        self._look_up(catalog, decode_ids(ids[self.memory.rows_of(ids) < 0]).tolist() if len(ids) else [])

    def of_put(self, change: Change) -> dict[int | str, str]:
        """The texts of the items that a change puts; none for other changes. Raises DataError without a column of text."""
        if change.operation != "put" or not self._learns:
            return {}
        found: dict[int | str, str] = {}
        for group in change.groups:
            ids = [change.item_ids[row] for row in group.rows.tolist()]
            found |= zip(ids, texts(group.table, self._columns), strict=True)
        return found

    def observe_patch(self, change: Change, catalog: Catalog) -> None:
        """Insert the texts of the items whose text a patch has changed."""
        if change.operation == "patch":
            rows = zip(change.item_ids, change.attributes, strict=True)
            self._look_up(catalog, [item_id for item_id, row in rows if not row.keys().isdisjoint(self._columns)])

    def insert(self, text_of: Mapping[int | str, str]) -> None:
        """Insert items with their texts, or replace these. Raises LogError."""
        if text_of and self._target is not None:
            self._target.insert(list(text_of), texts=list(text_of.values()))

    @property
    def _learns(self) -> bool:
        return self.memory is not None and self.memory.encoder is not None and bool(self._columns)

    def _look_up(self, catalog: Catalog, item_ids: list[int | str]) -> None:
        if item_ids and self._learns:
            found = texts(catalog.lookup(item_ids, self._columns), self._columns)
            self.insert(dict(zip(item_ids, found, strict=True)))
