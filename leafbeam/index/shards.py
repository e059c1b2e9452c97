"""An index in shards: files of its own for ranges of first codes, and the manifest that names them.

A shard is an ordinary index of the items whose first code is in its range. The leaves of all shards, one shard after the
other, are those of one index of all items, so that a search over shards can be the search of that index.

Shapes: N items, n of a chunk, V first codes, S shards.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, IndexFileError, ItemIdError, counted, short_repr
from leafbeam.files import read_json, write_json
from leafbeam.index.builder import TrieBuilder
from leafbeam.index.items import ItemIds, check_unique
from leafbeam.index.level import check_codes, check_sizes
from leafbeam.index.saved_runs import SavedRuns
from leafbeam.index.trie import Trie

MANIFEST = "shards.json"
_FORMAT = 1
Chunk = tuple[NDArray[np.integer], ItemIds | None]
Chunks = Callable[[], Iterable[Chunk]]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """One shard in the manifest.

    Args:
        file: The name of its index file, in the manifest's directory.
        begin: Its smallest first code.
        end: One more than its largest first code.
        num_items: The number of its items.
        version: The version of its index; "" until it is built.

    Raises:
        ValueError: If a field has an invalid value.
    """

    file: str
    begin: int
    end: int
    num_items: int
    version: str = ""

    def __post_init__(self) -> None:
        if Path(self.file).name != self.file or not 0 <= self.begin < self.end or self.num_items < 1:
            raise ValueError(f"{self} is not a shard")

    def saved_runs(self, directory: Path, key: str = "") -> SavedRuns:
        """Return the sorted rows that a build of this shard leaves in the directory until it is done."""
        return SavedRuns(directory / f".{self.file}.runs", [(key, self.num_items)])


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """The shards of an index, in the order of their first codes, and the key of what they were built from.

    Examples:
        >>> manifest = ShardManifest.load("items.shards"); [shard.num_items for shard in manifest.shards]
        [2, 1]
    """

    key: str
    shards: tuple[ShardFile, ...]

    @classmethod
    def load(cls, directory: str | Path) -> "ShardManifest":
        """Read the manifest of a directory of shards.

        Raises:
            IndexFileError: If there is none, it cannot be read, or a shard has not been built.
        """
        manifest = cls.read(Path(directory))
        if manifest is None:
            raise IndexFileError(
                f"{directory} has no {MANIFEST}: expected a directory that `leafbeam build TABLE --shards N` has written"
            )
        missing = [shard.file for shard in manifest.shards if not shard.version]
        if missing:
            raise IndexFileError(
                f"{directory} lacks {missing[0]}, of {counted(len(manifest.shards), 'shard')}: its build was interrupted; "
                "run the same command again to finish it"
            )
        return manifest

    @classmethod
    def read(cls, directory: Path) -> "ShardManifest | None":
        """Return the manifest of a directory, even if some of its shards are not built yet; None if it has none."""
        path = directory / MANIFEST
        if not path.exists():
            return None
        try:
            fields = read_json(path)
            if fields["format"] != _FORMAT or not fields["shards"]:
                raise ValueError(
                    f"format {fields['format']!r} with the shards {short_repr(fields.get('shards'))}: expected format "
                    f"{_FORMAT} and a shard"
                )
            return cls(key=fields["key"], shards=tuple(ShardFile(**shard) for shard in fields["shards"]))
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise IndexFileError(
                f"{path} cannot be read ({error}): build the shards again, or upgrade leafbeam if a newer one built them"
            ) from error

    @property
    def is_complete(self) -> bool:
        """Return whether all shards are built."""
        return all(shard.version for shard in self.shards)

    def remove(self, directory: Path) -> None:
        """Delete the manifest, the index files and the sorted rows of a build that was interrupted."""
        (directory / MANIFEST).unlink(missing_ok=True)
        for shard in self.shards:
            (directory / shard.file).unlink(missing_ok=True)
            shard.saved_runs(directory).remove()

    def write(self, directory: Path) -> None:
        """Write the manifest, which replaces an older one atomically."""
        fields = {"format": _FORMAT, "key": self.key, "shards": [asdict(shard) for shard in self.shards]}
        write_json(directory / MANIFEST, fields, durable=True)


def split_first_codes(counts_V: NDArray[np.int64], num_shards: int) -> list[tuple[int, int]]:
    """Return ranges [begin, end) of first codes with about equal numbers of items, each with an item.

    Args:
        counts_V: The number of items of each first code.
        num_shards: The number of ranges.

    Raises:
        ArgumentError: If fewer first codes than ranges have items, or none has.
    """
    used_n = np.flatnonzero(counts_V)
    if not len(used_n):
        raise ArgumentError("there are no items: expected at least one for each shard")
    if num_shards < 1 or num_shards > len(used_n):
        raise ArgumentError(
            f"{counted(num_shards, 'shard')}: expected 1 to {len(used_n):,}, the number of first codes that have items; all "
            "items of a first code are in one shard"
        )
    ends_n = np.cumsum(counts_V[used_n])
    cuts = [0]
    for shard in range(1, num_shards):
        goal = ends_n[-1] * shard / num_shards
        nearest = int(np.searchsorted(ends_n, goal)) + 1
        if nearest > 1 and goal - ends_n[nearest - 2] < ends_n[nearest - 1] - goal:
            nearest -= 1
        cuts.append(min(max(nearest, cuts[-1] + 1), len(used_n) - num_shards + shard))
    begins = [0, *(int(used_n[cut]) for cut in cuts[1:])]
    return list(zip(begins, [*begins[1:], len(counts_V)], strict=True))


def build_shards(
    chunks: Chunks,
    codebook_sizes: Sequence[int],
    num_shards: int,
    directory: str | Path,
    *,
    packed: bool = False,
    memory_limit: int = 4 << 30,
    key: str = "",
    progress: Progress | None = None,
) -> ShardManifest:
    """Build an index in shards, one after the other, each in bounded memory (`TrieBuilder`).

    The rows are read once to count the items of each first code, and once for each shard.

    Args:
        chunks: Returns the rows from the first to the last, as (codes, item ids) of some at a time; ids are None for row
            numbers. It is called several times, and must return the same rows each time.
        codebook_sizes: The number of codes of each level.
        num_shards: The number of shards, at most one for each first code.
        directory: Where to write the index files and the manifest.
        packed: As for `Trie.build`.
        memory_limit: As for `TrieBuilder`.
        key: A text that changes with the rows. With it, an interrupted build of the same rows is continued: its complete
            shards and the sorted rows of the next one are used. Without it, all shards are built anew.
        progress: Called with the current step and the share of the work that is done.

    Raises:
        ArgumentError: If there are fewer first codes than shards, or `chunks` returns other rows when it is called again.
        CodesError: As for `TrieBuilder.add`.
        ItemIdError: As for `TrieBuilder.add` and `TrieBuilder.finish`.
    """
    folder, sizes, report = Path(directory), check_sizes(codebook_sizes), progress or (lambda step, share: None)
    folder.mkdir(parents=True, exist_ok=True)
    settings = f"{key} {sizes} {packed} {num_shards}" if key else ""
    manifest = ShardManifest.read(folder)
    if manifest is None or not key or manifest.key != settings:
        report("counting first codes", 0.0)
        if manifest is not None:
            manifest.remove(folder)
        manifest = _plan(chunks, sizes, num_shards, settings)
        manifest.write(folder)
    for number, shard in enumerate(manifest.shards):
        if shard.version:
            continue
        share = (1 + number) / (1 + num_shards)
        saved = shard.saved_runs(folder, settings) if key else None
        with TrieBuilder(sizes, packed=packed, memory_limit=memory_limit, folder=folder, saved=saved) as builder:
            version = _build_shard(builder, chunks, shard, folder, report, share)
        built = replace(shard, version=version)
        manifest = replace(manifest, shards=(*manifest.shards[:number], built, *manifest.shards[number + 1 :]))
        if manifest.is_complete:
            report("checking item ids", share)
            _check_ids([folder / shard.file for shard in manifest.shards], memory_limit)
        manifest.write(folder)
        if saved is not None:
            saved.remove()
    report("done", 1.0)
    return manifest


def _build_shard(builder: TrieBuilder, chunks: Chunks, shard: ShardFile, folder: Path, report: Progress, share: float) -> str:
    """Write the file of a shard, and return the version of its index."""
    for codes_nL, ids_n in _rows_of(chunks, shard, builder.num_items):
        builder.add(codes_nL, ids_n)
        report(f"{shard.file}: reading", share)
    trie = builder.finish(lambda step, _: report(f"{shard.file}: {step}", share))
    if len(trie) != shard.num_items:
        raise ArgumentError(
            f"chunks() returned {counted(len(trie), 'row')} of {shard.file}, and {shard.num_items:,} when they were counted: "
            "expected the same rows at each call, such as a new generator"
        )
    trie.save(folder / shard.file)
    return trie.version


def _check_ids(files: Sequence[Path], memory_limit: int) -> None:
    """Raise ItemIdError if an id is in two shards, or some ids are numbers and others text."""
    first, *others = (ids for file in files if (ids := Trie.load(file, verify=False).items.ids) is not None)
    if any(ids.dtype.kind != first.dtype.kind for ids in others):
        raise ItemIdError("the item ids of some shards are integers and those of others are text: expected one kind")
    check_unique(first, memory_limit, others=others)


def _plan(chunks: Chunks, sizes: tuple[int, ...], num_shards: int, key: str) -> ShardManifest:
    counts_V = np.zeros(sizes[0], np.int64)
    for codes, _ in chunks():
        codes_nL, _ = check_codes(codes, sizes)
        counts_V += np.bincount(codes_nL[:, 0], minlength=sizes[0])
    ranges = split_first_codes(counts_V, num_shards)
    shards = [
        ShardFile(file=f"shard-{number:04d}.leafbeam", begin=begin, end=end, num_items=int(counts_V[begin:end].sum()))
        for number, (begin, end) in enumerate(ranges)
    ]
    return ShardManifest(key=key, shards=tuple(shards))


def _rows_of(chunks: Chunks, shard: ShardFile, num_skipped: int) -> Iterator[tuple[NDArray[np.integer], ItemIds]]:
    """Yield the rows of a shard after the first `num_skipped`."""
    first = 0
    for codes, item_ids in chunks():
        codes_nL = np.asarray(codes)
        ids_n = np.arange(first, first + len(codes_nL)) if item_ids is None else np.asarray(item_ids)
        first += len(codes_nL)
        rows = np.flatnonzero((codes_nL[:, 0] >= shard.begin) & (codes_nL[:, 0] < shard.end))
        skipped = min(num_skipped, len(rows))
        num_skipped -= skipped
        if skipped < len(rows):
            yield codes_nL[rows[skipped:]], ids_n[rows[skipped:]]
