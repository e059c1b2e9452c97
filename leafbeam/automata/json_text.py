"""Patterns for parts of JSON: characters of strings, formats, numbers between bounds. Strings have no `\\u` escapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

CHARACTER = r'(?:[^"\\\x00-\x1f\x7f-\x9f]|\\["\\/bfnrt])'
STRING = f'"{CHARACTER}*"'
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_LEAP = "(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    "(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    f"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
# Names of at most 247 characters, of the 253 that a domain name may have; the last part is not a number. No part has two
# hyphens as characters 3 and 4: they mark names of other alphabets in Punycode (RFC 5891, 4.2.3.1).
_ALNUM, _INNER = "[A-Za-z0-9]", "[A-Za-z0-9-]"
_FROM_4 = f"(?:{_ALNUM}{_INNER}|-{_ALNUM}){_INNER}{{0,25}}{_ALNUM}"
_LATER = f"(?:{_INNER}?{_ALNUM}|{_INNER}(?:{_INNER}{_ALNUM}|{_FROM_4}))"
_HOST = rf"(?:{_ALNUM}{_LATER}?\.){{0,7}}[A-Za-z]{_LATER}"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_ATOM = "[A-Za-z0-9_+-]{1,20}"
_PATH = "[A-Za-z0-9._~!$&()*+,;=:@-]"
_HEX = "[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_HEX}:){{7}}{_HEX}", f"(?:{_HEX}:){{1,7}}:", f":(?::{_HEX}){{1,7}}", "::"]
    + [f"(?:{_HEX}:){{1,{7 - after}}}(?::{_HEX}){{1,{after}}}" for after in range(1, 7)]
)
_COUNT = "[0-9]{1,9}"
_DURATION_TIME = f"T(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_DURATION_DATE = f"(?:{_COUNT}D|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?)"
_DURATION = f"P(?:{_COUNT}W|{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME})"
_POINTER = r"(?:/(?:[^~/\x00-\x1f\x7f-\x9f]|~[01])*)*"
_URI = rf"https?://{_HOST}(?:/{_PATH}*)*(?:\?{_PATH}*)?"
_RELATIVE = rf"(?:/{_PATH}+)+(?:\?{_PATH}*)?"
# Characters of other alphabets in an IRI (RFC 3987, 2.2), without those that turn the direction of writing (4.1).
_UCS = (
    r"\u{a0}-\u{200d}\u{2010}-\u{2029}\u{202f}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}"
)
_IPATH = f"[{_UCS}{_PATH[1:]}"
_IRI = rf"https?://{_HOST}(?:/{_IPATH}*)*(?:\?{_IPATH}*)?"
_IATOM = f"[{_UCS}{_ATOM[1:]}"
# RFC 6570, 2: operators that it reserves are left out.
_PERCENT = "%[0-9A-Fa-f]{2}"
_VARIABLE = rf"(?:[A-Za-z0-9_]|{_PERCENT})(?:\.?(?:[A-Za-z0-9_]|{_PERCENT}))*(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = rf"(?:[!#$&(-;=?-\[\]_a-z~{_UCS}]|{_PERCENT}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
# Formats of 2020-12 that are not regular: they are refused.
REFUSED_FORMATS = ("regex",)
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
    "uri": _URI,
    "uri-reference": f"{_URI}|{_RELATIVE}",
    "ipv6": _IPV6,
    "duration": _DURATION,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]{{0,9}})(?:#|{_POINTER})",
    "idn-hostname": _HOST,
    "idn-email": rf"{_IATOM}(?:\.{_IATOM}){{0,2}}@{_HOST}",
    "iri": _IRI,
    "iri-reference": rf"{_IRI}|(?:/{_IPATH}+)+(?:\?{_IPATH}*)?",
    "uri-template": _TEMPLATE,
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}


def any_of(patterns: Sequence[str]) -> str:
    """Return an alternation."""
    return f"(?:{'|'.join(patterns)})"


def integers(low: int | None, high: int | None) -> str:
    """Return a pattern for the integers from `low` to `high`, both included, without leading zeros and `-0`; None is no bound.

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
    """Return patterns for the whole numbers from `low` on, one for each length."""
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
    """Return a pattern for the numerals between two of the same length."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The smallest or the largest value of a number. If `strict`, the bound itself is excluded."""

    value: Decimal
    strict: bool = False

    @property
    def negative(self) -> "Bound":
        return Bound(value=-self.value, strict=self.strict)

    @property
    def parts(self) -> tuple[int, str]:
        """Return the whole part of a bound that is not negative, and the digits of its fraction without zeros at the end."""
        whole, _, digits = f"{self.value:f}".partition(".")
        return int(whole), digits.rstrip("0")


