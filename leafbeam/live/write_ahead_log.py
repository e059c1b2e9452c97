"""The write-ahead log: numbered records at the end of one file (docs/format.md).

    header   magic, format version, number of the record before the first, version of the base index, CRC
    record   marker, length, number, CRC of the payload, CRC of these; then the payload

A record's number is one more than that of the record before it, so a gap is seen. A writer that dies leaves at most one
incomplete record, the last: it is cut off. A damaged record that is followed by a whole one is not the work of a crash.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leafbeam.errors import LogError
from leafbeam.live import disk

__all__ = ["FORMAT_VERSION", "Contents", "WriteAheadLog"]

FORMAT_VERSION = 1
_MAGIC = b"leafbmlg"
_OLD_MAGIC = b"pleachlg"  # logs written under the project's first name
_HEADER = struct.Struct("<8sI4xQQ")  # magic, format version, after, base version; then its CRC
_MARKER = b"\xffrec"
_RECORD = struct.Struct("<4sIQI")  # marker, length, number, CRC of the payload; then its CRC
_CRC = struct.Struct("<I")
_HEADER_SIZE = _HEADER.size + _CRC.size
_RECORD_SIZE = _RECORD.size + _CRC.size
MAX_PAYLOAD = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record: its number, where in the file it begins, and what it holds."""

    number: int
    offset: int
    payload: bytes


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a log file holds: its whole records in order, and how many bytes of an incomplete one follow them.

    after: the number that the first record follows. base: version of the index that the records change.
    end: where the last whole record ends.
    """

    path: Path
    after: int
    base: str
    records: tuple[Record, ...]
    end: int
    torn: int

    @property
    def number(self) -> int:
        """The number of the last record."""
        return self.records[-1].number if self.records else self.after

    @classmethod
    def read(cls, path: Path) -> Contents:
        """Read and check a whole log. Cost: one read.

        Raises LogError (naming file and byte) where the header is not one, a number is missing, or a damaged record has a
        whole one behind it; FileNotFoundError where there is no such file.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LogError(f"cannot read the log {path}: {error.strerror}") from error
        after, base = _read_header(path, data)
        records: list[Record] = []
        offset, number = _HEADER_SIZE, after
        while (record := _record_at(data, offset)) is not None:
            number += 1
            if record.number != number:
                raise LogError(
                    f"{path} has record {record.number:,} at byte {offset:,}, expected {number:,}: changes are missing; "
                    f"restore the directory from a copy, or keep the changes before with: truncate -s {offset} {path}"
                )
            records.append(record)
            offset += _RECORD_SIZE + len(record.payload)
        for later in _records_behind(data, offset):
            raise LogError(
                f"{path} is damaged at byte {offset:,}: record {number + 1:,} cannot be read, but record {later.number:,} at "
                f"byte {later.offset:,} is whole, so this is no write that was cut short; restore the directory from a copy, "
                f"or give up all changes from there with: truncate -s {offset} {path}"
            )
        return cls(path=path, after=after, base=base, records=tuple(records), end=offset, torn=len(data) - offset)


