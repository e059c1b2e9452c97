"""A directory with planted links, or absurd values behind valid checksums, is refused by name and hurts nothing outside it."""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam.errors import ItemIdError, LockedError, LogError
from leafbeam.live import LiveIndex
from leafbeam.live.manifest import Directory, Manifest, _checksum
from leafbeam.live.write_ahead_log import LogContents, WriteAheadLog
from tests.live.dictionary import START, agree, started

VICTIM = b"another user's file"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    started(tmp_path / "shop").close()
    return tmp_path / "shop"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(VICTIM)
    return path


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["lock", "changes-0.log"])
def test_a_linked_file_is_refused_and_what_it_points_to_stays(shop: Path, victim: Path, link: Any, name: str) -> None:
    if name != "lock":  # a log that can be read
        victim.write_bytes((shop / name).read_bytes() + b"half a record")
    before = victim.read_bytes()
    (shop / name).unlink()
    link(victim, shop / name)
    with pytest.raises(LogError, match=f"{name} must be a regular file with only one name"):
        LiveIndex.open(shop)
    assert victim.read_bytes() == before
    with LiveIndex.open(shop, read_only=True) as reader:
        agree(reader, START)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_files_that_a_compaction_writes_replace_planted_links(shop: Path, victim: Path, link: Any) -> None:
    with LiveIndex.open(shop) as index:
        index.delete(["a"])
        for name in ("base-1.leafbeam", "changes-1.log", "manifest.json.part"):
            link(victim, shop / name)
        index.compact(wait=True)
        index.delete(["b"])
    assert victim.read_bytes() == VICTIM
    with LiveIndex.open(shop) as index:
        agree(index, {key: START[key] for key in "cd"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_lock_of_another_user_is_refused(shop: Path) -> None:
    uid = (shop / "lock").stat().st_uid
    os.chown(shop / "lock", uid + 1, -1)
    with pytest.raises(LogError, match="owned by you or the directory's owner"):
        LiveIndex.open(shop)
    os.chown(shop, uid + 1, -1)
    LiveIndex.open(shop).close()


@pytest.mark.parametrize("name", ["lock", "manifest.json", "changes-0.log"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_fifo_in_the_place_of_a_file_is_refused_and_not_waited_for(shop: Path, name: str, read_only: bool) -> None:
    (shop / name).unlink()
    os.mkfifo(shop / name)
    if name == "lock" and read_only:
        LiveIndex.open(shop, read_only=True).close()
        return
    with pytest.raises(LogError, match=r"(is not|must be) a regular file"):
        LiveIndex.open(shop, read_only=read_only)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_writer_whose_lock_file_is_gone_refuses_and_lets_nobody_in(shop: Path, replaced: bool) -> None:
    index = LiveIndex.open(shop)
    index.delete(["a"])
    (shop / "lock").unlink()
    if replaced:
        with pytest.raises(LockedError, match=r"changes-0.log is open for writing by another process"):
            LiveIndex.open(shop)
    with pytest.raises(LockedError, match=r"lock was removed or replaced .* nothing was changed"):
        index.delete(["b"])
    with pytest.raises(LogError, match=r"lock was removed or replaced"):
        index.compact(wait=True)
    agree(index, {key: START[key] for key in "bcd"})
    index.close()
    with LiveIndex.open(shop) as other:
        agree(other, {key: START[key] for key in "bcd"})


def test_a_lock_that_goes_while_a_transaction_is_open_is_noticed_before_its_commit(shop: Path) -> None:
    def delete_after_the_lock(index: LiveIndex) -> None:
        with index.transaction() as transaction:
            transaction.delete(["a"])
            (shop / "lock").unlink()

    with LiveIndex.open(shop) as index, pytest.raises(LockedError, match="removed or replaced"):
        delete_after_the_lock(index)
    with LiveIndex.open(shop, read_only=True) as reader:
        agree(reader, START)


def test_a_writer_that_locks_a_log_after_a_compaction_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had read the manifest before; the lock file was removed before that."""
    first = LiveIndex.open(shop)
    first.delete(["a"])
    (shop / "lock").rename(shop / "aside")
    resume = WriteAheadLog.resume

    def compact_before(contents: LogContents, *, sync: bool) -> WriteAheadLog:
        (shop / "lock").rename(shop / "second")
        (shop / "aside").rename(shop / "lock")
        first.compact(wait=True)
        return resume(contents, sync=sync)

    with monkeypatch.context() as patch:
        patch.setattr(WriteAheadLog, "resume", compact_before)
        patch.setattr(Directory, "gc", lambda directory: None)  # the first writer is about to remove the old files
        with pytest.raises(LockedError, match="compacted by another writer meanwhile"):
            LiveIndex.open(shop)


FIELDS = json.loads(Manifest.of(0, "00000000deadbeef").encode())
VALUES = [None, True, -1, 2**63, 10**400, 1e308, "0", "x" * 3000, "../x", "/etc/passwd", [], [[0]], {"a": {}}, "\ud800"]


@pytest.mark.parametrize("name", [*FIELDS, "another", "1 2"])
def test_a_manifest_with_absurd_values_and_a_valid_checksum_is_refused(shop: Path, name: str) -> None:
    fields = json.loads((shop / "manifest.json").read_bytes())
    del fields["crc32"]
    for value in VALUES:
        if (name, value) == ("format_version", True) or name == "crc32":
            continue
        hostile = {**fields, name: value}
        (shop / "manifest.json").write_text(json.dumps({**hostile, "crc32": _checksum(hostile)}))
        with pytest.raises(LogError):
            LiveIndex.open(shop)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"1", b"[]", b"null", b'"\\ud800"', b"9" * 5000, b"{}" * 9000],
)
def test_bytes_that_are_no_manifest_are_refused(shop: Path, data: bytes) -> None:
    (shop / "manifest.json").write_bytes(data)
    with pytest.raises(LogError, match="is not the manifest"):
        LiveIndex.open(shop)


def payload(kind: int, levels: int, code_bytes: int, id_bytes: int, removed: int, added: int, body: bytes = b"") -> bytes:
    return struct.pack("<BBHIII", kind, levels, code_bytes, id_bytes, removed, added) + body


@pytest.mark.parametrize(
    "record",
    [
        payload(2, 3, 2, 2**32 - 1, 0, 0),
        payload(2, 3, 2, 2**31 - 1, 0, 0),
        payload(1, 3, 2, 8, 2**32 - 1, 2**32 - 1),
        payload(2, 3, 2, 1, 2**32 - 1, 0),
        payload(2, 3, 2, 2**32 - 1, 2**32 - 1, 2**32 - 1, b"x" * 100),
        payload(2, 3, 2, 1, 0, 1, b"\xff" + bytes(6)),
        payload(2, 3, 2, 1, 0, 2, b"\xc3\xa9" + bytes(12)),  # é, half in each of two ids
        payload(2, 3, 2, 2, 0, 1, b"\xed\xa0" + bytes(6)),
        payload(2, 3, 2, 1, 0, 1, b"x" + b"\xff" * 6),
        payload(0, 0, 0, 0, 0, 0),
    ],
)
def test_a_record_with_absurd_values_and_valid_checksums_is_refused(shop: Path, record: bytes) -> None:
    log = WriteAheadLog.resume(LogContents.read(shop / "changes-0.log"), sync=False)
    log.append(record)
    log.close()
    with pytest.raises(LogError, match="not a change of this index"):
        LiveIndex.open(shop)


def test_a_long_log_of_nothing_is_read_without_memory_for_it(shop: Path) -> None:
    import resource

    with LiveIndex.open(shop) as index:
        index.delete(["a"])
    size = (shop / "changes-0.log").stat().st_size
    os.truncate(shop / "changes-0.log", size + (1 << 28))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    contents = LogContents.read(shop / "changes-0.log")
    assert (contents.number, contents.truncated_bytes) == (1, 1 << 28)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_numbers_at_the_end_of_64_bits_are_refused(shop: Path) -> None:
    manifest = json.loads((shop / "manifest.json").read_bytes())
    number = 2**64 - 1
    (shop / f"base-{number}.leafbeam").write_bytes((shop / "base-0.leafbeam").read_bytes())
    header = struct.pack("<8sI4xQQ", b"leafbmlg", 1, number, int(manifest["base_version"], 16))
    (shop / f"changes-{number}.log").write_bytes(header + struct.pack("<I", zlib.crc32(header)))
    fields = {
        "format_version": 1,
        "number": number,
        "base": f"base-{number}.leafbeam",
        "base_version": manifest["base_version"],
        "log": f"changes-{number}.log",
    }
    (shop / "manifest.json").write_text(json.dumps({**fields, "crc32": _checksum(fields)}))
    with pytest.raises(LogError, match="is not the manifest"):
        LiveIndex.open(shop)


def test_ids_of_bytes_that_are_not_utf8_are_refused_before_they_are_logged(shop: Path) -> None:
    with LiveIndex.open(shop) as index:
        for ids in (np.array([b"\xff"]), np.array([b"\xc3", b"\xa9"])):
            with pytest.raises(ItemIdError, match="UTF-8"):
                index.insert(np.zeros((len(ids), 3), np.int64), ids)
        index.insert([[0, 0, 0]], ["é éé"])
    with LiveIndex.open(shop) as index:
        agree(index, {**START, "é éé": (0, 0, 0)})


@pytest.mark.parametrize("change", ["removed", "replaced", "truncated", "longer"])
def test_a_log_that_another_process_changed_takes_no_more_changes(shop: Path, change: str) -> None:
    """An acknowledged change would be lost, or the log unreadable."""
    index, log = LiveIndex.open(shop), shop / "changes-0.log"
    index.delete(["a"])
    before = log.read_bytes()
    if change in ("removed", "replaced"):
        log.unlink()
    if change == "replaced":
        log.write_bytes(before)
    if change == "truncated":
        os.truncate(log, 40)
    if change == "longer":
        log.write_bytes(before + b"\0")
    for _ in range(2):
        with pytest.raises(LogError, match=r"changes-0.log was removed, replaced or changed .* nothing was changed"):
            index.delete(["b"])
    agree(index, {key: START[key] for key in "bcd"})
    index.close()


def test_more_bytes_behind_the_last_record_than_a_crash_leaves_are_refused_unread(shop: Path) -> None:
    log = next(shop.glob("changes-*.log"))
    os.truncate(log, 20 << 30)
    with pytest.raises(LogError, match="more than a crash leaves"):
        LogContents.read(log)
