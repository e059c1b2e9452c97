"""The log: records read back as they were appended; damage is reported or truncated, never read as a change."""

import errno
import os
import random
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leafbeam.errors import LogError
from leafbeam.live import disk, write_ahead_log
from leafbeam.live.write_ahead_log import LogContents, WriteAheadLog

BASE = "00000000deadbeef"
PAYLOADS = [b"", b"one", b"\xffrec" * 3, bytes(range(256)), b"x" * 77]


def written(path: Path, payloads: list[bytes], *, base_number: int = 7) -> Path:
    log = WriteAheadLog.create(path, base_number=base_number, base_version=BASE, sync=False)
    for number, payload in enumerate(payloads, base_number + 1):
        assert log.append(payload) == number
    log.close()
    return path


def payloads_of(path: Path) -> list[bytes]:
    return [record.payload for record in LogContents.read(path).records]


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return written(tmp_path / "x.log", PAYLOADS)


@pytest.mark.parametrize("sync", [True, False])
def test_records_are_read_in_order_with_their_numbers(tmp_path: Path, sync: bool) -> None:
    log = WriteAheadLog.create(tmp_path / "x.log", base_number=41, base_version=BASE, sync=sync)
    assert [log.append(payload) for payload in PAYLOADS] == [42, 43, 44, 45, 46]
    contents = LogContents.read(tmp_path / "x.log")  # a reader beside the writer
    assert (contents.base_number, contents.base_version, contents.number, contents.truncated_bytes) == (41, BASE, 46, 0)
    assert [record.payload for record in contents.records] == PAYLOADS
    assert contents.end == log.end == (tmp_path / "x.log").stat().st_size
    log.close()
    log.close()


def test_new_logs_have_the_new_magic_and_the_old_one_is_still_read(log_path: Path) -> None:
    whole = log_path.read_bytes()
    assert whole.startswith(b"leafbmlg")
    header = b"pleachlg" + whole[8:32]
    log_path.write_bytes(header + zlib.crc32(header).to_bytes(4, "little") + whole[36:])
    assert payloads_of(log_path) == PAYLOADS


def test_a_log_can_be_resumed(log_path: Path) -> None:
    log = WriteAheadLog.resume(LogContents.read(log_path), sync=True)
    assert log.append(b"more") == 13
    log.close()
    assert payloads_of(log_path) == [*PAYLOADS, b"more"]


def test_a_log_cut_at_any_byte_is_a_prefix_and_can_be_resumed(log_path: Path) -> None:
    whole = log_path.read_bytes()
    ends = [*[record.offset for record in LogContents.read(log_path).records][1:], len(whole)]
    header = LogContents.read(log_path).records[0].offset
    for size in range(len(whole)):
        log_path.write_bytes(whole[:size])
        if size < header:
            with pytest.raises(LogError, match="first 36 bytes"):
                LogContents.read(log_path)
            continue
        contents = LogContents.read(log_path)
        assert len(contents.records) == sum(end <= size for end in ends)
        assert contents.end + contents.truncated_bytes == size
        log = WriteAheadLog.resume(contents, sync=False)
        log.append(b"again")
        log.close()
        assert payloads_of(log_path) == [*PAYLOADS[: len(contents.records)], b"again"]


def test_a_flipped_byte_is_named_unless_it_is_in_the_last_record(log_path: Path) -> None:
    whole = log_path.read_bytes()
    offsets = [record.offset for record in LogContents.read(log_path).records]
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        log_path.write_bytes(bytes(damaged))
        if place >= offsets[-1]:
            contents = LogContents.read(log_path)
            assert (len(contents.records), contents.truncated_bytes) == (len(PAYLOADS) - 1, len(whole) - offsets[-1])
            continue
        offset = max((one for one in offsets if one <= place), default=0)
        named = f"at byte {offset}" if offset else "byte 0|first 36 bytes"
        with pytest.raises(LogError, match=named) as caught:
            LogContents.read(log_path)
        assert str(log_path) in str(caught.value)


def test_a_missing_record_is_named(log_path: Path) -> None:
    whole = log_path.read_bytes()
    second, third = (record.offset for record in LogContents.read(log_path).records[1:3])
    log_path.write_bytes(whole[:second] + whole[third:])
    with pytest.raises(LogError, match=f"record 10 at byte {second}, expected 9: changes are missing"):
        LogContents.read(log_path)


def test_a_newer_format_asks_for_an_upgrade(log_path: Path) -> None:
    import struct

    whole = log_path.read_bytes()
    header = whole[:8] + struct.pack("<I", 9) + whole[12:32]
    log_path.write_bytes(header + struct.pack("<I", zlib.crc32(header)) + whole[36:])
    with pytest.raises(LogError, match="version 9, not 1: upgrade"):
        LogContents.read(log_path)


def head(length: int, number: int, crc: int = 0) -> bytes:
    data = write_ahead_log._RECORD.pack(b"\xffrec", length, number, crc)
    return data + zlib.crc32(data).to_bytes(4, "little")


