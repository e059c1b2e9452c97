"""Patterns and automata of the numbers that a schema allows."""

import math
from decimal import Decimal

import numpy as np

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_scope import BOUNDS, Schema, Scope
from leafbeam.automata.json_text import NUMBER, Bound, decimals, integers
from leafbeam.errors import short_repr

_MAX_REMAINDERS = 100_000


def integer_pattern(schema: Schema, scope: Scope) -> str:
    lower, upper = _bounds(schema, scope)
    low = None if lower is None else math.floor(lower.value) + 1 if lower.strict else math.ceil(lower.value)
    high = None if upper is None else math.ceil(upper.value) - 1 if upper.strict else math.floor(upper.value)
    if low is not None and high is not None and low > high:
        raise scope.nothing(f" allows no integer: its bounds leave {low} to {high}")
    return integers(low, high)


def number_pattern(schema: Schema, scope: Scope, *, exponents: bool = True) -> str:
    """Return the pattern of the numbers between the bounds of a schema; with bounds there are no exponents anyway."""
    low, high = _bounds(schema, scope)
    if low is None and high is None and exponents:
        return NUMBER
    if low is not None and high is not None and low.value > high.value:
        raise scope.nothing(f" allows no number: its bounds leave {low.value} to {high.value}")
    if not (pattern := decimals(low, high)):
        raise scope.nothing(" allows no number: exclusive bounds leave nothing")
    return pattern


def multiple_of(schema: Schema, scope: Scope) -> Decimal | None:
    """Return the number that all numbers of a schema are multiples of."""
    if "multipleOf" not in schema:
        return None
    value = schema["multipleOf"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_bound(value) or value <= 0:
        raise scope.error(f" is {short_repr(value)}: expected a number above 0", "multipleOf")
    return Decimal(repr(value)).normalize()


def multiples(divisor: Decimal, scope: Scope) -> ByteDFA:
    """Return the numerals, without exponents, of the multiples of a number with at most as many digits behind the point.

    A state is the part of the numeral that has been read, modulo the number, both scaled to be whole.
    """
    places = max(0, -int(divisor.as_tuple().exponent))
    modulus = int(divisor.scaleb(places))
    if modulus * (places + 2) > _MAX_REMAINDERS:
        raise scope.error(f" is {divisor}: expected at most {_MAX_REMAINDERS:,} remainders", "multipleOf")
    start = modulus * (places + 2)  # state row * modulus + remainder: row 0 before the point, 1 + n behind n digits after it
    edges = [(start, ord("-"), start)] + [(start, ord("0") + digit, digit % modulus) for digit in range(10)]
    for row in range(places + 2):
        after = row + (row > 0)
        for remainder in range(modulus):
            if row == 0 and places:
                edges.append((remainder, ord("."), modulus + remainder))
            if after < places + 2:
                digits = ((ord("0") + digit, after * modulus + (10 * remainder + digit) % modulus) for digit in range(10))
                edges += [(row * modulus + remainder, byte, to) for byte, to in digits]
    from_e, byte_e, to_e = np.array(sorted(edges)).T
    accepting_X = np.zeros(start + 1, np.bool_)
    for row in (0, *range(2, places + 2)):
        left = 10 ** (places if row == 0 else places + 1 - row)
        accepting_X[row * modulus : (row + 1) * modulus] = np.arange(modulus) * left % modulus == 0
    indptr = np.searchsorted(from_e, np.arange(start + 2))
    return ByteDFA.from_edges(indptr, byte_e.astype(np.uint8), to_e.astype(np.int32), accepting_X, start)


def texts_of_number(value: float) -> str:
    """Return a pattern of the numerals of a number without an exponent."""
    whole, _, digits = f"{Decimal(repr(value)):f}".partition(".")
    digits = digits.rstrip("0")
    sign = "-?" if Decimal(repr(value)) == 0 else ""
    return f"{sign}{whole}" + (rf"\.{digits}0*" if digits else r"(?:\.0+)?")


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
