"""Observation: the id of each request, the log lines and the spans."""

import logging
import os
import re
import time
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leafbeam.serve.operations import BY_NAME

if TYPE_CHECKING:
    # HTTP processes import this module, and do without the engine.
    from leafbeam.engine import Request, Result
    from leafbeam.serve.config import LogRequests

HEADER = "x-request-id"
_ID_KEY = "leafbeam.request_id"
_ROUTE_KEY = "leafbeam.route"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIdMiddleware:
    """Answers with the header X-Request-Id: that of the request if it is letters, digits, `.`, `_` and `-`, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "")
        request_id = scope[_ID_KEY] = sent if _ID.fullmatch(sent) else token_hex(8)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, answer)


def request_id_of(scope: Scope) -> str:
    """Return the id of a request; "-" outside the middleware."""
    return scope.get(_ID_KEY, "-")


def route_of(scope: Scope) -> str:
    """Return the path of a request's route, with names in place of values; "unknown" for a path without a route."""
    return getattr(scope.get("route"), "path_format", scope.get(_ROUTE_KEY, "unknown"))


def note_route(scope: Scope, path: str) -> None:
    """Keep the route of a request that is refused before it is routed. path: with names in place of values."""
    scope[_ROUTE_KEY] = path


log = logging.getLogger("leafbeam.requests")
_ANSWERED_KEY = "leafbeam.answered"
_PROBES = frozenset(BY_NAME[name].path for name in ("get_health", "get_readiness", "get_metrics"))  # asked every few seconds
_METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A request and its result. arrived_ns: when its body was there, in ns since 1970."""

    request: "Request"
    result: "Result"
    arrived_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A request over HTTP whose answer has been sent.

    Args:
        method: The HTTP method.
        route: The path with names in place of values, such as `/v1/items/{item_id}`; "unknown" for a path without one.
        status: The status of the answer.
        seconds: The time from the request to the end of its answer.
        request_id: The id of the request.
        answered: The request and its result, for routes that return items, unless they failed.
    """

    method: str
    route: str
    status: int
    seconds: float
    request_id: str
    answered: Answered | None


class Tracer(Protocol):
    """Makes spans of requests (`leafbeam.serve.traces.Traces`)."""

    def start(self, scope: Scope) -> Any: ...

    def end(self, span: Any, exchange: Exchange) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The settings of what a server logs and traces for each request, in addition to its metrics; not for health probes.

    Args:
        log: Whether each request is logged as one line at level INFO: "off", "on", or "histories" (with its user and history).
        traces: Makes the spans; None makes none.
    """

    log: "LogRequests" = "off"
    traces: Tracer | None = None

    @property
    def is_on(self) -> bool:
        return self.log != "off" or self.traces is not None


class ObservationMiddleware:
    """Logs and traces each request once it is answered."""

    def __init__(self, app: ASGIApp, observation: Observation) -> None:
        self._app, self._log, self._traces = app, observation.log, observation.traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        span = None if self._traces is None else self._traces.start(scope)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            exchange = Exchange(
                method=scope["method"] if scope["method"] in _METHODS else "_OTHER",
                route=route_of(scope),
                status=status,
                seconds=time.perf_counter() - began,
                request_id=request_id_of(scope),
                answered=scope.get(_ANSWERED_KEY),
            )
            if self._traces is not None:
                self._traces.end(span, exchange)
            if self._log != "off":
                _write_line(exchange, histories=self._log == "histories")


def note_answer(scope: Scope, request: "Request", result: "Result", *, seconds: float) -> None:
    """Keep an answer until it is logged and traced. seconds: since the request's body was there. Cost: under 1 us."""
    scope[_ANSWERED_KEY] = Answered(request=request, result=result, arrived_ns=time.time_ns() - int(1e9 * seconds))


def traces_from_environment() -> bool:
    """Return whether the environment names an endpoint (OTEL_EXPORTER_OTLP_...) and OTEL_SDK_DISABLED is not true."""
    names = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true" and any(os.environ.get(name) for name in names)


def _write_line(exchange: Exchange, *, histories: bool) -> None:
    fields: dict[str, object] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status,
        "ms": round(1e3 * exchange.seconds, 2),
    }
    if (answered := exchange.answered) is not None:
        request, result = answered.request, answered.result
        fields |= {"num_items": request.num_items, "num_valid": result.num_valid, "batch_size": result.batch_size}
        if histories:
            fields |= {"user": request.user, "history": list(request.history)}
    text = f"{exchange.method} {exchange.route} {exchange.status}"
    log.info("%s %s", text, fields, extra={"message_of_fields": text, "fields": fields})