def test_heads_that_overlap_are_refused_before_their_payloads_are_hashed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size, hashed = written(tmp_path / "x.log", [b"one"]), 24 * 20_000, [0]
    tail = b"".join(head(size - 24 * at, at + 9) for at in range(1, 20_000))
    path.write_bytes(path.read_bytes() + bytes(24) + tail + bytes(24))
    crc32 = zlib.crc32

    def counting(data: bytes, start: int = 0) -> int:
        hashed[0] += len(data)
        return crc32(data, start)

    monkeypatch.setattr(write_ahead_log.zlib, "crc32", counting)
    with pytest.raises(LogError, match="is damaged at byte 63: headers of overlapping records"):
        LogContents.read(path)
    assert hashed[0] < 4 * size


def test_many_damaged_payloads_in_a_row_are_searched_to_the_intact_record(tmp_path: Path) -> None:
    path = written(tmp_path / "x.log", [b"one", *[bytes([65 + n]) * 5000 for n in range(20)], b"last"])
    raw = bytearray(path.read_bytes())
    for n in range(20):
        raw[raw.index(bytes([65 + n]) * 5000) + 9] = 0
    path.write_bytes(raw)
    with pytest.raises(LogError, match="record 9 cannot be read, but record 29 at byte"):
        LogContents.read(path)


def test_a_head_before_a_hole_of_a_file_costs_no_memory(tmp_path: Path) -> None:
    path, length = written(tmp_path / "x.log", [b"one"]), 200 << 20
    with path.open("ab") as file:
        file.write(head(length, 9, 1))
        file.truncate(file.tell() + length)
    tracemalloc.start()
    try:
        contents = LogContents.read(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert (len(contents.records), contents.truncated_bytes) == (1, 24 + length)


def test_records_beyond_the_memory_are_a_log_error(log_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(**_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(write_ahead_log, "LogRecord", no_memory)
    with pytest.raises(LogError, match="more memory than is free"):
        LogContents.read(log_path)


def test_a_long_record_comes_back(tmp_path: Path) -> None:
    payload = random.Random(0).randbytes((3 << 20) + 5)
    assert payloads_of(written(tmp_path / "x.log", [payload, b"", payload])) == [payload, b"", payload]


def failing(times: int, after_bytes: int | None = None) -> Callable[[int, bytes], None]:
    """A `write` that writes some bytes and then finds no space, `times` times."""
    real, left = disk.write, [times]

    def write(descriptor: int, data: bytes) -> None:
        if left[0] == 0:
            return real(descriptor, data)
        left[0] -= 1
        real(descriptor, data[:after_bytes])
        raise OSError(errno.ENOSPC, "No space left on device")

    return write


@pytest.mark.parametrize("part", [0, 1, 10, 24, 30, None])
def test_a_full_disk_costs_the_record_and_no_more(log_path: Path, monkeypatch: pytest.MonkeyPatch, part: int | None) -> None:
    log = WriteAheadLog.resume(LogContents.read(log_path), sync=True)
    monkeypatch.setattr(disk, "write", failing(1, part))
    with pytest.raises(LogError, match=r"No space left on device.*nothing was changed$"):
        log.append(b"too much for it")
    assert payloads_of(log_path) == PAYLOADS
    assert LogContents.read(log_path).truncated_bytes == 0
    assert log.append(b"fits") == 13
    assert payloads_of(log_path) == [*PAYLOADS, b"fits"]
    log.close()


def refused(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("faults", "says", "left_bytes"),
    [
        ({"sync": refused}, "Input/output error", 0),
        ({"write": (1, 20), "truncate": refused}, "No space left on device", 20),  # what cannot be rolled back stays
    ],
)
def test_a_log_of_which_nobody_knows_what_is_on_disk_accepts_no_more_records(
    log_path: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[str, Any], says: str, left_bytes: int
) -> None:
    log = WriteAheadLog.resume(LogContents.read(log_path), sync=True)
    with monkeypatch.context() as patch:
        for name, fault in faults.items():
            patch.setattr(disk, name, failing(*fault) if isinstance(fault, tuple) else fault)
        with pytest.raises(LogError, match=f"{says}.*no more changes"):
            log.append(b"unsure")
    with pytest.raises(LogError, match="open the directory again"):
        log.append(b"after")
    log.close()
    contents = LogContents.read(log_path)
    assert (payloads_of(log_path), contents.truncated_bytes) == (PAYLOADS, left_bytes)


def test_an_interrupted_write_is_rolled_back(log_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WriteAheadLog.resume(LogContents.read(log_path), sync=True)

    def interrupt(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:9])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.append(b"stopped")
    assert payloads_of(log_path) == PAYLOADS
    assert log.append(b"next") == 13
    log.close()
    assert payloads_of(log_path) == [*PAYLOADS, b"next"]


def test_a_closed_log_says_so(log_path: Path) -> None:
    log = WriteAheadLog.resume(LogContents.read(log_path), sync=False)
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.append(b"late")


def test_many_records_come_back(tmp_path: Path) -> None:
    source = random.Random(0)
    payloads = [source.randbytes(source.randrange(300)) for _ in range(3000)]
    assert payloads_of(written(tmp_path / "x.log", payloads)) == payloads
