"""Client and AsyncClient: the same calls and retries over blocking sockets and over asyncio."""

import asyncio
import functools
import inspect
import itertools
import random
import secrets
import ssl
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

from leafbeam.errors import ArgumentError, ServerError
from leafbeam.extras import optional_imports

with optional_imports("leafbeam.Client", "client"):
    import httpx

from leafbeam.client import calls, imports
from leafbeam.client.calls import Call
from leafbeam.client.retries import REQUEST_ID, Fault, Outcome, Pause, Reply, Retries, Send, Steps, attempts

_MAX_ANSWER_BYTES = 256 << 20
P = ParamSpec("P")
T = TypeVar("T")
Script = Generator[Call[Any], Any, T]  # several calls, of which each waits for the answer to the one before


class _Session:
    """What both clients share: an address, the headers of requests, their ids, and the steps of a call."""

    def __init__(self, url: str, key: str | None, retries: Retries | None) -> None:
        self.url, self.retries = url.rstrip("/"), retries or Retries()
        self._prefix, self._numbers = f"{secrets.token_hex(8)}-", itertools.count(1)
        try:
            parsed, _ = httpx.URL(self.url), urlsplit(self.url)  # httpx takes half an IPv6 address
        except (httpx.InvalidURL, ValueError) as error:
            raise ArgumentError(f"url is {url!r:.90}: {error}; expected one such as http://127.0.0.1:8000") from None
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
            raise ArgumentError(f"url is {url!r:.90}: expected one such as http://127.0.0.1:8000")
        # A compressed answer could be a thousand times as long as what arrives.
        self._headers = {"accept": "application/json, text/plain", "accept-encoding": "identity"}
        if key is not None:
            if not key.strip() or not key.isascii() or not key.isprintable():
                raise ArgumentError("key: expected what `leafbeam keys add` printed")
            self._headers["authorization"] = f"Bearer {key}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _steps(self, made: Call[T] | Script[T]) -> Steps[T]:
        """The steps of a call, or of a script's calls one after the other."""
        if isinstance(made, Call):
            return (yield from self._attempts(made))
        go_on = functools.partial(next, made)
        while True:
            try:
                call = go_on()
            except StopIteration as end:
                return end.value
            try:
                go_on = functools.partial(made.send, (yield from self._attempts(call)))
            except ServerError as error:
                go_on = functools.partial(made.throw, error)

    def _attempts(self, call: Call[T]) -> Steps[T]:
        def new_id() -> str:
            return f"{self._prefix}{next(self._numbers)}"

        return attempts(call, self.retries, clock=time.monotonic, random=random.random, new_id=new_id)

    def _options(self, send: Send) -> dict[str, Any]:
        """Arguments of httpx's `stream`."""
        call, headers = send.call, {**self._headers, REQUEST_ID: send.request_id}
        if call.body is not None:
            headers["content-type"] = call.content_type
        if call.key is not None:
            headers["idempotency-key"] = call.key
        return {
            "method": call.method,
            "url": f"{self.url}{call.target}",
            "content": call.body,
            "headers": headers,
            "timeout": send.timeout_s,
        }


class _Answer:
    """An answer as it arrives, within bounds of time and size.

    url: of the server. prefix: of the ids of this client's requests.
    """

    def __init__(self, send: Send, url: str, prefix: str) -> None:
        self._send, self._url, self._prefix = send, httpx.URL(url), prefix
        self._until = time.monotonic() + send.timeout_s
        self._chunks, self._size = list[bytes](), 0
        self._response: httpx.Response | None = None
        self.fault: Fault | None = None

    def begin(self, response: httpx.Response) -> bool:
        """Take the headers; whether the body is of use."""
        self._response, answered_id = response, response.headers.get(REQUEST_ID, "")
        if answered_id.startswith(self._prefix) and answered_id != self._send.request_id:
            # A server that answers twice would have each later request take the answer to the one before.
            self.fault = Fault(code="stale", message="sent the answer to another request")
        elif response.headers.get("content-encoding", "identity") != "identity":
            self.fault = Fault(code="malformed", message="sent an encoded body, which was not asked for")
        # httpx's timeout is one of each read: from here on, of what is left.
        response.request.extensions.get("timeout", {})["read"] = max(self._until - time.monotonic(), 1e-3)
        return self.fault is None

    def add(self, chunk: bytes) -> bool:
        """Take a part of the body; whether to read on."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > _MAX_ANSWER_BYTES:
            self.fault = Fault(code="malformed", message=f"sent more than {_MAX_ANSWER_BYTES:,} bytes")
        elif time.monotonic() > self._until:
            self.fault = self.late()
        return self.fault is None

    def late(self) -> Fault:
        return Fault(code="late", message=f"gave no whole answer in time ({self._send.timeout_s:.3g} s were left)")

    def fail(self, error: Exception) -> Outcome:
        """The outcome of a request that ended in an error of httpx, or of time."""
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            address = f"{self._url.scheme}://{self._url.netloc.decode('ascii')}"  # without a password
            message = f"was not reached at {address} ({error or type(error).__name__}): is it running?"
            return Fault(code="unreachable", message=message)
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            return self.late()
        return Fault(code="cut", message=f"ended the connection before its answer was whole ({error or type(error).__name__})")

    @property
    def outcome(self) -> Outcome:
        assert self._response is not None
        headers = {name.lower(): value for name, value in self._response.headers.items()}
        return self.fault or Reply(status=self._response.status_code, headers=headers, body=b"".join(self._chunks))


def _blocking(make: "Callable[P, Call[T] | Script[T]]") -> "Callable[Concatenate[Client, P], T]":
    """The method of Client that makes a call and waits for its answer."""

    @functools.wraps(make)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(make(*args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    _name_self(method, make)
    return method


def _awaitable(make: "Callable[P, Call[T] | Script[T]]") -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    """The method of AsyncClient that makes a call and awaits its answer."""

    @functools.wraps(make)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(make(*args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    _name_self(method, make)
    return method


def _name_self(method: Any, make: Callable[..., Any]) -> None:
    """Let `help` show the arguments of the call, after self."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = inspect.Signature([own, *inspect.signature(make).parameters.values()])


