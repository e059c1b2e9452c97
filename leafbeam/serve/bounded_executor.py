"""BoundedExecutor: threads for what waits for a disk or a lock, apart from those that prepare requests for items."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from leafbeam.errors import OverloadedError

T = TypeVar("T")


class BoundedExecutor:
    """Runs calls in threads of its own, one by default, and refuses those beyond `max_pending`. what: in words."""

    def __init__(self, what: str, max_pending: int, num_threads: int = 1) -> None:
        self._what, self._max_pending, self._pending = what, max_pending, 0
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=f"leafbeam-{what}")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of a call. Raises OverloadedError if too many wait, and what the call raises."""
        if self._pending >= self._max_pending:
            reason = f"{self._what.replace('-', '')}_queued"
            raise OverloadedError(f"{self._max_pending} {self._what} wait already: try again", reason=reason)
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._pending -= 1

    def close(self) -> None:
        """Wait for what runs."""
        self._threads.shutdown()
