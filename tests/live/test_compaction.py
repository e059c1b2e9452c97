"""Compaction changes no item, loses no change, and reports its failures."""

import errno
import threading
from pathlib import Path

import numpy as np
import pytest

from leafbeam import Trie
from leafbeam.errors import LogError
from leafbeam.live import CompactionPolicy, LiveIndex, disk
from tests.live.dictionary import START, agree, started


def test_changes_made_during_a_compaction_are_on_top_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, items = started(tmp_path / "shop"), dict(START)
    index.delete(["d"])
    del items["d"]
    go, begun = threading.Event(), threading.Event()
    save = disk.save

    def slow_save(trie: Trie, path: Path) -> None:
        begun.set()
        assert go.wait(20)
        save(trie, path)

    monkeypatch.setattr(disk, "save", slow_save)
    index.compact()
    assert begun.wait(20)
    assert index.status.is_compacting
    for number in range(20):
        index.insert([[0, 0, number]], [f"x{number}"])
        items[f"x{number}"] = (0, 0, number)
        if number % 3 == 0:
            index.delete([f"x{number}"])
            del items[f"x{number}"]
    index.replace([[2, 1, 1]], ["b"])
    del items["b"]
    items["b"] = (2, 1, 1)
    index.insert([[1, 1, 1]], ["d"])
    items["d"] = (1, 1, 1)
    assert index.status.is_compacting  # no change waited for it
    agree(index, items)
    number = index.version().number
    go.set()
    index.compact(wait=True)
    agree(index, items)
    assert index.version().number == number
    assert index.status.num_compactions == 2
    index.close()
    with LiveIndex.open(tmp_path / "shop") as index:
        assert index.status.num_replayed == 0
        agree(index, items)


def test_the_switch_keeps_changes_made_during_the_merge_in_the_new_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = started(tmp_path / "shop")
    index.delete(["d"])
    save = disk.save

    def save_and_change(trie: Trie, path: Path) -> None:
        save(trie, path)
        index.insert([[0, 0, 1]], ["late"])

    monkeypatch.setattr(disk, "save", save_and_change)
    index._store.compact(1)
    expected = {**{key: START[key] for key in "abc"}, "late": (0, 0, 1)}
    agree(index, expected)
    assert index.status.num_delta == 1
    index.insert([[0, 0, 2]], ["later"])
    index.close()
    with LiveIndex.open(tmp_path / "shop") as index:
        assert index.status.num_replayed == 2
        agree(index, {**expected, "later": (0, 0, 2)})
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == [
        "base-1.leafbeam", "changes-1.log", "lock", "manifest.json"
    ]  # fmt: skip


def test_compaction_begins_by_itself_when_enough_has_changed() -> None:
    index = started(None, {row: (0, 0, row) for row in range(100)}, compaction=CompactionPolicy(fraction=0.1, min_changes=5))
    index.delete(np.arange(10))
    assert index.status.num_compactions == 0
    index.delete([10])
    index.close()
    status = index.status
    assert (status.num_compactions, status.num_base, status.num_deleted) == (1, 89, 0)


def test_a_log_of_inserts_and_deletes_that_cancel_is_compacted_too(tmp_path: Path) -> None:
    index = started(tmp_path / "shop", compaction=CompactionPolicy(fraction=0.1, min_changes=20))
    for _ in range(30):
        index.insert([[0, 0, 0]], ["x"])
        index.delete(["x"])
    index.close()
    assert index.status.num_compactions >= 1
    assert index.status.log_bytes < 2000
    assert LiveIndex.open(tmp_path / "shop", read_only=True).version().number == 60


@pytest.mark.parametrize("place", ["save", "sync_path", "create", "write", "rename", "sync_path of a directory"])
def test_a_failed_compaction_loses_nothing_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    index, items = started(tmp_path / "shop"), dict(START)
    index.delete(["d"])
    del items["d"]

    operation = getattr(disk, place.split()[0])

    def fail(*arguments: object) -> object:
        if place.endswith("directory") and not (isinstance(arguments[0], Path) and arguments[0].is_dir()):
            return operation(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, place.split()[0], fail)
        index.compact()
        index._thread.join()
    assert "No space left" in str(index.status.failure)
    with pytest.raises(LogError, match=r"compaction in the background failed .*No space left"):
        index.insert([[1, 1, 1]], ["e"])
    agree(index, items)
    assert len(list((tmp_path / "shop").iterdir())) == 4 + 3 * (place == "rename")
    if place == "rename":  # which manifest is in force is not known
        with pytest.raises(LogError, match="open the directory again"):
            index.insert([[1, 1, 1]], ["e"])
    else:
        index.insert([[1, 1, 1]], ["e"])
        items["e"] = (1, 1, 1)
        index.compact(wait=True)
        assert index.status.failure is None
    agree(index, items)
    index.close()
    with LiveIndex.open(tmp_path / "shop") as index:
        agree(index, items)
        assert len(list((tmp_path / "shop").iterdir())) == 4


def test_a_failed_compaction_is_raised_by_compact_with_wait_and_by_close(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    for end in (lambda one: one.compact(wait=True), lambda one: (one.compact(), one.close())):
        index = started()
        index.delete(["d"])
        with monkeypatch.context() as patch:
            patch.setattr("leafbeam.live.snapshot.Trie.from_table", fail)
            with pytest.raises(LogError, match="no room"):
                end(index)
        agree(index, {key: START[key] for key in "abc"})


def test_automatic_compaction_is_not_tried_again_with_every_change_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    index = started(None, {row: (0, 0, row) for row in range(100)}, compaction=CompactionPolicy(fraction=0.05, min_changes=0))
    tried = []

    def fail(number: int) -> bool:
        tried.append(index.status.number)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(index._store, "compact", fail)
        for row in range(20):
            try:
                index.delete([row])
            except LogError:
                index.delete([row])
            if index._thread is not None:
                index._thread.join()
    assert len(tried) == 2  # at 6 changes, and at twice as many
