"""Every failure as `{"error": {"type", "message"}}`, with the message of the LeafbeamError where there is one.

Clients of OpenAI get the shapes that they read.
"""

import logging
import math
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leafbeam.errors import (
    ArgumentError,
    AttributesError,
    AutomatonError,
    BatchError,
    ConflictError,
    DataError,
    ItemIdError,
    LeafbeamError,
    LockedError,
    LogError,
    OverloadedError,
    RequestError,
    RuleError,
    UnavailableError,
    short_repr,
)
from leafbeam.serve.observation import request_id_of, route_of
from leafbeam.serve.operations import BY_NAME
from leafbeam.serve.schema import ErrorAnswer, ErrorDetail, OpenAIError, OpenAIErrorDetail

log = logging.getLogger("leafbeam.serve")
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected before the answer
Handler = Callable[[Request], Awaitable[Response]]
OPENAI_PATHS = frozenset(BY_NAME[name].path for name in ("complete", "chat", "list_models"))


class BodyError(RequestError):
    """A request's body is invalid, or the request is refused. status: that of the answer. param: the field that is wrong."""

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.UNPROCESSABLE_ENTITY,
        reason: str = "body",
        param: str | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.status, self.param = status, param


def _status_of(error: Exception) -> int:
    """Return the status: 429 if overloaded, 503 if unavailable, 4xx for an error of the request, 500 for any other."""
    if isinstance(error, BodyError):
        return error.status
    kinds = {
        UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
        OverloadedError: HTTPStatus.TOO_MANY_REQUESTS,
        (ConflictError, LockedError): HTTPStatus.CONFLICT,
        (RequestError, RuleError, ItemIdError, ArgumentError, AttributesError, BatchError): HTTPStatus.UNPROCESSABLE_ENTITY,
    }
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def answering(handler: Handler, respond: "Callable[[Request, Exception], Response] | None" = None) -> Handler:
    """Return a route whose errors are answers.

    Args:
        handler: Answers a request, or raises.
        respond: Turns an error into an answer. Default: `error_response`.
    """
    respond = respond or error_response

    async def route(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:
            return respond(request, error)

    return route


def error_response(request: Request, error: Exception) -> Response:
    """Return the answer to a request that failed; a fault of the server is logged."""
    status = _status_of(error)
    name = "RequestError" if isinstance(error, BodyError) else type(error).__name__
    detail = ErrorDetail(type=name, message=encodable(_message_of(error)))
    if isinstance(error, OverloadedError):  # `Retry-After` is in whole seconds, the body in milliseconds
        retry_after_ms = math.ceil(1e3 * error.retry_after_s)
        detail = msgspec.structs.replace(detail, reason=error.reason, retry_after_ms=retry_after_ms)
    if isinstance(error, BatchError):
        lines = {str(number): encodable(problem) for number, problem in error.lines.items()}
        detail = msgspec.structs.replace(detail, lines=lines)
    return _answer(status, detail, _headers(request, error, status))


def catalog_error_response(request: Request, error: Exception) -> Response:
    """Return the answer to a request that failed on a catalog: a table in use or a full disk is not the request's fault."""
    if isinstance(error, DataError | LogError | OSError) and not isinstance(error, AttributesError):
        unavailable = _unavailable_error(request, error)
        is_locked = isinstance(error, LockedError)
        error = (
            LockedError("another program is writing these items, and only one may write: wait") if is_locked else unavailable
        )
    return error_response(request, error)


def _unavailable_error(request: Request, error: LeafbeamError | OSError) -> UnavailableError:
    """Return the error for a client of a catalog that cannot be used now; the log alone has the text, which may hold paths."""
    request_id = request_id_of(request.scope)
    log.error("a change or look-up of the catalog failed (request %s): %s", request_id, error)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    why = f" ({cause.strerror})" if cause is not None and cause.strerror else ""
    message = f"the catalog cannot be used now{why}: try again; the server's log says why, at request {request_id}"
    return UnavailableError(message, reason="catalog")


def openai_error_response(request: Request, error: Exception) -> Response:
    """Return the same in the shape of OpenAI's errors."""
    status, body = openai_error(error)
    return Response(msgspec.json.encode(body), status, _headers(request, error, status), "application/json")


def _headers(request: Request, error: Exception, status: int) -> dict[str, str]:
    """Return the headers of the answer to a failed request; a fault of the server is logged."""
    headers: dict[str, str] = {}
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log_failure(request.scope, error)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):  # the rest of the body is not read
        headers["Connection"] = "close"
    return headers


