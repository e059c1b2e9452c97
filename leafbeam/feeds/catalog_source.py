"""CatalogSource: a feed whose changes a server makes in its own catalog, together with the feed's position."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from leafbeam.errors import ArgumentError, LeafbeamError
from leafbeam.feeds.batch import Batch, CatalogFeed, Operation, open_feed, require_library
from leafbeam.feeds.follower import Followed, make
from leafbeam.ingest import CatalogWriter, ChangeAnswer, FeedStatus, Lines
from leafbeam.json_reader import Json
from leafbeam.serve.feed_config import LISTED, FeedConfig

log = logging.getLogger("leafbeam.feeds")

_STARTED_S = 10.0  # the lag below which a server that has just started is ready
_MAX_WAIT_S = 60.0  # between two attempts
_POLL_S = 0.5  # for messages; so long may `stop` take


class WriterTarget:
    """The catalog of this process. A batch's position is on disk with the last of its changes.

    After a crash a batch may come again, perhaps with changes behind it. Each of its changes says what an item is in the end,
    so that making one twice is making it once.
    """

    def __init__(self, writer: CatalogWriter) -> None:
        self._writer = writer
        self.has_text_ids = writer.catalog.index.version().id_kind not in (None, "i")

    def send(self, operation: Operation, rows: Sequence[Json], batch: Batch, *, is_last: bool) -> ChangeAnswer:
        """Make changes (see Target)."""
        return self._writer.follow(operation, Lines.of_rows(rows), batch.position if is_last else None)


class CatalogSource:
    """The source that a server's items follow, in a thread of its own.

    An error is logged and told by `status`; following is tried again after a second, then after longer and longer, up to a
    minute.

    Args:
        config: The settings of the source.
        writer: Changes the catalog, which keeps the position.
        clock: Returns the time in seconds since 1970.
        open_feed: Opens the feed at a position.

    Raises:
        ArgumentError: If the settings name no source.
        MissingExtraError: If the source's library is not installed.
    """

    def __init__(
        self,
        config: FeedConfig,
        writer: CatalogWriter,
        *,
        clock: Callable[[], float] = time.time,
        open_feed: Callable[[FeedConfig, Mapping[str, object]], CatalogFeed] = open_feed,
    ) -> None:
        if not config.name:
            raise ArgumentError(f"there is nothing to follow: name a source in the settings ({LISTED})")
        require_library(config, f"to follow {config.name}")
        self.name = config.name
        self._config, self._writer, self._clock, self._open = config, writer, clock, open_feed
        self._complete_until: float | None = None
        self._error: str | None = None
        self._has_been_ready = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leafbeam-feed", daemon=True)

    def start(self) -> None:
        """Begin to follow (see Source)."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no longer (see Source)."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def status(self) -> FeedStatus:
        """Return how far the source is followed."""
        until = self._complete_until
        lag_s = None if until is None else round(max(0.0, self._clock() - until), 3)
        return FeedStatus(source=self.name, position=dict(self._writer.position), lag_s=lag_s, error=self._error)

    @property
    def unready_reason(self) -> str | None:
        """Return why the items are too old (see Source)."""
        lag_s, limit_s = self.status.lag_s, self._config.max_lag_s
        if not self._has_been_ready:
            if lag_s is None or lag_s > (limit_s or _STARTED_S):
                return f"the changes of {self.name} up to now are still being made"
            self._has_been_ready = True
        if limit_s is not None and (lag_s is None or lag_s > limit_s):
            return f"the items are {lag_s or 0:.0f} s behind {self.name}, and max_lag_s is {limit_s:g}"
        return None

    def _run(self) -> None:
        wait_s = 1.0
        while not self._ends.is_set():
            try:
                with closing(self._open(self._config, self._writer.position)) as feed:
                    if feed.position != self._writer.position:  # where a start from now on begins
                        self._writer.move(feed.position)
                    self._follow(feed)
                return
            except (LeafbeamError, OSError) as error:
                if str(error) != self._error:
                    log.error("following stopped, and is tried again: %s", error)
                wait_s = 1.0 if self._error is None else min(2 * wait_s, _MAX_WAIT_S)
                self._error = str(error)
            except Exception as error:
                log.exception("following stopped, and is tried again")
                self._error, wait_s = f"{type(error).__name__}: {error}", _MAX_WAIT_S
            self._ends.wait(wait_s)

    def _follow(self, feed: CatalogFeed) -> None:
        """Make changes until `stop`."""
        config, target, done = self._config, WriterTarget(self._writer), Followed.nothing()
        pause_s = 0.0 if config.is_stream else config.every_s
        while not self._ends.is_set():
            batch = feed.read(_POLL_S if config.is_stream else 0.0)
            if batch is None:
                self._complete_until, self._error = feed.complete_until, None
                if feed.is_at_end:
                    self._ends.wait(pause_s)
                continue
            done = make(self.name, batch, target, done, skip_bad=config.skip_bad)
            if self._writer.position != batch.position:  # no change came with it, or the last one was skipped
                self._writer.move(batch.position)
            feed.commit(batch)
            self._complete_until, self._error = feed.complete_until, None
            log.debug("%s: %s", self.name, done)
