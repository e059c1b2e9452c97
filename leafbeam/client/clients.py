"""Client and AsyncClient: the same calls and retries over blocking sockets and over asyncio."""

import functools
import inspect
import ssl
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

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


class _Method(Generic[P, T]):
    """A call as a method: of a Client it waits for the answer, of an AsyncClient it is a coroutine."""

    def __init__(self, make: "Callable[P, Call[T] | Script[T]]") -> None:
        def wait(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return client._transport.run(make(*args, **kwargs))

        async def wait_async(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return await client._transport.run(make(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)  # `help` shows the arguments of the call after it
        for method in (wait, wait_async):
            functools.update_wrapper(method, make)
            vars(method)["__signature__"] = inspect.Signature([own, *inspect.signature(make).parameters.values()])
        self._wait, self._wait_async = wait, wait_async

    @overload
    def __get__(self, client: "Client", kind: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: "AsyncClient", kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, client: None, kind: type) -> Callable[..., object]: ...

    def __get__(self, client: "Client | AsyncClient | None", kind: type) -> Callable[..., object]:
        method = self._wait_async if issubclass(kind, AsyncClient) else self._wait
        return method if client is None else MethodType(method, client)


class _Calls:
    """All calls of a server, as methods of both clients."""

    recommend = _Method(calls.recommend)
    count_interactions = _Method(calls.count_interactions)
    put_items = _Method(calls.put_items)
    patch_items = _Method(calls.patch_items)
    delete_items = _Method(calls.delete_items)
    delete_item = _Method(calls.delete_item)
    import_items = _Method(imports.import_items)
    find_items = _Method(calls.find_items)
    get_user = _Method(calls.get_user)
    get_item = _Method(calls.get_item)
    get_catalog = _Method(calls.get_catalog)
    reload_catalog = _Method(calls.reload_catalog)
    load_model = _Method(calls.load_model)
    compact_catalog = _Method(calls.compact_catalog)
    save_snapshot = _Method(calls.save_snapshot)
    roll_back = _Method(calls.roll_back)
    delete_snapshot = _Method(calls.delete_snapshot)
    list_rules = _Method(calls.list_rules)
    get_rule = _Method(calls.get_rule)
    put_rule = _Method(calls.put_rule)
    delete_rule = _Method(calls.delete_rule)
    list_boosts = _Method(calls.list_boosts)
    get_boost = _Method(calls.get_boost)
    put_boost = _Method(calls.put_boost)
    delete_boost = _Method(calls.delete_boost)
    list_slow_batches = _Method(calls.list_slow_batches)
    list_models = _Method(calls.list_models)
    get_health = _Method(calls.get_health)
    get_readiness = _Method(calls.get_readiness)
    get_metrics = _Method(calls.get_metrics)


class Client(_Calls, Closing):
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


class AsyncClient(_Calls):
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
