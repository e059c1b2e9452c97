"""One writer, whole files, and errors that name what is wrong with a directory."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam.errors import ArgumentError, LockedError, LogError
from leafbeam.live import disk
from leafbeam.live.live_index import LiveIndex
from tests.live.live import START, agree, content, started

FIXTURE = Path(__file__).parent.parent / "fixtures" / "segments-v1"


def fixture_segments(path: Path) -> LiveIndex:
    """What the committed directory of format version 1 holds: a compacted base that lost items, and a log of every change."""
    segments = started(path)
    segments.insert([[1, 1, 200], [0, 0, 0]], ["é", "x"])
    segments.compact(wait=True)
    segments.delete(["a", "x"])
    segments.insert([[2, 1, 299]], ["longer than the others"])
    segments.replace([[0, 1, 8], [1, 1, 1]], ["b", "longer than the others"])
    return segments


def test_format_version_1_opens_forever(tmp_path: Path) -> None:
    expected = content(fixture_segments(tmp_path / "shop").version())
    with LiveIndex.open(FIXTURE, read_only=True) as segments:
        assert list(content(segments.version()).items()) == list(expected.items())
        assert (segments.version().number, segments.opened.num_changes) == (4, 3)
    assert len(list(FIXTURE.iterdir())) == 3  # reading left nothing there


def test_a_full_disk_refuses_the_change_and_the_next_one_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = started(tmp_path / "shop")

    def fail(descriptor: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", fail)
        with pytest.raises(LogError, match=r"No space left on device.*nothing was changed"):
            segments.insert([[1, 1, 1]], ["e"])
    agree(segments, START)
    segments.insert([[1, 1, 2]], ["e"])
    segments.close()
    with LiveIndex.open(tmp_path / "shop") as segments:
        agree(segments, {**START, "e": (1, 1, 2)})


def test_an_interrupt_between_log_and_memory_shuts_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = started(tmp_path / "shop")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(segments._ledger, "_put_in_force", interrupt)
        with pytest.raises(KeyboardInterrupt):
            segments.insert([[1, 1, 1]], ["e"])
    with pytest.raises(LogError, match="change 1 is on disk but not in force"):
        segments.insert([[1, 1, 1]], ["f"])
    agree(segments, START)
    segments.close()
    with LiveIndex.open(tmp_path / "shop") as segments:
        agree(segments, {**START, "e": (1, 1, 1)})


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    import os

    segments = started(tmp_path / "shop")
    with pytest.raises(LockedError, match="by this process itself: one writer at a time"):
        LiveIndex.open(tmp_path / "shop")
    (tmp_path / "shop" / "lock").write_text("4242")
    with pytest.raises(LockedError, match="by process 4242"):
        LiveIndex.open(tmp_path / "shop")
    segments.insert([[1, 1, 1]], ["e"])
    with LiveIndex.open(tmp_path / "shop", read_only=True) as reader:
        agree(reader, {**START, "e": (1, 1, 1)})
        with pytest.raises(ArgumentError, match="read_only=True"):
            reader.delete(["e"])
        with pytest.raises(ArgumentError, match="read_only=True"):
            reader.compact()
    segments.close()
    with LiveIndex.open(tmp_path / "shop") as segments:
        assert (tmp_path / "shop" / "lock").read_text() == str(os.getpid())


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(LogError, match=r"not empty \('mine.txt' is there\)"):
        started(tmp_path)
    with pytest.raises(LogError, match="holds no catalog"):
        LiveIndex.open(tmp_path)
    with pytest.raises(LogError, match="cannot make the directory"):
        started(tmp_path / "mine.txt" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    started(tmp_path / "shop").close()
    with pytest.raises(LogError, match="holds a catalog already"):
        started(tmp_path / "shop")


def test_a_directory_with_mixed_or_missing_files_says_so(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    with started(path) as segments:
        segments.delete(["d"])
    kept = {one.name: one.read_bytes() for one in path.iterdir()}
    with started(tmp_path / "other", {"x": (0, 0, 0)}) as other:
        other.delete(["x"])
    foreign = {one.name: one.read_bytes() for one in (tmp_path / "other").iterdir()}
    for name, match in (
        ("base-0.leafbeam", "is a mixture"),
        ("changes-0.log", "is a mixture"),
        ("manifest.json", "is a mixture"),
    ):
        (path / name).write_bytes(foreign[name])
        with pytest.raises(LogError, match=match):
            LiveIndex.open(path)
        (path / name).unlink()
        with pytest.raises(LogError, match=r"cannot be read|holds no catalog"):
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


def test_records_that_do_not_fit_their_base_are_refused(tmp_path: Path) -> None:
    from leafbeam.live.transaction import Change
    from leafbeam.live.write_ahead_log import Contents, WriteAheadLog

    def change(removed: list[Any], added: list[Any], width: int = 3) -> bytes:
        codes = np.zeros((len(added), width), np.uint16)
        return Change(removed_R=_ids(removed), added_A=_ids(added), codes_AL=codes).encode()

    def _ids(ids: list[Any]) -> Any:
        return np.array([one.encode() if isinstance(one, str) else one for one in ids]) if ids else np.empty(0, np.int64)

    started(tmp_path / "shop").close()
    log = tmp_path / "shop" / "changes-0.log"
    empty = log.read_bytes()
    good = change(["a"], ["e"])
    cases = [
        [b""], [b"x" * 30], [good[:-1]], [good + b"x"], [b"\x09" + good[1:]], [change([], ["e"], width=2)],
        [change(["x"], [])], [change([], ["a"])], [good, good], [change([], ["e"]), change([], ["e"])],
        [change(["a"], []), change(["a"], [])], [change([], [5])], [good, change([7], [])],
    ]  # fmt: skip
    for payloads in cases:
        log.write_bytes(empty)
        journal = WriteAheadLog.resume(Contents.read(log), sync=False)
        for payload in payloads:
            journal.append(payload)
        journal.close()
        before = log.read_bytes()
        with pytest.raises(LogError, match=r"no change of this catalog|do not fit the base") as caught:
            LiveIndex.open(tmp_path / "shop")
        assert str(log) in str(caught.value)
        assert log.read_bytes() == before