def openai_error(error: Exception) -> tuple[int, OpenAIError]:
    """Return (status, body) of a failure as OpenAI's clients expect it: 400 for all that is wrong with a request's content."""
    if isinstance(error, RecursionError):
        error = BodyError("the body nests too deeply")
    status = HTTPStatus.BAD_REQUEST if isinstance(error, AutomatonError) else _status_of(error)
    status = HTTPStatus.BAD_REQUEST if status == HTTPStatus.UNPROCESSABLE_ENTITY else HTTPStatus(status)
    kinds = {HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error"}
    name = "RequestError" if isinstance(error, BodyError) else type(error).__name__
    param = error.param if isinstance(error, BodyError) else error.pointer if isinstance(error, AutomatonError) else None
    detail = OpenAIErrorDetail(
        message=encodable(_message_of(error)),
        type=kinds.get(status) or ("server_error" if status >= 500 else "invalid_request_error"),
        param=None if param is None else encodable(param),
        code=error.reason if isinstance(error, RequestError) and status != HTTPStatus.BAD_REQUEST else name,
    )
    return status, OpenAIError(detail)


async def http_error(request: Request, error: Exception) -> Response:
    """Return the answer of an app to starlette's errors, such as an unknown path."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:100]  # that of `request.url` lacks its first part if it begins with two slashes
    message = f"{request.method} {path}: {error.detail}"
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"there is nothing at {path}: see /docs for the paths of this server"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods_at(request)):
        headers["Allow"] = ", ".join(methods)
        message = f"{path} takes {', '.join(methods)}, not {request.method}"
    if path in OPENAI_PATHS:
        detail = OpenAIErrorDetail(message=message, type="invalid_request_error", param=None, code="RequestError")
        content = msgspec.json.encode(OpenAIError(detail))
        return Response(content, error.status_code, headers, "application/json")
    return _answer(error.status_code, ErrorDetail(type="RequestError", message=encodable(message)), headers)


def _methods_at(request: Request) -> list[str]:
    """Return the methods of all routes at a path; starlette's own error names those of the first."""
    at_path = [
        route for route in request.app.routes if isinstance(route, Route) and route.matches(request.scope)[0] != Match.NONE
    ]
    return sorted({method for route in at_path for method in route.methods or ()})


class UnexpectedErrorMiddleware:
    """Answers 500 to any other error, logs it with the request's id, and keeps the connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            await error_response(Request(scope), error)(scope, receive, send)


def _message_of(error: Exception) -> str:
    """Return what a client reads of an error; one that is not of leafbeam may hold anything."""
    return str(error) if isinstance(error, LeafbeamError) else "the server failed; its log says why"


def _log_failure(scope: Scope, error: Exception) -> None:
    """Log the failure of a request, by its route: the path could hold an item's id or a line break."""
    request_id, route = request_id_of(scope), route_of(scope)
    fields = {"request_id": request_id}
    log.error("%s %s failed (request %s)", scope["method"], route, request_id, exc_info=error, extra={"fields": fields})


def _answer(status: int, detail: ErrorDetail, headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(ErrorAnswer(detail)), status, headers, "application/json")


def encodable(message: str) -> str:
    """Return a message that UTF-8 can encode: a name or id may hold half a surrogate pair."""
    return message.encode("utf-8", "backslashreplace").decode()


_PLACE = re.compile(r"^(.*?)(?: - at (?:key in )?`\$\.?(.*)`)?$", re.DOTALL)


def describe(error: msgspec.ValidationError, body: object = None) -> str:
    """Say in the words of the interface what msgspec's error says: where, what was expected, what came. body: that type."""
    match = _PLACE.match(str(error))
    assert match is not None
    text, field = match[1].replace("`", ""), (match[2] or "the body")[:80]
    if unknown := re.match("Object contains unknown field (.*)", text, re.DOTALL):
        message = f"{short_repr(unknown[1])[1:-1]}: there is no such field"
        if match[2] is None and isinstance(body, type) and issubclass(body, msgspec.Struct):
            message += f": expected {', '.join(field_of_body.encode_name for field_of_body in msgspec.structs.fields(body))}"
        return message
    if text.startswith("Expected object") and field == "the body":
        return "the body: expected a JSON object, sent with Content-Type: application/json"
    return f"{field}: {text[:1].lower()}{text[1:]}"
