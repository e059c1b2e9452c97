"""RequestLog: changes of a served catalog, durable before they are made, and the answers to requests that are repeated.

    requests-{n}.log   records after number n, in the format of a live index's log, each a JSON object:
        known          key, digest and answer of earlier requests; the first record of every file
        change         a change, with the key, digest and answer of its request
        applied        the change before is made; false: it cannot be, and its request is forgotten

A change is decided once its record is on disk. It is made after that, and made again where a crash came between.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from leafbeam.errors import LogError
from leafbeam.live import disk
from leafbeam.live.requests import KnownRequests, RequestKey
from leafbeam.live.write_ahead_log import LogContents, WriteAheadLog

_MAX_BYTES = 16 << 20  # of a file, before the next one begins
_NAME = re.compile(r"requests-(\d{1,18})\.log")
_NO_BASE = "0" * 16

Json = Mapping[str, Any]


class RequestLog:
    """The log of one served catalog. pending: the last change, while it is not known to be made."""

    def __init__(self, directory: Path, log: WriteAheadLog) -> None:
        self._directory, self._log, self._known = directory, log, KnownRequests()
        self.pending: Json | None = None
        self._pending_key: str | None = None

    @classmethod
    def open(cls, directory: Path, *, sync: bool = True) -> "RequestLog":
        """The log in a directory, or a new one. Raises LogError, LockedError."""
        numbers = _numbers(directory)
        if not numbers:
            return cls(directory, _new_log(directory, 0, KnownRequests(), sync))
        contents = LogContents.read(_path(directory, max(numbers)))
        log = cls(directory, WriteAheadLog.resume(contents, sync=sync))
        log._replay(contents)
        log._remove_others()
        return log

    def find(self, request: RequestKey | None) -> Json | None:
        """See KnownRequests.find."""
        return self._known.find(request)

    def append(self, request: RequestKey | None, answer: Json, change: Json) -> None:
        """Decide a change: on disk when this returns. Raises LogError; then it is not decided."""
        key = {} if request is None else {"key": request.key, "digest": request.digest}
        record = {**key, "answer": answer, "change": change}
        self._log.append(msgspec.json.encode(record))
        self._known.note(request, answer)
        self.pending, self._pending_key = change, key.get("key")

    def applied(self) -> None:
        """The pending change is made. Raises LogError; then it will be made again."""
        self._log.append(b'{"applied":true}', sync=False)
        self.pending = None
        if self._log.end > _MAX_BYTES:
            before = self._log
            self._log = _new_log(self._directory, before.number, self._known, before.sync)
            before.close(discard=True)
            self._remove_others()

    def rejected(self) -> None:
        """The pending change can never be made; its request may come again. Raises LogError; then it stays pending."""
        self._log.append(b'{"applied":false}')
        self._drop_pending()

    def _drop_pending(self) -> None:
        if self._pending_key is not None:
            self._known.forget(self._pending_key)
        self.pending = self._pending_key = None

    def close(self) -> None:
        """Close the file. Raises OSError."""
        self._log.close()

    def __enter__(self) -> "RequestLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replay(self, contents: LogContents) -> None:
        for record in contents.records:
            try:
                content: dict[str, Any] = msgspec.json.decode(record.payload)
                for known in content.get("known", ()):
                    self._known.load(known)
                if "change" in content:
                    self._known.load(content)
                    self.pending = {"operation": content["change"]["operation"], **content["change"]}
                    self._pending_key = content.get("key")
                elif content.get("applied") is False:
                    self._drop_pending()
                elif "applied" in content:
                    self.pending = None
            except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise LogError(
                    f"record {record.number:,} of {contents.path} cannot be read ({error}): restore the directory from a copy"
                ) from error

    def _remove_others(self) -> None:
        """Remove files that this one has replaced."""
        for number in _numbers(self._directory):
            if _path(self._directory, number) != self._log.path:
                disk.remove(_path(self._directory, number))


def _numbers(directory: Path) -> list[int]:
    try:
        return [int(found[1]) for name in disk.names(directory) if (found := _NAME.fullmatch(name))]
    except OSError as error:
        raise LogError(f"cannot read {directory}: {error.strerror}") from error


def _path(directory: Path, number: int) -> Path:
    return directory / f"requests-{number}.log"


def _new_log(directory: Path, number: int, known: KnownRequests, sync: bool) -> WriteAheadLog:
    """A log with the known requests, which has its name once it is complete. Raises LogError."""
    path, part = _path(directory, number), directory / "requests.part"
    try:
        log = WriteAheadLog.create(part, base_number=number, base_version=_NO_BASE, sync=sync)
        try:
            log.append(msgspec.json.encode({"known": known.to_json()}))
            log.rename(path)
        except BaseException:
            log.close(discard=True)
            raise
    except OSError as error:
        raise LogError(f"cannot write to {directory}: {error.strerror}") from error
    return log
