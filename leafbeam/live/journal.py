"""Commits of a live index that are logged elsewhere: with the requests that asked for them, so that each is written once.

index/               the live index, whose own log stays empty
requests-{n}.log     a log of JSON objects in the same format (leafbeam.ingest.request_log), some of them with
    commits          [number of the version, write set in base64], each, in order
    change           a change, made once the next record says so; its commits are those beside it
    applied          the change before is made; false: it never will be, and its commits do not count
"""

import base64
import json
import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from leafbeam.errors import LogError
from leafbeam.live import disk
from leafbeam.live.transaction import WriteSet
from leafbeam.live.write_ahead_log import LogContents

_NAME = re.compile(r"requests-(\d{1,18})\.log")

Commit = tuple[int, str]  # the number of the version, and its write set in base64


class Journal(Protocol):
    """A log that a live index writes its commits to, in place of its own. commits: those that are made, in order."""

    @property
    def commits(self) -> Sequence[Commit]: ...
    @property
    def log_bytes(self) -> int: ...

    def commit(self, number: int, write_set: WriteSet) -> None:
        """Log a commit, unless it is there already. Raises LogError."""
        ...

    def forget_commits(self, number: int) -> None:
        """Drop the commits up to a number, which a base on disk has."""
        ...


class CommitReader:
    """The commits in the records of a log.

    made: those that count. pending: those of the last change, while it is not known to be made.
    """

    def __init__(self) -> None:
        self.made: list[Commit] = []
        self.pending: list[Commit] = []

    def read(self, content: Mapping[str, Any]) -> None:
        """Take the commits of the next record. Raises TypeError, ValueError, AttributeError."""
        commits = [(operator.index(number), str(encoded)) for number, encoded in content.get("commits", ())]
        if "applied" in content:
            self.settle(is_made=content["applied"] is not False)
        if "change" in content:  # a change is decided only once the one before it is made
            self.settle()
            self.pending = commits
        else:
            numbers = {number for number, _ in commits}
            self.pending = [commit for commit in self.pending if commit[0] not in numbers]
            self.made += commits

    def settle(self, *, is_made: bool = True) -> None:
        """Count the commits of the last change, or drop them."""
        self.made += self.pending if is_made else ()
        self.pending = []


def encoded_commit(number: int, write_set: WriteSet) -> Commit:
    """Return a commit as it is logged."""
    return number, base64.b64encode(write_set.encode()).decode()


def log_numbers(directory: Path) -> list[int]:
    """Return the numbers of the logs of requests in a directory. Raises LogError."""
    try:
        return [int(found[1]) for name in disk.names(directory) if (found := _NAME.fullmatch(name))]
    except OSError as error:
        raise LogError(f"cannot read {directory}: {error.strerror}") from error


def log_path(directory: Path, number: int) -> Path:
    """Return the path of a log of requests."""
    return directory / f"requests-{number}.log"


def journal_path(index: Path) -> Path:
    """Return the log beside a live index that has its commits. Raises LogError where there is none."""
    directory = index.resolve().parent
    if not (numbers := log_numbers(directory)):
        raise LogError(f"the changes of {index} are in {directory}/requests-*.log, which is missing: copy the whole directory")
    return log_path(directory, max(numbers))


def read_commits(index: Path) -> list[Commit]:
    """Read the commits in the log beside a live index, those of the last change included.

    Raises LogError, and FileNotFoundError where another log has taken its place meanwhile.
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
    """Return the write sets of the commits after a number; None where one is missing. Raises ValueError for a damaged one."""
    later = [commit for commit in commits if commit[0] > number]
    if [commit[0] for commit in later] != list(range(number + 1, number + 1 + len(later))):
        return None
    return [WriteSet.decode(base64.b64decode(encoded, validate=True), codebook_sizes) for _, encoded in later]
