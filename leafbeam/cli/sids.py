"""`leafbeam fit-sids`."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console

from leafbeam import semid, train
from leafbeam.cli.console import Bar, done, next_step, show_types, stdout
from leafbeam.cli.options import (
    DEFAULT_RUN,
    Format,
    Incomplete,
    Order,
    RunOption,
    SplitBy,
    TimeUnit,
    check_plot,
    delimiter_of,
    option,
    parse_sizes,
    split_names,
    with_options,
)
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.errors import DataError, counted
from leafbeam.extras import require
from leafbeam.semid import CollisionStrategy, EmbeddingConfig, Method, QuantiserConfig

TABLES = "Your tables (remembered in the run)"
VECTORS = "Vectors and codes"
# The counts of the log's report that are shown if they are not 0, each with its noun in the singular.
IRREGULAR = {
    "incomplete_rows_dropped": "incomplete row dropped",
    "duplicates_dropped": "duplicate dropped",
    "unlisted_items": "unlisted item",
    "core_rows_dropped": "core row dropped",
    "unseen_items": "unseen item",
    "rows_in_the_future": "row in the future",
    "rows_before_1980": "row before 1980",
    "tied_times": "tied time",
}


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of a log in tables; those that are None stay as the run has them."""

    user_column: Annotated[
        str | None, option("--user-column", "The column of the user of an interaction.", TABLES, default="user_id")
    ] = None
    item_column: Annotated[
        str | None, option("--item-column", "The column of the item of an interaction.", TABLES, default="item_id")
    ] = None
    time_column: Annotated[
        str | None, option("--time-column", "The column of the time of an interaction.", TABLES, default="timestamp")
    ] = None
    time_unit: Annotated[
        TimeUnit | None,
        option("--time-unit", "The unit of times that are written as numbers.", TABLES, default="s", metavar="s|ms|us|ns"),
    ] = None
    incomplete: Annotated[
        Incomplete | None,
        option(
            "--incomplete",
            "Refuse incomplete rows, or drop them.",
            TABLES,
            default="refuse",
            metavar="refuse|drop",
        ),
    ] = None
    order: Annotated[
        Order | None,
        option(
            "--order",
            "By time (time), or as in the file, without times (file).",
            TABLES,
            default="time",
            metavar="NAME",
        ),
    ] = None
    split: Annotated[
        SplitBy | None,
        option(
            "--split",
            "Hold out the last items of each user (user), or all after a cut in time (time).",
            TABLES,
            default="user",
            metavar="user|time",
        ),
    ] = None
    id_column: Annotated[
        str | None, option("--id-column", "The column of item ids in the table of items.", TABLES, default="as --item-column")
    ] = None
    text_columns: Annotated[
        str | None,
        option(
            "--text-columns",
            "The columns with the text of items, separated by commas.",
            TABLES,
            default="every column of words",
        ),
    ] = None
    text_ids: Annotated[bool, option("--text-ids", "Read all ids as text: “0”, not 0.", TABLES)] = False
    delimiter: Annotated[
        str | None, option("--delimiter", "The delimiter of CSV: one character, or tab.", TABLES, default=",")
    ] = None
    items_delimiter: Annotated[
        str | None, option("--items-delimiter", "The delimiter of the CSV file of items.", TABLES, default="as --delimiter")
    ] = None
    encoding: Annotated[
        str | None, option("--encoding", "The encoding of CSV, such as latin-1 or utf-16.", TABLES, default="utf-8")
    ] = None
    k_core: Annotated[
        int | None, option("--core", "Keep only users and items with at least this many rows.", TABLES, default="all")
    ] = None

    def changes(self) -> dict[str, object]:
        """Return the fields of a source that these options change."""
        words = {
            "text_columns": self.text_columns and split_names(self.text_columns),
            "text_ids": self.text_ids or None,
            "delimiter": self.delimiter and delimiter_of(self.delimiter),
            "items_delimiter": self.items_delimiter and delimiter_of(self.items_delimiter),
        }
        return {name: value for name, value in {**vars(self), **words}.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """The options of the items' vectors, and of the codes that these get."""

    text: Annotated[
        str,
        option("--text", "The way the text of items becomes vectors: tfidf, none, or the name of a sentence model.", VECTORS),
    ] = "tfidf"
    no_behaviour: Annotated[
        bool, option("--no-behaviour", "Ignore which items occur together in the interactions.", VECTORS)
    ] = False
    vectors: Annotated[
        Path | None,
        option("--vectors", "A file of your own item vectors (.npy, .parquet), in place of text and behaviour.", VECTORS),
    ] = None
    method: Annotated[
        Method, option("--quantiser", "The method that turns vectors into codes: kmeans or rqvae.", VECTORS, metavar="NAME")
    ] = "kmeans"
    codebooks: Annotated[
        str | None,
        option("--codebooks", "The number of codes of each level.", VECTORS, default="chosen by the number of items"),
    ] = None
    collision_strategy: Annotated[
        CollisionStrategy | None,
        option(
            "--collision-strategy",
            "The way items with the same codes are told apart: spread, level, free, hungarian, sinkhorn or none.",
            VECTORS,
            default="spread; level if --codebooks",
            metavar="NAME",
        ),
    ] = None
    plot: Annotated[Path | None, option("--plot", "Plot the report into a file (.png, .svg).", VECTORS)] = None
    seed: Annotated[int, option("--seed", "The random seed; the same seed gives the same codes.", VECTORS)] = 0

    @property
    def quantiser(self) -> QuantiserConfig:
        """Return the settings of the quantiser."""
        sizes = None if self.codebooks is None else parse_sizes(self.codebooks, "--codebooks")
        return QuantiserConfig(codebook_sizes=sizes, collision_strategy=self.collision_strategy, method=self.method)

    def embedding(self, source: Source) -> EmbeddingConfig:
        """Return the settings of the vectors of a log's items."""
        dims = {"behaviour_dims": 0} if self.no_behaviour else {}
        return EmbeddingConfig(text=self.text, text_columns=source.text_columns, **dims)


@with_options(TableOptions, VectorOptions)
def fit_sids(
    data: Annotated[Path | None, option("--data", "The directory or file of interactions.", default="the run's")] = None,
    items: Annotated[
        Path | None, option("--items --metadata", "The file of items, if it is not in the directory of --data.")
    ] = None,
    run: RunOption = DEFAULT_RUN,
    kind: Annotated[
        Format | None,
        option("--format", "The format of the data: tables, amazon, movielens or cornac.", default="tables", metavar="NAME"),
    ] = None,
    *,
    tables: TableOptions,
    making: VectorOptions,
) -> None:
    """Read a log, and give every item a Semantic ID from its text and its training interactions."""
    quantiser = making.quantiser
    if making.plot is not None:
        check_plot(making.plot)
    require("`leafbeam fit-sids`", "pyarrow", "scipy", "sklearn", "torch", extra="train")
    paths = RunDirectory(run)
    remembered = Source.load(paths.source) if data is None and paths.source.exists() else Source(path=data or run)
    options = {name: value for name, value in {"kind": kind, "items": items}.items() if value is not None}
    source = replace(remembered, **options, **tables.changes())
    embedding = making.embedding(source)
    if source.path is None or not source.path.exists():
        raise DataError(f"there is no {source.path}: pass the log's directory or file with --data")
    console, began = stdout(), time.perf_counter()
    log = source.read()
    split = source.split_of(log)
    source.save(paths.source)
    too_short = counted(split.report.users_too_short, "user has", "users have")
    moment = "" if source.split == "user" else " before or after the cut"
    sizes = (
        f"{counted(log.num_users, 'user')}, {counted(log.num_items, 'item')}, {counted(log.report.interactions, 'interaction')}"
    )
    done(console, f"{source.path}: {sizes}; {too_short} too few interactions{moment} to evaluate", since=began)
    _show_log(console, source, log)

    began = time.perf_counter()
    own_vectors = None if making.vectors is None else semid.load_vectors(making.vectors, log.item_ids)
    with Bar("reading") as bar:
        fitted = semid.fit_sids(
            log.items,
            None if making.no_behaviour else split.train,
            embedding=embedding if own_vectors is None else None,
            vectors=own_vectors,
            quantiser=quantiser,
            seed=making.seed,
            progress=bar.show,
        )
    _save(console, fitted, paths, making.plot)
    sids = counted(fitted.report.distinct_after, "SID")
    levels = " x ".join(str(size) for size in fitted.table.codebook_sizes)
    done(console, f"{paths.sids}: {counted(len(fitted.table), 'item')} with {sids} of {levels}", since=began)
    paths.add_to_report("data", {"path": str(source.path), **asdict(log.report), "split": asdict(split.report)})
    paths.add_to_report("fit-sids", asdict(fitted.report))
    next_step(console, "leafbeam", "train", "--run", run)


def _show_log(console: Console, source: Source, log: "train.InteractionLog") -> None:
    """Show the type of the ids, what was dropped or added, the types of columns, and what is probably a mistake."""
    counts = {name: getattr(log.report, name) for name in IRREGULAR}
    if counts["unlisted_items"] == log.num_items:  # there is no table of items
        counts["unlisted_items"] = 0
    if source.kind == "tables":
        example = log.item_ids[0].item()
        id_type = "text" if isinstance(example, str) else "whole numbers (--text-ids makes them text)"
        console.print(f"Item ids are {id_type}: requests name {example!r}", style="dim", soft_wrap=True)
    if notes := [counted(count, IRREGULAR[name], name.replace("_", " ")) for name, count in counts.items() if count]:
        console.print(", ".join(notes), style="dim", soft_wrap=True)
    show_types(console, log.items)
    for note in log.report.notes:
        console.print(f"Warning: {note}", style="yellow", soft_wrap=True)


def _save(console: Console, fitted: "semid.SidFit", paths: RunDirectory, plot: Path | None) -> None:
    """Write the Semantic IDs and what gives new items theirs, and show the report."""
    fitted.table.save(paths.sids)
    fitted.quantiser.save(paths.quantiser)
    fitted.code_vectors.save(paths.quantiser, fitted.table)
    fitted.encoder.save(paths.quantiser, fitted.table)
    console.print(fitted.report.summary, style="dim")
    for note in fitted.report.notes:
        console.print(f"Warning: {note}", style="yellow", soft_wrap=True)
    if plot is not None:
        semid.plot_report(fitted.report, fitted.table).savefig(plot, dpi=160)
