"""Types of text: one rule for the cells of every file without types, and for text in JSON.

A column is of a type only if all its values are written so, and none would change:

| type | written |
| --- | --- |
| true/false | true, True, TRUE and the same of false |
| whole number | 7, -7; up to 64 bits |
| number | 7.5, -.5, 1e3, 1.0E+05; with up to 15 digits before the point, and no digit that a float64 would change |
| date, time | 2026-11-22, 2026-11-22 10:00:00.5, with an offset from UTC in all values or in none |
| time of a day | 10:00, 23:59:59.5 |
| list | [1, 2], ["a", "b"], ['a', 'b'] |

Everything else is text: 007, +49170123, 12E4, 4006381333931000000001, NA, nan, inf. Only an empty cell is null.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import ast
import re
import sys
from contextlib import suppress
from typing import NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc

from leafbeam.ids import WHOLE_NUMBER
from leafbeam.json_reader import parse_json
from leafbeam.tables.plain_types import Column

_BOOLS = r"^(true|True|TRUE|false|False|FALSE)$"
_WHOLE = rf"^({WHOLE_NUMBER})$"
_NUMBER = (  # 12E4 is more likely the name of a size than a number
    r"^-?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?|[0-9]+(e[-+]?[0-9]{1,3}|E[-+][0-9]{1,3})?)$"
)
_CHANGED_NUMBER = r"^-?(0[0-9]|[0-9]{16})"  # leading zeros, or more digits than a float64 keeps
_MANY_DIGITS = r"[1-9](\.?[0-9]){15}"  # more than any float64 keeps
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ]{_CLOCK}(Z|[-+][0-9]{{2}}(:?[0-9]{{2}})?)?)?$"
_OF_DAY = rf"^{_CLOCK}$"
_FINE = r"\.[0-9]{7}"  # finer than microseconds
_LIST = r"(?s)^\[.*\]$"
_PYTHON_PART = r"""('([^'\\\n]|\\.)*'|"([^"\\\n]|\\.)*"|-?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]+)?|None)"""
_PYTHON_LIST = rf"\[\s*({_PYTHON_PART}(\s*,\s*{_PYTHON_PART})*)?\s*,?\s*\]"
_ARRAY_PART = r"""('[^']*'|"[^"]*"|-?[0-9.]+(e[-+]?[0-9]+)?|\.\.\.)"""
_NUMPY_ARRAY = rf"^\[\s*{_ARRAY_PART}(\s+{_ARRAY_PART})*\s*\]$"
_SAMPLE = 32  # values that decide early that a column is of no other type


def typed(values: pa.ChunkedArray, *, times_alone: bool = False) -> pa.ChunkedArray:
    """Return a column of text with the type that all its values are written in, or as it is.

    Args:
        values: Text, null where a cell is empty. Blanks around values of other types than text do not count.
        times_alone: Leave numbers, true/false and lists as text, for formats that have those types.
    """
    if values.null_count == len(values):
        return values.cast(pa.string())
    trimmed = pc.utf8_trim_whitespace(values)
    if times_alone:
        converted = _as_times(trimmed)
        return values if converted is None else converted
    for convert in (_as_bools, as_whole_numbers, _as_numbers, _as_times, _as_lists):
        converted = convert(trimmed)
        if converted is not None:
            return converted
    return values


def parse_cell(text: str, kind: str) -> object:
    """Return the value of a cell for a column whose type is known, as JSON has it; text that does not fit stays text.

    Text of exact numbers and of times stays text too, as JSON has no other form that keeps their digits.

    Args:
        text: The cell, which is not empty.
        kind: The column's Arrow type in words, "" for a column of the item itself, such as its codes.
    """
    kind = kind.removeprefix("dictionary<values=")
    if kind.startswith(("string", "large_string", "binary", "large_binary")):
        return text
    word = text.strip()
    if kind == "bool":
        return word.lower() == "true" if re.fullmatch(_BOOLS, word) else text
    if (not kind or kind.startswith(("int", "uint"))) and re.fullmatch(r"0|-?[1-9][0-9]*", word):
        return int(word)
    if kind.startswith(("int", "uint", "float", "double", "halffloat")):
        with suppress(ValueError):
            return _float_of(word) if re.fullmatch(_NUMBER, word) and not re.match(_CHANGED_NUMBER, word) else text
        return text
    if word.startswith("["):
        values = list_of(word)
        return text if values is None else values
    if word.startswith("{"):
        with suppress(ValueError, RecursionError):
            return parse_json(word, parse_constant=no_constant, parse_float=_float_of)
    return word if kind.startswith(("decimal", "date", "time")) else text


def list_of(text: str) -> list[object] | None:
    """Return the list that a text writes, in JSON or as Python prints it; None for any other text.

    It is None as well if a float64 would change a number of the list, or an object in it has a key twice.

    >>> list_of("['Hammer', 'Drill']")
    ['Hammer', 'Drill']
    """
    parts: object = None
    with suppress(ValueError, RecursionError):
        parts = parse_json(text, parse_constant=no_constant, parse_float=_float_of)
    if parts is None and re.fullmatch(_PYTHON_LIST, text):
        with suppress(ValueError, SyntaxError, MemoryError):
            for part in re.finditer(_PYTHON_PART, text):
                if re.match(r"-?[0-9]+[.e]", part[1]):
                    _float_of(part[1])
            parts = ast.literal_eval(text)
    return cast("list[object]", parts) if isinstance(parts, list) else None


