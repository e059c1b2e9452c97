"""Recommendations for a table of users: Parquet in, Parquet out, one partition at a time, each finished for good.

A partition is a run of rows of one row group of one file. Its answers are one file of the output, written whole or not at all;
what is there already is not done again. `ray_batch` does the same on many machines.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.engine import Engine, ItemId, Limits, Request, Result, Scoring, UserId
from leafbeam.errors import ArgumentError, DataError, RequestError
from leafbeam.index import Trie

__all__ = ["Asked", "BatchJob", "Done", "Files", "Partition", "PartitionRunner", "Plan", "recommend_users"]

MANIFEST = "_manifest.json"
_FORMAT = 1
_NO_LIMIT = 1 << 40  # histories are the caller's own; the model's newest items are taken, and how many is in the output
Progress = Callable[["Done", int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """What answers: a model's directory, an index, and where there are rules a catalog and their file. Absolute paths."""

    model: str
    index: str
    catalog: str | None = None
    rules: str | None = None

    def __post_init__(self) -> None:
        for name in ("model", "index", "catalog", "rules"):
            path = getattr(self, name)
            if path is not None:
                object.__setattr__(self, name, os.path.abspath(path))
        if self.rules is not None and self.catalog is None:
            raise ArgumentError("rules need a catalog to look at: give its path too")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What every user of the table is asked for; the fields of a `Request`.

    user_column: copied to the output; ids that a model with tokens for users reads. history_column: lists of item ids, oldest
        first; null is an empty history.
    deny_column: None, or lists of item ids that must not come back. deny_history: neither must those of the history.
    """

    num_items: int = 10
    num_beams: int | None = None
    scoring: Scoring = "full"
    rules: tuple[str, ...] = ()
    filter: str | None = None
    user_column: str = "user_id"
    history_column: str = "history"
    deny_column: str | None = None
    deny_history: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        self.request()

    def request(self, history: tuple[ItemId, ...] = (), deny: tuple[ItemId, ...] = (), user: UserId | None = None) -> Request:
        """The request of one user. Raises RequestError."""
        return Request(
            history=history,
            user=user,
            deny_item_ids=(*deny, *history) if self.deny_history else deny,
            num_items=self.num_items,
            num_beams=self.num_beams,
            scoring=self.scoring,
            rules=self.rules,
            filter=self.filter,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Rows [first, first + rows) of a row group of a file, and the name of what answers them."""

    number: int
    file: str
    row_group: int
    first: int
    rows: int

    @property
    def output(self) -> str:
        """The name of its file in the output."""
        return f"part-{self.number:06d}.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """One partition answered. short: users with fewer items than asked for. unknown_items: history ids unknown to the index."""

    number: int
    users: int
    short: int
    unknown_items: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The partitions of a job: all of them, and those that have no output yet."""

    partitions: tuple[Partition, ...]
    pending: tuple[Partition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchJob:
    """Users in, recommendations out.

    users: a Parquet file, or a directory of them (read in the order of their names). out: a directory that Parquet readers take
    for one table. partition_rows: users of a partition at most. device, max_batch: of the engine.

    >>> files = Files(model="runs/shop/model", index="runs/shop/index.leafbeam")
    >>> BatchJob(files=files, users="users.parquet", out="out.parquet").asked.num_items
    10
    """

    files: Files
    users: str
    out: str
    asked: Asked = Asked()
    partition_rows: int = 4096
    device: str = "cpu"
    max_batch: int = 64

    def __post_init__(self) -> None:
        for name in ("users", "out"):
            object.__setattr__(self, name, os.path.abspath(getattr(self, name)))
        if self.partition_rows < 1 or self.max_batch < 1:
            raise ArgumentError(f"partition_rows={self.partition_rows} and max_batch={self.max_batch} have to be at least 1")

    def plan(self) -> Plan:
        """Cut the users into partitions, and begin the output directory or check that it is this job's.

        The manifest in it holds what the answers follow from: the digest of the model's files, the index's version, the rules'
        text, what is asked, and the users' files. Raises DataError where it is another job's, or the users cannot be read.
        """
        partitions = tuple(self._partitions())
        manifest = self._manifest(partitions)
        out = Path(self.out)
        path = out / MANIFEST
        if path.exists():
            _compare(path, manifest)
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(f"{out} is there already and no output of a batch job: name another directory, or remove it")
        else:
            out.mkdir(parents=True, exist_ok=True)
            _write_whole(path, lambda part: part.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8"))
        pending = tuple(one for one in partitions if not (out / one.output).exists())
        return Plan(partitions=partitions, pending=pending)

    def _files(self) -> list[Path]:
        users = Path(self.users)
        files = sorted(users.glob("*.parquet")) if users.is_dir() else [users]
        if not files or not all(file.is_file() for file in files):
            raise DataError(f"{users} is neither a Parquet file nor a directory of *.parquet files")
        return files

    def _partitions(self) -> list[Partition]:
        partitions: list[Partition] = []
        for file in self._files():
            try:
                footer = pq.ParquetFile(file)
            except (OSError, pa.ArrowInvalid) as error:
                raise DataError(f"{file} cannot be read as Parquet: {error}") from error
            self._check_columns(file, footer.schema_arrow)
            for group in range(footer.num_row_groups):
                rows = footer.metadata.row_group(group).num_rows
                for first in range(0, rows, self.partition_rows):
                    size = min(self.partition_rows, rows - first)
                    partitions.append(
                        Partition(number=len(partitions), file=str(file), row_group=group, first=first, rows=size)
                    )
        return partitions

    def _check_columns(self, file: Path, schema: Any) -> None:
        asked = self.asked
        for name in (asked.user_column, asked.history_column, asked.deny_column):
            if name is not None and name not in schema.names:
                raise DataError(f"{file} has no column {name!r}; it has {', '.join(schema.names)}")
        for name in (asked.history_column, asked.deny_column):
            if name is None:
                continue
            kind: Any = schema.field(name).type
            lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
            if not lists or not (pa.types.is_integer(kind.value_type) or _is_text(kind.value_type)):
                raise DataError(f"{file}: column {name!r} holds {kind}; expected lists of item ids, whole numbers or text")

    def _manifest(self, partitions: tuple[Partition, ...]) -> dict[str, Any]:
        rules = None if self.files.rules is None else _digest([Path(self.files.rules)])
        model = Path(self.files.model)
        if not model.is_dir():
            raise DataError(f"{model} is not a model's directory")
        asked = asdict(self.asked) | {"rules": list(self.asked.rules)}
        return {
            "format": _FORMAT,
            "model": _digest(sorted(path for path in model.iterdir() if path.suffix in (".json", ".safetensors"))),
            "index": Trie.load(self.files.index).version,
            "rules_text": rules,
            "asked": asked,
            "partition_rows": self.partition_rows,
            "partitions": len(partitions),
            "users": {file.name: _footer_digest(file) for file in self._files()},
        }


class PartitionRunner:
    """One worker of a job: an engine, loaded once, that answers partition after partition in this process."""

    def __init__(self, job: BatchJob) -> None:
        limits = replace(Limits(), max_history=_NO_LIMIT, max_deny=_NO_LIMIT)
        files = job.files
        self._job = job
        self._engine = Engine.load(
            files.model,
            files.index,
            files.catalog,
            files.rules,
            device=job.device,
            limits=limits,
            max_batch=job.max_batch,
        )
        limits.check(job.asked.request())

    def run(self, partition: Partition) -> Done:
        """Read, answer, write. Raises DataError that names file and row, and what `Engine.recommend` raises."""
        began = time.monotonic()
        asked = self._job.asked
        columns = [name for name in (asked.user_column, asked.history_column, asked.deny_column) if name is not None]
        table = pq.ParquetFile(partition.file).read_row_group(partition.row_group, columns=columns)
        table = table.slice(partition.first, partition.rows)
        histories = table.column(asked.history_column).to_pylist()
        denied = [None] * len(histories) if asked.deny_column is None else table.column(asked.deny_column).to_pylist()
        users = table.column(asked.user_column)
        named = users.to_pylist() if self._engine.model.vocabulary.num_users else [None] * len(histories)
        requests: list[Request] = []
        for row, (history, deny, user) in enumerate(zip(histories, denied, named, strict=True)):
            try:
                requests.append(asked.request(tuple(history or ()), tuple(deny or ()), user))
            except RequestError as error:
                where = f"{partition.file}, row {partition.first + row} of row group {partition.row_group}"
                raise DataError(f"{where}: {error}") from error
        results = self._engine.recommend(requests)
        answers = self._table(users, results)
        _write_whole(Path(self._job.out) / partition.output, lambda part: pq.write_table(answers, part))
        return Done(
            number=partition.number,
            users=len(results),
            short=sum(result.num_valid < asked.num_items for result in results),
            unknown_items=sum(len(result.ignored_history) for result in results),
            seconds=time.monotonic() - began,
        )

    def _table(self, users: Any, results: list[Result]) -> Any:
        """Users beside their items: best first, as many as there are."""
        kind = pa.string() if self._engine.trie.item_ids.dtype.kind == "U" else pa.int64()
        columns: dict[str, Any] = {
            self._job.asked.user_column: users,
            "item_ids": pa.array([list(result.item_ids) for result in results], pa.list_(kind)),
            "scores": pa.array([list(result.scores) for result in results], pa.list_(pa.float32())),
            "num_history_used": pa.array([result.num_history_used for result in results], pa.int32()),
            "index_version": pa.array([result.index_version for result in results], pa.string()).dictionary_encode(),
        }
        return pa.table(columns)


def recommend_users(job: BatchJob, *, progress: Progress | None = None) -> list[Done]:
    """Do what is left of a job in this process, for tables that one machine answers in time; returns what was done now.

    progress: called after each partition with it, how many are finished, and how many there are.
    """
    plan = job.plan()
    finished = len(plan.partitions) - len(plan.pending)
    if not plan.pending:
        return []
    runner = PartitionRunner(job)
    done: list[Done] = []
    for partition in plan.pending:
        done.append(runner.run(partition))
        if progress is not None:
            progress(done[-1], finished + len(done), len(plan.partitions))
    return done


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _compare(path: Path, manifest: dict[str, Any]) -> None:
    try:
        there: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} cannot be read ({error}): name another output directory, or remove this one") from error
    if there != manifest:
        there = there if isinstance(there, dict) else {}
        names = [name for name in manifest if there.get(name) != manifest[name]] or ["format"]
        raise DataError(
            f"{path.parent} holds recommendations of another job (different {', '.join(names)}), which must not be mixed with "
            "these: name another output directory, or remove this one"
        )


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """The file appears whole or not at all; readers of the directory do not look at names that begin with a dot."""
    part = path.with_name(f".{path.name}.{uuid4().hex}.partial")
    write(part)
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)


def _digest(paths: list[Path]) -> str:
    digest = blake2b(digest_size=16)
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def _footer_digest(file: Path) -> str:
    """Of a Parquet file's last part, which says where every column lies and what is in it: no need to read the rest."""
    with file.open("rb") as open_file:
        size = open_file.seek(-8, os.SEEK_END) + 8
        length = int.from_bytes(open_file.read(4), "little")
        open_file.seek(max(0, size - 8 - length))
        return blake2b(size.to_bytes(8, "little") + open_file.read(), digest_size=16).hexdigest()
