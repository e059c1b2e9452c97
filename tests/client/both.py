"""Both clients under one face, so that each test runs over blocking sockets and over asyncio."""

import asyncio
import inspect
from typing import Any

from leafbeam.client import AsyncClient, Client, Retries

FAST = Retries(deadline_s=20, attempts=4, first_pause_s=0.001, max_pause_s=0.01)


class Awaited:
    """An AsyncClient whose methods wait for their answers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*args, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not inspect.iscoroutinefunction(method):
            return method

        def wait(*args: Any, **options: Any) -> Any:
            return self._runner.run(method(*args, **options))

        return wait

    def __enter__(self) -> "Awaited":
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


KINDS = {"threads": Client, "asyncio": Awaited}
