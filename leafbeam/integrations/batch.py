"""Recommendations for a table of users: Parquet in, Parquet out, one file for each partition.

A partition is a range of rows of one row group. Its output file appears whole or not at all, and a job skips partitions whose
file exists. `ray_batch` runs the same partitions on many machines.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.engine import CatalogFiles, Engine, Limits, Request, Result, Settings
from leafbeam.errors import ArgumentError, DataError, ItemIdError, RequestError, check_whole
from leafbeam.files import replacing, write_json
from leafbeam.index import Trie
from leafbeam.json_reader import Json
from leafbeam.live import LiveIndex
from leafbeam.precision import Precision
from leafbeam.tables import open_parquet

MANIFEST = "_manifest.json"
_FORMAT = 1
_NO_LIMIT = 1 << 40  # a history is cut to the newest items that the model can see, and the output says how many
Progress = Callable[["PartitionResult", int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class UserColumns:
    """The columns of a table of users.

    Args:
        user: The column of user ids, which are copied to the output.
        history: The column with lists of item ids, oldest first; null is an empty history.
        deny: The column with lists of item ids that must not be returned; None without one.
    """

    user: str = "user_id"
    history: str = "history"
    deny: str | None = None

    @property
    def names(self) -> list[str]:
        """Return the columns to read."""
        return [name for name in (self.user, self.history, self.deny) if name is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Rows [first, first + rows) of a row group of a file."""

    number: int
    file: str
    row_group: int
    first: int
    rows: int

    @property
    def output(self) -> str:
        """Return the name of its output file."""
        return f"part-{self.number:06d}.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionResult:
    """Counts of a written partition. short_answers: users with fewer items than requested. unknown_items: ids of histories."""

    number: int
    users: int
    short_answers: int
    unknown_items: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlan:
    """All partitions of a job, and those that have no output yet."""

    partitions: tuple[Partition, ...]
    pending: tuple[Partition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchJob:
    """Recommendations for all users of a table. All paths are made absolute.

    Args:
        model: The directory of the model.
        files: The index, the catalog, its rules and the item memory.
        users: A Parquet file, or a directory of them, read in the order of their names.
        out: The directory to write, which Parquet readers read as one table.
        request: The request of every user; its user, history and denied items come from the table.
        columns: The columns of the table.
        partition_rows: The largest number of users of a partition.
        device: The device of the model.
        max_batch: The largest number of requests that the engine runs together.
        precision: As for the engine's `Settings`.

    Examples:
        >>> files = CatalogFiles(index="runs/shop/index.leafbeam")
        >>> job = BatchJob(model="runs/shop/model", files=files, users="users.parquet", out="out.parquet")
        >>> job.request.num_items
        10
    """

    model: str
    files: CatalogFiles
    users: str
    out: str
    request: Request = field(default_factory=Request)
    columns: UserColumns = UserColumns()
    partition_rows: int = 4096
    device: str = "cpu"
    max_batch: int = 64
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", self.files.absolute())
        for name in ("model", "users", "out"):
            object.__setattr__(self, name, os.path.abspath(getattr(self, name)))
        check_whole(partition_rows=self.partition_rows, max_batch=self.max_batch)
        if self.request.history or self.request.deny_item_ids or self.request.user is not None:
            raise ArgumentError("request: leave out user, history and deny_item_ids, which come from the table of users")

    def plan(self) -> JobPlan:
        """Split the users into partitions, and create the output directory or check that it belongs to this job.

        Its manifest holds digests of the model, index, rules, request and users.

        Raises:
            DataError: If the directory is another job's, or the users cannot be read.
        """
        files, out = self._files(), Path(self.out)
        partitions = self._partitions(files)
        manifest, path = self._manifest(files, len(partitions)), out / MANIFEST
        if path.exists():
            _compare(path, manifest)
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(f"{out} exists and is not the output of a batch job: name another directory, or remove it")
        else:
            out.mkdir(parents=True, exist_ok=True)
            write_json(path, manifest, durable=True)
        pending = tuple(partition for partition in partitions if not (out / partition.output).exists())
        return JobPlan(partitions=tuple(partitions), pending=pending)

    def _files(self) -> list[Path]:
        users = Path(self.users)
        files = sorted(users.glob("*.parquet")) if users.is_dir() else [users]
        if not files or not all(file.is_file() for file in files):
            raise DataError(f"{users} is neither a Parquet file nor a directory of *.parquet files")
        return files

    def _partitions(self, files: list[Path]) -> list[Partition]:
        partitions: list[Partition] = []
        for file in files:
            with open_parquet(file) as footer:
                self._check_columns(file, footer.schema_arrow)
                lengths = [footer.metadata.row_group(group).num_rows for group in range(footer.num_row_groups)]
            for group, num_rows in enumerate(lengths):
                for first in range(0, num_rows, self.partition_rows):
                    number, rows = len(partitions), min(self.partition_rows, num_rows - first)
                    partitions.append(Partition(number=number, file=str(file), row_group=group, first=first, rows=rows))
        return partitions

    def _check_columns(self, file: Path, schema: pa.Schema) -> None:
        for name in self.columns.names:
            if name not in schema.names:
                options = "--user-column and --history-column, in Python UserColumns"
                raise DataError(
                    f"{file} has no column {name!r}; it has {', '.join(schema.names)}: name its columns ({options})"
                )
            kind: pa.DataType = schema.field(name).type
            is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
            is_id = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
            if name != self.columns.user and not (is_list and any(check(kind.value_type) for check in is_id)):
                raise DataError(f"{file}: column {name!r} holds {kind}; expected lists of item ids, integers or text")

    def _manifest(self, files: list[Path], num_partitions: int) -> dict[str, object]:
        model, memory, rules = Path(self.model), self.files.memory, self.files.rules
        if not model.is_dir():
            raise DataError(f"{model} is not a model's directory")
        return {
            "format": _FORMAT,
            "model": _digest(sorted(path for path in model.iterdir() if path.suffix in (".json", ".safetensors"))),
            "index": _version_of(self.files.index),
            "rules_text": _digest(map(_source_of_rules, rules)) if isinstance(rules, tuple) else None,  # as `absolute` makes it
            "memory": None if memory is None else _digest([Path(memory)]),
            "request": json.loads(json.dumps(asdict(self.request) | {"columns": asdict(self.columns)})),
            "partition_rows": self.partition_rows,
            "partitions": num_partitions,
            "users": {file.name: _footer_digest(file) for file in files},
            **({} if self.precision == "float32" else {"precision": self.precision}),  # directories of older versions lack it
        }


class PartitionRunner:
    """An engine, loaded once, that answers one partition after the other in this process."""

    def __init__(self, job: BatchJob) -> None:
        self._job = job
        limits = replace(Limits(), max_history=_NO_LIMIT, max_deny=_NO_LIMIT)
        limits.check(job.request)
        settings = Settings(max_batch=job.max_batch, precision=job.precision)
        self._engine = Engine.load(job.model, job.files, device=job.device, limits=limits, settings=settings)

    def run(self, partition: Partition) -> PartitionResult:
        """Read, answer and write a partition.

        Raises:
            DataError: If a row cannot be read; it names file and row.
            LeafbeamError: If something is wrong with the whole batch, such as an unknown rule (UnknownRuleError).
        """
        began = time.monotonic()
        request, columns = self._job.request, self._job.columns
        with open_parquet(Path(partition.file)) as file:
            table = file.read_row_group(partition.row_group, columns=columns.names)
        table = table.slice(partition.first, partition.rows)
        users = table.column(columns.user)
        nulls = [None] * len(users)
        histories = table.column(columns.history).to_pylist()
        denied = nulls if columns.deny is None else table.column(columns.deny).to_pylist()
        user_ids = users.to_pylist() if self._engine.model.vocabulary.num_users else nulls
        row = partition.first

        def requests() -> Generator[Request]:
            nonlocal row
            for history, deny, user in zip(histories, denied, user_ids, strict=True):
                row += 1
                yield replace(request, history=tuple(history or ()), deny_item_ids=tuple(deny or ()), user=user)

        try:
            results = self._engine.recommend(requests())  # checks each request before it takes the next one
        except (RequestError, ItemIdError) as error:
            raise DataError(f"{partition.file}, row {row} of row group {partition.row_group}: {error}") from error
        output = self._table(users, results)
        with replacing(Path(self._job.out) / partition.output, durable=True) as part:
            pq.write_table(output, part)
        return PartitionResult(
            number=partition.number,
            users=len(results),
            short_answers=sum(result.num_valid < request.num_items for result in results),
            unknown_items=sum(len(result.ignored_history) for result in results),
            seconds=time.monotonic() - began,
        )

    def _table(self, users: object, results: list[Result]) -> pa.Table:
        """Return one row per user, with its items best first."""
        kind = pa.string() if self._engine.trie.item_ids.dtype.kind == "U" else pa.int64()
        columns: dict[str, object] = {
            self._job.columns.user: users,
            "item_ids": pa.array([list(result.item_ids) for result in results], pa.list_(kind)),
            "scores": pa.array([list(result.scores) for result in results], pa.list_(pa.float32())),
            "num_history_used": pa.array([result.num_history_used for result in results], pa.int32()),
            "num_history_left_out": pa.array([result.num_history_left_out for result in results], pa.int32()),
            "num_exact": pa.array([result.num_exact for result in results], pa.int32()),
            "index_version": pa.array([result.index_version for result in results], pa.string()).dictionary_encode(),
        }
        return pa.table(columns)


def recommend_users(job: BatchJob, *, progress: Progress | None = None) -> list[PartitionResult]:
    """Run the pending partitions of a job in this process.

    Args:
        job: The job.
        progress: Called after each partition with its result, the number of finished partitions, and the number of all.
    """
    plan = job.plan()
    finished = len(plan.partitions) - len(plan.pending)
    if not plan.pending:
        return []
    runner = PartitionRunner(job)
    results: list[PartitionResult] = []
    for partition in plan.pending:
        results.append(runner.run(partition))
        if progress is not None:
            progress(results[-1], finished + len(results), len(plan.partitions))
    return results


def _version_of(index: str | os.PathLike[str] | LiveIndex) -> str:
    if isinstance(index, LiveIndex):
        return index.version().name
    if not Path(index).is_dir():
        return Trie.load(os.fspath(index), verify=False).version
    with LiveIndex.open(index, read_only=True) as live:
        return live.version().name


def _compare(path: Path, manifest: dict[str, object]) -> None:
    try:
        existing: object = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}): name another output directory, or remove this one") from error
    if existing != manifest:
        existing = cast(dict[str, object], existing) if isinstance(existing, dict) else {}
        names = [name for name in manifest | existing if existing.get(name) != manifest.get(name)] or ["format"]
        raise DataError(
            f"{path.parent} holds recommendations of another job (different {', '.join(names)}): name another output "
            "directory, or remove this one"
        )


def _digest(sources: Iterable[Path | bytes]) -> str:
    """Return a digest of files, with their names, and of other content."""
    digest = blake2b(digest_size=16)
    for source in sources:
        if isinstance(source, bytes):
            digest.update(source)
            continue
        digest.update(source.name.encode() + b"\0")
        with source.open("rb") as file:
            file_digest(file, lambda: digest)
    return digest.hexdigest()


def _source_of_rules(source: Json | str | os.PathLike[str]) -> Path | bytes:
    return json.dumps(source).encode() if isinstance(source, Mapping) else Path(source)


def _footer_digest(file: Path) -> str:
    """Return a digest of a Parquet file's size and footer, which holds statistics of every column."""
    with file.open("rb") as open_file:
        size = open_file.seek(-8, os.SEEK_END) + 8
        length = int.from_bytes(open_file.read(4), "little")
        open_file.seek(max(0, size - 8 - length))
        return blake2b(size.to_bytes(8, "little") + open_file.read(), digest_size=16).hexdigest()
