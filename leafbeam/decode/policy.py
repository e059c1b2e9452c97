"""Policies: at most so many items of a group, at least so many of a rule, exactly.

    for each rule of which the list needs items, then for all allowed items, until their places are full:
        take the best item that is not taken yet and whose groups are not full
    order what was taken by score

No list of all items is made. A stage takes its items from a search that proves them. Where they do not suffice it searches
again, without the items that were taken and without the groups that are full.

Scores have to be those of "full" scoring: with "allowed" a score depends on what else is allowed.

Shapes: B requests, K items, L levels, n items found.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.results import SearchResult
from leafbeam.errors import ArgumentError, check_whole, counted
from leafbeam.index import Bitmap, Filter, ItemColumn, Version

Search = Callable[[Sequence[Filter], Sequence[list[int | str] | None], Sequence[int]], SearchResult]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cap:
    """At most `most` items of each group. groups: int32, the group of each item, -1 for an item that counts in none."""

    groups: ItemColumn
    most: int

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ArgumentError(f"most={self.most} of a group: expected at least 1; forbid a group by a rule")


@dataclass(frozen=True, kw_only=True, eq=False)
class Quota:
    """At least `least` items of a filter, if so many are allowed."""

    items: Filter
    least: int

    def __post_init__(self) -> None:
        check_whole(least=self.least)


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """What a request wants of its list as a whole.

    Args:
        num_items: The number of items of the answer.
        caps: The largest number of items of one group, for each column of groups.
        quotas: The smallest number of items of each filter. An item counts for every filter that it is in.
    """

    num_items: int
    caps: tuple[Cap, ...] = ()
    quotas: tuple[Quota, ...] = ()

    def __post_init__(self) -> None:
        wanted = sum(quota.least for quota in self.quotas)
        if wanted > self.num_items:
            raise ArgumentError(f"quotas of {counted(wanted, 'item')} in a list of {self.num_items}: expected at most as many")


class _Groups:
    """Counts the items of each group in a list, for each cap."""

    def __init__(self, caps: Sequence[Cap]) -> None:
        self._caps, self._counts = caps, [Counter[int]() for _ in caps]

    def take(self, groups: Sequence[int]) -> bool:
        """Count an item of these groups; False if one of them is full, and then it is not counted."""
        pairs = list(zip(groups, self._counts, strict=True))
        if any(group >= 0 and count[group] >= cap.most for (group, count), cap in zip(pairs, self._caps, strict=True)):
            return False
        for group, count in pairs:
            count[group] += 1
        return True

    def full(self) -> list[tuple[Cap, list[int]]]:
        """Return the groups of each cap that are full."""
        pairs = zip(self._caps, self._counts, strict=True)
        return [(cap, [one for one, number in count.items() if one >= 0 and number >= cap.most]) for cap, count in pairs]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Item:
    """An item that was taken."""

    item_id: int | str
    score: float
    boost: float
    codes: NDArray[np.int64]


@dataclass(kw_only=True)
class _List:
    """The list of one request while it grows.

    stage: the number of the quota whose items are taken; after the last one all allowed items are. missing: how many items that
    quota still needs. bound: a score that no item exceeds which a search may have missed.
    """

    policy: Policy
    taken: list[_Item] = field(default_factory=list[_Item])
    unmet: list[int] = field(default_factory=list[int])
    stage: int = -1
    missing: int = 0
    bound: float = -np.inf

    def __post_init__(self) -> None:
        self.groups = _Groups(self.policy.caps)
        self.next_stage()

    @property
    def is_done(self) -> bool:
        return self.stage > len(self.policy.quotas)

    def next_stage(self) -> None:
        """Begin the next stage that needs an item."""
        quotas = self.policy.quotas
        if 0 <= self.stage < len(quotas):
            self.unmet.append(self.missing)
        self.stage += 1
        if self.stage < len(quotas):
            items = quotas[self.stage].items
            self.missing = quotas[self.stage].least - sum(one.item_id in items for one in self.taken)
        else:
            self.missing = self.policy.num_items - len(self.taken)
        if self.missing <= 0 and not self.is_done:
            self.missing = 0
            self.next_stage()

    def take(self, item: _Item, groups: Sequence[int]) -> None:
        """Take an item of these groups, unless one of them is full."""
        if self.groups.take(groups):
            self.taken.append(item)
            self.missing -= 1

    def acceptable(self, base: Filter, version: Version) -> Filter:
        """Return the items that the stage may take, without those that were taken."""
        quotas = self.policy.quotas
        allowed = base & quotas[self.stage].items if self.stage < len(quotas) else base
        for cap, full in self.groups.full():
            if full:
                allowed = allowed - items_of_groups(version, cap.groups, full)
        return allowed


def items_of_groups(version: Version, groups: ItemColumn, numbers: Sequence[int]) -> Filter:
    """Return the live items of some groups. Cost: a pass over the items."""
    parts: list[Filter] = []
    for segment, part in zip(version.segments, groups.parts, strict=True):
        parts.append(segment.trie.filter_of(Bitmap.from_mask(np.isin(part, np.array(numbers, part.dtype)))))
    return version.filter_of(parts)


def fill_lists(
    version: Version,
    policies: Sequence[Policy],
    filters: Sequence[Filter],
    search: Search,
) -> tuple[SearchResult, list[tuple[int, ...]]]:
    """Return the list of each request under its policy, and how many items each of its quotas misses.

    Args:
        version: The index.
        policies: The policy of each request.
        filters: The items that each request allows.
        search: `search(filters, deny, num_items)` returns the best items of each request, as many as its number says, with
            scores of "full" scoring and without the items that it took before. Requests that are done get a filter of no items.

    Returns:
        The result is proved where all searches proved their answers. If a list is short, no other allowed item fits into it.
    """
    lists = [_List(policy=policy) for policy in policies]
    nothing = version.all_items - version.all_items
    searches: list[SearchResult] = []
    while not all(one.is_done for one in lists):
        num_items = [max(1, one.missing * (1 + bool(one.policy.caps))) for one in lists]
        asked = [nothing if one.is_done else one.acceptable(base, version) for one, base in zip(lists, filters, strict=True)]
        found = search(asked, [[item.item_id for item in one.taken] or None for one in lists], num_items)
        searches.append(found)
        for request, one in enumerate(lists):
            if not one.is_done:
                _extend(one, version, found, request, num_items[request])
    return _result(searches, lists), [tuple(one.unmet) for one in lists]


def pick(
    policy: Policy, groups: Sequence[Sequence[int]], members: Sequence[Sequence[bool]], num_items: int
) -> tuple[list[int], tuple[int, ...]]:
    """Return the places of the items that a policy takes from a list of items, best first, and what its quotas miss.

    Args:
        policy: The policy.
        groups: For each cap the group of each item.
        members: For each quota whether each item is in its filter.
        num_items: The number of items.
    """
    counts, taken, unmet = _Groups(policy.caps), set[int](), list[int]()
    stages = [(quota.least, member) for quota, member in zip(policy.quotas, members, strict=True)]
    for least, member in [*stages, (policy.num_items, None)]:
        missing = least - sum(member is None or member[place] for place in taken)
        for place in range(num_items):
            if missing <= 0:
                break
            if place in taken or not (member is None or member[place]):
                continue
            if counts.take([group[place] for group in groups]):
                taken.add(place)
                missing -= 1
        unmet.append(max(0, missing))
    return sorted(taken), tuple(unmet[:-1])


def _extend(one: _List, version: Version, found: SearchResult, request: int, num_items: int) -> None:
    """Take items of what a search has found."""
    count = int(found.num_valid[request])
    ids = found.item_ids[request][:count]
    segment_n, row_n = version.locate(ids) if count else (np.empty(0, np.int64), np.empty(0, np.int64))
    groups = [_values(cap.groups, version, segment_n, row_n) for cap in one.policy.caps]
    if not found.is_proved[request]:
        assert found.bound is not None
        one.bound = max(one.bound, float(found.bound[request]))
    for rank, item_id in enumerate(ids.tolist()):
        if not one.missing:
            break
        item = _Item(
            item_id=item_id,
            score=float(found.scores[request, rank]),
            boost=0.0 if found.boosts is None else float(found.boosts[request, rank]),
            codes=found.codes[request, rank],
        )
        one.take(item, [int(group_n[rank]) for group_n in groups])
    if not one.missing or count < num_items:
        one.next_stage()


def _values(column: ItemColumn, version: Version, segment_n: NDArray[np.int64], row_n: NDArray[np.int64]) -> NDArray[np.int64]:
    found_n = np.empty(len(row_n), np.int64)
    for number, segment in enumerate(version.segments):
        own = segment_n == number
        found_n[own] = column.at(segment.trie.items.ordinal_N[row_n[own]].astype(np.int64), number)
    return found_n


def _result(searches: Sequence[SearchResult], lists: Sequence[_List]) -> SearchResult:
    """Return the items that were taken, best first."""
    first = searches[0]
    num_items = np.array([one.policy.num_items for one in lists], np.int64)
    shape = len(lists), int(num_items.max())
    scores, boosts = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.float32)
    codes = np.zeros((*shape, first.codes.shape[2]), np.int64)
    ids: list[NDArray[np.generic]] = []
    for request, one in enumerate(lists):
        ordered = sorted(one.taken, key=lambda item: -item.score)
        for rank, item in enumerate(ordered):
            scores[request, rank], boosts[request, rank], codes[request, rank] = item.score, item.boost, item.codes
        ids.append(np.array([item.item_id for item in ordered], first.item_ids[request].dtype))
    rows = [found.rows for found in searches if found.rows is not None]
    return replace(
        first,
        item_ids=ids,
        scores=scores,
        codes=codes,
        num_items=num_items,
        num_valid=np.array([len(one.taken) for one in lists], np.int64),
        bound=np.array([one.bound for one in lists], np.float32),
        rows=np.sum(rows, 0) if len(rows) == len(searches) else None,
        passes=sum(found.passes for found in searches),
        boosts=boosts if any(found.boosts is not None for found in searches) else None,
    )
