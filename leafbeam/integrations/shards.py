"""An index in shards, seen from the process that searches it: its filters and boosts, and the way to the shards.

Shapes: S shards, F first codes of all shards, n ids of a call, L levels.
"""

import operator
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Concatenate, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, ForeignFilterError, ShardError, counted
from leafbeam.index import Filter, Trie
from leafbeam.index.items import ItemIds, check_known
from leafbeam.index.shards import ShardManifest
from leafbeam.integrations.shard import MakeBoost, MakeFilter, Shard, ShardBatch, ShardRoots
from leafbeam.ops.backend import IndexBindings

Answer = TypeVar("Answer")
ShardMethod = Callable[Concatenate[Shard, ...], Answer]
Arguments = Mapping[int, tuple[object, ...]]


class ShardLink(Protocol):
    """The way to the shards: in this process (`LocalShards`), or to actors on a Ray cluster (`ray_shards`)."""

    def call(self, method: ShardMethod[Answer], arguments: Arguments) -> dict[int, Answer]:
        """Call a method of `Shard` on several shards at once, and return their answers by the shards' numbers.

        Raises:
            ShardError: If a shard does not answer; the message names it.
            LeafbeamError: The error that a shard raised.
        """
        ...

    def wait(self, number: int) -> None:
        """Wait until a shard that has ended answers again. Raises ShardError if it does not in time."""
        ...

    def send(self, method: ShardMethod[object], arguments: Arguments) -> None:
        """Call a method of several shards without waiting for their answers, or noticing that one cannot answer."""
        ...

    def close(self) -> None:
        """End what was started for the shards."""
        ...


