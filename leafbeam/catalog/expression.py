"""Expressions over rule names: what a request may combine, and never SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from leafbeam.errors import RequestError
from leafbeam.index import VersionFilter

__all__ = ["MAX_CHARACTERS", "MAX_DEPTH", "MAX_NAMES", "Expression"]

MAX_CHARACTERS = 1000
MAX_NAMES = 64
MAX_DEPTH = 16

_TOKEN = re.compile(r"\s*(?:([A-Za-z][A-Za-z0-9_-]*)|([&|()-]))")
Kind = Literal["name", "and", "or", "less"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """Rule names joined by `&` (both), `|` (either) and `-` (the left, less the right), as Python reads them.

    Think of it as set arithmetic on names: `-` binds most tightly, then `&`, then `|`, and parentheses say otherwise. A rule's
    name may hold a `-` of its own, so a minus needs a space on its left: `fresh - adult`. Expressions are kept in a normal form
    (operands of `&` and `|` flat, sorted, once each; `a - b - c` as `a - (b | c)`): different spellings of one thing are equal,
    and are one entry of a cache.

    >>> Expression.parse("(b & a) | promo & a & b").text
    '(a & b) | (a & b & promo)'
    """

    kind: Kind
    name: str = ""
    parts: tuple[Expression, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Read an expression. Raises RequestError, which says where, for anything that is not one or is too long."""
        return _Parser(text).whole()

    @classmethod
    def all_of(cls, names: Iterable[str]) -> Expression:
        """All the named rules at once; there has to be a name."""
        return _joined("and", [cls(kind="name", name=name) for name in names])

    @classmethod
    def of(cls, rules: str | Iterable[str] | Expression, also: str | None = None) -> Expression | None:
        """What a request asks for: names that all hold or an expression, and if given another expression; None for nothing."""
        names = () if isinstance(rules, str | Expression) else tuple(rules)
        parts = [cls.parse(rules) if isinstance(rules, str) else rules] if isinstance(rules, str | Expression) else []
        parts += [cls.all_of(names)] if names else []
        parts += [cls.parse(also)] if also is not None else []
        return _joined("and", parts) if parts else None

    @property
    def names(self) -> frozenset[str]:
        """Every rule that it names."""
        return frozenset([self.name]) if self.kind == "name" else frozenset().union(*(part.names for part in self.parts))

    @property
    def text(self) -> str:
        """The normal form, spelled out."""
        if self.kind == "name":
            return self.name
        sign = {"and": " & ", "or": " | ", "less": " - "}[self.kind]
        return sign.join(part.text if part.kind == "name" else f"({part.text})" for part in self.parts)

    def evaluate(self, filter_of: Callable[[str], VersionFilter]) -> VersionFilter:
        """The set that it means. Cost: one pass over the bitmaps for each sign."""
        if self.kind == "name":
            return filter_of(self.name)
        first, *others = (part.evaluate(filter_of) for part in self.parts)
        for other in others:
            first = first & other if self.kind == "and" else first | other if self.kind == "or" else first - other
        return first


class _Parser:
    """Recursive descent over tokens: one method for each binding strength."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise RequestError(f"an expression of rules may have up to {MAX_CHARACTERS:,} characters, not {len(text):,}")
        self._tokens: list[tuple[str, int]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                rest = text[at:].lstrip()
                raise RequestError(
                    f"an expression of rules is made of names, &, |, - and parentheses, such as (fresh | promo) - adult; "
                    f"at character {len(text) - len(rest)} it goes on with {rest[:20]!a}"
                )
            token = found[found.lastindex or 0]
            self._tokens.append((token, found.end() - len(token)))
            at = found.end()
        if sum(token[0].isalpha() for token, _ in self._tokens) > MAX_NAMES:
            raise RequestError(f"an expression of rules may hold up to {MAX_NAMES} names")
        self._at = 0
        self._depth = 0

    def whole(self) -> Expression:
        found = self._either()
        if self._at < len(self._tokens):
            raise self._unexpected("&, |, - or the end")
        return found

    def _either(self) -> Expression:
        return self._series("|", "or", self._both)

    def _both(self) -> Expression:
        return self._series("&", "and", self._less)

    def _less(self) -> Expression:
        return self._series("-", "less", self._one)

    def _series(self, sign: str, kind: Kind, operand: Callable[[], Expression]) -> Expression:
        parts = [operand()]
        while self._peek() == sign:
            self._at += 1
            parts.append(operand())
        return _joined(kind, parts)

    def _one(self) -> Expression:
        token = self._peek()
        if token == "(":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise RequestError(f"an expression of rules may have {MAX_DEPTH} parentheses inside each other, not more")
            self._at += 1
            found = self._either()
            if self._peek() != ")":
                raise self._unexpected("a closing parenthesis")
            self._at += 1
            self._depth -= 1
            return found
        if token[:1].isalpha():
            self._at += 1
            return Expression(kind="name", name=token)
        raise self._unexpected("a rule's name or an opening parenthesis")

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _unexpected(self, wanted: str) -> RequestError:
        if self._at == len(self._tokens):
            return RequestError(f"the expression of rules ends where {wanted} was expected")
        token, place = self._tokens[self._at]
        return RequestError(f"in the expression of rules, {wanted} was expected at character {place}, not {token[:70]!r}")


def _joined(kind: Kind, parts: list[Expression]) -> Expression:
    """One expression of several, in normal form."""
    if kind == "less":
        first, *others = parts
        if not others:
            return first
        if first.kind == "less":  # (a - b) - c
            first, others = first.parts[0], [first.parts[1], *others]
        return Expression(kind="less", parts=(first, _joined("or", others)))
    flat = [inner for part in parts for inner in (part.parts if part.kind == kind else (part,))]
    once = sorted({part.text: part for part in flat}.items())
    return once[0][1] if len(once) == 1 else Expression(kind=kind, parts=tuple(part for _, part in once))
