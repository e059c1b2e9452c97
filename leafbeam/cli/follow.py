"""`leafbeam items follow`: the changes of a Kafka topic, a Delta or an Iceberg table, made on a run's server."""

import os
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leafbeam.cli.console import done, stdout
from leafbeam.cli.options import option, split_names
from leafbeam.errors import ArgumentError
from leafbeam.extras import require
from leafbeam.files import read_text

if TYPE_CHECKING:
    from leafbeam.feeds import Feed, Followed, SourceColumns

UrlOption = Annotated[str, option("--url", "The address of the run's server; LEAFBEAM_KEY has its key.")]
OnceOption = Annotated[bool, option("--once", "End when there are no more changes.")]
SkipOption = Annotated[bool, option("--skip-bad", "Leave out changes that cannot be made, and count them.")]
FromNowOption = Annotated[bool, option("--from-now", "At the first start, take only changes from now on.")]
IdOption = Annotated[str, option("--item-id", "The column of the item ids.")]
ColumnsOption = Annotated[str, option("--columns", "The other columns to take: a,b,c.", default="all")]
BatchOption = Annotated[int, option("--batch", "The most changes of one request to the server.")]
EveryOption = Annotated[float, option("--every", "Seconds between two looks at the table.")]
PositionOption = Annotated[Path, option("--position", "The file that says how far the table was followed.")]
SetOption = Annotated[list[str] | None, option("--set", "A property of the library: NAME=VALUE.", metavar="NAME=VALUE")]
ConfigOption = Annotated[Path | None, option("--config", "A file with a property NAME=VALUE a line, such as passwords.")]
_URL = "http://127.0.0.1:8000"


def kafka(
    topic: Annotated[str, typer.Argument(help="The topic that Debezium writes, such as shop.public.items.")],
    group: Annotated[str, option("--group", "The consumer group whose offsets are kept; one for each catalog.")],
    servers: Annotated[str, option("--servers", "Kafka's brokers: HOST:PORT,HOST:PORT.")] = "localhost:9092",
    url: UrlOption = _URL,
    item_id: IdOption = "item_id",
    columns: ColumnsOption = "",
    once: OnceOption = False,
    skip_bad: SkipOption = False,
    from_now: FromNowOption = False,
    batch: BatchOption = 1000,
    properties: SetOption = None,
    config: ConfigOption = None,
) -> None:
    """Follow a Kafka topic with Debezium's change events, as JSON.

    The offset of a change is committed once the server has it on disk. After a crash, run the command again: nothing is lost or
    made twice. One process follows a topic for a catalog. Properties are those of librdkafka.
    """
    _require("kafka", "confluent_kafka")
    from leafbeam.feeds import KafkaFeed

    taken = _columns(item_id, columns)
    feed = KafkaFeed(
        servers,
        topic,
        group=group,
        columns=taken,
        start="now" if from_now else "beginning",
        max_changes=batch,
        properties=_properties(properties, config),
    )
    _follow(feed, url, once=once, skip_bad=skip_bad, wait_s=1.0)


def delta(
    table: Annotated[str, typer.Argument(help="The table: a directory, or an address such as s3://bucket/items.")],
    position: PositionOption,
    url: UrlOption = _URL,
    item_id: IdOption = "item_id",
    columns: ColumnsOption = "",
    once: OnceOption = False,
    skip_bad: SkipOption = False,
    from_now: FromNowOption = False,
    batch: BatchOption = 1000,
    every: EveryOption = 10.0,
    properties: SetOption = None,
    config: ConfigOption = None,
) -> None:
    """Follow a Delta table: its rows, then what each newer version changes.

    Two versions are compared row by row in memory, so their columns must fit. Properties are those of the storage.
    """
    _require("delta", "deltalake", "pyarrow", "duckdb")
    from leafbeam.feeds import DeltaSource, TableFeed

    taken, start = _columns(item_id, columns), "now" if from_now else "beginning"
    source = DeltaSource(table, _properties(properties, config))
    feed = TableFeed(source, position, columns=taken, start=start, max_changes=batch)
    _follow(feed, url, once=once, skip_bad=skip_bad, wait_s=every)


def iceberg(
    table: Annotated[str, typer.Argument(help="The table, such as shop.items.")],
    position: PositionOption,
    catalog: Annotated[str, option("--catalog", "The catalog in pyiceberg's configuration.")] = "default",
    url: UrlOption = _URL,
    item_id: IdOption = "item_id",
    columns: ColumnsOption = "",
    once: OnceOption = False,
    skip_bad: SkipOption = False,
    from_now: FromNowOption = False,
    batch: BatchOption = 1000,
    every: EveryOption = 10.0,
    properties: SetOption = None,
    config: ConfigOption = None,
) -> None:
    """Follow an Iceberg table: its rows, then what each newer snapshot changes.

    Two snapshots are compared row by row in memory, so their columns must fit. Properties are the catalog's, such as uri.
    """
    _require("iceberg", "pyiceberg", "pyarrow", "duckdb")
    from leafbeam.feeds import IcebergSource, TableFeed

    taken, start = _columns(item_id, columns), "now" if from_now else "beginning"
    source = IcebergSource(table, catalog=catalog, properties=_properties(properties, config))
    feed = TableFeed(source, position, columns=taken, start=start, max_changes=batch)
    _follow(feed, url, once=once, skip_bad=skip_bad, wait_s=every)


def _follow(feed: "Feed", url: str, *, once: bool, skip_bad: bool, wait_s: float) -> None:
    from leafbeam.cli.item_writer import DEADLINE_S, KEY
    from leafbeam.client import Client, Retries
    from leafbeam.feeds import Followed, follow

    began, so_far = time.perf_counter(), Followed()

    def note(followed: "Followed") -> None:
        nonlocal so_far
        so_far = followed

    with closing(feed), Client(url, key=os.environ.get(KEY), retries=Retries(deadline_s=DEADLINE_S)) as client:
        try:
            with suppress(KeyboardInterrupt):
                follow(feed, client, once=once, skip_bad=skip_bad, wait_s=wait_s, on_batch=note)
        finally:
            skipped = f", {so_far.skipped:,} bad changes skipped" if skip_bad else ""
            counts = f"{so_far.inserted:,} items added, {so_far.updated:,} replaced, {so_far.deleted:,} removed{skipped}"
            done(stdout(), counts, since=began)


def _require(extra: str, *modules: str) -> None:
    require(f"`leafbeam items follow {extra}`", *modules, "httpx", "msgspec", extra=extra)


def _columns(item_id: str, columns: str) -> "SourceColumns":
    from leafbeam.feeds import SourceColumns

    return SourceColumns(item_id=item_id, names=split_names(columns) or None)


def _properties(words: list[str] | None, config: Path | None) -> dict[str, str]:
    """The properties of a file, then those of the command line."""
    lines = [] if config is None else read_text(config).splitlines()
    found: dict[str, str] = {}
    for text in [*(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")), *(words or ())]:
        name, equals, value = text.partition("=")
        if not equals:
            raise ArgumentError(f"{name.split(' ')[0]!r:.40}: expected a property as NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


app = typer.Typer(no_args_is_help=True, help="Make the changes of another system on a run's server, as they come.")
app.command("kafka")(kafka)
app.command("delta")(delta)
app.command("iceberg")(iceberg)
