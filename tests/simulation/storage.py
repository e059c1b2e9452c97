"""Schedules of a live index on a simulated disk: changes, rules, compactions, readers, second writers, faults and crashes.

After each crash the recovered state is that after a prefix of the commits which contains every acknowledged one (with
sync=False only if no power was cut), and every answer equals that of a dictionary.
"""

import math
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from leafbeam import BeamSearch, Trie
from leafbeam.catalog.active_rules import ActiveRules
from leafbeam.catalog.rule_config import LoadReport
from leafbeam.catalog.rule_set import RuleFilters, RuleSet
from leafbeam.errors import ItemIdError, LockedError, LogError
from leafbeam.index import Version
from leafbeam.index.items import as_id_array
from leafbeam.live import LiveIndex
from tests.live.dictionary import NEVER, SIZES, Model, content, union
from tests.simulation.disk import Crash, SimulatedDisk

KEYS = {"text": [*"abcdefgh", "é", "ö ß", "längere", "z" * 20], "int": [*range(11), 2**40]}
LOGITS = [np.random.default_rng(level).normal(size=size).astype(np.float32) for level, size in enumerate(SIZES)]
LOG_PROBS = [logits - np.log(np.exp(logits.astype(np.float64)).sum()) for logits in LOGITS]
EMPTY = LoadReport(num_items=0, not_in_index=0, not_in_catalog=0, rules=(), seconds=0.0)


class _Undo(Exception):
    """Rolls a transaction back."""


