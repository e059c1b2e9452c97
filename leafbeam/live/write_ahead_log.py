"""The write-ahead log of a live index: numbered, checksummed records in one file (docs/reference/file-formats.md).

    header   magic, format version, number before the first record, version of the base index, CRC
    record   marker, length, number, CRC of the payload, CRC of these; then the payload

Record numbers are consecutive, so a missing record is detected. A crash leaves at most one incomplete record, the last, which
is truncated; a damaged record before an intact one is reported.
"""

import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from leafbeam.errors import LockedError, LogError, counted
from leafbeam.live import disk

FORMAT_VERSION = 1
_MAGIC = b"leafbmlg"
_OLD_MAGIC = b"pleachlg"  # of the project's first name
_HEADER = struct.Struct("<8sI4xQQ")  # magic, format version, number before the first record, base version; then its CRC
_MARKER = b"\xffrec"
_RECORD = struct.Struct("<4sIQI")  # marker, length, number, CRC of the payload; then its CRC
_CRC = struct.Struct("<I")
_HEADER_SIZE = _HEADER.size + _CRC.size
_RECORD_SIZE = _RECORD.size + _CRC.size
_MAX_PAYLOAD = 2**32 - 1
_CHUNK = 1 << 20  # bytes that are searched, or hashed, at a time
_MAX_HASHED = 2  # times the bytes searched: records do not overlap, so damaged ones need no more than once


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One record: its number, its offset in the file and its payload."""

    number: int
    offset: int
    payload: bytes


@dataclass(frozen=True, kw_only=True)
class LogContents:
    """The intact records of a log.

    Args:
        base_number: The number of the change before the first record.
        base_version: The version of the base that the records follow.
        end: The position after the last intact record. The bytes after it belong to an incomplete one.
    """

    path: Path
    base_number: int
    base_version: str
    records: list[LogRecord]
    end: int
    truncated_bytes: int

    @property
    def number(self) -> int:
        """Return the number of the last record."""
        return self.base_number + len(self.records)

    @classmethod
    def read(cls, path: Path) -> "LogContents":
        """Read and check a whole log. Raises FileNotFoundError, or LogError with the offset of what is missing or
        damaged.

        This needs memory for the payloads of the intact records, not for the whole file.
        """
        try:
            with disk.read(path) as file:
                return cls._read(path, file)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LogError(f"cannot read the log {path}: {error.strerror}") from error
        except MemoryError as error:
            raise LogError(f"{path} has records that need more memory than is free: restore it from a copy") from error

    @classmethod
    def _read(cls, path: Path, file: BinaryIO) -> "LogContents":
        size = file.seek(0, os.SEEK_END)
        base_number, base_version = _read_header(path, file)
        records: list[LogRecord] = []
        offset, number = _HEADER_SIZE, base_number
        while (record := _record_at(file, offset, size)) is not None:
            number += 1
            if record.number != number:
                raise LogError(
                    f"{path} has record {record.number:,} at byte {offset:,}, expected {number:,}: changes are missing; "
                    f"restore the directory from a copy, or keep only the changes before this byte with: truncate -s {offset} "
                    f"{path}"
                )
            records.append(record)
            offset += _RECORD_SIZE + len(record.payload)
        if (left := size - offset) > _RECORD_SIZE + _MAX_PAYLOAD:  # not searched, which takes two seconds a GiB
            raise LogError(
                f"{path} has {counted(left, 'byte')} after record {number:,}, more than a crash leaves: "
                "restore the directory from a "
                f"copy, or drop them with: truncate -s {offset} {path}"
            )
        if (later := _first_record_after(path, file, offset, size)) is not None:
            raise LogError(
                f"{path} is damaged at byte {offset:,}: record {number + 1:,} cannot be read, but record {later.number:,} at "
                f"byte {later.offset:,} is intact, so a crash did not cause this; restore the directory from a copy, or drop "
                f"all changes from there with: truncate -s {offset} {path}"
            )
        return cls(
            path=path, base_number=base_number, base_version=base_version, records=records, end=offset, truncated_bytes=left
        )


class WriteAheadLog:
    """A log that is open for writing. `append` returns once the record would survive a killed process, and with `sync`
    a power cut.

    After an error that leaves the file in an unknown state, every later `append` raises `failure`. A full disk costs
    only the record that did not fit.
    """

    def __init__(self, path: Path, descriptor: int, *, number: int, end: int, sync: bool) -> None:
        self.path = path
        self.number = number
        self.end = end
        self.sync = sync
        self.failure: str | None = None
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, *, base_number: int, base_version: str, sync: bool) -> "WriteAheadLog":
        """Return a new empty log. Its content is synced, its name in the directory is not. Raises OSError."""
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, base_number, int(base_version, 16))
        descriptor = disk.create(path)
        try:
            disk.lock(descriptor)
            disk.write(descriptor, header + _CRC.pack(zlib.crc32(header)))
            disk.sync(descriptor)
        except BaseException:
            disk.close(descriptor)
            raise
        return cls(path, descriptor, number=base_number, end=_HEADER_SIZE, sync=sync)

    @classmethod
    def resume(cls, contents: LogContents, *, sync: bool) -> "WriteAheadLog":
        """Open a log for appending after its last intact record, and truncate an incomplete one. Raises LogError."""
        descriptor = -1
        try:
            descriptor = disk.open_own(contents.path)
            disk.lock(descriptor)  # so that a writer who finds no lock file does not append beside another
            if contents.truncated_bytes:
                disk.truncate(descriptor, contents.end)
            disk.sync(descriptor)  # also what an earlier writer with sync=False left in the page cache
        except OSError as error:
            if descriptor >= 0:
                disk.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise LockedError(f"{contents.path} is open for writing by another process: one writer at a time") from error
            raise LogError(f"cannot write to the log {contents.path}: {error.strerror}") from error
        return cls(contents.path, descriptor, number=contents.number, end=contents.end, sync=sync)

    def check(self) -> None:
        """Raise LogError if the file is not as this log left it, because later records would be lost. Cost: two system
        calls.
        """
        if self.failure is not None:
            raise LogError(self.failure)
        try:
            is_ours = disk.is_at(self._descriptor, self.path, self.end)
        except OSError as error:
            raise LogError(f"cannot read {self.path} ({error.strerror}): nothing was changed") from error
        if not is_ours:
            self.failure = (
                f"{self.path} was removed, replaced or changed by another program: nothing was changed, and no more changes "
                f"are accepted; leave that file as it is, and open it again"
            )
            raise LogError(self.failure)

    def append(self, *payloads: bytes, sync: bool = True) -> int:
        """Write records and return the number of the last. Cost: one write and, with sync, one fsync.

        With sync=False there is no fsync, for records whose loss in a power cut does no harm.
        Raises LogError. Then either none of the records is in the log, or, if that is uncertain, `failure` is set.
        """
        self.check()
        number, frames = self.number, b""
        for payload in payloads:
            if len(payload) > _MAX_PAYLOAD:
                raise LogError(f"a record holds at most 2^32 - 1 bytes, this one has {len(payload):,}: split the transaction")
            number += 1
            head = _RECORD.pack(_MARKER, len(payload), number, zlib.crc32(payload))
            frames += head + _CRC.pack(zlib.crc32(head)) + payload
        # Set first, so that any exception from here on (KeyboardInterrupt too) leaves the log closed unless it is rolled back.
        failure = f"an interrupted write to {self.path} could not be rolled back: open the directory again"
        self.failure, written = failure, False
        try:
            disk.write(self._descriptor, frames)
            written = True
            if self.sync and sync:
                disk.sync(self._descriptor)
        except BaseException as error:
            with suppress(OSError):
                disk.truncate(self._descriptor, self.end)
                # After a failed fsync it is unknown which pages are on disk.
                self.failure = failure if written and isinstance(error, OSError) else None
            if not isinstance(error, OSError):
                raise
            hint = "; no more changes are accepted until the directory is opened again" if self.failure else ""
            raise LogError(f"cannot write to {self.path} ({error.strerror}): nothing was changed{hint}") from error
        self.number, self.end, self.failure = number, self.end + len(frames), None
        return number

    def rename(self, path: Path) -> None:
        """Rename the log; a file of that name is replaced. Raises OSError."""
        disk.rename(self.path, path)
        self.path = path
        disk.sync_path(path.parent)

    def close(self, *, discard: bool = False) -> None:
        """Close the file. It is synced first, unless every append was synced or `discard` is true. Raises OSError."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        self.failure = self.failure or f"{self.path} is closed: open the directory again"
        try:
            if not (self.sync or discard):
                disk.sync(descriptor)
        finally:
            disk.close(descriptor)