def decimals(low: Bound | None, high: Bound | None) -> str:
    """Return a pattern for numbers between bounds, "" if there are none.

    There are no exponents and no `-0`. At most six digits follow those of a bound, because a number below a bound with more
    digits could be read as the bound. Numbers that are closest to an exclusive minimum have no zeros at the end.

    >>> decimals(Bound(value=Decimal("0.5")), Bound(value=Decimal(1)))
    '(?:0\\\\.(?:5[0-9]{0,6}|[6-9][0-9]{0,6})|1(?:\\\\.0{1,6})?)'
    """
    patterns: list[str] = []
    if low is None or low.value < 0:
        nearest = Bound(value=Decimal(0), strict=True) if high is None or high.value >= 0 else high.negative
        patterns += [f"-{part}" for part in _positive(nearest, None if low is None else low.negative)]
    if high is None or high.value >= 0:
        patterns += _positive(low if low is not None and low.value >= 0 else Bound(value=Decimal(0)), high)
    return any_of(patterns) if patterns else ""


_ANY, _SOME = "[0-9]{0,6}", r"(?:\.[0-9]{1,6})?"


def _positive(low: Bound, high: Bound | None) -> list[str]:
    """Return patterns for the non-negative numbers between bounds: with the whole part of `low`, of `high`, and between."""
    first, low_fraction = low.parts
    begins = f"{first}{_SOME}" if not low_fraction and not low.strict else rf"{first}\.{_at_least(low_fraction, low.strict)}"
    if high is None:
        return [begins, integers(first + 1, None) + _SOME]
    last, high_fraction = high.parts
    if last == first:
        if not low_fraction and not low.strict:
            return _up_to(last, high_fraction, high)
        digits = _between(low_fraction, high_fraction, low.strict, high.strict)
        return [] if digits is None else [rf"{first}\.{digits}"]
    middle = [integers(first + 1, last - 1) + _SOME] if first + 1 < last else []
    return [begins, *middle, *_up_to(last, high_fraction, high)] if first < last else []


def _up_to(whole: int, fraction: str, high: Bound) -> list[str]:
    digits = _at_most(fraction, high.strict)
    return [] if digits is None else [rf"{whole}(?:\.{digits})?"]


def _at_least(digits: str, strict: bool) -> str:
    """Return a pattern for fractions of at least 0.digits; it also matches an absent fraction if that is 0."""
    if not digits:
        return "[0-9]{0,5}[1-9]" if strict else _ANY
    first = int(digits[0])
    patterns = [f"{first}{_at_least(digits[1:], strict)}"]
    return any_of([*patterns, f"[{first + 1}-9]{_ANY}"] if first < 9 else patterns)


def _at_most(digits: str, strict: bool) -> str | None:
    """Return a pattern for fractions of one digit or more, at most 0.digits; None if there are no such fractions."""
    if not digits:
        return None if strict else "0{1,6}"
    first, rest = int(digits[0]), _at_most(digits[1:], strict)
    patterns = [f"[0-{first - 1}]{_ANY}"] if first else []
    return any_of([*patterns, f"{first}(?:{rest})?"] if rest is not None else patterns)


def _between(low: str, high: str, above: bool, below: bool) -> str | None:
    """Return a pattern for fractions of one digit or more between two, the lower of which is above 0 or strict, or None."""
    if not high:
        return None
    first, last = int(low[:1] or 0), int(high[0])
    if first == last:
        rest = _between(low[1:], high[1:], above, below)
        if not low[1:] and not above:
            rest = f"(?:{end})?" if (end := _at_most(high[1:], below)) is not None else None
        return None if rest is None else f"{first}{rest}"
    patterns = [f"{first}{_at_least(low[1:], above)}"]
    if first + 1 < last:
        patterns.append(f"[{first + 1}-{last - 1}]{_ANY}")
    if (end := _at_most(high[1:], below)) is not None:
        patterns.append(f"{last}(?:{end})?")
    return any_of(patterns)
