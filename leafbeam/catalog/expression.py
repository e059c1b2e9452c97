"""Expressions over rule names, in which requests combine rules. They are never SQL."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, cast

from leafbeam.errors import RequestError, short_repr
from leafbeam.index import Filter

MAX_CHARACTERS = 1000
MAX_NAMES = 64
MAX_DEPTH = 16

_TOKEN = re.compile(r"\s*([A-Za-z][A-Za-z0-9_-]*|[&|()-])")
_Kind = Literal["name", "and", "or", "minus"]
_SIGNS: dict[_Kind, str] = {"or": "|", "and": "&", "minus": "-"}
_BINDS_TIGHTER: dict[_Kind, _Kind] = {"or": "and", "and": "minus", "minus": "name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """Set arithmetic on rule names: `&` (both), `|` (either) and `-` (the left without the right).

    `-` binds most tightly, then `&`, then `|`, as in Python. A rule's name may contain `-`, so a minus needs a space on its
    left: `fresh - adult`. Expressions are kept in a normal form (operands of `&` and `|` flat, sorted and unique; `a - b - c`
    as `a - (b | c)`), so different spellings of one set expression are equal and share a cache entry.

    Args:
        kind: The operator, or a name.
        name: The name of the rule.
        parts: The operands.

    Examples:
        >>> Expression.parse("(b & a) | promo & a & b").text
        '(a & b) | (a & b & promo)'
    """

    kind: _Kind
    name: str = ""
    parts: "tuple[Expression, ...]" = ()

    @classmethod
    def parse(cls, text: str) -> "Expression":
        """Parse an expression.

        Raises:
            RequestError: If the syntax is invalid, with the position, or the expression is over the limits.
        """
        return _Parser(text).parse()

    @classmethod
    def of(cls, rules: "str | Iterable[str] | Expression", also: str | None = None) -> "Expression | None":
        """Return what a request asks for as one expression: `rules` (an expression, or names that all hold) and another
        expression, joined by `&`. The result is None if the request has neither.
        """
        if isinstance(rules, str | Expression):
            parts = [cls.parse(rules) if isinstance(rules, str) else rules]
        else:
            value = cast("object", rules)
            names = list(cast("Iterable[object]", value)) if isinstance(value, Iterable) else [value]
            if wrong := [name for name in names if not isinstance(name, str)]:
                raise RequestError(
                    f"{short_repr(wrong[0])} is not a rule: expected names, or an expression such as 'fresh & cheap'"
                )
            parts = [cls(kind="name", name=str(name)) for name in names]
        parts += [] if also is None else [cls.parse(also)]
        return _normal("and", parts) if parts else None

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all rules in the expression."""
        return frozenset([self.name]) if self.kind == "name" else frozenset().union(*(part.names for part in self.parts))

    @property
    def text(self) -> str:
        """Return the normal form as text."""
        if self.kind == "name":
            return self.name
        return f" {_SIGNS[self.kind]} ".join(part.text if part.kind == "name" else f"({part.text})" for part in self.parts)

    def evaluate(self, filter_of: Callable[[str], Filter]) -> Filter:
        """Return the set of items. This costs one pass over the bitmaps for each operator."""
        if self.kind == "name":
            return filter_of(self.name)
        result, *others = (part.evaluate(filter_of) for part in self.parts)
        for other in others:
            result = result & other if self.kind == "and" else result | other if self.kind == "or" else result - other
        return result


class _Parser:
    """A recursive-descent parser. Its tokens have positions, and the last token is empty."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise RequestError(f"an expression of rules may have up to {MAX_CHARACTERS:,} characters, not {len(text):,}")
        self._tokens: list[tuple[str, int]] = []
        end, text = 0, text.rstrip()
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None:
                rest = text[end:].lstrip()
                raise RequestError(
                    f"an expression of rules is made of names, &, |, - and parentheses, such as (fresh | promo) - adult; "
                    f"unexpected text at character {len(text) - len(rest)}: {rest[:20]!a}"
                )
            self._tokens.append((match[1], match.start(1)))
            end = match.end()
        if sum(token[0].isalpha() for token, _ in self._tokens) > MAX_NAMES:
            raise RequestError(f"an expression of rules may hold up to {MAX_NAMES} names")
        self._tokens.append(("", end))
        self._next = 0

    def parse(self) -> Expression:
        expression = self._series("or", 0)
        self._take("", "&, |, - or the end")
        return expression

    def _series(self, kind: _Kind, depth: int) -> Expression:
        """Read operands joined by one operator. Each operand is a series of the operator that binds more tightly."""
        if kind == "name":
            return self._operand(depth)
        parts = [self._series(_BINDS_TIGHTER[kind], depth)]
        while self._tokens[self._next][0] == _SIGNS[kind]:
            self._next += 1
            parts.append(self._series(_BINDS_TIGHTER[kind], depth))
        return _normal(kind, parts)

    def _operand(self, depth: int) -> Expression:
        token, _ = self._tokens[self._next]
        if token[:1].isalpha():
            self._next += 1
            return Expression(kind="name", name=token)
        self._take("(", "a rule's name or an opening parenthesis")
        if depth == MAX_DEPTH:
            raise RequestError(f"an expression of rules may nest parentheses at most {MAX_DEPTH} deep")
        expression = self._series("or", depth + 1)
        self._take(")", "a closing parenthesis")
        return expression

    def _take(self, sign: str, expected: str) -> None:
        """Skip the expected token. Raises RequestError if the next token is another."""
        token, position = self._tokens[self._next]
        if token == sign:
            self._next += 1
        elif not token:
            raise RequestError(f"the expression of rules ends where {expected} was expected")
        else:
            words = sorted({"and", "or", "not"} & {word for word, _ in self._tokens})
            hint = f"; {words[0]!r} is a rule's name here: write a & b, a | b or a - b" if words else ""
            raise RequestError(f"{expected} was expected at character {position}, not {token[:70]!r}{hint}")


def _normal(kind: _Kind, parts: list[Expression]) -> Expression:
    """Return several expressions joined by one operator, in normal form."""
    if kind == "minus":
        first, *others = parts
        if not others:
            return first
        if first.kind == "minus":  # (a - b) - c
            first, others = first.parts[0], [first.parts[1], *others]
        return Expression(kind="minus", parts=(first, _normal("or", others)))
    flat = [inner for part in parts for inner in (part.parts if part.kind == kind else (part,))]
    unique = sorted({part.text: part for part in flat}.items())
    return unique[0][1] if len(unique) == 1 else Expression(kind=kind, parts=tuple(part for _, part in unique))
