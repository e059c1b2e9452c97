"""ActiveRules: the current rule set, kept at the version of the live index. Shapes: n items of one change."""

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.remap import old_rows_of, remap
from leafbeam.catalog.rule_set import RuleFilters, RuleSet, advance_filters
from leafbeam.index import Filter, Trie
from leafbeam.live import LiveIndex
from leafbeam.live.transaction import concat_ids

_NO_IDS = np.empty(0, np.int64)

# Collects the ids of items whose attributes change while an evaluation runs.
ChangeRecord = list[NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _PreparedBase:
    """Filters of a compaction's new base, for rules of the same generation.

    Args:
        changes: The items that have changed since the filters were made.
    """

    trie: Trie
    filters: dict[str, Filter]
    rule_generations: Mapping[str, int]
    changes: ChangeRecord


class ActiveRules:
    """The current RuleSet of a live index. Readers take `rules` and never wait.

    A thread that changes items or rules holds `write_lock` until it has called `advance` or set `rules`.
    """

    def __init__(self, index: LiveIndex, rules: RuleSet) -> None:
        self.index = index
        self.rules = rules
        self.write_lock = threading.RLock()
        self._records: list[ChangeRecord] = []
        self._prepared: _PreparedBase | None = None
        index.on_compaction(before_switch=self._prepare, after_switch=self._switched)

    @contextmanager
    def recording(self) -> Generator[tuple[RuleSet, ChangeRecord]]:
        """Return the current rules, and a record of the items whose attributes change while the block runs."""
        rules, record = self._start_record()
        try:
            yield rules, record
        finally:
            with self.write_lock:
                self._stop_record(record)

    def advance(self, changed_ids: NDArray[np.generic] = _NO_IDS, bits: Mapping[str, NDArray[np.bool_]] | None = None) -> None:
        """Move the rules to the current version. `changed_ids` (n,) are live items that were evaluated again, `bits`
        their results by rule.
        """
        old, version = self.rules, self.index.version()
        bits = bits or {}
        if len(changed_ids):
            for record in self._records:
                record.append(changed_ids)
        prepared, ready = self._prepared, None
        if prepared is not None and any(segment.trie is prepared.trie for segment in version.segments):
            self._drop_prepared()
            now, then = old.rule_generations, prepared.rule_generations
            ready = (prepared.trie, {name: part for name, part in prepared.filters.items() if now.get(name) == then[name]})
            earlier = self.live_ids(prepared.changes)
            earlier = earlier[~np.isin(earlier, changed_ids)] if len(earlier) and len(changed_ids) else earlier
            earlier_bits = _bits_of(old, earlier)
            changed_ids = concat_ids([earlier, changed_ids])
            no_bits = np.empty(0, np.bool_)
            bits = {name: np.concatenate([before, bits.get(name, no_bits)]) for name, before in earlier_bits.items()}
        by_segment = advance_filters(old.filters.by_segment, old.version, version, changed_ids, bits, ready)
        self.rules = replace(old, filters=RuleFilters(version, by_segment))

    def live_ids(self, record: ChangeRecord) -> NDArray[np.generic]:
        """Return the live items among those recorded, each once."""
        ids = np.unique(concat_ids(record)) if record else _NO_IDS
        return ids[self.rules.version.knows(ids)] if len(ids) else ids

    def _start_record(self) -> tuple[RuleSet, ChangeRecord]:
        record: ChangeRecord = []
        with self.write_lock:
            self._records.append(record)
            return self.rules, record

    def _stop_record(self, record: ChangeRecord) -> None:
        self._records = [other for other in self._records if other is not record]

    def _prepare(self, trie: Trie) -> None:
        """Make the filters of a compaction's new base while the old one is still in use."""
        self._drop_prepared()
        rules, changes = self._start_record()
        old_row_N = old_rows_of(trie, rules.version)
        filters = {name: remap(parts, rules.version, trie, old_row_N) for name, parts in rules.filters.by_segment.items()}
        self._prepared = _PreparedBase(trie=trie, filters=filters, rule_generations=rules.rule_generations, changes=changes)

    def _switched(self) -> None:
        with self.write_lock:
            self.advance()

    def _drop_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._stop_record(prepared.changes)


def _bits_of(rules: RuleSet, ids_n: NDArray[np.generic]) -> dict[str, NDArray[np.bool_]]:
    """Return, for each rule, a mask (n,) of the live items that it selects."""
    bits = {name: np.zeros(len(ids_n), np.bool_) for name in rules.filters.by_segment}
    segment_n, row_n = rules.version.locate(ids_n)
    for number, segment in enumerate(rules.version.segments):
        in_segment = np.flatnonzero(segment_n == number)
        ordinals = segment.trie.items.ordinal_N[row_n[in_segment]]
        for name, by_segment in rules.filters.by_segment.items():
            bits[name][in_segment] = by_segment[number].ordinals.has(ordinals)
    return bits
