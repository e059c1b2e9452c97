"""Gate: refuses requests from HTTP workers for items that cannot be answered in time, before the application runs.

An overloaded server refuses most requests. What the application does around each request takes longer than admission, and
keeps the interpreter from the thread that runs the model.
"""

import time
from http import HTTPStatus

from starlette.requests import Request as HttpRequest

from leafbeam.engine import Engine, Request
from leafbeam.errors import OverloadedError, RequestError, UnavailableError
from leafbeam.serve.access import Access
from leafbeam.serve.frames import Open
from leafbeam.serve.items import parse_body
from leafbeam.serve.metrics import Metrics


class Gate:
    """Checks from their sizes whether requests for items can be admitted; refusals are counted as in the application.

    A client without a key that may read gets its answer from the application.
    """

    def __init__(self, engine: Engine, access: Access, metrics: Metrics) -> None:
        self._engine, self._access, self._metrics = engine, access, metrics

    def check(self, opened: Open) -> Request | None:
        """Return the parsed request, for the application; None if it is invalid or is not checked here.

        Raises OverloadedError.
        """
        if opened.arrived is None or opened.refusal is not None or not self._engine.scheduler.is_saturated:
            return None
        http = HttpRequest(opened.head.scope())
        if not self._access.is_known(http):
            return None
        seconds = max(0.0, time.monotonic() - opened.arrived)
        try:
            request = parse_body(opened.body, http.headers.get("content-type", ""), self._engine.limits)
            self._engine.limits.check(request)
            self._engine.check_admission(request, arrived=self._engine.clock() - seconds)
        except UnavailableError:
            return None
        except OverloadedError as error:
            self._engine.counts.add("refused", error.reason)
            self._metrics.observe(HTTPStatus.TOO_MANY_REQUESTS, seconds)
            raise
        except RequestError:
            return None
        return request
