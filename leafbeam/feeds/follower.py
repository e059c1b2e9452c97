"""Following: the changes of a feed, made in a catalog: one by HTTP (`follow`), or that of this process (CatalogSource)."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Protocol

from msgspec import structs

from leafbeam.client import ChangeAnswer, Client
from leafbeam.client.calls import encode_lines
from leafbeam.errors import BatchError, FeedError, InvalidRequestError
from leafbeam.feeds.batch import Batch, Feed, ItemChange, Operation
from leafbeam.json_reader import Json

log = logging.getLogger("leafbeam.feeds")

_ORDER: tuple[Operation, ...] = ("put", "patch", "delete")


class Followed(ChangeAnswer, frozen=True, kw_only=True):
    """The counts of all changes that a follower made since it began.

    Attributes:
        skipped: The bad changes that were left out.
        batches: The batches that were committed to the feed.
        end: The position in the feed behind the last batch.
    """

    skipped: int = 0
    batches: int = 0
    end: Mapping[str, int] = {}


class Target(Protocol):
    """A catalog in which the changes of a feed are made."""

    @property
    def has_text_ids(self) -> bool:
        """Return whether its item ids are text."""
        ...

    def send(self, operation: Operation, rows: Sequence[Json], batch: Batch, *, is_last: bool) -> ChangeAnswer:
        """Make changes of one kind. is_last: whether no other change of the batch comes after them.

        Raises InvalidRequestError or BatchError, which names the bad rows by their numbers from 1.
        """
        ...


class ServerTarget:
    """The catalog of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.has_text_ids = client.get_catalog().item_ids == "text"

    def send(self, operation: Operation, rows: Sequence[Json], batch: Batch, *, is_last: bool) -> ChangeAnswer:
        """Make changes (see Target). Their key has a digest of the content, which is another once bad changes are left out."""
        key = f"{batch.key}-{operation}-{blake2b(encode_lines(rows), digest_size=8).hexdigest()}"
        if operation == "put":
            return self._client.import_items(rows, key=key)
        if operation == "patch":
            return self._client.patch_items(rows, key=key)
        return self._client.delete_items([row["item_id"] for row in rows], missing_ok=True, key=key)


def follow(
    feed: Feed,
    client: Client,
    *,
    once: bool = False,
    skip_bad: bool = False,
    wait_s: float = 1.0,
    on_batch: Callable[[Followed], object] | None = None,
) -> Followed:
    """Make the changes of a feed on a server, in their order, until an error.

    A batch is committed to the feed after the server has acknowledged its changes, which are on its disk by then. After a crash
    the unfinished batch is sent again under the same idempotency keys, so that it is made once. Of several changes of an item
    in one batch, the last counts. Called again, it continues after the last commit.

    Args:
        feed: The source of the changes.
        client: The client of the server.
        once: If true, return when the feed has no more changes.
        skip_bad: If true, changes that cannot be read, or that the server refuses, are left out and counted.
        wait_s: The seconds to wait for changes before looking again.
        on_batch: Called after each batch.

    Raises:
        FeedError: If a change is bad; the message says where it is.
        ServerError: If the server fails.
    """
    target, done = ServerTarget(client), Followed.nothing()
    while True:
        batch = feed.read(wait_s)
        if batch is None:
            if once and feed.is_at_end:
                return done
            continue
        done = make(feed.name, batch, target, done, skip_bad=skip_bad)
        feed.commit(batch)
        if on_batch is not None:
            on_batch(done)


def make(name: str, batch: Batch, target: Target, done: Followed, *, skip_bad: bool) -> Followed:
    """Make the changes of a batch, durably; the counts with them. name: of the feed. Raises what `follow` raises."""
    done = _skip(name, batch.bad, done, skip_bad=skip_bad)
    latest = _latest(batch.changes, is_text=target.has_text_ids)
    operations: list[Operation] = [operation for operation in _ORDER if any(change.operation == operation for change in latest)]
    for operation in operations:
        changes = [change for change in latest if change.operation == operation]
        while changes:
            try:
                rows = [change.row for change in changes]
                done = done.plus(target.send(operation, rows, batch, is_last=operation == operations[-1]))
                break
            except (InvalidRequestError, BatchError) as error:
                bad = {changes[number - 1].place: text for number, text in error.lines.items() if 0 < number <= len(changes)}
                if not bad:  # nothing is wrong with a line
                    raise
                done = _skip(name, bad, done, skip_bad=skip_bad)
                changes = [change for change in changes if change.place not in bad]
    return structs.replace(done, batches=done.batches + 1, end=batch.end)


def _skip(name: str, bad: Mapping[str, str], done: Followed, *, skip_bad: bool) -> Followed:
    """Count bad changes, or raise FeedError for them."""
    if bad and not skip_bad:
        shown = "; ".join(f"{where}: {problem}" for where, problem in list(bad.items())[:3])
        more = f"; and {len(bad) - 3:,} more" if len(bad) > 3 else ""
        raise FeedError(
            f"{name}: {len(bad):,} of its changes cannot be applied, so the batch is not committed: {shown}{more}. Correct the "
            "source or the columns to take, or skip bad changes (--skip-bad), which counts them"
        )
    for where, problem in bad.items():
        log.warning("%s: skipped %s: %s", name, where, problem)
    return structs.replace(done, skipped=done.skipped + len(bad))


def _latest(changes: Iterable[ItemChange], *, is_text: bool) -> list[ItemChange]:
    """Return the last change of each item; a patch is merged with a put or patch before it. is_text: ids are sent as text."""
    latest: dict[int | str, ItemChange] = {}
    for change in changes:
        item_id = change.row["item_id"]
        if is_text and type(item_id) is int:
            change = replace(change, row={**change.row, "item_id": str(item_id)})
        before = latest.pop(change.row["item_id"], None)
        if change.operation == "patch" and before is not None and before.operation != "delete":
            change = replace(before, row={**before.row, **change.row}, place=change.place)
        latest[change.row["item_id"]] = change
    return list(latest.values())
