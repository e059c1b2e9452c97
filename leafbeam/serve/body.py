"""Reads the body of a request: bounded in bytes and seconds, parsed once."""

import asyncio
import json
from http import HTTPStatus

from fastapi import Request as HttpRequest
from pydantic import ValidationError

from leafbeam.engine import Request
from leafbeam.serve.errors import BodyError, describe
from leafbeam.serve.schema import RecommendBody

__all__ = ["parse_body", "read_body"]


async def read_body(http: HttpRequest, *, max_bytes: int, max_s: float) -> bytes:
    """The whole body. Raises BodyError as soon as it is known to be too long or too slow, without holding it."""
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


def parse_body(body: bytes, content_type: str) -> Request:
    """The request in a body. Raises BodyError for what is not JSON or has wrong types, RequestError for wrong values."""
    kind = content_type.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not body or not is_json:
        raise BodyError("the body: expected a JSON object, sent with Content-Type: application/json")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be parsed"
        raise BodyError(f"the body must be JSON, but: {reason}", status=HTTPStatus.BAD_REQUEST) from None
    try:
        return RecommendBody.model_validate(value).to_request()
    except ValidationError as error:
        raise BodyError(describe(error.errors(include_url=False))) from None


def _too_long(max_bytes: int) -> BodyError:
    message = f"the body may have up to {max_bytes:,} bytes: send fewer ids"
    return BodyError(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason="body_too_long")
