"""Every failure as `{"error": {"type", "message"}}`, with the message of the LeafbeamError where there is one."""

import logging
import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from leafbeam.engine.request import short_repr
from leafbeam.errors import (
    ArgumentError,
    ItemIdError,
    LeafbeamError,
    OverloadedError,
    RequestError,
    UnavailableError,
    UnknownRuleError,
)

__all__ = ["BodyError", "describe", "error_response", "http_error", "unexpected_error"]

log = logging.getLogger("leafbeam.serve")


class BodyError(RequestError):
    """The body of a request cannot be read as one. status: of the answer."""

    def __init__(self, message: str, *, status: int = HTTPStatus.UNPROCESSABLE_ENTITY, reason: str = "body") -> None:
        super().__init__(message, reason=reason)
        self.status = status


def _status_of(error: Exception) -> int:
    """429 if overloaded, 503 if unavailable, 4xx for an error of the request, 500 for any other."""
    if isinstance(error, BodyError):
        return error.status
    kinds = {
        UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
        OverloadedError: HTTPStatus.TOO_MANY_REQUESTS,
        (RequestError, UnknownRuleError, ItemIdError, ArgumentError): HTTPStatus.UNPROCESSABLE_ENTITY,
    }
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def error_response(request: Request, error: LeafbeamError) -> JSONResponse:
    """The answer to a request that failed; a fault of the server is logged."""
    status, headers, details = _status_of(error), dict[str, str](), dict[str, Any]()
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
    if isinstance(error, OverloadedError):  # `Retry-After` is in whole seconds, the body in milliseconds
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        details = {"reason": error.reason, "retry_after_ms": math.ceil(1e3 * error.retry_after_s)}
    if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):  # the rest of the body is not read
        headers["Connection"] = "close"
    name = "RequestError" if isinstance(error, BodyError) else type(error).__name__
    return _answer(status, name, str(error), headers, details)


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """The answer of an app to starlette's errors, such as an unknown path."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    message = f"{request.method} {path}: {error.detail}"
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"there is nothing at {path}: see /docs for the paths of this server"
    return _answer(error.status_code, "RequestError", message, dict(error.headers or {}))


async def unexpected_error(request: Request, error: Exception) -> JSONResponse:
    """The answer of an app to any other error."""
    return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__, "the server failed; its log says why")


def _answer(
    status: int, name: str, message: str, headers: dict[str, str] | None = None, details: dict[str, Any] | None = None
) -> JSONResponse:
    # The name of a field may hold half a surrogate pair, which UTF-8 cannot encode.
    message = message.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": {"type": name, "message": message, **(details or {})}}, status, headers)


def describe(problems: Sequence[Any]) -> str:
    """pydantic's errors in one line: field, what was expected, what came; the first three fields."""
    found: dict[str, str] = {}
    for problem in problems:
        # history.3.int and history.3.str: an id may be either, and pydantic reports both.
        is_id = len(problem["loc"]) == 3
        field = ".".join(str(step) for step in problem["loc"][:2] if step != "")[:80] or "the body"
        if problem["type"] in ("model_attributes_type", "model_type"):
            text = "expected a JSON object, sent with Content-Type: application/json"
        elif problem["type"] == "extra_forbidden":
            text = "there is no such field"
        elif is_id:
            text = f"an item id is an integer or text, not {_shown(problem.get('input'))}"
        else:
            text = f"{problem['msg'][:1].lower()}{problem['msg'][1:]}, not {_shown(problem.get('input'))}"
        found.setdefault(field, text)
    more = [f"and {len(found) - 3:,} more"] if len(found) > 3 else []
    return "; ".join([*(f"{field}: {text}" for field, text in list(found.items())[:3]), *more])


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return short_repr(value)
