"""Logs as JSON, one object a line: events of the server, and each request without its body."""

import json
import logging
import time
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leafbeam.serve.request_id import request_id_of

log = logging.getLogger("leafbeam.requests")
_FIELDS = "leafbeam_fields"  # of a record


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: `time` in UTC, `level`, `logger`, `message`, its fields, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        time_of = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        content = {"time": time_of, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        content |= getattr(record, _FIELDS, {})
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


class RequestLogMiddleware:
    """Logs each request with its id, status and milliseconds. Nothing of a body is logged: it may hold a history."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            fields = {"method": scope["method"], "path": scope["path"], "status": status}
            fields |= {"ms": round(1e3 * (time.perf_counter() - began), 3), "request_id": request_id_of(scope)}
            log.info("request", extra={_FIELDS: fields})
