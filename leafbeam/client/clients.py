"""Client and AsyncClient: the same calls and retries over blocking sockets and over asyncio."""

import functools
import inspect
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from leafbeam.errors import ArgumentError
from leafbeam.extras import optional_imports
from leafbeam.files import Closing

with optional_imports("leafbeam.Client", "client"):
    import httpx

from leafbeam.client import calls, imports
from leafbeam.client.calls import Call
from leafbeam.client.retries import Retries
from leafbeam.client.transport import AsyncTransport, BlockingTransport, Script

P = ParamSpec("P")
T = TypeVar("T")


def _headers(key: str | None) -> dict[str, str]:
    """Return the header that carries a key. Raises ArgumentError for text that cannot be a key."""
    if key is None:
        return {}
    if not key.strip() or not key.isascii() or not key.isprintable():
        raise ArgumentError("key: expected what `leafbeam keys add` printed")
    return {"authorization": f"Bearer {key}"}


def _blocking(make: "Callable[P, Call[T] | Script[T]]") -> "Callable[Concatenate[Client, P], T]":
    """Return the method of Client that makes a call and waits for its answer."""

    @functools.wraps(make)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transport.run(make(*args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    _name_self(method, make)
    return method


def _awaitable(make: "Callable[P, Call[T] | Script[T]]") -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    """Return the method of AsyncClient that makes a call and awaits its answer."""

    @functools.wraps(make)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transport.run(make(*args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    _name_self(method, make)
    return method


def _name_self(method: Any, make: Callable[..., Any]) -> None:
    """Let `help` show the arguments of the call, after self."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = inspect.Signature([own, *inspect.signature(make).parameters.values()])


class Client(Closing):
    """A client of `leafbeam serve`, which threads may share. Close it, or use it in a `with` block.

    Its methods are `import_items` and the functions of `leafbeam.client.calls`; they return the answer instead of a call. They
    raise ArgumentError for what cannot be sent, and ServerError for everything else. A call ends exactly at its
    deadline, unless the server sends its headers in pieces: each piece may then take as long as was left before the
    first.

    Args:
        url: The server's address, such as "http://127.0.0.1:8000".
        key: The key that `leafbeam keys add` printed, if the server asks for one.
        retries: The deadline and the attempts of each call.
        ssl_context: The TLS settings, to trust a certificate of your own.

    Examples:
        >>> with Client(url) as client:
        ...     answer = client.recommend(history=[1003, 1004], rules=["cheap"], num_items=5)
        ...     client.put_items([{"item_id": 7, "codes": [1, 2], "title": "new", "price": 3}]).inserted
        1
        >>> answer.num_valid
        5
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        retries: Retries | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        http = httpx.Client(verify=True if ssl_context is None else ssl_context)
        self._transport = BlockingTransport(http, url, headers=_headers(key), retries=retries)

    def __repr__(self) -> str:
        return f"Client({self._transport.url!r})"

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    recommend = _blocking(calls.recommend)
    count_interactions = _blocking(calls.count_interactions)
    put_items = _blocking(calls.put_items)
    patch_items = _blocking(calls.patch_items)
    delete_items = _blocking(calls.delete_items)
    delete_item = _blocking(calls.delete_item)
    import_items = _blocking(imports.import_items)
    find_items = _blocking(calls.find_items)
    get_item = _blocking(calls.get_item)
    get_catalog = _blocking(calls.get_catalog)
    reload_catalog = _blocking(calls.reload_catalog)
    load_model = _blocking(calls.load_model)
    compact_catalog = _blocking(calls.compact_catalog)
    save_snapshot = _blocking(calls.save_snapshot)
    roll_back = _blocking(calls.roll_back)
    delete_snapshot = _blocking(calls.delete_snapshot)
    list_rules = _blocking(calls.list_rules)
    get_rule = _blocking(calls.get_rule)
    put_rule = _blocking(calls.put_rule)
    delete_rule = _blocking(calls.delete_rule)
    list_boosts = _blocking(calls.list_boosts)
    get_boost = _blocking(calls.get_boost)
    put_boost = _blocking(calls.put_boost)
    delete_boost = _blocking(calls.delete_boost)
    list_slow_batches = _blocking(calls.list_slow_batches)
    list_models = _blocking(calls.list_models)
    get_health = _blocking(calls.get_health)
    get_readiness = _blocking(calls.get_readiness)
    get_metrics = _blocking(calls.get_metrics)


class AsyncClient:
    """A client of `leafbeam serve` for asyncio. It has the methods of `Client` as coroutines, and its deadlines are
    exact.

    `import_items` reads its items between requests, in the event loop.

    Args:
        url: As for `Client`.
        key: As for `Client`.
        retries: As for `Client`.
        ssl_context: As for `Client`.

    Examples:
        >>> async def main():
        ...     async with AsyncClient(url) as client:
        ...         return await client.recommend(history=[1003, 1004], rules=["cheap"], num_items=5)
        >>> asyncio.run(main()).num_valid
        5
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        retries: Retries | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        http = httpx.AsyncClient(verify=True if ssl_context is None else ssl_context)
        self._transport = AsyncTransport(http, url, headers=_headers(key), retries=retries)

    def __repr__(self) -> str:
        return f"AsyncClient({self._transport.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    recommend = _awaitable(calls.recommend)
    count_interactions = _awaitable(calls.count_interactions)
    put_items = _awaitable(calls.put_items)
    patch_items = _awaitable(calls.patch_items)
    delete_items = _awaitable(calls.delete_items)
    delete_item = _awaitable(calls.delete_item)
    import_items = _awaitable(imports.import_items)
    find_items = _awaitable(calls.find_items)
    get_item = _awaitable(calls.get_item)
    get_catalog = _awaitable(calls.get_catalog)
    reload_catalog = _awaitable(calls.reload_catalog)
    load_model = _awaitable(calls.load_model)
    compact_catalog = _awaitable(calls.compact_catalog)
    save_snapshot = _awaitable(calls.save_snapshot)
    roll_back = _awaitable(calls.roll_back)
    delete_snapshot = _awaitable(calls.delete_snapshot)
    list_rules = _awaitable(calls.list_rules)
    get_rule = _awaitable(calls.get_rule)
    put_rule = _awaitable(calls.put_rule)
    delete_rule = _awaitable(calls.delete_rule)
    list_boosts = _awaitable(calls.list_boosts)
    get_boost = _awaitable(calls.get_boost)
    put_boost = _awaitable(calls.put_boost)
    delete_boost = _awaitable(calls.delete_boost)
    list_slow_batches = _awaitable(calls.list_slow_batches)
    list_models = _awaitable(calls.list_models)
    get_health = _awaitable(calls.get_health)
    get_readiness = _awaitable(calls.get_readiness)
    get_metrics = _awaitable(calls.get_metrics)
