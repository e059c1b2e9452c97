"""One HTTP exchange: the body read within its bounds and parsed, the wait for a result or a thread, the JSON of an answer."""

import asyncio
import codecs
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.errors import OverloadedError, UnavailableError, counted
from leafbeam.json_reader import DoubledKeyError, check_keys
from leafbeam.serve.errors import BodyError, describe
from leafbeam.serve.operations import BY_NAME
from leafbeam.serve.schema import RecommendBody

if TYPE_CHECKING:
    from leafbeam.live import RequestKey

EARLY = "leafbeam.early"
RECOMMEND_PATH = BY_NAME["recommend"].path
_RECOMMEND = msgspec.json.Decoder(RecommendBody)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MAX_KEY = 255  # characters of an Idempotency-Key
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The bounds of one request: the bytes of its body, the seconds for the body, and the seconds for the answer."""

    max_body_bytes: int = 1 << 20
    max_body_s: float = 10.0
    answer_s: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyBody:
    """The part of a request that an HTTP worker has already read, in its scope under `EARLY`.

    refusal: why there is no body. arrived: when it was there, by `time.monotonic`, which all processes of a machine share.
    gone: done once the client has disconnected.
    """

    body: bytes
    refusal: BodyError | None
    arrived: float
    gone: "asyncio.Future[None]"

    @classmethod
    def of(cls, http: HttpRequest) -> "EarlyBody | None":
        return http.scope.get(EARLY)

    def read(self) -> bytes:
        if self.refusal is not None:
            raise self.refusal
        return self.body

    def seconds_ago(self) -> float:
        return max(0.0, time.monotonic() - self.arrived)


async def read_body(http: HttpRequest, bounds: Bounds) -> bytes:
    """Return the whole body. Raises BodyError as soon as the body is too long or too slow, without storing it, and for
    a body that is compressed or not UTF-8.
    """
    if (early := EarlyBody.of(http)) is not None:
        return early.read()
    _check_encoding(http)
    max_bytes, max_s = bounds.max_body_bytes, bounds.max_body_s
    length = http.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_long(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(max_s):
            async for chunk in http.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise _too_long(max_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {max_s:g} s"
        raise BodyError(message, status=HTTPStatus.REQUEST_TIMEOUT, reason="body_too_slow") from None
    return _utf8(bytes(body), http.headers.get("content-type", ""))


def _check_encoding(http: HttpRequest) -> None:
    """Raise BodyError if the body is compressed."""
    transfer = http.headers.get("transfer-encoding", "").lower().removesuffix("chunked").rstrip(" ,")
    encoding = http.headers.get("content-encoding", "").strip() or transfer
    if encoding.lower() not in ("", "identity"):
        message = f"the body is compressed ({encoding[:40]}), which this server does not read: send it without Content-Encoding"
        raise BodyError(message, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)


def _utf8(body: bytes, content_type: str) -> bytes:
    """Return a body of JSON without its byte order mark. Raises BodyError if it is not UTF-8."""
    if "json" not in content_type.lower():
        return body
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in body[:2]:
        raise BodyError("the body is UTF-16 or UTF-32: send UTF-8", status=HTTPStatus.BAD_REQUEST)
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as error:
        message = f"the body must be UTF-8, but its byte {error.start:,} is 0x{body[error.start]:02x}: encode it as UTF-8"
        raise BodyError(message, status=HTTPStatus.BAD_REQUEST) from None
    return body.removeprefix(codecs.BOM_UTF8)


def _too_long(max_bytes: int) -> BodyError:
    message = f"the body may have up to {counted(max_bytes, 'byte')}: send less"
    return BodyError(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason="body_too_long")


def decode_body(body: bytes, content_type: str, decoder: "msgspec.json.Decoder[S]", max_values: int | None = None) -> S:
    """Return the content of a body. The first mistake ends the parsing: no body takes more than a few milliseconds."""
    kind = content_type.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not body or not is_json:
        raise BodyError("the body: expected a JSON object, sent with Content-Type: application/json")
    if max_values is not None and body.count(b",") > max_values:
        raise BodyError(f"the body may hold up to {counted(max_values, 'value')}: send fewer ids")
    try:
        content = decoder.decode(body)
        check_keys(body, len(_FIELDS.decode(body)))
        return content
    except DoubledKeyError as error:
        raise BodyError(f"the body: {error}", status=HTTPStatus.BAD_REQUEST, param=error.path) from None
    except msgspec.ValidationError as error:
        message = describe(error, decoder.type)
        param = message.partition(": ")[0]
        raise BodyError(message, param=None if param == "the body" else param) from None
    except (ValueError, RecursionError) as error:  # a DecodeError and a UnicodeDecodeError are ValueErrors
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "it cannot be parsed"
        raise BodyError(f"the body is not valid JSON: {reason}", status=HTTPStatus.BAD_REQUEST) from None


def decode_recommend(body: bytes, content_type: str, max_values: int) -> RecommendBody:
    """Return the body of `POST /v1/recommend`. Raises BodyError."""
    return decode_body(body, content_type, _RECOMMEND, max_values)


def json_response(value: object, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def key_of(http: HttpRequest, body: bytes) -> "RequestKey | None":
    """Return the header Idempotency-Key, if it is there, with a digest of the whole request."""
    from leafbeam.live import RequestKey  # HTTP processes import this module, and do without the index

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
    """Return a future that is done once the client has disconnected. Cancel it when that does not matter any more."""
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
