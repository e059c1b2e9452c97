"""`leafbeam items follow`: the changes of a topic, a table or a publication, made on a run's server."""

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from leafbeam import client, feeds
from leafbeam.cli.console import done, stdout
from leafbeam.cli.options import DEADLINE_S, KEY, option, split_names, with_options
from leafbeam.errors import counted
from leafbeam.serve.feed_config import FeedConfig

PositionOption = Annotated[Path, option("--position", "The file that keeps the position in what is followed.")]
EveryOption = Annotated[float, option("--every", "The number of seconds between two checks of the table.")]


@dataclass(frozen=True, kw_only=True)
class Following:
    """The options that all commands for following a source share."""

    url: Annotated[str, option("--url", "The address of the run's server; its key is read from LEAFBEAM_KEY.")] = (
        "http://127.0.0.1:8000"
    )
    item_id: Annotated[str, option("--item-id", "The column of the item ids.")] = "item_id"
    columns: Annotated[str, option("--columns", "The other columns to take, separated by commas.", default="all")] = ""
    once: Annotated[bool, option("--once", "Stop when there are no more changes.")] = False
    skip_bad: Annotated[bool, option("--skip-bad", "Skip changes that cannot be applied, and count them.")] = False
    from_now: Annotated[bool, option("--from-now", "At the first start, take only changes from now on.")] = False
    batch: Annotated[int, option("--batch", "The largest number of changes in one request to the server.")] = 1000
    properties: Annotated[
        list[str] | None, option("--set", "Set a property of the library: NAME=VALUE; repeatable.", metavar="NAME=VALUE")
    ] = None
    config: Annotated[
        Path | None, option("--config", "A file with one property NAME=VALUE per line, for passwords and other secrets.")
    ] = None

    def feed(self, **source: Any) -> FeedConfig:
        """Return the settings of a source."""
        return FeedConfig(
            item_id=self.item_id,
            columns=tuple(split_names(self.columns)),
            skip_bad=self.skip_bad,
            from_now=self.from_now,
            batch=self.batch,
            properties=tuple(self.properties or ()),
            properties_file=self.config,
            **source,
        )


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
    _follow(following.feed(kafka=topic, servers=servers), group, following, wait_s=1.0)


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
    _follow(following.feed(delta=table), position, following, wait_s=every)


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
    _follow(following.feed(iceberg=table, catalog=catalog), position, following, wait_s=every)


@with_options(Following)
def postgres(
    publication: Annotated[str, typer.Argument(help="The publication, which has one table.")],
    position: PositionOption,
    database: Annotated[
        str, option("--database", "The database: postgresql://USER@HOST/NAME.", default="PGHOST, PGPASSWORD and so on")
    ] = "",
    slot: Annotated[
        str, option("--slot", "The name of the replication slot; use one for each catalog. It is created if there is none.")
    ] = "leafbeam",
    *,
    following: Following,
) -> None:
    """Follow a PostgreSQL publication: the rows of its table, then its changes, by logical replication.

    The database keeps all changes until the server has them, also while this command does not run. Drop a slot that is no
    longer followed: SELECT pg_drop_replication_slot('leafbeam'). --set and --config take properties of libpq.
    """
    _follow(following.feed(postgres=publication, database=database, slot=slot), position, following, wait_s=1.0)


def _follow(config: FeedConfig, position: Path | str, following: Following, *, wait_s: float) -> None:
    """Open the feed at a position (a file, or the group of a topic), and make its changes on the server."""
    from leafbeam.feeds.batch import require_library

    require_library(config, f"`leafbeam items follow {config.kind}`", "httpx", "msgspec")

    feed = feeds.open_feed(config, position)
    began, so_far = time.perf_counter(), feeds.Followed.nothing()

    def note(followed: "feeds.Followed") -> None:
        nonlocal so_far
        so_far = followed

    retries = client.Retries(deadline_s=DEADLINE_S)
    with closing(feed), client.Client(following.url, key=os.environ.get(KEY), retries=retries) as server:
        try:
            with suppress(KeyboardInterrupt):
                feeds.follow(feed, server, once=following.once, skip_bad=following.skip_bad, wait_s=wait_s, on_batch=note)
        finally:
            skipped = f", {counted(so_far.skipped, 'bad change')} skipped" if following.skip_bad else ""
            counts = (
                f"{counted(so_far.inserted, 'item')} added, {so_far.updated:,} replaced, {so_far.deleted:,} removed{skipped}"
            )
            done(stdout(), counts, since=began)


app = typer.Typer(no_args_is_help=True, help="Apply the changes of another system to a run's server as they arrive.")
app.command("kafka")(kafka)
app.command("delta")(delta)
app.command("iceberg")(iceberg)
app.command("postgres")(postgres)
