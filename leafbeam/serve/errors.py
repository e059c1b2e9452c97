"""Every failure as `{"error": {"type", "message"}}`, with the words of the LeafbeamError where there is one."""

import logging
import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from leafbeam.engine import Counts
from leafbeam.errors import (
    ArgumentError,
    ItemIdError,
    LeafbeamError,
    OverloadedError,
    RequestError,
    UnavailableError,
    UnknownRuleError,
)

log = logging.getLogger("leafbeam.serve")

# What a request can be wrong about. Any other LeafbeamError in a request's way is the server's fault.
_ASKED_WRONGLY = (RequestError, UnknownRuleError, ItemIdError, ArgumentError)


def status_of(error: Exception) -> int:
    """429 for a server that is too busy, 503 for one that does not serve now, 422 for a request that cannot be answered, 500
    for a fault of ours.
    """
    if isinstance(error, OverloadedError):
        return HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, UnavailableError) else HTTPStatus.TOO_MANY_REQUESTS
    return HTTPStatus.UNPROCESSABLE_ENTITY if isinstance(error, _ASKED_WRONGLY) else HTTPStatus.INTERNAL_SERVER_ERROR


def answer(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The one shape of an error."""
    return JSONResponse({"error": {"type": kind, "message": _whole(message)}}, status_code=status, headers=headers)


def refusal(error: OverloadedError) -> JSONResponse:
    """What is refused for now, and when to come again: `Retry-After` knows whole seconds only, the body tells milliseconds."""
    detail = {
        "type": type(error).__name__,
        "message": _whole(str(error)),
        "reason": error.reason,
        "retry_after_ms": math.ceil(1e3 * error.retry_after_s),
    }
    headers = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    return JSONResponse({"error": detail}, status_code=status_of(error), headers=headers)


def add_error_answers(app: FastAPI, counts: Counts) -> None:
    """Teach an app to answer every failure in that shape, and count the bodies that no request could be read from."""

    async def validation(request: Request, error: Exception) -> JSONResponse:
        counts.add("refused", "body")
        return await _validation(request, error)

    app.add_exception_handler(LeafbeamError, _leafbeam)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


async def _leafbeam(request: Request, error: Exception) -> JSONResponse:
    status = status_of(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
    return refusal(error) if isinstance(error, OverloadedError) else answer(status, type(error).__name__, str(error))


async def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    if any(problem["type"] == "json_invalid" for problem in problems):
        reason = problems[0].get("ctx", {}).get("error", "it cannot be parsed")
        return answer(HTTPStatus.BAD_REQUEST, "RequestError", f"the body has to be JSON, but: {reason}")
    return answer(HTTPStatus.UNPROCESSABLE_ENTITY, "RequestError", describe(problems))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"there is nothing at {request.url.path[:100]}: see /docs for what there is"
    else:
        message = f"{request.method} {request.url.path[:100]}: {error.detail}"
    return answer(error.status_code, "RequestError", message, dict(error.headers or {}))


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    return answer(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__, "the server failed; its log says why")


def describe(problems: Sequence[Any]) -> str:
    """pydantic's findings in one line: where, what was expected, what came; the first three places."""
    found: dict[str, str] = {}
    for problem in problems:
        # body.history.3.int and body.history.3.str: an id may be either, pydantic reports both, one is enough.
        of_an_id = len(problem["loc"]) == 4
        steps = [str(step) for step in problem["loc"][1:3] if step != ""]
        place = ".".join(steps) or "the body"
        if problem["type"] in ("model_attributes_type", "model_type", "missing"):
            found.setdefault(place[:80], "expected a JSON object, sent with Content-Type: application/json")
        elif problem["type"] == "extra_forbidden":
            found.setdefault(place[:80], "there is no such field")
        elif of_an_id:
            found.setdefault(place[:80], f"an item id is a whole number or text, not {_shown(problem.get('input'))}")
        else:
            found.setdefault(place[:80], f"{_lower(problem['msg'])}, not {_shown(problem.get('input'))}")
    shown = [f"{place}: {what}" for place, what in list(found.items())[:3]]
    if len(found) > 3:
        shown.append(f"and {len(found) - 3:,} more")
    return "; ".join(shown)


def _whole(text: str) -> str:
    # A field's name may hold what UTF-8 cannot: half of a surrogate pair, which JSON can spell.
    return text.encode("utf-8", "backslashreplace").decode()


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
