"""Calls in threads of their own, which run after the end of the main thread too."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T]) -> T:
    """The result of a call in a new thread.

    For what a server does when it stops: executors, so `asyncio.to_thread` too, refuse calls once the main thread has ended.
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
