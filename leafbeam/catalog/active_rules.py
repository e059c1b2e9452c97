"""The rule set in force, and how it follows the index.

Shapes: n items of one change.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.remap import carried, sources_of
from leafbeam.catalog.rule_set import Chosen, RuleSet, moved
from leafbeam.index import Filter, Trie, Version
from leafbeam.live import LiveIndex
from leafbeam.live.transaction import concat_ids

__all__ = ["ActiveRules"]

_NOBODY = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ahead:
    """Filters of a base that is not in force yet.

    since: the evaluation that each comes from. touched: ids that changed since.
    """

    trie: Trie
    parts: dict[str, Filter]
    since: dict[str, int]
    touched: list[NDArray[np.generic]]


class ActiveRules:
    """A variable of type RuleSet that keeps step with the segments.

    Think of it as the one place where index and rules are joined: `rules` is read by everybody and waits for nothing; who
    changes items or rules holds `changing`, and calls `follow` or `put` before letting go.
    """

    def __init__(self, segments: LiveIndex, rules: RuleSet) -> None:
        self.segments = segments
        self.rules = rules
        self.changing = threading.RLock()
        self._records: list[list[NDArray[np.generic]]] = []
        self._ahead: _Ahead | None = None
        segments.on_compaction(before_switch=self._get_ahead, after_switch=self._switched)

    @contextmanager
    def recording(self) -> Generator[tuple[RuleSet, list[NDArray[np.generic]]]]:
        """The rules now, and a list that takes the ids of all items whose attributes change while the block runs."""
        record: list[NDArray[np.generic]] = []
        with self.changing:
            rules = self.rules
            self._records.append(record)
        try:
            yield rules, record
        finally:
            with self.changing:
                self._records = [one for one in self._records if one is not record]

    def follow(self, touched: NDArray[np.generic] = _NOBODY, bits: Mapping[str, NDArray[np.bool_]] | None = None) -> None:
        """Move the rules to the segments' version; touched: live items (n,) that rules were asked about anew, with the answers.

        Cost: see `moved`; 5 ns an item and rule where a compaction has put another base in force (`_get_ahead` prepares that).
        """
        old, version = self.rules, self.segments.version()
        bits = bits or {}
        if len(touched):
            for record in self._records:
                record.append(touched)
        ahead = self._ahead
        if ahead is None or not any(segment.trie is ahead.trie for segment in version.segments):
            chosen = moved(old.chosen, old.version, version, touched, bits)
        else:
            self._forget_ahead()
            ready = {name: part for name, part in ahead.parts.items() if old.since.get(name) == ahead.since[name]}
            late = self.touched(ahead.touched)
            late = late[~np.isin(late, touched)] if len(late) and len(touched) else late
            late_bits = _bits_of(old, late)
            both = {name: np.concatenate([late_bits[name], bits.get(name, _NOBODY.astype(np.bool_))]) for name in old.chosen}
            chosen = moved(old.chosen, old.version, version, concat_ids([late, touched]), both, ready, ahead.trie)
        self.put(old.with_chosen(version, chosen))

    def put(self, rules: RuleSet) -> None:
        """Put a rule set in force. Its version has to be the segments'."""
        self.rules = rules

    def touched(self, record: list[NDArray[np.generic]]) -> NDArray[np.generic]:
        """The live items among those recorded, each once."""
        ids = np.unique(concat_ids(record)) if record else _NOBODY
        return ids[self.rules.version.knows(ids)] if len(ids) else ids

    def fitted(
        self,
        chosen: Mapping[str, Chosen],
        version: Version,
        touched: NDArray[np.generic],
        bits: Mapping[str, NDArray[np.bool_]],
    ) -> dict[str, Chosen]:
        """What rules selected in a version, as of the version in force; touched items have changed since then."""
        if version is self.rules.version and not len(touched):
            return dict(chosen)
        return moved(chosen, version, self.rules.version, touched, bits)

    def _get_ahead(self, trie: Trie) -> None:
        """A compaction has built a new base: find its filters before it comes into force, while nobody waits."""
        self._forget_ahead()
        record: list[NDArray[np.generic]] = []
        with self.changing:
            rules = self.rules
            self._records.append(record)
        source_N = sources_of(trie, rules.version)
        parts = {name: carried(filters, rules.version, trie, source_N) for name, filters in rules.chosen.items()}
        self._ahead = _Ahead(trie=trie, parts=parts, since=dict(rules.since), touched=record)

    def _switched(self) -> None:
        """The new base is in force."""
        with self.changing:
            self.follow()

    def _forget_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._records = [one for one in self._records if one is not ahead.touched]


def _bits_of(rules: RuleSet, ids_n: NDArray[np.generic]) -> dict[str, NDArray[np.bool_]]:
    """What the rules in force say of live items."""
    segment_n, row_n = rules.version.locate(ids_n) if len(ids_n) else (_NOBODY, _NOBODY)
    bits = {name: np.zeros(len(ids_n), np.bool_) for name in rules.chosen}
    for number, segment in enumerate(rules.version.segments):
        mine = np.flatnonzero(segment_n == number)
        places = segment.trie.items.ordinal_N[row_n[mine]]
        for name, parts in rules.chosen.items():
            bits[name][mine] = parts[number].ordinals.has(places)
    return bits
