"""RequestLog: the changes of a served catalog, on disk before they are made, and the answers for repeated requests.

    requests-{n}.log   the records after number n, in the format of a live index's log. Each is a JSON object with some of:
        known          key, digest and answer of earlier requests (only in the first record of a file)
        texts          ids of items whose text was replaced, for the item memory (only in the first record of a file)
        change         a change, with the key, digest and answer of its request
        feed           how far the source is followed (leafbeam.feeds) once the change of this record is made
        commits        the commits of the change, which the index's own log does not have (leafbeam.live.journal)
        applied        true: the change before it was made; false: it cannot be made, and its request is forgotten

A change is decided once its record is on disk. It is made after that; if a crash comes first, it is made at the next start.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from leafbeam.errors import LogError
from leafbeam.files import Closing
from leafbeam.json_reader import Json
from leafbeam.live import disk
from leafbeam.live.journal import Commit, CommitReader, KnownRequests, RequestKey, encoded_commit, log_numbers, log_path
from leafbeam.live.transaction import WriteSet
from leafbeam.live.write_ahead_log import LogContents, WriteAheadLog

_MAX_BYTES = 16 << 20  # of a file; after that the next one begins
_NO_BASE = "0" * 16


class RequestLog(Closing):
    """The log of one served catalog, and the journal of its index.

    pending: the last change, until it is known whether it was made. texts: as above; the writer adds to them. feed: the
    position in the followed source up to which all changes have been made, so that requests see them; empty if none was
    followed.
    """

    def __init__(self, directory: Path, log: WriteAheadLog) -> None:
        self._directory, self._log, self._known = directory, log, KnownRequests()
        self.pending: Json | None = None
        self.texts: dict[int | str, None] = {}
        self.feed: Json = {}
        self._next_feed: Json = {}  # once the pending change is made
        self._pending_key: str | None = None
        self._commits = CommitReader()
        self._committed: list[Commit] = []  # the commit of the pending change, once the index has made it
        self._replayed: list[Json] = []
        self._max_bytes = _MAX_BYTES

    @classmethod
    def open(cls, directory: Path, *, sync: bool = True) -> "RequestLog":
        """Open the log in a directory, or create it. Raises LogError, LockedError."""
        numbers = log_numbers(directory)
        if not numbers:
            return cls(directory, _new_log(directory, 0, {"known": []}, sync))
        contents = LogContents.read(log_path(directory, max(numbers)))
        log = cls(directory, WriteAheadLog.resume(contents, sync=sync))
        try:
            log._replay(contents)
            log._remove_others()
        except BaseException:
            log._log.close(discard=True)
            raise
        return log

    @property
    def commits(self) -> Sequence[Commit]:
        """Return the commits of the changes that were made."""
        return self._commits.made

    @property
    def log_bytes(self) -> int:
        """Return the length of the file in bytes."""
        return self._log.end

    def find(self, request: RequestKey | None) -> Json | None:
        """See KnownRequests.find."""
        return self._known.find(request)

    def append(
        self,
        request: RequestKey | None,
        answer: Json,
        change: Json,
        commit: tuple[int, WriteSet] | None = None,
        feed: Json | None = None,
    ) -> None:
        """Decide a change: its record is on disk when this returns. If it raises LogError, the change is not decided.

        commit: the number of the index's next version and its write set, or None if the change does not change the index. feed:
        the position in the followed source with this change; None leaves it as it is.
        """
        key = {} if request is None else {"key": request.key, "digest": request.digest}
        commits = {} if commit is None else {"commits": [encoded_commit(*commit)]}
        record = {**key, "answer": answer, "change": change, **commits, **({} if feed is None else {"feed": feed})}
        self._log.append(msgspec.json.encode(record))
        self._commits.read(record)
        self._known.note(request, answer)
        self.pending, self._pending_key = change, key.get("key")
        self._next_feed = self.feed if feed is None else dict(feed)

    def follow(self, feed: Json) -> None:
        """Log a position in the followed source that no change comes with. Raises LogError."""
        self._log.append(msgspec.json.encode({"feed": feed}))
        self.feed = self._next_feed = dict(feed)

    def commit(self, number: int, write_set: WriteSet) -> None:
        """Log a commit of the index, unless the record of its change contains it. Raises LogError."""
        commit = encoded_commit(number, write_set)
        if commit in self._commits.pending:
            self._committed = [commit]
        else:
            self._log.append(msgspec.json.encode({"commits": [commit]}))
            self._commits.read({"commits": [commit]})

    def forget_commits(self, number: int) -> None:
        """Leave the commits up to a number out of the next file."""
        self._commits.made = [commit for commit in self._commits.made if commit[0] > number]

    def applied(self) -> None:
        """Log that the pending change was made. If it raises LogError, the change will be made again at the next start."""
        self._log.append(b'{"applied":true}', sync=False)
        self._commits.settle()
        self.pending, self._committed, self.feed = None, [], self._next_feed
        if self._log.end > self._max_bytes:
            first = {"known": self._known.to_json(), "commits": list(self._commits.made), "texts": list(self.texts)}
            first |= {"feed": self.feed}
            before = self._log
            self._log = _new_log(self._directory, before.number, first, before.sync)
            self._max_bytes = max(_MAX_BYTES, 2 * self._log.end)
            before.close(discard=True)
            self._remove_others()

    def rejected(self) -> None:
        """Log that the pending change cannot be made; its request may be sent again. If it raises LogError, it stays pending.

        If the index has made the change nevertheless, its commit counts.
        """
        record = {"applied": False, "commits": self._committed}
        self._log.append(msgspec.json.encode(record))
        self._commits.read(record)
        self._committed = []
        self._drop_pending()

    def take_replayed(self) -> list[Json]:
        """Return the changes that `open` found in the log; a second call returns none."""
        replayed, self._replayed = self._replayed, []
        return replayed

    def _drop_pending(self) -> None:
        self._next_feed = self.feed
        if self._pending_key is not None:
            self._known.forget(self._pending_key)
        if self._replayed and self._replayed[-1] is self.pending:
            self._replayed.pop()
        self.pending = self._pending_key = None

    def close(self) -> None:
        """Close the file. Raises OSError."""
        self._log.close()

    def _replay(self, contents: LogContents) -> None:
        for record in contents.records:
            try:
                content: Json = msgspec.json.decode(record.payload)
                for known in content.get("known", ()):
                    self._known.load(known)
                self.texts.update(dict.fromkeys(content.get("texts", ())))
                self._commits.read(content)
                if "change" in content or "feed" in content:  # the change before was made, or this would not be in the log
                    self.feed = self._next_feed
                    self._next_feed = dict(content.get("feed", self.feed))
                if "change" in content:
                    self._known.load(content)
                    self.pending = {"operation": content["change"]["operation"], **content["change"]}
                    self._replayed.append(self.pending)
                    self._pending_key = content.get("key")
                elif content.get("applied") is False:
                    self._drop_pending()
                elif "applied" in content:
                    self.pending, self.feed = None, self._next_feed
                elif "feed" in content:
                    self.feed = self._next_feed
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:  # a DecodeError is a ValueError
                raise LogError(
                    f"record {record.number:,} of {contents.path} cannot be read ({error}): restore the directory from a copy"
                ) from error

    def _remove_others(self) -> None:
        """Remove the files that this one has replaced."""
        for number in log_numbers(self._directory):
            if log_path(self._directory, number) != self._log.path:
                disk.remove(log_path(self._directory, number))


def _new_log(directory: Path, number: int, first: Json, sync: bool) -> WriteAheadLog:
    """Create a log with its first record; the file gets its name once it is complete. Raises LogError."""
    path, part = log_path(directory, number), directory / "requests.part"
    with disk.log_error(f"write to {directory}"):
        log = WriteAheadLog.create(part, base_number=number, base_version=_NO_BASE, sync=sync)
        try:
            log.append(msgspec.json.encode(first))
            log.rename(path)
        except BaseException:
            log.close(discard=True)
            raise
    return log
