"""Simulated storage: some schedules of each kind, and by name what `make simulate` has found."""

import errno
from pathlib import Path
from random import Random

import numpy as np
import pytest

from leafbeam.catalog.active_rules import ActiveRules
from leafbeam.catalog.rule_set import RuleFilters, RuleSet
from leafbeam.errors import LogError
from leafbeam.index.items import as_id_array
from leafbeam.live import LiveIndex, disk
from tests.live.dictionary import NEVER, START, agree, started
from tests.simulation import storage
from tests.simulation.disk import Crash, SimulatedDisk


@pytest.mark.slow
def test_schedules_of_changes_compactions_faults_and_crashes_keep_every_acknowledged_commit(tmp_path: Path) -> None:
    counts = sum((storage.run(seed, tmp_path) for seed in range(30)), storage.Counter[str]())
    for name in ("commits", "compactions", "crashes", "faults", "refused", "read", "search", "second_writer", "remove_lock"):
        assert counts[name] > 5, name


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedDisk:
    return SimulatedDisk(Random(0), tmp_path)


def crash_after(patch: pytest.MonkeyPatch, operation: str) -> None:
    real = getattr(disk, operation)

    def call(*arguments: object) -> None:
        real(*arguments)
        raise Crash

    patch.setattr(disk, operation, call)


@pytest.mark.parametrize("step", ["create", "compact"])
@pytest.mark.parametrize("keep", ["nothing", "all but the renamed manifest"])
def test_a_manifest_renamed_by_a_killed_writer_is_synced_before_the_next_acknowledges(
    simulated: SimulatedDisk, step: str, keep: str
) -> None:
    """Without it, a power cut long after took the rename back: the index was empty, or its files were removed already."""
    with simulated.installed():
        if step == "compact":
            index = started(simulated.folder)
            index.delete(["a"])
        with pytest.MonkeyPatch.context() as patch:
            crash_after(patch, "rename")
            with pytest.raises((Crash, LogError)):  # the latter of the thread that compacts
                started(simulated.folder) if step == "create" else index.compact(wait=True)
        simulated.restart(power_cut=False)
        with LiveIndex.open(simulated.folder, compaction=NEVER) as index:
            index.delete(["d"])
        expected = {key: START[key] for key in START if key != "d" and (key != "a" or step == "create")}
        names = dict(simulated.names_durable)
        simulated.names_now = names if keep == "nothing" else {**simulated.names_now, "manifest.json": names["manifest.json"]}
        simulated.restart(power_cut=False)
        with LiveIndex.open(simulated.folder, compaction=NEVER) as index:
            agree(index, expected)


def test_a_directory_whose_creation_failed_at_the_end_can_be_opened_by_the_same_process(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        real = disk.rename
        patch.setattr(disk, "rename", lambda source, target: (real(source, target), fail()))
        with pytest.raises(LogError, match="Input/output error") as kept:  # its traceback keeps the frames alive
            started(tmp_path / "shop")
    with LiveIndex.open(tmp_path / "shop") as index:
        agree(index, START)
    assert kept.value.__traceback__ is not None


def rules_of(index: LiveIndex) -> ActiveRules:
    version = index.version()
    filters = {"fresh": tuple(segment.trie.filter_of_rows(np.zeros(0, np.int64)) for segment in version.segments)}
    rules = RuleSet(
        filters=RuleFilters(version, filters),
        definitions={},
        report=storage.EMPTY,
        generation=1,
        rule_generations={"fresh": 1},
    )
    return ActiveRules(index, rules)


def test_a_compaction_whose_old_files_cannot_be_removed_is_no_failure_and_the_rules_follow(simulated: SimulatedDisk) -> None:
    with simulated.installed():
        index = started(simulated.folder)
        active = rules_of(index)
        index.delete(["a"])
        active.advance()

        def refuse(path: Path) -> None:
            raise OSError(errno.EIO, f"{path.name} cannot be removed")

        with pytest.MonkeyPatch.context() as patch:
            create = disk.create
            patch.setattr(disk, "create", lambda path: (patch.setattr(disk, "remove", refuse), create(path))[1])
            index.compact(wait=True)
        assert index.status.num_compactions == 1
        assert active.rules.version is index.version()
        assert "base-0.leafbeam" in simulated.names_now
        index.insert([[0, 0, 0]], ["e"])
        index.compact(wait=True)
        assert len(simulated.names_now) == 4


def test_rules_follow_the_first_items_of_an_empty_index() -> None:
    index = started(None, {})
    active = rules_of(index)
    for key in (7, 2**40):
        index.insert([[0, 0, 0]], [key])
        active.advance(as_id_array([key]), {"fresh": np.array([True])})
    chosen = active.rules.filter("fresh")
    assert chosen is not None
    assert sorted(chosen.item_ids().tolist()) == [7, 2**40]
