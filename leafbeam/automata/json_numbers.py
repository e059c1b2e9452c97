"""Patterns of the numbers that a schema allows."""

import math
from decimal import Decimal

from leafbeam.automata.json_scope import BOUNDS, Schema, Scope
from leafbeam.automata.json_text import NUMBER, Bound, decimals, integers
from leafbeam.errors import short_repr


def integer_pattern(schema: Schema, scope: Scope) -> str:
    lower, upper = _bounds(schema, scope)
    low = None if lower is None else math.floor(lower.value) + 1 if lower.strict else math.ceil(lower.value)
    high = None if upper is None else math.ceil(upper.value) - 1 if upper.strict else math.floor(upper.value)
    if low is not None and high is not None and low > high:
        raise scope.error(f" allows no integer: its bounds leave {low} to {high}")
    return integers(low, high)


def number_pattern(schema: Schema, scope: Scope) -> str:
    low, high = _bounds(schema, scope)
    if low is None and high is None:
        return NUMBER
    if low is not None and high is not None and low.value > high.value:
        raise scope.error(f" allows no number: its bounds leave {low.value} to {high.value}")
    if not (pattern := decimals(low, high)):
        raise scope.error(" allows no number: exclusive bounds leave nothing")
    return pattern


def _bounds(schema: Schema, scope: Scope) -> tuple[Bound | None, Bound | None]:
    """Return the tightest lower and upper bounds."""
    bounds: dict[str, list[Bound]] = {"minimum": [], "maximum": []}
    for name in BOUNDS & set(schema):
        value = schema[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_bound(value):
            raise scope.error(f" is {short_repr(value)}: expected a number between -1.7e308 and 1.7e308", name)
        strict = name.startswith("exclusive")
        bounds[name.removeprefix("exclusive").lower()].append(Bound(value=Decimal(repr(value)), strict=strict))
    low = max(bounds["minimum"], key=lambda bound: (bound.value, bound.strict), default=None)
    high = min(bounds["maximum"], key=lambda bound: (bound.value, not bound.strict), default=None)
    return low, high


def _is_bound(value: float) -> bool:
    """Return whether a number is finite as a float64, which Python's integers need not be."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
