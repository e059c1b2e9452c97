"""`leafbeam recommend`: the next items after a history, or after those of a table of users."""

import gc
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from leafbeam import engine, integrations
from leafbeam.cli.console import Bar, done, next_step, stdout
from leafbeam.cli.options import (
    DEFAULT_RUN,
    DeviceOption,
    NoVerifyOption,
    ObjectiveOptions,
    PrecisionOption,
    RunOption,
    ScoringOption,
    option,
    split_names,
    with_options,
)
from leafbeam.cli.run import ENGINE_FILES, RunDirectory, Source
from leafbeam.errors import ArgumentError, counted
from leafbeam.extras import require, require_device

if TYPE_CHECKING:
    from leafbeam.integrations.batch import PartitionResult

TABLE = "A table of users"
Channel = Literal["model", "memory", "fused"]
_HISTORY_HELP = (
    "Item ids, oldest first, with commas between them. An id with a comma, or with blanks around it, goes into double quotes, "
    'as in A7,"B,8"; a double quote inside an id is written twice.'
)


@dataclass(frozen=True, kw_only=True)
class RequestOptions(ObjectiveOptions):
    """The options that say what to recommend."""

    history: Annotated[str | None, option("--history", _HISTORY_HELP)] = None
    user: Annotated[str, option("--user", "A user of the log, in place of --history.")] = ""
    rules: Annotated[str, option("--rules", "The names of rules that every item must obey, separated by commas.")] = ""
    deny: Annotated[str, option("--deny", "Item ids to exclude, written as for --history.")] = ""
    keep_history: Annotated[bool, option("--keep-history", "Return items of the history too.")] = False
    num_items: Annotated[int, option("--items", "The largest number of items to return.")] = 10
    num_beams: Annotated[
        int | None, option("--beams", "A fixed number of beams. Without it the answer is proved to be the best allowed list.")
    ] = None
    scoring: ScoringOption = "full"
    channel: Annotated[
        Channel | None,
        option(
            "--channel",
            "The source of the ranking: the model, the item memory, or both.",
            metavar="model|memory|fused",
            default="fused; model if there is no memory",
        ),
    ] = None

    def request(self, **fields: Any) -> "engine.Request":
        """Return the request of the options; `fields` are its ids."""
        shared = {name: getattr(self, name) for name in ("keep_history", "num_items", "num_beams", "scoring", "channel")}
        return engine.Request(
            rules=split_names(self.rules),
            **self.objectives,
            **shared,
            **fields,
        )


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of a table of users and of a cluster."""

    users: Annotated[
        Path | None, option("--users", "The Parquet file or directory of users to recommend for, in place of --history.", TABLE)
    ] = None
    out: Annotated[Path | None, option("--out", "The directory to write Parquet into.", TABLE)] = None
    user_column: Annotated[str, option("--user-column", "The column of user ids.", TABLE)] = "user_id"
    history_column: Annotated[
        str, option("--history-column", "The column of histories, which are lists of item ids.", TABLE)
    ] = "history"
    on_ray: Annotated[bool, option("--ray", "Run on a Ray cluster.", TABLE)] = False
    ray_address: Annotated[
        str | None, option("--ray-address", "The address of the Ray cluster.", TABLE, default="RAY_ADDRESS, or this machine")
    ] = None
    workers: Annotated[
        int | None,
        option("--workers", "The number of engines on the Ray cluster (with --ray).", TABLE, default="as many as fit"),
    ] = None


@with_options(RequestOptions, TableOptions)
def recommend(
    run: RunOption = DEFAULT_RUN,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
    no_verify: NoVerifyOption = False,
    *,
    wish: RequestOptions,
    table: TableOptions,
) -> None:
    """Recommend the next items after a history, under rules, as a table with titles.

    With --users, recommend for every user of a table; an interrupted call continues where it stopped.
    """
    _check(wish, table)
    paths = RunDirectory(run)
    paths.check(*ENGINE_FILES, *(["source"] if wish.user else []))
    require("`leafbeam recommend`", "duckdb", "pyarrow", "torch")
    if table.on_ray:
        require("`leafbeam recommend --ray`", "ray")
    else:
        require_device(device)
    if table.users is not None and table.out is not None:
        job = integrations.BatchJob(
            model=str(paths.model),
            files=paths.catalog_files(verify=not no_verify),
            users=str(table.users),
            out=str(table.out),
            request=wish.request(),
            columns=integrations.UserColumns(user=table.user_column, history=table.history_column),
            device=device,
            precision=precision,
        )
        _recommend_table(job, table)
        return
    gc.disable()  # imports make hundreds of thousands of lasting objects, and looking through them takes long
    try:
        _recommend_history(paths, wish, device, engine.Settings(precision=precision), verify=not no_verify)
    finally:
        gc.freeze()
        gc.unfreeze()  # all objects are old now, so that the next collection does not begin with them
        gc.enable()
    next_step(stdout(), "leafbeam", "serve", "--run", run)


def _recommend_history(
    paths: RunDirectory, wish: RequestOptions, device: str, settings: "engine.Settings", *, verify: bool
) -> None:
    """Recommend after one history, and show the items."""
    from leafbeam.cli import output

    files = paths.catalog_files(verify=verify)
    with closing(engine.Engine.load(paths.model, files, device=device, settings=settings)) as loaded:
        log = Source.load(paths.source).read() if wish.user else None
        history = output.parse_ids(wish.history or "", loaded.trie) if log is None else log.history_of(wish.user)
        deny = tuple(output.parse_ids(wish.deny, loaded.trie))
        request = wish.request(history=tuple(history), user=wish.user or None, deny_item_ids=deny)
        output.show(stdout(), loaded, request, loaded.recommend(request))


def _check(wish: RequestOptions, table: TableOptions) -> None:
    """Raise ArgumentError for options that do not go together."""
    if [wish.history is not None, bool(wish.user), table.users is not None].count(True) != 1:
        raise ArgumentError("pass one of --history A,B,C, --user U and --users TABLE")
    if (table.users is None) != (table.out is None):
        raise ArgumentError("pass both --users (the table to read) and --out (the directory to write)")
    if table.users is None and (table.on_ray or table.workers is not None or table.ray_address is not None):
        raise ArgumentError("--ray, --ray-address and --workers work only with --users")
    if table.users is not None and wish.deny:
        raise ArgumentError("--deny works only with --history and --user")


def _recommend_table(job: "integrations.BatchJob", table: TableOptions) -> None:
    """Recommend for every user of a table; partitions that an earlier call finished are kept."""
    console, began = stdout(), time.perf_counter()
    with Bar("recommending") as bar:

        def show(partition: "PartitionResult", finished: int, total: int) -> None:
            bar.show("recommending", finished / total, f"{finished:,} of {counted(total, 'partition')}")

        if table.on_ray:
            gpus = 1.0 if job.device.startswith("cuda") else 0.0
            partitions = integrations.recommend_users_on_ray(
                job, address=table.ray_address, workers=table.workers, gpus_per_worker=gpus, progress=show
            )
        else:
            partitions = integrations.recommend_users(job, progress=show)
    if not partitions:
        console.print(f"Nothing was left to do: {job.out} is complete.")
        return
    if unknown := sum(partition.unknown_items for partition in partitions):
        console.print(f"{counted(unknown, 'id of histories is', 'ids of histories are')} not in the index and left out.")
    if short := sum(partition.short_answers for partition in partitions):
        console.print(
            f"{counted(short, 'user has', 'users have')} fewer than {counted(job.request.num_items, 'item')}: "
            "no other items are allowed."
        )
    total = sum(partition.users for partition in partitions)
    rate = total / (time.perf_counter() - began)
    done(
        console,
        f"{job.out}: {counted(total, 'user')} in {counted(len(partitions), 'partition')}, {rate:,.0f} a second",
        since=began,
    )