def _read_header(path: Path, file: BinaryIO) -> tuple[int, str]:
    """Return (number before the first record, version of the base). Raises LogError."""
    file.seek(0)
    data = file.read(_HEADER_SIZE)
    if len(data) < _HEADER_SIZE or not data.startswith((_MAGIC, _OLD_MAGIC)):
        raise LogError(f"{path} is not the log of a live index, or its first {_HEADER_SIZE} bytes are damaged")
    _, format_version, base_number, base_version = _HEADER.unpack_from(data)
    if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        raise LogError(f"{path} is damaged at byte 0: its header does not match its checksum; restore it from a copy")
    if format_version != FORMAT_VERSION:
        raise LogError(f"{path} has format version {format_version}, not {FORMAT_VERSION}: upgrade leafbeam")
    return base_number, f"{base_version:016x}"


@dataclass(frozen=True, kw_only=True)
class _Head:
    """The fields before a payload; `crc` is the payload's checksum."""

    number: int
    offset: int
    length: int
    crc: int


def _head_at(file: BinaryIO, offset: int, size: int) -> _Head | None:
    """Return the intact head of a record at an offset, or None if there is none or its payload would not end within the
    file.
    """
    file.seek(offset)
    head = file.read(_RECORD_SIZE)
    if len(head) < _RECORD_SIZE:
        return None
    marker, length, number, crc = _RECORD.unpack_from(head)
    if marker != _MARKER or offset + _RECORD_SIZE + length > size:
        return None
    if _CRC.unpack_from(head, _RECORD.size)[0] != zlib.crc32(head[: _RECORD.size]):
        return None
    return _Head(number=number, offset=offset, length=length, crc=crc)