class LocalShards:
    """Shards in this process.

    Args:
        shards: The shards, in the order of their first codes.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = list(shards)

    def call(self, method: ShardMethod[Answer], arguments: Arguments) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        for number, values in arguments.items():
            try:
                answers[number] = method(self._shards[number], *values)
            except ShardError as error:
                raise named(error, number) from error
        return answers

    def wait(self, number: int) -> None:
        pass

    def send(self, method: ShardMethod[object], arguments: Arguments) -> None:
        self.call(method, arguments)

    def close(self) -> None:
        self._shards.clear()


def named(error: ShardError, number: int, of: str = "") -> ShardError:
    """Return an error of a shard that names it."""
    return ShardError(f"shard {number}{of}: {error}", shard=number, may_pass=error.may_pass)


@dataclass(frozen=True, kw_only=True)
class ShardTraffic:
    """The calls and bytes between a driver and its shards.

    Args:
        hops: The number of times that the driver waited for answers; each time it called one shard or several at once.
        messages: The number of calls, each of one shard.
        bytes_sent: The bytes of arrays in the calls.
        bytes_received: The bytes of arrays in the answers.
    """

    hops: int = 0
    messages: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def __add__(self, other: "ShardTraffic") -> "ShardTraffic":
        return ShardTraffic(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})

    def __sub__(self, other: "ShardTraffic") -> "ShardTraffic":
        return ShardTraffic(**{field.name: getattr(self, field.name) - getattr(other, field.name) for field in fields(self)})


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterHandle:
    """A filter of which each shard has its part; `ShardedIndex.filter` makes one. `&`, `|` and `-` combine two.

    The shards keep it, and each combination, until `ShardedIndex.remove`.

    Args:
        name: The name under which the shards know it.
        index: The index to which it belongs.
        make: Makes the part of a shard.
        num_items: The number of its items.
    """

    name: str
    index: "ShardedIndex"
    make: MakeFilter
    num_items: int

    def __and__(self, other: "FilterHandle") -> "FilterHandle":
        return self._combined(other, operator.and_)

    def __or__(self, other: "FilterHandle") -> "FilterHandle":
        return self._combined(other, operator.or_)

    def __sub__(self, other: "FilterHandle") -> "FilterHandle":
        return self._combined(other, operator.sub)

    def __len__(self) -> int:
        return self.num_items

    def __repr__(self) -> str:
        return f"FilterHandle({self.num_items:,} of {counted(self.index.num_items, 'item')})"

    def _combined(self, other: "FilterHandle", combine: Callable[[Filter, Filter], Filter]) -> "FilterHandle":
        return self.index.filter(partial(_combined_filter, self.make, other.make, combine))


@dataclass(frozen=True, kw_only=True, eq=False)
class BoostHandle:
    """A boost of which each shard has its part; `ShardedIndex.boost` makes one. The shards keep it until `remove`.

    Args:
        name: The name under which the shards know it.
        index: The index to which it belongs.
        make: Makes the part of a shard.
    """

    name: str
    index: "ShardedIndex"
    make: MakeBoost


class ShardedIndex:
    """An index in shards, seen from the process that searches it.

    `ShardedIndex.load` has the shards in this process, `ray_shards.connect` on a Ray cluster.

    Args:
        link: The way to the shards.
        versions: The version of each shard's index, in the order of their first codes.

    Raises:
        ShardError: If a shard does not answer, or is not the one that `versions` names.
    """

    def __init__(self, link: ShardLink, versions: Sequence[str]) -> None:
        self.link, self._lock = link, threading.Lock()
        self.traffic = ShardTraffic()
        self._makers: dict[str, MakeFilter | MakeBoost] = {}  # of filters and boosts, by name
        self._is_closed, self.versions = False, tuple(versions)
        summaries = list(self._call_all(Shard.summary).values())
        for number, (summary, version) in enumerate(zip(summaries, versions, strict=True)):
            if summary.version != version:
                raise ShardError(
                    f"shard {number} has version {summary.version} of its index, but the manifest names {version}: build it "
                    "again",
                    shard=number,
                    may_pass=False,
                )
        self.codebook_sizes, self.end_code = summaries[0].codebook_sizes, summaries[0].end_code
        self.num_items = sum(summary.num_items for summary in summaries)
        self.num_nodes = tuple(map(sum, zip(*(summary.num_nodes for summary in summaries), strict=True)))
        self.has_shared_sids = any(summary.has_shared_sids for summary in summaries)
        self.offsets_S = np.cumsum([0, *(summary.num_leaves for summary in summaries)])[:-1]
        self.num_leaves = sum(summary.num_leaves for summary in summaries)
        codes_F = np.concatenate([summary.codes_F for summary in summaries])
        leaves = [summary.leaves_F + offset for summary, offset in zip(summaries, self.offsets_S, strict=True)]
        self.leaves_F1 = np.append(np.concatenate(leaves), self.num_leaves)
        if (np.diff(codes_F) <= 0).any():
            raise ArgumentError("two shards have items of the same first code, or are not in order: build the shards together")
        # An index of the first codes alone: requests and boosts of the driver are over its items.
        self.first_codes = IndexBindings(Trie.build(codes_F[:, None], self.codebook_sizes[:1]))

    @classmethod
    def load(cls, directory: str | Path, *, verify: bool = True) -> "ShardedIndex":
        """Load all shards of a directory into this process.

        Args:
            directory: A directory that `leafbeam build TABLE --shards N` or `build_shards` has written.
            verify: As for `Trie.load`.

        Raises:
            IndexFileError: If a file is missing or damaged.
        """
        manifest = ShardManifest.load(directory)
        shards = [Shard(Path(directory) / shard.file, verify=verify) for shard in manifest.shards]
        return cls(LocalShards(shards), [shard.version for shard in manifest.shards])

    @property
    def num_levels(self) -> int:
        return len(self.codebook_sizes)

    @property
    def num_shards(self) -> int:
        return len(self.versions)

    def filter(self, make: MakeFilter | None = None, *, item_ids: ItemIds | None = None) -> FilterHandle:
        """Return a filter, of which each shard makes its part.

        Args:
            make: Called in each shard with its `Trie`, returns a `Filter` of it: `lambda trie: trie.filter(...)`.
            item_ids: The ids of the allowed items, in place of `make`.

        Raises:
            ItemIdError: If an id is unknown.
            ShardError: If a shard does not answer.
        """
        if (make is None) == (item_ids is None):
            raise ArgumentError("filter() takes a function or item_ids=...: pass one of the two")
        if item_ids is not None:
            self.codes_of(item_ids)
            make = partial(_filter_of_ids, item_ids)
        assert make is not None
        name, num_items = self._make(make)
        return FilterHandle(name=name, index=self, make=make, num_items=num_items)

    def boost(self, make: MakeBoost) -> BoostHandle:
        """Return a boost, of which each shard makes its part.

        Args:
            make: Called in each shard with its `Trie`, returns an `ItemColumn` of it.

        Raises:
            ShardError: If a shard does not answer.
        """
        return BoostHandle(name=self._make(make)[0], index=self, make=make)

    def remove(self, made: FilterHandle | BoostHandle) -> None:
        """Free the memory of a filter or of a boost in all shards."""
        self._makers.pop(made.name, None)
        self._call_all(Shard.remove, made.name)

    def codes_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """Return the SID of each item, shape (n, L).

        Raises:
            ItemIdError: If an id is unknown.
            ShardError: If a shard does not answer.
        """
        codes_nL, row_n = np.zeros((len(item_ids), self.num_levels), np.int64), np.full(len(item_ids), -1, np.int64)
        for position_n, found_nL in self._call_all(Shard.find, item_ids).values():
            codes_nL[position_n], row_n[position_n] = found_nL, 0
        check_known(item_ids, row_n, f"this index has {counted(self.num_items, 'item')} in {counted(self.num_shards, 'shard')}")
        return codes_nL

    def call(self, method: ShardMethod[Answer], arguments: Arguments) -> dict[int, Answer]:
        """Call a method of several shards at once as `ShardLink.call` does, and count the traffic.

        Raises:
            ArgumentError: If the index is closed.
        """
        if self._is_closed:
            raise ArgumentError("this ShardedIndex is closed: load its shards again")
        answers = self.link.call(method, arguments)
        with self._lock:
            self.traffic += ShardTraffic(
                hops=1,
                messages=len(arguments),
                bytes_sent=_nbytes(tuple(arguments.values())),
                bytes_received=_nbytes(tuple(answers.values())),
            )
        return answers

    def begin(self, search: str, batch: ShardBatch) -> list[ShardRoots]:
        """Begin a search in all shards. A shard that was restarted gets its filters and boosts again.

        Args:
            search: A name that no other search has.
            batch: The requests.
        """
        arguments = {number: (search, version, batch) for number, version in enumerate(self.versions)}
        answers = self.call(Shard.begin, arguments)
        lacking = {number: missing for number, missing in answers.items() if isinstance(missing, list)}
        for number, missing in lacking.items():
            for name in missing:
                if name not in self._makers:
                    raise ForeignFilterError("a filter or a boost was removed: make it again")
                self.call(Shard.make, {number: (name, self._makers[name])})
        if lacking:
            answers |= self.call(Shard.begin, {number: arguments[number] for number in lacking})
        return [cast("ShardRoots", answers[number]) for number in range(self.num_shards)]

    def end(self, search: str) -> None:
        """End a search in all shards, without waiting for them. A shard that has ended has forgotten it anyway."""
        self._send(Shard.end, search)

    def wait(self, number: int) -> None:
        """Wait until a shard that has ended answers again. As `ShardLink.wait`."""
        self.link.wait(number)

    def close(self) -> None:
        """End the shards that were started for this object."""
        self._is_closed = True
        self.link.close()

    def __enter__(self) -> "ShardedIndex":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_items

    def __repr__(self) -> str:
        return f"ShardedIndex({counted(self.num_items, 'item')} in {counted(self.num_shards, 'shard')})"

    def _call_all(self, method: ShardMethod[Answer], *values: object) -> dict[int, Answer]:
        return self.call(method, dict.fromkeys(range(self.num_shards), values))

    def _send(self, method: ShardMethod[object], name: str) -> None:
        if not self._is_closed:
            self.link.send(method, dict.fromkeys(range(self.num_shards), (name,)))

    def _make(self, make: MakeFilter | MakeBoost) -> tuple[str, int]:
        """Make the parts of a filter or of a boost in all shards, or in none. Return its name, and the number of its items."""
        name = uuid.uuid4().hex
        try:
            counts = self._call_all(Shard.make, name, make)
        except BaseException:
            self._send(Shard.remove, name)
            raise
        self._makers[name] = make
        return name, sum(counts.values())


def _filter_of_ids(item_ids: ItemIds, trie: Trie) -> Filter:
    rows_n = trie.items.rows_of(item_ids)
    return trie.filter_of_rows(rows_n[rows_n >= 0])


def _combined_filter(left: MakeFilter, right: MakeFilter, combine: Callable[[Filter, Filter], Filter], trie: Trie) -> Filter:
    return combine(left(trie), right(trie))


def _nbytes(value: object) -> int:
    """Return the bytes of all arrays in a value."""
    if isinstance(value, np.ndarray):
        return cast("NDArray[np.generic]", value).nbytes
    if is_dataclass(value):
        return sum(_nbytes(getattr(value, field.name)) for field in fields(value))
    return sum(map(_nbytes, cast("Sequence[object]", value))) if isinstance(value, tuple | list) else 0
