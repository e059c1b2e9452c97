"""Following: the changes of a feed, made in the catalog of a server."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from msgspec import structs

from leafbeam.client import ChangeAnswer, Client
from leafbeam.client.calls import encode_lines
from leafbeam.errors import FeedError, InvalidRequestError
from leafbeam.feeds.batch import Batch, Feed, ItemChange, Operation

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
    end: Mapping[str, Any] = {}


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
    is_text = client.get_catalog().item_ids == "text"
    done = Followed.nothing()
    while True:
        batch = feed.read(wait_s)
        if batch is None:
            if once and feed.is_at_end:
                return done
            continue
        done = _make(feed.name, batch, client, done, is_text=is_text, skip_bad=skip_bad)
        feed.commit(batch)
        done = structs.replace(done, batches=done.batches + 1, end=batch.end)
        if on_batch is not None:
            on_batch(done)


def _make(name: str, batch: Batch, client: Client, done: Followed, *, is_text: bool, skip_bad: bool) -> Followed:
    """Make the changes of a batch, durably."""
    done = _skip(name, batch.bad, done, skip_bad=skip_bad)
    latest = _latest(batch.changes, is_text=is_text)
    for operation in _ORDER:
        changes = [change for change in latest if change.operation == operation]
        while changes:
            try:
                done = done.plus(_send(client, operation, [change.row for change in changes], batch.key))
                break
            except InvalidRequestError as error:
                bad = {changes[number - 1].place: text for number, text in error.lines.items() if 0 < number <= len(changes)}
                if not bad:  # nothing is wrong with a line
                    raise
                done = _skip(name, bad, done, skip_bad=skip_bad)
                changes = [change for change in changes if change.place not in bad]
    return done


def _send(client: Client, operation: Operation, rows: Sequence[Mapping[str, Any]], key: str) -> ChangeAnswer:
    """Send rows. Their key has a digest of the content, which is another once bad changes are left out."""
    key = f"{key}-{operation}-{blake2b(encode_lines(rows), digest_size=8).hexdigest()}"
    if operation == "put":
        return client.import_items(rows, key=key)
    if operation == "patch":
        return client.patch_items(rows, key=key)
    return client.delete_items([row["item_id"] for row in rows], missing_ok=True, key=key)


def _skip(name: str, bad: Mapping[str, str], done: Followed, *, skip_bad: bool) -> Followed:
    """Count bad changes, or raise FeedError for them."""
    if bad and not skip_bad:
        shown = "; ".join(f"{place}: {problem}" for place, problem in list(bad.items())[:3])
        more = f"; and {len(bad) - 3:,} more" if len(bad) > 3 else ""
        raise FeedError(
            f"{name}: {len(bad):,} of its changes cannot be made, so the batch is not committed: {shown}{more}. Correct the "
            "source or the columns to take, or skip bad changes (--skip-bad), which counts them"
        )
    for place, problem in bad.items():
        log.warning("%s: skipped %s: %s", name, place, problem)
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
