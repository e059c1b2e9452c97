"""FeedConfig: the settings of the source that the items of a server follow."""

from dataclasses import dataclass, field
from pathlib import Path

from leafbeam.errors import ArgumentError
from leafbeam.files import read_text

SOURCES = {"kafka": "Kafka topic", "delta": "Delta table", "iceberg": "Iceberg table", "postgres": "PostgreSQL publication"}
LISTED = "kafka, delta, iceberg or postgres"
_STREAMS = ("kafka", "postgres")  # sources that send changes as they come


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedConfig:
    """The source that the items of a server follow: a Kafka topic, a Delta or Iceberg table or a PostgreSQL publication.

    Args:
        kafka: The topic that Debezium writes, such as shop.public.items.
        delta: The Delta table: a directory, or an address such as s3://bucket/items.
        iceberg: The Iceberg table, such as shop.items.
        postgres: The PostgreSQL publication, which has one table.
        servers: The addresses of Kafka's brokers: HOST:PORT,HOST:PORT.
        catalog: The name of the Iceberg catalog in pyiceberg's configuration.
        database: The PostgreSQL database: postgresql://USER@HOST/NAME. Missing parts come from PGHOST, PGPASSWORD and similar
            variables.
        slot: The name of the replication slot in PostgreSQL; each server needs its own. It is created if there is none.
        item_id: The column of the item ids.
        columns: The other columns to take; by default all.
        skip_bad: If true, changes that cannot be made are skipped and logged; if false, following stops at one.
        from_now: If true, a server that has no changes yet takes only those from now on, not the whole source.
        batch: The largest number of changes that are made at once.
        every_s: The number of seconds between two checks of a table.
        max_lag_s: The lag, in seconds, above which the server is not ready. By default only the start waits, until the lag is
            below 10 s.
        properties: Properties of librdkafka, of libpq, of the table's storage or of the Iceberg catalog, each NAME=VALUE.
        properties_file: A file with one property NAME=VALUE a line, for passwords and other secrets.

    Raises:
        ArgumentError: If two sources are named, or a value is out of range.
    """

    kafka: str | None = None
    delta: str | None = None
    iceberg: str | None = None
    postgres: str | None = None
    servers: str = "localhost:9092"
    catalog: str = "default"
    database: str | None = field(default=None, repr=False)
    slot: str = "leafbeam"
    item_id: str = "item_id"
    columns: tuple[str, ...] = ()
    skip_bad: bool = False
    from_now: bool = False
    batch: int = 1000
    every_s: float = 10.0
    max_lag_s: float | None = None
    properties: tuple[str, ...] = ()
    properties_file: Path | None = None

    def __post_init__(self) -> None:
        named = [name for name in SOURCES if getattr(self, name) is not None]
        if len(named) > 1:
            raise ArgumentError(f"the items of a server follow one source, not {' and '.join(named)}: keep one of them")
        if self.max_lag_s is not None and not named:
            raise ArgumentError(f"max_lag_s limits the lag behind a source: name a source too ({LISTED})")
        for name in ("every_s", "max_lag_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ArgumentError(f"{name} must be a number of seconds above 0, not {value!r}")

    @property
    def name(self) -> str:
        """Return the source's name in messages; empty without a source."""
        return "" if self.kind is None else f"{SOURCES[self.kind]} {getattr(self, self.kind)}"

    @property
    def kind(self) -> str | None:
        """Return which of the settings names the source, which is also the name of its extra."""
        return next((name for name in SOURCES if getattr(self, name) is not None), None)

    @property
    def is_stream(self) -> bool:
        """Return whether the source sends changes as they come, so that it need not be looked at."""
        return self.kind in _STREAMS

    def library_properties(self) -> dict[str, str]:
        """Return the properties of the file, then those of the list, by name. Raises ArgumentError, OSError."""
        lines = [] if self.properties_file is None else read_text(self.properties_file).splitlines()
        lines = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        properties: dict[str, str] = {}
        for text in [*lines, *self.properties]:
            name, equals, value = text.partition("=")
            if not equals:
                raise ArgumentError(f"{name.split(' ')[0]!r:.40}: expected a property as NAME=VALUE")
            properties[name.strip()] = value.strip()
        return properties
