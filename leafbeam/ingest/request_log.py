"""RequestLog: changes of a served catalog, durable before they are made, and the answers to requests that are repeated.

    requests-{n}.log   records after number n, in the format of a live index's log, each a JSON object:
        known          key, digest and answer of earlier requests; in the first record of every file, with
        texts          ids of items whose text a change has replaced, for the item memory
        change         a change, with the key, digest and answer of its request
        commits        what the change does to the index, in place of a record in the index's own log (leafbeam.live.journal)
        applied        the change before is made; false: it cannot be, and its request is forgotten

A change is decided once its record is on disk. It is made after that, and made again where a crash came between.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from leafbeam.errors import LogError
from leafbeam.live import disk
from leafbeam.live.journal import Commit, CommitReader, encoded_commit, log_numbers, log_path
from leafbeam.live.requests import KnownRequests, RequestKey
from leafbeam.live.transaction import WriteSet
from leafbeam.live.write_ahead_log import LogContents, WriteAheadLog

_MAX_BYTES = 16 << 20  # of a file, before the next one begins
_NO_BASE = "0" * 16

Json = Mapping[str, Any]


class RequestLog:
    """The log of one served catalog, and the journal of its index.

    pending: the last change, while it is not known to be made. texts: see above, to be extended by the writer. replayed: the
    changes that `open` found, until `take_replayed`.
    """

    def __init__(self, directory: Path, log: WriteAheadLog) -> None:
        self._directory, self._log, self._known = directory, log, KnownRequests()
        self.pending: Json | None = None
        self.texts: dict[int | str, None] = {}
        self._pending_key: str | None = None
        self._commits = CommitReader()
        self._committed: list[Commit] = []  # of the pending change: the index has it
        self._replayed: list[Json] = []
        self._max_bytes = _MAX_BYTES

    @classmethod
    def open(cls, directory: Path, *, sync: bool = True) -> "RequestLog":
        """The log in a directory, or a new one. Raises LogError, LockedError."""
        numbers = log_numbers(directory)
        if not numbers:
            return cls(directory, _new_log(directory, 0, {"known": []}, sync))
        contents = LogContents.read(log_path(directory, max(numbers)))
        log = cls(directory, WriteAheadLog.resume(contents, sync=sync))
        log._replay(contents)
        log._remove_others()
        return log

    @property
    def commits(self) -> Sequence[Commit]:
        """The commits of the changes that are made."""
        return self._commits.made

    @property
    def log_bytes(self) -> int:
        """The length of the file."""
        return self._log.end

    def find(self, request: RequestKey | None) -> Json | None:
        """See KnownRequests.find."""
        return self._known.find(request)

    def append(
        self, request: RequestKey | None, answer: Json, change: Json, commit: tuple[int, WriteSet] | None = None
    ) -> None:
        """Decide a change: on disk when this returns. Raises LogError; then it is not decided.

        commit: the number of the next version of the index, and how it differs; None if the change leaves the index as it is.
        """
        key = {} if request is None else {"key": request.key, "digest": request.digest}
        commits = {} if commit is None else {"commits": [encoded_commit(*commit)]}
        record = {**key, "answer": answer, "change": change, **commits}
        self._log.append(msgspec.json.encode(record))
        self._commits.read(record)
        self._known.note(request, answer)
        self.pending, self._pending_key = change, key.get("key")

    def commit(self, number: int, write_set: WriteSet) -> None:
        """Log a commit of the index, unless the record of its change has it. Raises LogError."""
        commit = encoded_commit(number, write_set)
        if commit in self._commits.pending:
            self._committed = [commit]
        else:
            self._log.append(msgspec.json.encode({"commits": [commit]}))
            self._commits.read({"commits": [commit]})

    def forget_commits(self, number: int) -> None:
        """Drop the commits up to a number from the next file."""
        self._commits.made = [commit for commit in self._commits.made if commit[0] > number]

    def applied(self) -> None:
        """The pending change is made. Raises LogError; then it will be made again."""
        self._log.append(b'{"applied":true}', sync=False)
        self._commits.settle()
        self.pending, self._committed = None, []
        if self._log.end > self._max_bytes:
            first = {"known": self._known.to_json(), "commits": list(self._commits.made), "texts": list(self.texts)}
            before = self._log
            self._log = _new_log(self._directory, before.number, first, before.sync)
            self._max_bytes = max(_MAX_BYTES, 2 * self._log.end)
            before.close(discard=True)
            self._remove_others()

    def rejected(self) -> None:
        """The pending change can never be made; its request may come again. Raises LogError; then it stays pending.

        If the index has it nevertheless, its commit counts.
        """
        record = {"applied": False, "commits": self._committed}
        self._log.append(msgspec.json.encode(record))
        self._commits.read(record)
        self._committed = []
        self._drop_pending()

    def take_replayed(self) -> list[Json]:
        """Return the changes that `open` found, once."""
        replayed, self._replayed = self._replayed, []
        return replayed

    def _drop_pending(self) -> None:
        if self._pending_key is not None:
            self._known.forget(self._pending_key)
        if self._replayed and self._replayed[-1] is self.pending:
            self._replayed.pop()
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
                self.texts.update(dict.fromkeys(content.get("texts", ())))
                self._commits.read(content)
                if "change" in content:
                    self._known.load(content)
                    self.pending = {"operation": content["change"]["operation"], **content["change"]}
                    self._replayed.append(self.pending)
                    self._pending_key = content.get("key")
                elif content.get("applied") is False:
                    self._drop_pending()
                elif "applied" in content:
                    self.pending = None
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:  # a DecodeError is a ValueError
                raise LogError(
                    f"record {record.number:,} of {contents.path} cannot be read ({error}): restore the directory from a copy"
                ) from error

    def _remove_others(self) -> None:
        """Remove files that this one has replaced."""
        for number in log_numbers(self._directory):
            if log_path(self._directory, number) != self._log.path:
                disk.remove(log_path(self._directory, number))


def _new_log(directory: Path, number: int, first: Json, sync: bool) -> WriteAheadLog:
    """A log with its first record, which has its name once it is complete. Raises LogError."""
    path, part = log_path(directory, number), directory / "requests.part"
    try:
        log = WriteAheadLog.create(part, base_number=number, base_version=_NO_BASE, sync=sync)
        try:
            log.append(msgspec.json.encode(first))
            log.rename(path)
        except BaseException:
            log.close(discard=True)
            raise
    except OSError as error:
        raise LogError(f"cannot write to {directory}: {error.strerror}") from error
    return log
