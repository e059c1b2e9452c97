"""A run directory: the files that commands leave for one another, and the interaction log that it is made from."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from leafbeam import engine, ingest, semid, tables, train
from leafbeam.cli.options import Format, Incomplete, Order, SplitBy, TimeUnit
from leafbeam.errors import ArgumentError, CheckpointError, DataError, check_choice
from leafbeam.files import read_json, read_text, write_json

if TYPE_CHECKING:
    import pyarrow as pa


# In JSON; other fields are like their defaults.
_KINDS: dict[str, UnionType | tuple[type, ...]] = {"path": str | None, "text_columns": (list, type(None))}
_PATHS = ("path", "items", "listed")
_COLUMNS = ("user_column", "item_column", "time_column", "id_column")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A log's files and how to read them, which a run saves so that later commands read the same log.

    All fields that are not listed here are those of `load_log`; all but path, items, k_core and split apply to tables alone.

    Args:
        path: A directory of tables (interactions.*, items.*) or of MovieLens, or the file of interactions or of Amazon reviews;
            None for an imported run without a log.
        listed: A Parquet file of the items of an imported run, in place of those of the log.
        items: The file of items, if it is not in that directory.
        k_core: The number of interactions that users and items need to be kept.
        split: Whether the last two items of each user are held out, or what came after a cut in time.
        id_column: The item id in the table of items; None takes item_column.
        text_columns: The columns of text of the items; None takes every column of words.
    """

    path: Path | None
    kind: Format = "tables"
    items: Path | None = None
    k_core: int = 0
    split: SplitBy = "user"
    user_column: str = "user_id"
    item_column: str = "item_id"
    time_column: str = "timestamp"
    id_column: str | None = None
    text_columns: tuple[str, ...] | None = None
    time_unit: TimeUnit = "s"
    incomplete: Incomplete = "refuse"
    order: Order = "time"
    text_ids: bool = False
    delimiter: str = ","
    items_delimiter: str | None = None
    encoding: str = "utf-8"
    listed: Path | None = None

    def __post_init__(self) -> None:
        check_choice("--format", self.kind, Format)
        check_choice("--split", self.split, SplitBy)
        if self.split == "time" and self.order == "file":
            raise ArgumentError(
                "--split time needs the times of interactions, which --order file does not read: use --order time, or --split "
                "user"
            )
        if self.kind in ("tables", "cornac"):
            return
        if self.items is not None and self.kind == "movielens":
            raise ArgumentError("--items works only with --format tables or amazon; MovieLens has movies.csv in its directory")
        for name in (*_COLUMNS, "time_unit", "incomplete", "order", "text_ids", "delimiter", "items_delimiter", "encoding"):
            if getattr(self, name) != self.__dataclass_fields__[name].default:
                flag = "--" + name.replace("_", "-")
                raise ArgumentError(f"{flag} needs --format tables; {self.kind} has columns and units of its own")

    def read(self) -> train.InteractionLog:
        """Read the log.

        Raises:
            DataError: If the log cannot be read, or the run was imported without one.
        """
        log = self._read_log()
        if self.listed is None:
            return log
        from leafbeam.train.item_join import with_items

        return with_items(log, self._read_listed())

    def split_of(self, log: train.InteractionLog) -> train.Split:
        """Return the parts of the log.

        Raises:
            ArgumentError: If the log is split by time, and its times leave no cut.
        """
        return train.cut_in_time(log) if self.split == "time" else train.leave_one_out(log)

    def read_items(self) -> pa.Table:
        """Read the items with their attributes, `item_id` first; raise DataError if that is impossible."""
        return self.read().items if self.listed is None else self._read_listed()

    def _read_listed(self) -> pa.Table:
        assert self.listed is not None
        try:
            return tables.read_parquet(self.listed).table
        except DataError as error:
            raise DataError(f"{error}: import the run again") from error

    def _read_log(self) -> train.InteractionLog:
        if self.path is None:
            raise DataError("this run was imported without interactions: import it again, with their file as --data")
        if self.kind == "amazon":
            return train.load_amazon(self.path, self.items, k_core=self.k_core)
        if self.kind == "movielens":
            return train.load_movielens(self.path, k_core=self.k_core)
        is_file = self.path.is_file()
        if self.kind == "cornac" and not is_file:
            raise DataError(f"{self.path} is not a file: expected the one file in which cornac keeps users, items and ratings")
        return train.load_log(
            None if is_file else self.path,
            interactions=self.path if is_file else None,
            items=self.items,
            columns=train.Columns(
                user=self.user_column,
                item=self.item_column,
                timestamp=self.time_column,
                item_of_items=self.id_column or self.item_column,
            ),
            rules=train.LogRules(
                time_unit=self.time_unit,
                incomplete=self.incomplete,
                order=self.order,
                k_core=self.k_core,
                text_ids=self.text_ids,
            ),
            form=tables.CsvFormat(delimiter=self.delimiter, encoding=self.encoding),
            items_form=tables.CsvFormat(delimiter=self.items_delimiter or self.delimiter, encoding=self.encoding),
            headerless=self.kind == "cornac",
        )

    @property
    def directory(self) -> Path | None:
        """Return the directory of the log, which may hold a rules.toml too; None without a log."""
        return self.path if self.path is None or self.path.is_dir() else self.path.parent

    def save(self, path: Path) -> None:
        """Write it as JSON with absolute paths."""
        fields = asdict(self)
        fields |= {name: None if (file := getattr(self, name)) is None else str(file.resolve()) for name in _PATHS}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, fields)

    @classmethod
    def load(cls, path: Path) -> Source:
        """Read what `save` wrote, now or in version 0.1; raise DataError for anything else."""
        try:
            fields: dict[str, Any] = read_json(path)
            renamed = {"data": "path", "format": "kind", "metadata": "items"}  # of version 0.1
            fields = {renamed.get(name, name): value for name, value in fields.items()}
            for name, value in fields.items():
                default = cls.__dataclass_fields__[name].default
                kind = _KINDS.get(name, str | None if default is None else type(default))
                if not isinstance(value, kind):
                    raise TypeError(f"{name} is {value!r:.80}")
            fields = {"listed": None} | fields
            fields |= {name: None if (file := fields[name]) is None else Path(file) for name in _PATHS}
            fields["text_columns"] = None if fields.get("text_columns") is None else tuple(fields["text_columns"])
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} cannot be read ({error}): run `leafbeam fit-sids --data ...` again") from error


