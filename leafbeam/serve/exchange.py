"""One HTTP exchange: the key of a repeated request, the wait for a result, the JSON of an answer."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.engine import Engine, Request, Result
from leafbeam.errors import RequestError, UnavailableError
from leafbeam.live import RequestKey
from leafbeam.serve.body import EarlyBody
from leafbeam.serve.errors import BodyError

_INLINE_IDS = 512  # more ids are looked up in a thread; for fewer, changing threads takes longer
_MAX_KEY = 255
T = TypeVar("T")


def json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def key_of(http: HttpRequest, body: bytes) -> RequestKey | None:
    """The header Idempotency-Key, if it is there, with a digest of the whole request."""
    key = http.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= _MAX_KEY or not key.isprintable():
        raise BodyError(f"Idempotency-Key must have 1 to {_MAX_KEY} characters that can be printed")
    digest = blake2b(digest_size=16)
    for part in (http.method, http.url.path, http.url.query, http.headers.get("content-type", "")):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    digest.update(body)
    return RequestKey(key=key, digest=digest.hexdigest())


async def disconnected(http: HttpRequest) -> None:
    """Return once the client has disconnected."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def departure(http: HttpRequest) -> "asyncio.Future[None]":
    """Done once the client has disconnected; to be cancelled when that does not matter any more."""
    early = EarlyBody.of(http)
    return asyncio.ensure_future(disconnected(http)) if early is None else early.gone


async def result_of(future: "Future[T]", gone: "asyncio.Future[None]", answer_s: float) -> T:
    """Wait for a result. Raises ClientDisconnect after withdrawing it, UnavailableError after `answer_s` seconds."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()  # `asyncio.wait` of a wrapped future takes 50 us longer

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    def end_soon(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end)

    timer = loop.call_later(answer_s, end)
    gone.add_done_callback(end)
    future.add_done_callback(end_soon)
    try:
        await over
    except asyncio.CancelledError:
        future.cancel()
        raise
    finally:
        timer.cancel()
        gone.remove_done_callback(end)
    if future.done() and not future.cancelled():
        return future.result()
    future.cancel()
    if gone.done():
        raise ClientDisconnect
    raise UnavailableError(f"no answer within {answer_s:g} s", reason="no_answer")


async def recommend(engine: Engine, request: Request, arrived: float, gone: "asyncio.Future[None]", answer_s: float) -> Result:
    """Submit a request to an engine and wait for its result, as `result_of` does."""
    blocks = engine.settings.overlap and len(request.history) + len(request.deny_item_ids) > _INLINE_IDS
    max_s = engine.limits.max_deadline_s
    if request.deadline_s is not None and not 0 < request.deadline_s <= max_s:  # in the words of HTTP
        reason = "deadline_past" if request.deadline_s <= 0 else "over_a_limit"
        engine.counts.add("refused", reason)
        message = f"deadline_ms must be above 0 and at most {1000 * max_s:,}, not {1e3 * request.deadline_s:,.15g}"
        raise RequestError(message, reason=reason)
    submit = partial(engine.submit, request, arrived=arrived)
    await asyncio.sleep(0)  # until the end of a connection that was closed behind its request has been read
    if gone.done():
        raise ClientDisconnect
    return await result_of(await asyncio.to_thread(submit) if blocks else submit(), gone, answer_s)