class WriteAheadLog:
    """A log that is open for writing.

    Think of it as a list on disk: `append` returns once the record would be found again, after a power cut too if `sync`, and
    raises if it would not. After an error that leaves the file's state in doubt it refuses everything (`failure` says why);
    a mere lack of space takes nothing from it: the next record may fit.
    """

    def __init__(self, path: Path, descriptor: int, *, number: int, end: int, sync: bool) -> None:
        self.path = path
        self.number = number
        self.end = end
        self.failure: str | None = None
        self._descriptor = descriptor
        self.sync = sync

    @classmethod
    def create(cls, path: Path, *, after: int, base: str, sync: bool) -> WriteAheadLog:
        """A new log, empty and safe on disk (but for its name in the directory). Raises OSError."""
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, after, int(base, 16))
        descriptor = disk.create(path)
        try:
            disk.write(descriptor, header + _CRC.pack(zlib.crc32(header)))
            disk.sync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, number=after, end=_HEADER_SIZE, sync=sync)

    @classmethod
    def resume(cls, contents: Contents, *, sync: bool) -> WriteAheadLog:
        """Go on behind the last whole record, after cutting off an incomplete one. Raises LogError."""
        try:
            descriptor = os.open(contents.path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise LogError(f"cannot write to the log {contents.path}: {error.strerror}") from error
        try:
            if contents.torn:
                disk.cut(descriptor, contents.end)
            disk.sync(descriptor)  # of what a writer with sync=False left to the operating system, too
        except OSError as error:
            os.close(descriptor)
            raise LogError(f"cannot write to the log {contents.path}: {error.strerror}") from error
        return cls(contents.path, descriptor, number=contents.number, end=contents.end, sync=sync)

    def append(self, payload: bytes) -> int:
        """Write one record and return its number. Cost: one write and, with sync, one fsync.

        Raises LogError; the record is then not in the log, and where even that cannot be ensured, `failure` is set.
        """
        if self.failure is not None:
            raise LogError(self.failure)
        if len(payload) > MAX_PAYLOAD:
            raise LogError(f"one change of {len(payload):,} bytes: a record holds at most 2^32 - 1; split the transaction")
        frame = _RECORD.pack(_MARKER, len(payload), self.number + 1, zlib.crc32(payload))
        frame += _CRC.pack(zlib.crc32(frame)) + payload
        # Whatever comes between here and the end, KeyboardInterrupt too, leaves the log shut until it is cut back.
        self.failure = f"a write to {self.path} was broken off and could not be undone: open the directory again"
        written = False
        try:
            disk.write(self._descriptor, frame)
            written = True
            if self.sync:
                disk.sync(self._descriptor)
        except BaseException as error:
            usable = self._cut_back(in_doubt=written and isinstance(error, OSError))
            if not isinstance(error, OSError):
                raise
            shut = "" if usable else "; no more changes are taken until the directory is opened again"
            raise LogError(f"cannot write to {self.path} ({error.strerror}): nothing was changed{shut}") from error
        self.number += 1
        self.end += len(frame)
        self.failure = None
        return self.number

    def _cut_back(self, *, in_doubt: bool) -> bool:
        """Take a record that was not acknowledged off the file; whether the log's state is known then, and it stays open.

        in_doubt: an fsync failed, so nobody knows which pages of the file are on disk.
        """
        try:
            disk.cut(self._descriptor, self.end)
        except OSError:
            return False
        if not in_doubt:
            self.failure = None
        return not in_doubt

    def copy_from(self, other: WriteAheadLog, begin: int, end: int, number: int) -> None:
        """Append the records that stand at [begin, end) of another log, up to this number, and sync. Raises OSError."""
        if begin == end:
            return
        frames = disk.read(other._descriptor, begin, end)
        assert len(frames) == end - begin
        disk.write(self._descriptor, frames)
        disk.sync(self._descriptor)
        self.number = number
        self.end += len(frames)

    def close(self, *, forget: bool = False) -> None:
        """Close the file. What `sync=False` left to the operating system is made safe first, unless the log is no longer needed
        (`forget`).

        Raises OSError.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        self.failure = self.failure or f"{self.path} is closed: open the directory again"
        try:
            if not (self.sync or forget):
                disk.sync(descriptor)
        finally:
            os.close(descriptor)


def _read_header(path: Path, data: bytes) -> tuple[int, str]:
    """(number before the first record, version of the base), or a LogError."""
    if len(data) < _HEADER_SIZE or not data.startswith((_MAGIC, _OLD_MAGIC)):
        raise LogError(f"{path} is not a log of a leafbeam catalog, or its first {_HEADER_SIZE} bytes are damaged")
    _, format_version, after, base = _HEADER.unpack_from(data)
    if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        raise LogError(f"{path} is damaged at byte 0: its header does not match its checksum; restore it from a copy")
    if format_version != FORMAT_VERSION:
        raise LogError(
            f"{path} has format version {format_version}, this leafbeam reads up to {FORMAT_VERSION}: upgrade leafbeam"
        )
    return after, f"{base:016x}"


def _record_at(data: bytes, offset: int) -> Record | None:
    """The whole, undamaged record that begins at a byte, if one does."""
    body = offset + _RECORD_SIZE
    if body > len(data):
        return None
    marker, length, number, payload_crc = _RECORD.unpack_from(data, offset)
    if marker != _MARKER or body + length > len(data):
        return None
    if _CRC.unpack_from(data, offset + _RECORD.size)[0] != zlib.crc32(data[offset : offset + _RECORD.size]):
        return None
    payload = data[body : body + length]
    return Record(number=number, offset=offset, payload=payload) if zlib.crc32(payload) == payload_crc else None


def _records_behind(data: bytes, offset: int) -> Iterator[Record]:
    """Whole records that begin anywhere behind a byte at which none does."""
    at = data.find(_MARKER, offset + 1)
    while at >= 0:
        record = _record_at(data, at)
        if record is not None:
            yield record
        at = data.find(_MARKER, at + 1)