ENGINE_FILES = ("model", "trie", "catalog", "rules")  # without which a run cannot answer
_SAMPLE = 1000  # of the items whose codes are compared
_MAX_SHOWN = 10
_OF_A_RUN = ("source.json", "index.leafbeam")
WRITERS = {"source": "fit-sids", "sids": "fit-sids", "model": "train", "trie": "build", "catalog": "build", "rules": "build"}


class RunDirectory:
    """Paths of a run, and its report.

    source.json          where the log is, its format, columns and units    (fit-sids, import)
    sids.parquet, sids/  Semantic IDs, and the quantiser that made them     (fit-sids, import)
    imported_items.parquet  the items of imported Semantic IDs              (import)
    checkpoint/, model/  training's state, and the model in HF's format     (train)
    memory.leafbeam      the item memory, and how it is fused with the model   (train)
    index.leafbeam       the index                                          (build)
    catalog.duckdb       items and their attributes                         (build)
    rules.toml           rules as SQL predicates                            (yours)
    live/                items and rules that came since                    (serve, items)
    search_widths.json   how many beams the proofs of recent requests needed    (serve)
    report.json          figures of every step, one entry a step            (all)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = path / "source.json"
        self.sids = path / "sids.parquet"
        self.items = path / "imported_items.parquet"
        self.quantiser = path / "sids"
        self.model = path / "model"
        self.memory = path / "memory.leafbeam"
        self.trie = path / "index.leafbeam"
        self.catalog = path / "catalog.duckdb"
        self.rules = path / "rules.toml"
        self.live = path / "live"
        self.search_widths = path / "search_widths.json"
        self.report = path / "report.json"

    @property
    def index(self) -> Path:
        """Return the index to answer from: that of the changes since `build`, if there are any.

        Raises:
            ConflictError: If the changes belong to another build.
        """
        ingest.check_origin(self.live, self.trie)
        return self.live / ingest.INDEX if (self.live / ingest.INDEX / "manifest.json").exists() else self.trie

    @property
    def rule_files(self) -> list[Path]:
        """Return rules.toml, and the file of the rules made over HTTP."""
        return [path for path in (self.rules, self.live / ingest.RULES) if path.exists()]

    def load_encoder(self) -> semid.ItemEncoder | str:
        """Return the encoder that gives new items codes from their text, or a text that says why this run has none."""
        if not self.sids.exists() or not self.quantiser.exists():
            return f"{self.path} has no {self.quantiser.name}/: its Semantic IDs are from elsewhere, so give new items codes"
        try:
            sids = semid.SidTable.load(self.sids)
            encoder = semid.ItemEncoder.load(self.quantiser, sids)
            check_sids(sids, self.trie)
        except CheckpointError as error:
            return str(error)
        return encoder

    def catalog_files(self, *, verify: bool) -> engine.CatalogFiles:
        """Return the files to answer from, with the changes that clients have made since `build`."""
        return engine.CatalogFiles(
            index=self.index, catalog=self.catalog, rules=self.rule_files, verify=verify, memory=self.fitted_memory
        )

    @property
    def fitted_memory(self) -> Path | None:
        """Return the item memory, or None if the run of an older leafbeam has none."""
        return self.memory if self.memory.exists() else None

    def check(self, *names: str) -> None:
        """Raise CheckpointError, which names the command to run first, where the run or one of these files does not exist."""
        if names and not self.path.exists():
            beside = sorted(map(str, paths_of_runs(self.path.parent)))
            known = f"; runs beside it: {', '.join(beside[:_MAX_SHOWN])}" if beside else ""
            raise CheckpointError(
                f"there is no run {self.path} (--run): `leafbeam fit-sids --run {self.path}` begins one{known}"
            )
        for name in names:
            path: Path = getattr(self, name)
            if not path.exists():
                raise CheckpointError(f"{path} does not exist: run `leafbeam {WRITERS[name]} --run {self.path}` first")

    def add_to_report(self, step: str, figures: Mapping[str, object]) -> None:
        """Write the figures of a step into report.json; those of other steps stay."""
        report = self.read_report()
        report[step] = figures
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.report, report)

    def read_report(self) -> dict[str, Mapping[str, object]]:
        """Read the figures of all steps so far, which are empty before the first."""
        if not self.report.exists():
            return {}
        try:  # JSON has no NaN; old reports may hold one, which is read as null
            report = json.loads(read_text(self.report), parse_constant=lambda _: None, parse_float=_finite)
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{self.report} cannot be read as JSON ({error}): delete it and run the steps again") from error
        if not isinstance(report, dict) or not all(isinstance(figures, dict) for figures in report.values()):
            raise DataError(f"{self.report} holds no JSON object of objects: delete it and run the steps again")
        return report


def paths_of_runs(directory: Path) -> set[Path]:
    """Return the directories in a directory that hold a run."""
    return {file.parent for name in _OF_A_RUN for file in directory.glob(f"*/{name}")}


def check_sids(sids: semid.SidTable, trie: Path) -> None:
    """Raise CheckpointError unless an index has the codes of a table, of a sample of its items."""
    from leafbeam.index import Trie

    index = Trie.load(trie, verify=False)
    rows = slice(None, None, max(1, len(sids) // _SAMPLE))
    ids = sids.item_ids[rows]
    same = index.codebook_sizes == sids.codebook_sizes and bool(index.knows(ids).all())
    if not same or (index.codes_of(ids) != sids.codes[rows]).any():
        raise CheckpointError(f"{trie} has other Semantic IDs than the run's sids.parquet: run `leafbeam build` again")


def _finite(text: str) -> float | None:
    """Return a number of JSON, or None if a float64 cannot hold it, such as 1e999."""
    return number if isfinite(number := float(text)) else None
