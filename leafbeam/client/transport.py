"""Transports: they send calls and receive answers over blocking sockets or asyncio, within limits of time and size."""

import asyncio
import functools
import itertools
import random
import secrets
import time
from collections.abc import Generator, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from leafbeam.errors import ArgumentError, ServerError, counted
from leafbeam.extras import optional_imports

with optional_imports("clients over HTTP", "client"):
    import httpx

from leafbeam.client.calls import Call
from leafbeam.client.retries import REQUEST_ID, Fault, Outcome, Pause, Reply, Retries, Send, Steps, attempts

MAX_ANSWER_BYTES = 256 << 20
T = TypeVar("T")
HttpT = TypeVar("HttpT")
Script = Generator[Call[object], Any, T]  # several calls, of which each waits for the answer to the one before


class _Transport(Generic[HttpT]):
    """A sender of calls over httpx.

    Args:
        http: The connections.
        url: The address of the server.
        headers: The headers of every request.
        retries: The deadline and the attempts of each call.
        max_bytes: The largest number of bytes of an answer. Default: 256 MiB.

    Raises:
        ArgumentError: For an invalid address.
    """

    def __init__(
        self,
        http: HttpT,
        url: str,
        *,
        headers: Mapping[str, str],
        retries: Retries | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._http, self.url, self.retries = http, url.rstrip("/"), retries or Retries()
        self._prefix, self._numbers = f"{secrets.token_hex(8)}-", itertools.count(1)
        self._max_bytes = MAX_ANSWER_BYTES if max_bytes is None else max_bytes
        try:
            parsed, _ = httpx.URL(self.url), urlsplit(self.url)  # httpx takes half an IPv6 address
        except (httpx.InvalidURL, ValueError) as error:
            raise ArgumentError(f"url is {url!r:.90}: {error}; expected one such as http://127.0.0.1:8000") from None
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
            raise ArgumentError(f"url is {url!r:.90}: expected one such as http://127.0.0.1:8000")
        # A compressed answer could be a thousand times as long as what arrives.
        self._headers = {"accept": "application/json, text/plain", "accept-encoding": "identity", **headers}

    def _steps(self, made: Call[T] | Script[T]) -> Steps[T]:
        """Yield the steps of a call, or of all calls of a script (such as an import), one after the other."""
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
        """Return the arguments of httpx's `stream`."""
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

    def _answer(self, send: Send) -> "_Answer":
        return _Answer(send, self.url, self._prefix, self._max_bytes)


class BlockingTransport(_Transport[httpx.Client]):
    """A transport over blocking sockets, which threads may share. The arguments are those of `_Transport`."""

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, made: Call[T] | Script[T]) -> T:
        """Send a call, or the calls of a script, and return the answer. Raises ServerError."""
        steps, outcome = self._steps(made), None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = time.sleep(step.seconds) if isinstance(step, Pause) else self._send(step)

    def _send(self, send: Send) -> Outcome:
        answer = self._answer(send)
        try:
            with self._http.stream(**self._options(send)) as response:
                _receive(answer, response)
        except httpx.HTTPError as error:
            return answer.fail(error)
        return answer.outcome


class AsyncTransport(_Transport[httpx.AsyncClient]):
    """A transport over asyncio. The arguments are those of `_Transport`."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, made: Call[T] | Script[T]) -> T:
        """Send a call, or the calls of a script, and return the answer. Raises ServerError."""
        steps, outcome = self._steps(made), None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = await (asyncio.sleep(step.seconds) if isinstance(step, Pause) else self._send(step))

    async def _send(self, send: Send) -> Outcome:
        answer = self._answer(send)
        try:
            async with asyncio.timeout(send.timeout_s), self._http.stream(**self._options(send)) as response:
                await _receive_async(answer, response)
        except (httpx.HTTPError, TimeoutError) as error:
            return answer.fail(error)
        return answer.outcome


def _receive(answer: "_Answer", response: httpx.Response) -> None:
    if answer.begin(response):
        for chunk in response.iter_bytes():
            if not answer.add(chunk):
                return


async def _receive_async(answer: "_Answer", response: httpx.Response) -> None:
    if answer.begin(response):
        async for chunk in response.aiter_bytes():
            if not answer.add(chunk):
                return


class _Answer:
    """An answer while it arrives, within limits of time and size.

    Args:
        send: The step that was sent.
        url: The address of the server.
        prefix: The prefix of the ids of this client's requests.
        max_bytes: The largest number of bytes of the body.
    """

    def __init__(self, send: Send, url: str, prefix: str, max_bytes: int) -> None:
        self._send, self._url, self._prefix, self._max_bytes = send, httpx.URL(url), prefix, max_bytes
        self._until = time.monotonic() + send.timeout_s
        self._chunks, self._size = list[bytes](), 0
        self._response: httpx.Response | None = None
        self.fault: Fault | None = None

    def begin(self, response: httpx.Response) -> bool:
        """Take the headers, and return whether to read the body."""
        self._response, answered_id = response, response.headers.get(REQUEST_ID, "")
        if answered_id.startswith(self._prefix) and answered_id != self._send.request_id:
            # A server that answers twice would have each later request take the answer to the one before.
            self.fault = Fault(code="stale", message="sent the answer to another request")
        elif response.headers.get("content-encoding", "identity") != "identity":
            self.fault = Fault(code="malformed", message="sent a compressed body, although none was asked for")
        # httpx's timeout is one of each read: from here on, of what is left.
        response.request.extensions.get("timeout", {})["read"] = max(self._until - time.monotonic(), 1e-3)
        return self.fault is None

    def add(self, chunk: bytes) -> bool:
        """Take a part of the body, and return whether to read on."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_bytes:
            self.fault = Fault(code="malformed", message=f"sent more than {counted(self._max_bytes, 'byte')}")
        elif time.monotonic() > self._until:
            self.fault = self.late()
        return self.fault is None

    def late(self) -> Fault:
        """Return the fault of an answer that took too long."""
        return Fault(code="late", message=f"did not send its whole answer in time ({self._send.timeout_s:.3g} s were left)")

    def fail(self, error: Exception) -> Outcome:
        """Return the outcome of a request that ended in an error of httpx or ran out of time."""
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            address = f"{self._url.scheme}://{self._url.netloc.decode('ascii')}"  # without a password
            message = f"was not reached at {address} ({error or type(error).__name__}): is it running?"
            return Fault(code="unreachable", message=message)
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            return self.late()
        return Fault(code="cut", message=f"ended the connection before its answer was whole ({error or type(error).__name__})")

    @property
    def outcome(self) -> Outcome:
        """Return the whole answer, or why there is none."""
        assert self._response is not None
        headers = {name.lower(): value for name, value in self._response.headers.items()}
        return self.fault or Reply(status=self._response.status_code, headers=headers, body=b"".join(self._chunks))
