"""Patterns for parts of JSON: integers between bounds, dates and times, values, lists.

A space may follow each comma and colon; strings are written without `\\u` escapes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from leafbeam.errors import AutomatonError

CHARACTER = r'(?:[^"\\\x00-\x1f\x7f-\x9f]|\\["\\/bfnrt])'
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_LEAP = "(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    "(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    f"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}


def any_of(patterns: Sequence[str]) -> str:
    """An alternation."""
    return f"(?:{'|'.join(patterns)})"


def repeat(low: int, high: int | None) -> str:
    """The suffix of a repetition; None is no bound."""
    return f"{{{low},{'' if high is None else high}}}"


def comma_list(pattern: str, max_count: int | None) -> str:
    """At most `max_count` items with commas between them."""
    if max_count == 0:
        return ""
    return f"(?:{pattern}(?:, ?{pattern}){repeat(0, None if max_count is None else max_count - 1)})?"


def literal(value: Any, path: str) -> str:
    """A pattern for one JSON value."""
    if isinstance(value, Mapping):
        pairs = [f"{literal(str(name), path)}: ?{literal(part, path)}" for name, part in value.items()]
        return rf"\{{{', ?'.join(pairs)}\}}"
    if isinstance(value, list):
        return rf"\[{', ?'.join(literal(part, path) for part in value)}\]"
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise AutomatonError(f"{path}: the value {value!r} has no JSON text: {error}") from error
    return re.escape(text)


def integers(low: int | None, high: int | None) -> str:
    """A pattern for the integers from `low` to `high`, both included; None is no bound. No leading zeros, no `-0`.

    >>> integers(7, 12)
    '(?:[7-9]|1[0-2])'
    """
    parts: list[str] = []
    if low is None or low < 0:  # the numerals of -high to -low behind a minus
        parts += [f"-{part}" for part in _whole(max(1, -high) if high is not None else 1, None if low is None else -low)]
    if high is None or high >= 0:
        parts += _whole(max(0, low or 0), high)
    return f"(?:{'|'.join(parts)})"


def _whole(low: int, high: int | None) -> list[str]:
    """Patterns for the whole numbers from `low` on, length by length."""
    parts: list[str] = []
    first = low
    while high is None or first <= high:
        digits = len(str(first))
        last = 10**digits - 1
        if high is None and first == max(1, 10 ** (digits - 1)):
            return [*parts, f"[1-9][0-9]{{{digits - 1},}}"]
        parts.append(_same_length(str(first), str(last if high is None else min(last, high))))
        first = last + 1
    return parts


def _same_length(low: str, high: str) -> str:
    """A pattern for the numerals between two of the same length."""
    if low == high:
        return low
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    parts: list[str] = []
    if low[1:].strip("0"):
        parts.append(low[0] + _same_length(low[1:], "9" * rest))
        first += 1
    ends = high[1:].strip("9")
    last -= bool(ends)
    if first <= last:
        head = str(first) if first == last else f"[{first}-{last}]"
        parts.append(head + ("[0-9]" if rest == 1 else f"[0-9]{{{rest}}}" if rest else ""))
    if ends:
        parts.append(high[0] + _same_length("0" * rest, high[1:]))
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
