"""`leafbeam items follow`: the changes of a Kafka topic, a Delta or an Iceberg table, made on a run's server."""

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from leafbeam.cli.console import done, stdout
from leafbeam.cli.options import KEY, option, split_names, with_options
from leafbeam.errors import ArgumentError, counted
from leafbeam.extras import require
from leafbeam.files import read_text

if TYPE_CHECKING:
    from leafbeam.feeds import Feed, Followed, SourceColumns, VersionedTable

PositionOption = Annotated[Path, option("--position", "The file that records how far the table was followed.")]
EveryOption = Annotated[float, option("--every", "The number of seconds between two checks of the table.")]


@dataclass(frozen=True, kw_only=True)
class Following:
    """The options that all commands for following a source share."""

    url: Annotated[str, option("--url", "The address of the run's server; its key is read from LEAFBEAM_KEY.")] = (
        "http://127.0.0.1:8000"
    )
    item_id: Annotated[str, option("--item-id", "The column of the item ids.")] = "item_id"
    columns: Annotated[str, option("--columns", "The other columns to take, separated by commas.", default="all")] = ""
    once: Annotated[bool, option("--once", "End once there are no more changes.")] = False
    skip_bad: Annotated[bool, option("--skip-bad", "Skip changes that cannot be applied, and count them.")] = False
    from_now: Annotated[bool, option("--from-now", "At the first start, take only changes from now on.")] = False
    batch: Annotated[int, option("--batch", "The largest number of changes in one request to the server.")] = 1000
    properties: Annotated[
        list[str] | None, option("--set", "Set a property of the library: NAME=VALUE; repeatable.", metavar="NAME=VALUE")
    ] = None
    config: Annotated[
        Path | None, option("--config", "A file with one property NAME=VALUE per line, for passwords and other secrets.")
    ] = None

    @property
    def start(self) -> Literal["beginning", "now"]:
        return "now" if self.from_now else "beginning"

    def source_columns(self) -> "SourceColumns":
        from leafbeam.feeds import SourceColumns

        return SourceColumns(item_id=self.item_id, names=split_names(self.columns) or None)

    def library_properties(self) -> dict[str, str]:
        """Return the properties of the file, then those of the command line."""
        lines = [] if self.config is None else read_text(self.config).splitlines()
        lines = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        found: dict[str, str] = {}
        for text in [*lines, *(self.properties or ())]:
            name, equals, value = text.partition("=")
            if not equals:
                raise ArgumentError(f"{name.split(' ')[0]!r:.40}: expected a property as NAME=VALUE")
            found[name.strip()] = value.strip()
        return found


@with_options(Following)
def kafka(
    topic: Annotated[str, typer.Argument(help="The topic that Debezium writes, such as shop.public.items.")],
    group: Annotated[str, option("--group", "The consumer group that keeps the offsets; use one for each catalog.")],
    servers: Annotated[str, option("--servers", "The addresses of Kafka's brokers: HOST:PORT,HOST:PORT.")] = "localhost:9092",
    *,
    following: Following,
) -> None:
    """Follow a Kafka topic with Debezium's change events, as JSON.

    The offset of a change is committed once the server has it on disk. After a crash, run the command again: no change is lost
    or applied twice. Run only one such process for a catalog. --set and --config take properties of librdkafka.
    """
    _require("kafka", "confluent_kafka")
    from leafbeam.feeds import KafkaFeed

    feed = KafkaFeed(
        servers,
        topic,
        group=group,
        columns=following.source_columns(),
        start=following.start,
        max_changes=following.batch,
        properties=following.library_properties(),
    )
    _follow(feed, following, wait_s=1.0)


@with_options(Following)
def delta(
    table: Annotated[str, typer.Argument(help="The table: a directory, or an address such as s3://bucket/items.")],
    position: PositionOption,
    every: EveryOption = 10.0,
    *,
    following: Following,
) -> None:
    """Follow a Delta table: its rows, then what each newer version changes.

    Two versions are compared row by row in memory, so their columns must fit into it. --set and --config take properties
    of the storage.
    """
    _require("delta", "deltalake", "pyarrow", "duckdb")
    from leafbeam.feeds import DeltaSource

    _follow_table(DeltaSource(table, following.library_properties()), position, following, wait_s=every)


@with_options(Following)
def iceberg(
    table: Annotated[str, typer.Argument(help="The table, such as shop.items.")],
    position: PositionOption,
    catalog: Annotated[str, option("--catalog", "The name of the catalog in pyiceberg's configuration.")] = "default",
    every: EveryOption = 10.0,
    *,
    following: Following,
) -> None:
    """Follow an Iceberg table: its rows, then what each newer snapshot changes.

    Two snapshots are compared row by row in memory, so their columns must fit into it. --set and --config take
    properties of the catalog, such as uri.
    """
    _require("iceberg", "pyiceberg", "pyarrow", "duckdb")
    from leafbeam.feeds import IcebergSource

    source = IcebergSource(table, catalog=catalog, properties=following.library_properties())
    _follow_table(source, position, following, wait_s=every)


def _follow_table(source: "VersionedTable", position: Path, following: Following, *, wait_s: float) -> None:
    from leafbeam.feeds import TableFeed

    columns = following.source_columns()
    feed = TableFeed(source, position, columns=columns, start=following.start, max_changes=following.batch)
    _follow(feed, following, wait_s=wait_s)


def _follow(feed: "Feed", following: Following, *, wait_s: float) -> None:
    from leafbeam.cli.item_writer import DEADLINE_S
    from leafbeam.client import Client, Retries
    from leafbeam.feeds import Followed, follow

    began, so_far = time.perf_counter(), Followed.nothing()

    def note(followed: "Followed") -> None:
        nonlocal so_far
        so_far = followed

    with closing(feed), Client(following.url, key=os.environ.get(KEY), retries=Retries(deadline_s=DEADLINE_S)) as client:
        try:
            with suppress(KeyboardInterrupt):
                follow(feed, client, once=following.once, skip_bad=following.skip_bad, wait_s=wait_s, on_batch=note)
        finally:
            skipped = f", {counted(so_far.skipped, 'bad change')} skipped" if following.skip_bad else ""
            counts = (
                f"{counted(so_far.inserted, 'item')} added, {so_far.updated:,} replaced, {so_far.deleted:,} removed{skipped}"
            )
            done(stdout(), counts, since=began)


def _require(extra: str, *modules: str) -> None:
    require(f"`leafbeam items follow {extra}`", *modules, "httpx", "msgspec", extra=extra)


app = typer.Typer(no_args_is_help=True, help="Apply the changes of another system to a run's server as they arrive.")
app.command("kafka")(kafka)
app.command("delta")(delta)
app.command("iceberg")(iceberg)
