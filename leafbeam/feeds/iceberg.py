"""IcebergSource: the snapshots of an Iceberg table."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from leafbeam.errors import FeedError
from leafbeam.extras import optional_imports

with optional_imports("leafbeam.feeds.IcebergSource", "iceberg"):
    import pyarrow as pa
    from pyiceberg.catalog import load_catalog

T = TypeVar("T")


class IcebergSource:
    """An Iceberg table, such as "shop.items".

    Args:
        table: The name of the table.
        catalog: The name of its catalog in pyiceberg's configuration (.pyiceberg.yaml, the environment).
        properties: Further properties of the catalog, such as uri.

    Raises:
        FeedError: If there is no such table.
    """

    def __init__(self, table: str, *, catalog: str = "default", properties: Mapping[str, str] | None = None) -> None:
        self.name = f"Iceberg table {table}"
        self._catalog = self._try("the table", lambda: load_catalog(catalog, **(properties or {})))
        try:
            self._table = self._try("the table", lambda: self._catalog.load_table(table))
        except FeedError:
            self._catalog.close()
            raise

    @property
    def table_id(self) -> str:
        """Return the id that the table got when it was created."""
        return str(self._table.metadata.table_uuid)

    def newest(self) -> int | None:
        """Return the id of the current snapshot (see VersionedTable)."""
        snapshot = self._try("its newest snapshot", lambda: self._table.refresh().current_snapshot())
        return None if snapshot is None else snapshot.snapshot_id

    def rows(self, version: int, columns: Sequence[str] | None) -> pa.Table:
        """Return the rows of a version (see VersionedTable)."""
        if self._table.snapshot_by_id(version) is None:
            raise FeedError(
                f"{self.name}: snapshot {version}, which was followed last, is gone (expired): remove the position "
                "file; then all rows are put again"
            )
        fields = ("*",) if columns is None else tuple(columns)
        scan = self._table.scan(snapshot_id=version, selected_fields=fields)
        return self._try(f"snapshot {version}", scan.to_arrow)

    def close(self) -> None:
        """Close the connections of the catalog."""
        self._catalog.close()

    def _try(self, what: str, call: Callable[[], T]) -> T:
        """Call a function of pyiceberg. Raises FeedError for any error, because they have no class in common."""
        try:
            return call()
        except Exception as error:
            kind = type(error).__name__
            raise FeedError(f"{self.name}: {what} cannot be read ({kind}: {str(error).strip()[:300]})") from error
