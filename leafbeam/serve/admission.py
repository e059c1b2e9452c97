"""The front door under a flood: who comes in vain is told so at once."""

from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from leafbeam.engine import Engine
from leafbeam.errors import OverloadedError, RequestError
from leafbeam.serve.body import ARRIVED, replaying
from leafbeam.serve.errors import refusal
from leafbeam.serve.schema import RecommendBody

__all__ = ["Gate"]


class Gate:
    """ASGI middleware: refuses what the engine would refuse for want of time or room, before anything is looked up.

    Think of a doorman who knows how long the queue is and sends away whom it is too long for. While a worker is free and nobody
    waits he lets everybody pass; whatever is wrong with a request he leaves to those inside. Without him a flood costs the
    workers more time for each refusal than they can spare.

    It expects a body that is whole (`BoundedBody`).
    """

    def __init__(self, app: ASGIApp, *, engine: Engine, path: str) -> None:
        self._app, self._engine, self._path = app, engine, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path or not self._engine.is_crowded:
            await self._app(scope, receive, send)
            return
        message = await receive()
        error = self._error(message.get("body", b""), scope.get(ARRIVED))
        if error is None:
            await self._app(scope, replaying(message, receive), send)
        else:
            await refusal(error)(scope, receive, send)

    def _error(self, body: bytes, arrived: float | None) -> OverloadedError | None:
        try:
            request = RecommendBody.model_validate_json(body).to_request()
        except (ValidationError, RequestError):
            return None
        return self._engine.turned_away(request, arrived=arrived)