class Schedule:
    """One seeded schedule. counts: what happened in it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.sync = random.random() < 0.7
        rates = {"fault_rate": random.choice([0, 0, 0.01, 0.05]), "crash_rate": random.choice([0, 0.002, 0.01, 0.04])}
        self.path = folder / "shop"
        self.disk = SimulatedDisk(random, self.path, **rates)
        self.keys = KEYS[random.choice(["text", "text", "int"])]
        start = {key: self.row() for key in random.sample(self.keys, random.randint(0, 8))}
        self.states: list[Model] = [start]  # after each commit
        self.uncertain: Model | None = None  # the state after a commit that was neither acknowledged nor taken back
        self.prices = dict.fromkeys(self.keys, 0)
        self.salts = {"fresh": 1}
        self.index: LiveIndex
        self.rules: ActiveRules
        self.held: list[tuple[Version, Model]] = []
        self.lock_removed = False
        self.inside = False
        self.faults_before = 0

    @property
    def items(self) -> Model:
        """The acknowledged state."""
        return self.states[-1]

    def run(self, steps: int = 25) -> Counter[str]:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        actions = [self.change] * 8 + [
            self.roll_back,
            self.compact,
            self.compact,
            self.change_rules,
            self.read,
            self.second_writer,
        ]
        actions += [self.search, self.reopen, self.remove_lock]
        with self.disk.installed():
            self.create()
            for _ in range(self.random.randint(1, steps)):
                action = self.random.choice(actions)
                self.counts[action.__name__] += 1
                self.attempt(action)
                self.check()
            self.disk.armed = False
            self.recover(crashed=self.random.random() < 0.5)
            self.disk.armed = False
            self.check()
            self.search()
            for version, items in self.held:
                assert content(version) == items
            self.index.close()
        self.counts["faults"] = self.disk.num_faults
        self.counts["crashes"] = self.disk.num_crashes
        return self.counts

    # Actions.

    def change(self) -> None:
        """One transaction of one to three calls, with attributes of the changed items."""
        items, changed = dict(self.items), set[Any]()
        calls: list[tuple[str, list[Any], list[tuple[int, ...]]]] = []
        for _ in range(self.random.choice([1, 1, 2, 3])):
            kind = self.random.choice(["insert", "insert", "delete", "replace"])
            legal = [key for key in self.keys if (key in items) != (kind == "insert")]
            ids = self.random.sample(legal, min(len(legal), self.random.randint(1, 4)))
            calls.append((kind, ids, rows := [self.row() for _ in ids]))
            for key in ids if kind != "insert" else ():
                del items[key]
            if kind != "delete":
                items.update(zip(ids, rows, strict=True))
            changed |= set(ids)
        prices = {key: self.random.randrange(5) for key in sorted(changed, key=str)}
        number = self.index.version().number
        try:
            with self.rules.write_lock:
                with self.index.transaction() as transaction:
                    for kind, ids, rows in calls:
                        if kind == "delete":
                            transaction.delete(ids)
                        else:
                            getattr(transaction, kind)(rows, ids)
                    self.uncertain = items if self.uncertain is None else self.uncertain
                self.prices.update(prices)
                live = sorted((key for key in changed if key in items), key=str)
                bits = {name: np.array([self.matches(name, key) for key in live], np.bool_) for name in self.salts}
                self.rules.advance(as_id_array(live), bits)
        except LogError as error:
            if "no more changes are accepted until" not in str(error):
                self.uncertain = None if self.is_writable() else self.uncertain
            raise
        self.uncertain = None
        assert transaction.number == self.index.version().number
        if transaction.number == number:
            assert items == self.items
        else:
            assert transaction.number == number + 1
            self.states.append(items)
        self.counts["commits"] += 1

    def roll_back(self) -> None:
        """A transaction that raises, and a call that is refused within it."""
        number = self.index.version().number
        try:
            with self.index.transaction() as transaction:
                transaction.delete(list(self.items)[:2])
                try:
                    transaction.delete(["not there"] if self.keys is KEYS["text"] else [77])
                except ItemIdError:
                    raise _Undo from None
                raise AssertionError("an unknown item was deleted")
        except _Undo:
            assert self.index.version().number == number

    def compact(self) -> None:
        """A compaction, with changes while it runs."""
        left = self.random.choice([0, 1, 2])

        def change_meanwhile(operation: str) -> None:
            nonlocal left
            if left and not self.inside and not self.index._store.write_lock.locked() and self.random.random() < 0.5:
                left -= 1
                self.inside = True
                try:
                    self.refusable(self.change)
                finally:
                    self.inside = False

        self.disk.before = change_meanwhile
        try:
            self.index.compact(wait=True)
        finally:
            self.disk.before = None
        assert self.index.version().number == len(self.states) - 1
        self.counts["compactions"] += 1

    def change_rules(self) -> None:
        """Another predicate of a rule, or another rule."""
        self.salts[self.random.choice(["fresh", "cheap"])] = self.random.randrange(1000)
        self.evaluate()

    def read(self) -> None:
        """A reader opens the directory while the writer changes and compacts between any two of its operations."""
        self.disk.armed, first = False, len(self.states) - 1

        def write_meanwhile(operation: str) -> None:
            if not self.inside and self.random.random() < 0.5:
                self.inside = True
                try:
                    self.refusable(self.random.choice([self.change, lambda: self.index.compact(wait=True)]))
                finally:
                    self.inside = False

        self.disk.before = write_meanwhile
        try:
            reader = LiveIndex.open(self.path, read_only=True)
        finally:
            self.disk.before, self.disk.armed = None, True
        number = reader.version().number
        if number == len(self.states):
            assert content(reader.version()) == self.uncertain
        else:
            assert first <= number < len(self.states)
            assert content(reader.version()) == self.states[number]

    def second_writer(self) -> None:
        self.disk.armed = False
        try:
            LiveIndex.open(self.path, compaction=NEVER)
        except LockedError:
            return
        finally:
            self.disk.armed = True
        raise AssertionError("two writers")

    def remove_lock(self) -> None:
        if self.random.random() < 0.3 and "lock" in self.disk.names_now:
            self.disk.remove(self.path / "lock")
            self.lock_removed = True

    def search(self) -> None:
        """A search under a rule and without, against all scores."""
        rules, items = self.rules.rules, self.items
        for name in (None, *self.salts):
            allowed = [key for key in items if name is None or self.matches(name, key)]
            deny = self.random.sample(self.keys, 2)
            filters = [rules.filter(name or (), deny=deny)]
            levels = iter(LOGITS)

            def step(codes: Any, parents: Any, levels: Any = levels) -> Any:
                logits = next(levels)
                return logits[None] if codes is None else np.tile(logits, (*codes.shape, 1))

            found = BeamSearch(rules.version, num_beams=32).run(step, filters=filters)
            count = int(found.num_valid[0])
            scores = {
                key: sum(LOG_PROBS[level][code] for level, code in enumerate(items[key])) for key in allowed if key not in deny
            }
            assert set(found.item_ids[0][:count].tolist()) == scores.keys()
            assert count == len(scores)
            for key, score in zip(found.item_ids[0][:count].tolist(), found.scores[0, :count].tolist(), strict=True):
                assert math.isclose(score, scores[key], abs_tol=1e-3)
            assert sorted(found.scores[0, :count], reverse=True) == found.scores[0, :count].tolist()

    def reopen(self) -> None:
        self.recover(crashed=False)

    # How a schedule goes on.

    def create(self) -> None:
        trie = union(self.items, SIZES)
        while True:
            self.disk.armed = self.random.random() < 0.7
            try:
                self.index = LiveIndex.create(self.path, trie, sync=self.sync, compaction=NEVER)
            except Crash:
                self.disk.restart(power_cut=self.random.random() < 0.5)
            except LogError as error:
                if "holds a live index already" in str(error):  # the switch was made before the crash
                    return self.open_again(restart=False)
                assert self.disk.num_faults
                if self.random.random() < 0.5:
                    self.disk.restart(power_cut=True)
            else:
                return self.opened()

    def attempt(self, action: Callable[[], None]) -> None:
        """An action, and the recovery if the process died in it."""
        try:
            self.refusable(action)
        except Crash:
            assert self.disk.dead
        if self.disk.dead:
            self.recover(crashed=True)

    def refusable(self, action: Callable[[], object]) -> None:
        """An action that may be refused by name, if a fault or the removed lock file explains it."""
        try:
            action()
        except LogError as error:
            self.counts["refused"] += 1
            if not (self.disk.dead or self.disk.num_faults > self.faults_before or self.lock_removed):
                raise AssertionError("refused without a cause") from error

    def recover(self, *, crashed: bool) -> None:
        """Open the directory again, after a crash or in order."""
        if not crashed:
            try:
                self.index.close()
            except (LogError, Crash):  # "the last changes may not be safe on disk", or a compaction's failure
                crashed = True
        self.open_again(restart=crashed)

    def open_again(self, *, restart: bool) -> None:
        """Open the directory, by a new process if `restart`, and compare with what may be there."""
        lost_all = False
        while True:
            if restart:
                power_cut = self.random.random() < 0.6
                lost_all |= power_cut and not self.sync
                self.disk.restart(power_cut=power_cut)
            self.faults_before = self.disk.num_faults
            self.disk.armed = self.disk.armed and self.random.random() < 0.7
            try:
                self.index = LiveIndex.open(self.path, sync=self.sync, compaction=NEVER)
                break
            except Crash:
                restart = True
            except LogError as error:
                if not self.counts["opened"] and "holds no live index" in str(error):  # and no create had returned
                    self.create()
                    return
                if lost_all and "damaged at byte" in str(error):
                    raise Lost from error
                if self.disk.num_faults == self.faults_before:
                    raise AssertionError("refused without a fault") from error
                restart = self.random.random() < 0.5
                self.disk.armed = self.disk.armed and restart
        number, found = self.index.version().number, content(self.index.version())
        if number == len(self.states):
            assert self.uncertain is not None, "a change that no client made"
            assert found == self.uncertain
            self.states.append(found)
        else:
            assert number < len(self.states)
            assert lost_all or number == len(self.states) - 1, f"{len(self.states) - 1} acknowledged, {number} found"
            assert found == self.states[number]
            del self.states[number + 1 :]
        self.opened()

    def opened(self) -> None:
        if self.disk.num_faults == self.faults_before:
            assert len(self.disk.names_now) == 4, sorted(self.disk.names_now)
        self.uncertain, self.lock_removed, self.disk.armed = None, False, True
        rules = RuleSet(
            filters=RuleFilters(self.index.version(), {}), definitions={}, report=EMPTY, generation=0, rule_generations={}
        )
        self.rules = ActiveRules(self.index, rules)
        self.evaluate()
        self.counts["opened"] += 1

    def check(self) -> None:
        """Memory equals the dictionary, and each rule selects what its predicate does."""
        version = self.index.version()
        assert version.number == len(self.states) - 1
        assert content(version) == self.items
        assert self.rules.rules.version is version
        for name in self.salts:
            chosen = self.rules.rules.filter(name)
            assert chosen is not None
            assert set(chosen.item_ids().tolist()) == {key for key in self.items if self.matches(name, key)}
        if self.random.random() < 0.2:
            self.held.append((version, self.items))

    # Rows and rules.

    def row(self) -> tuple[int, ...]:
        return tuple(self.random.randrange(min(size, 4)) for size in SIZES)

    def matches(self, name: str, key: Any) -> bool:
        return zlib.crc32(f"{self.salts[name]} {key} {self.prices[key]}".encode()) % 2 == 0

    def evaluate(self) -> None:
        """All rules anew, as a reload does."""
        with self.rules.write_lock:
            old, version = self.rules.rules, self.index.version()
            by_segment = {
                name: tuple(self.filter_of(segment.trie, name) for segment in version.segments) for name in sorted(self.salts)
            }
            generation = old.generation + 1
            self.rules.rules = replace(
                old,
                filters=RuleFilters(version, by_segment),
                generation=generation,
                rule_generations=dict.fromkeys(by_segment, generation),
            )

    def filter_of(self, trie: Trie, name: str) -> Any:
        keys = trie.items.ids_of(np.arange(trie.num_items)).tolist()
        return trie.filter_of_rows(np.array([row for row, key in enumerate(keys) if self.matches(name, key)], np.int64))

    def is_writable(self) -> bool:
        log = self.index._store._directory.log  # type: ignore[union-attr]
        return log.failure is None


class Lost(Exception):
    """A power cut tore a log that was not synced: it is refused by name."""


def run(seed: int, folder: Path) -> Counter[str]:
    """Run one schedule. Raises AssertionError where a promise is broken."""
    schedule = Schedule(seed, folder)
    try:
        return schedule.run()
    except Lost:
        return schedule.counts + Counter(lost=1)
