"""Threads for calls that wait for a disk or a lock, and for what a server does when it stops."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from leafbeam.errors import OverloadedError

T = TypeVar("T")


class BoundedExecutor:
    """Runs calls in threads of its own, and refuses those beyond `max_pending`.

    Args:
        what: The calls in words, for the message of a refusal.
        max_pending: The largest number of calls that wait or run.
        num_threads: The number of threads.
    """

    def __init__(self, what: str, max_pending: int, num_threads: int = 1) -> None:
        self._what, self._max_pending, self._pending = what, max_pending, 0
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=f"leafbeam-{what}")

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of a call. Raises OverloadedError if too many wait, and what the call raises."""
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


async def in_own_thread(work: Callable[[], T]) -> T:
    """Return the result of a call in a new thread.

    A server makes its last calls in this way while it stops, because executors, and so `asyncio.to_thread`, refuse calls once
    the main thread has ended.
    """
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="leafbeam-stop").start()
    return await asyncio.wrap_future(future)
