"""One HTTP exchange: its body within bounds, its content, the wait for a result, the JSON of an answer."""

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.engine import Engine, Request, Result
from leafbeam.errors import ArgumentError, UnavailableError
from leafbeam.live import RequestKey
from leafbeam.serve.errors import BodyError, describe

_INLINE_IDS = 512  # more ids are looked up in a thread; for fewer, changing threads takes longer
_MAX_KEY = 255
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Of one exchange: bytes of its body, seconds until it is there, seconds until there is an answer."""

    max_body_bytes: int = 1 << 20
    max_body_s: float = 10.0
    answer_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_body_bytes < 1 or min(self.max_body_s, self.answer_s) <= 0:
            raise ArgumentError("max_body_bytes, max_body_s and answer_s must be above 0")


def json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def read_body(http: HttpRequest, bounds: Bounds) -> bytes:
    """The whole body. Raises BodyError as soon as it is known to be too long or too slow, without holding it."""
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
    return bytes(body)


def _too_long(max_bytes: int) -> BodyError:
    message = f"the body may have up to {max_bytes:,} bytes: send less"
    return BodyError(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason="body_too_long")


def decode_body(body: bytes, content_type: str, decoder: "msgspec.json.Decoder[S]", max_values: int | None = None) -> S:
    """The content of a body. The first mistake ends the parsing: no body takes more than a few milliseconds."""
    kind = content_type.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not body or not is_json:
        raise BodyError("the body: expected a JSON object, sent with Content-Type: application/json")
    if max_values is not None and body.count(b",") > max_values:
        raise BodyError(f"the body may hold up to {max_values:,} values: send fewer ids")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message = describe(error)
        param = message.partition(": ")[0]
        raise BodyError(message, param=None if param == "the body" else param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "it cannot be parsed"
        raise BodyError(f"the body must be JSON, but: {reason}", status=HTTPStatus.BAD_REQUEST) from None


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


async def result_of(future: "Future[T]", gone: "asyncio.Future[None]", answer_s: float) -> T:
    """Wait for a result. Raises ClientDisconnect after withdrawing it, UnavailableError after `answer_s` seconds."""
    answer = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait({answer, gone}, timeout=answer_s, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        future.cancel()
        raise
    if answer in done:
        return answer.result()
    answer.cancel()
    future.cancel()
    if gone in done:
        raise ClientDisconnect
    raise UnavailableError(f"no answer within {answer_s:g} s", reason="no_answer")


async def recommend(engine: Engine, request: Request, arrived: float, gone: "asyncio.Future[None]", answer_s: float) -> Result:
    """Submit a request to an engine and wait for its result, as `result_of` does."""
    blocks = engine.settings.overlap and len(request.history) + len(request.deny_item_ids) > _INLINE_IDS
    submit = partial(engine.submit, request, arrived=arrived)
    await asyncio.sleep(0)  # until the end of a connection that was closed behind its request has been read
    if gone.done():
        raise ClientDisconnect
    return await result_of(await asyncio.to_thread(submit) if blocks else submit(), gone, answer_s)
