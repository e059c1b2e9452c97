"""DeltaSource: the versions of a Delta table."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from leafbeam.errors import FeedError
from leafbeam.extras import optional_imports

with optional_imports("leafbeam.feeds.DeltaSource", "delta"):
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

T = TypeVar("T")


class DeltaSource:
    """A Delta table, at a path or an address such as s3://bucket/table.

    Args:
        uri: The path or address.
        options: The options of the storage, as deltalake takes them; it reads the environment too.

    Raises:
        FeedError: If there is no such table.
    """

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self._uri, self._options = uri, dict(options or {})
        self._table = self._open(None)

    @property
    def name(self) -> str:
        return f"Delta table {self._uri}"

    @property
    def table_id(self) -> str:
        """Return the id that the table got when it was created."""
        return str(self._table.metadata().id)

    def newest(self) -> int | None:
        """Return the newest version (see VersionedTable)."""
        self._try("its newest version", self._table.update_incremental)
        return self._table.version()

    def rows(self, version: int, columns: Sequence[str] | None) -> pa.Table:
        """Return the rows of a version (see VersionedTable)."""
        table, names = self._open(version), None if columns is None else list(columns)
        return self._try(f"version {version}", lambda: pa.table(table.scan(names)))

    def close(self) -> None:
        """Do nothing, because no connection is open between two reads."""

    def _open(self, version: int | None) -> DeltaTable:
        options: object = self._options or None
        what = "the table" if version is None else f"version {version}"
        return self._try(what, lambda: DeltaTable(self._uri, version=version, storage_options=options))

    def _try(self, what: str, call: Callable[[], T]) -> T:
        """Call a function of deltalake. Raises FeedError."""
        try:
            return call()
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise FeedError(
                f"{self.name}: {what} cannot be read ({str(error).strip()[:300]}). If the version that was followed last is "
                "gone (vacuum), remove the position file; then all rows are put again"
            ) from error
