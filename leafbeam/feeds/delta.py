"""DeltaSource: the versions of a Delta table."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from collections.abc import Mapping, Sequence

from leafbeam.errors import FeedError
from leafbeam.extras import optional_imports

with optional_imports("leafbeam.feeds.DeltaSource", "delta"):
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

_ERRORS = (DeltaError, OSError, ValueError, pa.ArrowException)


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
        try:
            self._table.update_incremental()
        except _ERRORS as error:
            raise self._failure("its newest version", error) from error
        return self._table.version()

    def rows(self, version: int, columns: Sequence[str] | None) -> pa.Table:
        """Return the rows of a version (see VersionedTable)."""
        table = self._open(version)
        try:
            return pa.table(table.scan(None if columns is None else list(columns)))
        except _ERRORS as error:
            raise self._failure(f"version {version}", error) from error

    def _open(self, version: int | None) -> DeltaTable:
        options: object = self._options or None
        try:
            return DeltaTable(self._uri, version=version, storage_options=options)
        except _ERRORS as error:
            raise self._failure("the table" if version is None else f"version {version}", error) from error

    def _failure(self, what: str, error: Exception) -> FeedError:
        return FeedError(
            f"{self.name}: {what} cannot be read ({str(error).strip()[:300]}). If the version that was followed last is gone "
            "(vacuum), remove the file of the position: all rows are put again"
        )