class Client(_Session):
    """A client of `leafbeam serve`, which threads may share. Close it, or use it in a `with` block.

    Its methods are `import_items` and the functions of `leafbeam.client.calls`; they return the answer instead of a call. They
    raise ArgumentError for what cannot be sent, and ServerError for everything else. The deadline ends a call exactly, unless a
    server sends its headers in pieces, each of which may take as long as was left.

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
        super().__init__(url, key, retries)
        self._http = httpx.Client(verify=True if ssl_context is None else ssl_context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

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
    compact_catalog = _blocking(calls.compact_catalog)
    save_snapshot = _blocking(calls.save_snapshot)
    roll_back = _blocking(calls.roll_back)
    delete_snapshot = _blocking(calls.delete_snapshot)
    list_rules = _blocking(calls.list_rules)
    get_rule = _blocking(calls.get_rule)
    put_rule = _blocking(calls.put_rule)
    delete_rule = _blocking(calls.delete_rule)
    list_slow_batches = _blocking(calls.list_slow_batches)
    list_models = _blocking(calls.list_models)
    get_health = _blocking(calls.get_health)
    get_readiness = _blocking(calls.get_readiness)
    get_metrics = _blocking(calls.get_metrics)

    def _run(self, made: Call[T] | Script[T]) -> T:
        steps, outcome = self._steps(made), None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = time.sleep(step.seconds) if isinstance(step, Pause) else self._send(step)

    def _send(self, send: Send) -> Outcome:
        answer = _Answer(send, self.url, self._prefix)
        try:
            with self._http.stream(**self._options(send)) as response:
                if answer.begin(response):
                    for chunk in response.iter_raw():
                        if not answer.add(chunk):
                            break
        except httpx.HTTPError as error:
            return answer.fail(error)
        return answer.outcome


class AsyncClient(_Session):
    """A client of `leafbeam serve` for asyncio: it has the methods of `Client`, to await, under exact deadlines.

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
        super().__init__(url, key, retries)
        self._http = httpx.AsyncClient(verify=True if ssl_context is None else ssl_context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

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
    compact_catalog = _awaitable(calls.compact_catalog)
    save_snapshot = _awaitable(calls.save_snapshot)
    roll_back = _awaitable(calls.roll_back)
    delete_snapshot = _awaitable(calls.delete_snapshot)
    list_rules = _awaitable(calls.list_rules)
    get_rule = _awaitable(calls.get_rule)
    put_rule = _awaitable(calls.put_rule)
    delete_rule = _awaitable(calls.delete_rule)
    list_slow_batches = _awaitable(calls.list_slow_batches)
    list_models = _awaitable(calls.list_models)
    get_health = _awaitable(calls.get_health)
    get_readiness = _awaitable(calls.get_readiness)
    get_metrics = _awaitable(calls.get_metrics)

    async def _run(self, made: Call[T] | Script[T]) -> T:
        steps, outcome = self._steps(made), None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = await (asyncio.sleep(step.seconds) if isinstance(step, Pause) else self._send(step))

    async def _send(self, send: Send) -> Outcome:
        answer = _Answer(send, self.url, self._prefix)
        try:
            async with asyncio.timeout(send.timeout_s), self._http.stream(**self._options(send)) as response:
                if answer.begin(response):
                    async for chunk in response.aiter_raw():
                        if not answer.add(chunk):
                            break
        except (httpx.HTTPError, TimeoutError) as error:
            return answer.fail(error)
        return answer.outcome
