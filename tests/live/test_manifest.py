"""One writer, whole files, and errors that name what is wrong with a directory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam.errors import ArgumentError, LockedError, LogError
from leafbeam.live import LiveIndex
from tests.live.dictionary import START, agree, content, started

FIXTURE = Path(__file__).parent.parent / "fixtures" / "segments-v1"


def fixture_index(path: Path) -> LiveIndex:
    """What the committed directory of format version 1 holds: a compacted base that lost items, and a log of every change."""
    index = started(path)
    index.insert([[1, 1, 200], [0, 0, 0]], ["é", "x"])
    index.compact(wait=True)
    index.delete(["a", "x"])
    index.insert([[2, 1, 299]], ["longer than the others"])
    index.replace([[0, 1, 8], [1, 1, 1]], ["b", "longer than the others"])
    return index


def test_format_version_1_opens_forever(tmp_path: Path) -> None:
    expected = content(fixture_index(tmp_path / "shop").version())
    with LiveIndex.open(FIXTURE, read_only=True) as index:
        assert list(content(index.version()).items()) == list(expected.items())
        assert (index.version().number, index.status.num_replayed) == (4, 3)
    assert len(list(FIXTURE.iterdir())) == 3  # reading left nothing there


def test_an_interrupt_between_log_and_memory_closes_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = started(tmp_path / "shop")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index._store, "_publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            index.insert([[1, 1, 1]], ["e"])
    with pytest.raises(LogError, match="change 1 is on disk but not in memory"):
        index.insert([[1, 1, 1]], ["f"])
    agree(index, START)
    index.close()
    with LiveIndex.open(tmp_path / "shop") as index:
        agree(index, {**START, "e": (1, 1, 1)})


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    import os

    index = started(tmp_path / "shop")
    with pytest.raises(LockedError, match="by this process itself: one writer at a time"):
        LiveIndex.open(tmp_path / "shop")
    (tmp_path / "shop" / "lock").write_text("4242")
    with pytest.raises(LockedError, match="by process 4242"):
        LiveIndex.open(tmp_path / "shop")
    index.insert([[1, 1, 1]], ["e"])
    with LiveIndex.open(tmp_path / "shop", read_only=True) as reader:
        agree(reader, {**START, "e": (1, 1, 1)})
        with pytest.raises(ArgumentError, match="read_only=True"):
            reader.delete(["e"])
        with pytest.raises(ArgumentError, match="read_only=True"):
            reader.compact()
    index.close()
    with LiveIndex.open(tmp_path / "shop") as index:
        assert (tmp_path / "shop" / "lock").read_text() == str(os.getpid())


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for call, message in (
        (lambda: started(tmp_path), r"not empty \('mine.txt' is there\)"),
        (lambda: LiveIndex.open(tmp_path), "holds no live index"),
        (lambda: started(tmp_path / "mine.txt" / "below"), "cannot make the directory"),
    ):
        with pytest.raises(LogError, match=message):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    started(tmp_path / "shop").close()
    with pytest.raises(LogError, match="holds a live index already"):
        started(tmp_path / "shop")


def test_a_directory_with_mixed_or_missing_files_says_so(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    with started(path) as index:
        index.delete(["d"])
    kept = {one.name: one.read_bytes() for one in path.iterdir()}
    with started(tmp_path / "other", {"x": (0, 0, 0)}) as other:
        other.delete(["x"])
    foreign = {one.name: one.read_bytes() for one in (tmp_path / "other").iterdir()}
    for name, match in (
        ("base-0.leafbeam", "do not belong together"),
        ("changes-0.log", "do not belong together"),
        ("manifest.json", "do not belong together"),
    ):
        (path / name).write_bytes(foreign[name])
        with pytest.raises(LogError, match=match):
            LiveIndex.open(path)
        (path / name).unlink()
        with pytest.raises(LogError, match=r"cannot be read|holds no live index"):
            LiveIndex.open(path, read_only=True)
        (path / name).write_bytes(kept[name])
    for place in range(len(kept["manifest.json"])):
        damaged = bytearray(kept["manifest.json"])
        damaged[place] ^= 0x15
        (path / "manifest.json").write_bytes(bytes(damaged))
        with pytest.raises(LogError, match="manifest"):
            LiveIndex.open(path, read_only=True)
    (path / "manifest.json").write_bytes(kept["manifest.json"])
    agree(LiveIndex.open(path, read_only=True), {key: START[key] for key in "abc"})


def test_a_base_whose_arrays_changed_is_refused(tmp_path: Path) -> None:
    started(tmp_path / "shop").close()
    base = tmp_path / "shop" / "base-0.leafbeam"
    raw = bytearray(base.read_bytes())
    raw[-1] ^= 1
    base.write_bytes(raw)
    with pytest.raises(LogError, match=r"arrays hash to.*restore the directory from a copy"):
        LiveIndex.open(tmp_path / "shop")


def test_records_that_do_not_fit_their_base_are_refused(tmp_path: Path) -> None:
    from leafbeam.live.transaction import WriteSet
    from leafbeam.live.write_ahead_log import LogContents, WriteAheadLog

    def encoded(removed: list[Any], added: list[Any], width: int = 3) -> bytes:
        codes = np.zeros((len(added), width), np.uint16)
        return WriteSet(removed_R=_ids(removed), added_A=_ids(added), codes_AL=codes).encode()

    def _ids(ids: list[Any]) -> Any:
        return np.array([one.encode() if isinstance(one, str) else one for one in ids]) if ids else np.empty(0, np.int64)

    started(tmp_path / "shop").close()
    log_path = tmp_path / "shop" / "changes-0.log"
    empty = log_path.read_bytes()
    good = encoded(["a"], ["e"])
    cases = [
        [b""], [b"x" * 30], [good[:-1]], [good + b"x"], [b"\x09" + good[1:]], [encoded([], ["e"], width=2)],
        [encoded(["x"], [])], [encoded([], ["a"])], [good, good], [encoded([], ["e"]), encoded([], ["e"])],
        [encoded(["a"], []), encoded(["a"], [])], [encoded([], [5])], [good, encoded([7], [])],
    ]  # fmt: skip
    for payloads in cases:
        log_path.write_bytes(empty)
        log = WriteAheadLog.resume(LogContents.read(log_path), sync=False)
        for payload in payloads:
            log.append(payload)
        log.close()
        before = log_path.read_bytes()
        with pytest.raises(LogError, match=r"not a change of this index|do not fit the base") as caught:
            LiveIndex.open(tmp_path / "shop")
        assert str(log_path) in str(caught.value)
        assert log_path.read_bytes() == before