def _float_of(text: str) -> float:
    """Return the float64 that a number in text stands for. Raises ValueError if its digits would be others."""
    number = float(text)
    if str(number) == text:
        return number
    is_normal = sys.float_info.min <= abs(number) <= sys.float_info.max
    if (not is_normal or re.search(_MANY_DIGITS, text)) and not _keeps_digits(text, number):
        raise ValueError(f"{text} has digits that a float64 would change: write it as text")
    return number


def _keeps_digits(text: str, number: float) -> bool:
    """Return whether a float64 prints the digits of the text that it was read from, in short or at the same length."""
    digits = _digits_in(text)
    printed = (str(number), f"{number:.{max(len(digits) - 1, 0)}e}")
    return any(_digits_in(other).rstrip("0") == digits.rstrip("0") for other in printed)


def _digits_in(number: str) -> str:
    """Return the digits of a number from the first that is not 0."""
    return number.lower().partition("e")[0].replace(".", "").lstrip("-0")


def are_numpy_arrays(values: pa.ChunkedArray) -> bool:
    """Return whether every text of a column is an array as NumPy prints it, without commas: ['a' 'b']."""
    return are_written(values, _NUMPY_ARRAY)


def are_written(values: pa.ChunkedArray, pattern: str) -> bool:
    """Return whether all values that are not null match a pattern."""
    for part in (values.slice(0, _SAMPLE), values):
        if not pc.all(pc.match_substring_regex(part, pattern), min_count=0).as_py():
            return False
    return True


def are_numbers(values: pa.ChunkedArray) -> bool:
    """Return whether all values of a column of text are written as numbers that a column of numbers can hold."""
    return as_whole_numbers(values) is not None or _as_numbers(values) is not None


def _as_bools(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    return pc.equal(pc.utf8_lower(values), "true") if are_written(values, _BOOLS) else None


def as_whole_numbers(values: Column) -> Column | None:
    """Return a column or array of text as int64 if all values are plain whole numbers of 64 bits; else None."""
    if are_written(values, _WHOLE):
        with suppress(pa.ArrowInvalid):  # 19 digits beyond 64 bits
            return values.cast(pa.int64())
    return None


def _as_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    if not are_written(values, _NUMBER) or pc.any(pc.match_substring_regex(values, _CHANGED_NUMBER)).as_py():
        return None
    numbers = values.cast(pa.float64())
    sizes = pc.abs(numbers)
    is_normal = pc.and_(pc.greater_equal(sizes, sys.float_info.min), pc.less_equal(sizes, sys.float_info.max))
    doubtful = pc.or_(pc.invert(is_normal), pc.match_substring_regex(values, _MANY_DIGITS))
    if not pc.any(doubtful).as_py():
        return numbers
    texts, floats = values.filter(doubtful), numbers.filter(doubtful)
    differs = pc.not_equal(texts, floats.cast(pa.string()))
    pairs = zip(texts.filter(differs).to_pylist(), floats.filter(differs).to_pylist(), strict=True)
    return numbers if all(_keeps_digits(text, number) for text, number in pairs) else None


def _as_times(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    with suppress(pa.ArrowInvalid):  # such as 2026-02-30
        if are_written(values, _DATE):
            return values.cast(pa.date32())
        unit = "ns" if pc.any(pc.match_substring_regex(values, _FINE)).as_py() else "us"
        if are_written(values, _OF_DAY):  # pyarrow has no cast of text to times of a day
            return pc.binary_join_element_wise("1970-01-01", values, " ").cast(pa.timestamp(unit)).cast(pa.time64(unit))
        if are_written(values, _TIME):
            for kind in (pa.timestamp(unit), pa.timestamp(unit, tz="UTC")):
                with suppress(pa.ArrowInvalid):
                    return values.cast(kind)
    return None


def _as_lists(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return lists of text, of whole numbers or of numbers."""
    if not are_written(values, _LIST):
        return None
    lists = [None if text is None else list_of(text) for text in values.to_pylist()]
    if any(parts is None and text.is_valid for parts, text in zip(lists, values, strict=True)):
        return None
    kinds = {type(part) for parts in lists for part in parts or ()} - {type(None)}
    if not kinds <= {str} and not kinds <= {int, float}:
        return None
    value_type = pa.string() if kinds <= {str} else pa.int64() if kinds <= {int} else pa.float64()
    with suppress(pa.ArrowException, OverflowError, UnicodeEncodeError):
        return pa.chunked_array([pa.array(lists, pa.list_(value_type))])
    return None


def no_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinities, which Python's reader takes for JSON."""
    raise ValueError(f"{name} is not valid JSON: write null for a missing number")