def _is_intact(file: BinaryIO, head: _Head) -> bool:
    """Return whether the payload after a head is as it was written. It is read 1 MiB at a time, because the head may be
    wrong.
    """
    file.seek(head.offset + _RECORD_SIZE)
    crc, left = 0, head.length
    while left:
        part = file.read(min(left, _CHUNK))
        if not part:
            return False
        crc, left = zlib.crc32(part, crc), left - len(part)
    return crc == head.crc


def _record_at(file: BinaryIO, offset: int, size: int) -> LogRecord | None:
    """Return the intact record at an offset, if there is one."""
    head = _head_at(file, offset, size)
    if head is None or not _is_intact(file, head):
        return None
    file.seek(offset + _RECORD_SIZE)
    payload = file.read(head.length)
    return LogRecord(number=head.number, offset=offset, payload=payload) if len(payload) == head.length else None


def _first_record_after(path: Path, file: BinaryIO, offset: int, size: int) -> _Head | None:
    """Return the head of the first intact record after an offset. Raises LogError if checking candidates would read too
    many bytes.
    """
    begin, left = offset, max(_CHUNK, _MAX_HASHED * (size - offset))
    offset += 1
    while offset < size:
        file.seek(offset)
        chunk, at = file.read(_CHUNK), -1
        while (at := chunk.find(_MARKER, at + 1)) >= 0:
            if (head := _head_at(file, offset + at, size)) is None:
                continue
            if (left := left - head.length) < 0:
                raise LogError(
                    f"{path} is damaged at byte {begin:,}: headers of overlapping records follow, so a crash did not cause "
                    f"this; restore the directory from a copy, or drop all from there with: truncate -s {begin} {path}"
                )
            if _is_intact(file, head):
                return head
        if len(chunk) < _CHUNK:
            break
        offset += _CHUNK - len(_MARKER) + 1
    return None
