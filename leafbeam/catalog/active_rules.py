"""ActiveRules: the current rule set, kept at the version of the live index. Shapes: n items of one change."""

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.remap import SegmentValues, empty_of, make_bounds, old_rows_of, remap, values_at
from leafbeam.catalog.rule_set import RuleFilters, RuleSet, advance_values
from leafbeam.index import Trie
from leafbeam.live import LiveIndex
from leafbeam.live.transaction import concat_ids

_NO_IDS = np.empty(0, np.int64)

# Collects the ids of items whose attributes change while an evaluation runs.
ChangeRecord = list[NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _PreparedBase:
    """The values of definitions for a compaction's new base, for rules of the same generation.

    Args:
        changes: The items that have changed since the values were made.
    """

    trie: Trie
    values: dict[str, SegmentValues]
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

    def advance(
        self, changed_ids: NDArray[np.generic] = _NO_IDS, changed: Mapping[str, NDArray[np.generic]] | None = None
    ) -> None:
        """Move the rules to the current version. `changed_ids` (n,) are live items that were evaluated again, `changed`
        their values by definition; empty ones for a definition that is not there.
        """
        old, version = self.rules, self.index.version()
        by_segment = old.filters.by_segment
        empty = {name: np.full(len(changed_ids), empty_of(parts[0])) for name, parts in by_segment.items()}
        changed = {name: (changed or {}).get(name, values_n) for name, values_n in empty.items()}
        if len(changed_ids):
            for record in self._records:
                record.append(changed_ids)
        prepared, ready = self._prepared, None
        if prepared is not None and any(segment.trie is prepared.trie for segment in version.segments):
            self._drop_prepared()
            now, then = old.rule_generations, prepared.rule_generations
            ready = (prepared.trie, {name: part for name, part in prepared.values.items() if now.get(name) == then[name]})
            earlier = self.live_ids(prepared.changes)
            earlier = earlier[~np.isin(earlier, changed_ids)] if len(earlier) and len(changed_ids) else earlier
            earlier_values = _values_of(old, earlier)
            changed_ids = concat_ids([earlier, changed_ids])
            changed = {name: np.concatenate([before, changed[name]]) for name, before in earlier_values.items()}
        advanced = advance_values(by_segment, old.version, version, changed_ids, changed, ready)
        self.rules = replace(old, filters=RuleFilters(version, advanced))

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
        """Make the values of a compaction's new base while the old one is still in use."""
        self._drop_prepared()
        rules, changes = self._start_record()
        old_row_N = old_rows_of(trie, rules.version)
        values = {name: remap(parts, rules.version, trie, old_row_N) for name, parts in rules.filters.by_segment.items()}
        for name, parts in rules.filters.by_segment.items():
            make_bounds(values[name], parts[0], trie)
        self._prepared = _PreparedBase(trie=trie, values=values, rule_generations=rules.rule_generations, changes=changes)

    def _switched(self) -> None:
        with self.write_lock:
            self.advance()

    def _drop_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._stop_record(prepared.changes)


def _values_of(rules: RuleSet, ids_n: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    """Return, for each definition, the values (n,) of the live items."""
    by_segment = rules.filters.by_segment
    values = {name: np.full(len(ids_n), empty_of(parts[0])) for name, parts in by_segment.items()}
    segment_n, row_n = rules.version.locate(ids_n)
    for number, segment in enumerate(rules.version.segments):
        in_segment = np.flatnonzero(segment_n == number)
        ordinals = segment.trie.items.ordinal_N[row_n[in_segment]]
        for name, parts in by_segment.items():
            values[name][in_segment] = values_at(parts[number], ordinals)
    return values
