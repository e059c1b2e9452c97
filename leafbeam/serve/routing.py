"""Routing: the routes of handlers and the scope that a request needs, by the list of operations."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from starlette.routing import Route, compile_path

from leafbeam.serve.operations import BY_NAME, OPERATIONS, Need, Operation

_PAGE = "/playground/"


def routes_of(handlers: Mapping[str, Callable[..., Any]]) -> list[Route]:
    """Return the routes of handlers, which are named by their operations, in the same order."""
    found = [(BY_NAME[name], handler) for name, handler in handlers.items()]
    return [Route(_route_path(operation), handler, methods=[operation.method]) for operation, handler in found]


def need_of(method: str, path: str) -> Need | None:
    """Return the scope that a request needs, or None for health checks and the files of the page.

    "learn" is for counting interactions, which a server does only with --learn. A method that a path lacks needs the scope of
    the last operation of that path; an unknown path needs "read".
    """
    if path == "/" or path.startswith(_PAGE):
        return None
    method = "GET" if method == "HEAD" else method
    if (method, path) in (known := _needs_of_fixed_paths()):  # nearly every request, and faster than the patterns
        return known[method, path]
    operations = [operation for pattern, operation in _patterns() if pattern.match(path)]
    asked = [operation for operation in operations if operation.method == method]
    return (asked or operations[-1:])[0].need if operations else "read"


@cache
def _needs_of_fixed_paths() -> dict[tuple[str, str], Need | None]:
    return {(operation.method, operation.path): operation.need for operation in OPERATIONS if "{" not in operation.path}


@cache
def _patterns() -> list[tuple[re.Pattern[str], Operation]]:
    return [(compile_path(_route_path(operation))[0], operation) for operation in OPERATIONS]


def _route_path(operation: Operation) -> str:
    """Return the path in the form that Starlette expects; the id of an item may contain slashes."""
    return operation.path.replace("{item_id}", "{item_id:path}")
