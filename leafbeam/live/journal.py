"""The log of a server's changes: a request and its commits to the live index are one record, so each change is written
once. With the requests that clients may repeat, and their first answers (see the IETF's draft of the Idempotency-Key
header).

index/               the live index, whose own log stays empty
requests-{n}.log     a log of JSON objects, in the format of the index's log (leafbeam.ingest.request_log). Its fields:
    commits          a list of [number of the version, write set in base64], in order
    change           a change, with its commits in the same record; it counts as made once a later record says so
    applied          true: the change before it was made; false: it cannot be made, and its commits do not count
"""

import base64
import json
import operator
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from leafbeam.errors import ConflictError, LogError
from leafbeam.json_reader import Json
from leafbeam.live import disk
from leafbeam.live.transaction import WriteSet
from leafbeam.live.write_ahead_log import LogContents

MAX_KNOWN = 10_000  # requests whose answers are kept


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestKey:
    """The identity of a request that may be repeated.

    Args:
        key: The client's key.
        digest: The hash of the whole request.
    """

    key: str
    digest: str


class KnownRequests:
    """The answers to the newest requests that had a key. An answer is a value that JSON can hold."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[str, object]] = OrderedDict()

    def find(self, request: RequestKey | None) -> Any:
        """Return the answer to an earlier request with this key, or None.

        Raises:
            ConflictError: If the earlier request had other content.
        """
        if request is None or (entry := self._answers.get(request.key)) is None:
            return None
        digest, answer = entry
        if digest != request.digest:
            raise ConflictError(
                f"Idempotency-Key {request.key[:80]!r} belongs to an earlier request with other content: use a new key"
            )
        return answer

    def note(self, request: RequestKey | None, answer: object) -> None:
        """Keep an answer. Beyond 10,000 answers, the oldest is dropped."""
        if request is not None:
            self._answers[request.key] = (request.digest, answer)
            self._answers.move_to_end(request.key)
            while len(self._answers) > MAX_KNOWN:
                self._answers.popitem(last=False)

    def forget(self, key: str) -> None:
        """Drop the answer to a key."""
        self._answers.pop(key, None)

    def to_json(self) -> list[dict[str, object]]:
        """Return the requests, oldest first, as `load` reads them."""
        return [{"key": key, "digest": digest, "answer": answer} for key, (digest, answer) in self._answers.items()]

    def load(self, content: Mapping[str, object]) -> None:
        """Keep the request of one entry of `to_json`, or of another record with its fields.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field has the wrong type.
        """
        if content.get("key") is not None:
            self.note(RequestKey(key=str(content["key"]), digest=str(content["digest"])), content["answer"])


_NAME = re.compile(r"requests-(\d{1,18})\.log")

Commit = tuple[int, str]  # the number of the version, and its write set in base64


class Journal(Protocol):
    """A log to which a live index writes its commits in place of its own log. `commits` are those of completed changes,
    in order.
    """

    @property
    def commits(self) -> Sequence[Commit]: ...
    @property
    def log_bytes(self) -> int: ...

    def commit(self, number: int, write_set: WriteSet) -> None:
        """Log a commit, unless the log has it already. Raises LogError."""
        ...

    def forget_commits(self, number: int) -> None:
        """Drop the commits up to a number, because a base on disk contains them."""
        ...


class CommitReader:
    """The commits in the records of a log.

    `made` are the commits of completed changes. `pending` are those of the last change, until a record says whether it
    was made.
    """

    def __init__(self) -> None:
        self.made: list[Commit] = []
        self.pending: list[Commit] = []

    def read(self, content: Json) -> None:
        """Add the commits of the next record. Raises TypeError, ValueError or AttributeError if it cannot be read."""
        commits = [(operator.index(number), str(encoded)) for number, encoded in content.get("commits", ())]
        if "applied" in content:
            self.settle(is_made=content["applied"] is not False)
        if "change" in content:  # the change before this one was made, or this one would not be in the log
            self.settle()
            self.pending = commits
        else:
            numbers = {number for number, _ in commits}
            self.pending = [commit for commit in self.pending if commit[0] not in numbers]
            self.made += commits

    def settle(self, *, is_made: bool = True) -> None:
        """Keep the commits of the last change, or drop them if it was not made."""
        self.made += self.pending if is_made else ()
        self.pending = []


def encoded_commit(number: int, write_set: WriteSet) -> Commit:
    """Return a commit in the form in which it is logged."""
    return number, base64.b64encode(write_set.encode()).decode()


def log_numbers(directory: Path) -> list[int]:
    """Return the numbers of the request logs in a directory. Raises LogError."""
    with disk.log_error(f"read {directory}"):
        return [int(match[1]) for name in disk.names(directory) if (match := _NAME.fullmatch(name))]


def log_path(directory: Path, number: int) -> Path:
    """Return the path of a request log."""
    return directory / f"requests-{number}.log"


def journal_path(index: Path) -> Path:
    """Return the path of the log with the commits of a live index. Raises LogError if there is none."""
    directory = index.resolve().parent
    if not (numbers := log_numbers(directory)):
        raise LogError(f"the changes of {index} are in {directory}/requests-*.log, which is missing: copy the whole directory")
    return log_path(directory, max(numbers))


def read_commits(index: Path) -> list[Commit]:
    """Return all commits in the log beside a live index, including those of the last change.

    Raises LogError, or FileNotFoundError if a newer log has replaced this one meanwhile.
    """
    contents, reader = LogContents.read(journal_path(index)), CommitReader()
    for record in contents.records:
        try:
            reader.read(json.loads(record.payload))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise LogError(
                f"record {record.number:,} of {contents.path} cannot be read ({error}): restore the directory from a copy"
            ) from error
    return reader.made + reader.pending


def write_sets_after(commits: Sequence[Commit], number: int, codebook_sizes: Sequence[int]) -> list[WriteSet] | None:
    """Return the write sets of the commits after a number, or None if one is missing. Raises ValueError if one is damaged."""
    later = [commit for commit in commits if commit[0] > number]
    if [commit[0] for commit in later] != list(range(number + 1, number + 1 + len(later))):
        return None
    return [WriteSet.decode(base64.b64decode(encoded, validate=True), codebook_sizes) for _, encoded in later]
