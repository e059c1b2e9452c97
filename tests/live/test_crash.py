"""A crash between any two file operations, by a killed process or by a power cut, leaves a prefix of the operations.

No process dies here: the file operations are listened to, and after each of them the directory is put down as a crash at that
moment would leave it. A power cut leaves, at worst, each file as it was at its last sync and each name as it was at the last
sync of the directory; and, since nothing forbids it, any mixture of that with what was written since.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leafbeam import Trie
from leafbeam.errors import LogError
from leafbeam.live import LiveIndex, disk
from tests.live.dictionary import NEVER, START, Model, agree, content, started

Files = dict[str, bytes]


def compact_while_changing(index: LiveIndex) -> None:
    """Changes come while the merge is at its longest, so that the new log begins with them."""
    save = disk.save

    def save_and_change(trie: Trie, path: Path) -> None:
        save(trie, path)
        index.insert([[2, 1, 3]], ["m"])
        index.delete(["m", "c"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "save", save_and_change)
        thread = threading.Thread(target=index._store.compact, args=(1,))
        thread.start()
        thread.join()


Steps = list[Callable[[Any], object]]
STEPS: Steps = [
    lambda s: s.insert([[1, 1, 1], [2, 0, 2]], ["e", "f"]),
    lambda s: s.delete(["a"]),
    lambda s: s.replace([[0, 0, 0]], ["e"]),
    lambda s: s.compact(wait=True),
    lambda s: s.insert([[1, 1, 9]], ["a"]),
    lambda s: s.delete(["f", "b"]),
    lambda s: s.compact(wait=True),
    lambda s: s.delete(["a"]),
]


class Recorder:
    """The directory as a killed process, or a power cut, would leave it after each file operation.

    moments: (acknowledged changes, [killed, power cut, power cut that kept new contents but not names, names but not contents,
    or of the new names only the manifest's]).
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.acknowledged = 0
        self.moments: list[tuple[int, list[Files]]] = []
        self.operations: list[str] = []
        self._contents: dict[int, bytes] = {}  # inode -> what was synced of it
        self._names: dict[str, int] = {}  # name -> inode, as synced
        self._held: list[int] = []  # so that no inode number is used twice
        for name in ("create", "write", "truncate", "sync", "rename", "remove", "save", "sync_path"):
            patch.setattr(disk, name, self._listen(name, getattr(disk, name)))

    def _listen(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == "write":  # a crash may come after any of its bytes
                descriptor, data = arguments
                operation(descriptor, data[: len(data) // 2])
                self._moment("half a write")
                result = operation(descriptor, data[len(data) // 2 :])
            else:
                result = operation(*arguments)
            if name == "sync":
                self._contents[os.fstat(arguments[0]).st_ino] = os.pread(arguments[0], 1 << 30, 0)
            if name == "sync_path" and arguments[0] == self.folder:
                self._names = {path.name: self._hold(path) for path in self.folder.iterdir()}
            elif name == "sync_path" and arguments[0].is_file():
                self._contents[arguments[0].stat().st_ino] = arguments[0].read_bytes()
            self._moment(name)
            return result

        return call

    def _hold(self, path: Path) -> int:
        self._held.append(os.open(path, os.O_RDONLY))
        return path.stat().st_ino

    def _moment(self, name: str) -> None:
        now = {path.name: (self._hold(path), path.read_bytes()) for path in self.folder.iterdir()}
        killed = {one: raw for one, (_, raw) in now.items()}
        inodes = dict(now.values())
        cut = {one: self._contents.get(inode, b"") for one, inode in self._names.items()}
        old_names = {one: inodes.get(inode, self._contents.get(inode, b"")) for one, inode in self._names.items()}
        old_contents = {one: self._contents.get(inode, b"") for one, (inode, _) in now.items()}
        manifest = {one: raw for one, raw in old_contents.items() if one == "manifest.json"}
        self.operations.append(name)
        self.moments.append((self.acknowledged, [killed, cut, old_names, old_contents, {**cut, **manifest}]))

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


def put_down(folder: Path, files: Files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, raw in files.items():
        (folder / name).write_bytes(raw)


def history(tmp_path: Path, recorder: Recorder | None, *, sync: bool, steps: Steps = STEPS) -> tuple[LiveIndex, list[Model]]:
    """Run all steps; returns what the index held after each change."""
    index = started(tmp_path / "shop", sync=sync)
    states: list[Model] = [content(index.version())]
    publish = index._store._publish

    def listen(state: Any) -> None:
        publish(state)
        if state.number == len(states):
            states.append(content(state.version))
        if recorder is not None:
            recorder.acknowledged = state.number

    index._store._publish = listen
    if recorder is not None:
        recorder.moments.clear()
        recorder.operations.clear()
    for step in steps:
        step(index)
    return index, states


def recovered(folder: Path) -> tuple[int, Model]:
    with LiveIndex.open(folder, compaction=NEVER) as index:
        number, items = index.version().number, content(index.version())
        index.insert([[0, 0, 100]], ["after"])  # and it goes on
    with LiveIndex.open(folder, read_only=True) as reader:
        assert reader.status.truncated_bytes == 0
        agree(reader, {**items, "after": (0, 0, 100)})
    assert len(list(folder.iterdir())) == 4
    return number, items


@pytest.mark.parametrize("sync", [True, False])
def test_a_crash_between_any_two_file_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool) -> None:
    (tmp_path / "shop").mkdir()
    with monkeypatch.context() as patch:
        recorder = Recorder(tmp_path / "shop", patch)
        index, states = history(tmp_path, recorder, sync=sync, steps=[*STEPS, compact_while_changing])
        index.close()
    recorder.close()
    assert len(recorder.moments) > 50
    assert {"save", "rename", "remove", "sync_path", "half a write"} <= set(recorder.operations)
    tried = set()
    for acknowledged, pictures in recorder.moments:
        for kind, files in enumerate(pictures):
            key = (acknowledged, kind > 0, *sorted(files.items()))
            if key in tried:
                continue
            tried.add(key)
            put_down(tmp_path / "crashed", files)
            number, items = recovered(tmp_path / "crashed")
            assert list(items.items()) == list(states[number].items())
            if sync or kind == 0:
                assert acknowledged <= number <= acknowledged + 1
            else:
                assert number <= acknowledged + 1
    assert len(tried) > 60


def test_a_crash_while_an_index_is_made_leaves_nothing_or_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop").mkdir()
    with monkeypatch.context() as patch:
        recorder = Recorder(tmp_path / "shop", patch)
        started(tmp_path / "shop").close()
    recorder.close()
    outcomes = set()
    for _, pictures in recorder.moments:
        for files in pictures:
            put_down(tmp_path / "crashed", files)
            try:
                number, items = recovered(tmp_path / "crashed")
            except LogError as error:
                assert "holds no live index" in str(error)  # noqa: PT017
                with started(tmp_path / "crashed") as index:
                    agree(index, START)
                outcomes.add("nothing")
            else:
                assert (number, items) == (0, START)
                outcomes.add("all")
    assert outcomes == {"nothing", "all"}


def fails_at(count: int, operation: Callable[..., Any], counter: Iterator[int]) -> Callable[..., Any]:
    """The operation, but the `count`-th of all that share the counter raises."""

    def call(*arguments: Any) -> Any:
        if next(counter) == count:
            raise OSError(28, "No space left on device")
        return operation(*arguments)

    return call


@pytest.mark.parametrize("sync", [True, False])
def test_after_any_single_failing_file_operation_memory_and_disk_agree(tmp_path: Path, sync: bool) -> None:
    """Each operation in turn fails once: acknowledged changes are there, and `open` finds the current version."""
    import itertools

    failures = shut = 0
    for count in itertools.count():
        folder = tmp_path / f"shop{count}"
        index = started(folder, sync=sync)
        expected = dict(START)
        with pytest.MonkeyPatch.context() as patch:
            counter = itertools.count()
            for name in ("create", "write", "truncate", "sync", "rename", "remove", "save", "sync_path"):
                patch.setattr(disk, name, fails_at(count, getattr(disk, name), counter))
            failed = 0
            for step in STEPS:
                for _ in range(2):  # once more after a failure, as the message asks for
                    try:
                        step(index)
                        break
                    except LogError:
                        failed += 1
                expected = content(index.version())
            reached = next(counter) > count
        number = index.version().number
        if failed:
            failures += 1
            shut += failed > 1
        try:
            index.close()
        except LogError:
            failures += 1
        with LiveIndex.open(folder) as found:
            assert found.version().number == number
            agree(found, expected)
        shutil.rmtree(folder)
        if not reached:
            break
    assert failures > 15
    assert shut >= 2  # a failed fsync, a switch in doubt: no more changes until it is opened again


def test_a_base_is_written_by_a_recorded_file_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    save = disk.save

    def listen(trie: Trie, path: Path) -> None:
        heard.append(path.name)
        save(trie, path)

    monkeypatch.setattr(disk, "save", listen)
    with started(tmp_path / "shop") as index:
        index.delete(["a"])
        index.compact(wait=True)
    assert heard == ["base-0.leafbeam", "base-1.leafbeam"]
