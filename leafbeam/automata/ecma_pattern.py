"""Patterns of JSON Schemas, which are JavaScript's, in the syntax of `compile_pattern`, which is Rust's.

They share most signs, but some differ in meaning: `[a&&b]` is an intersection in Rust, `\\d` is every decimal digit
of Unicode, `\\s` knows other spaces, `(?x)` changes how the rest is read. So a pattern is read here as JavaScript reads it with
the flag `u` (ECMA-262, 22.2.1), and what JavaScript does not have is refused by name. Of what it reads only without that flag,
a closing `}` and an escape of a sign such as `\\@` stand for themselves.

`^` and `$` become marks, two control characters that no string has and no class matches: whoever uses the pattern puts them
around the text.
"""

import re

from leafbeam.errors import AutomatonError, short_repr

MARKS = r"\x02\x03"  # the beginning and the end of a text
_MARKS_OF = {"^": MARKS[:4], "$": MARKS[4:]}
_SPACE = r"\t\n\x0b\x0c\r \xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_SCRIPTS = re.compile(r"(?:Script|sc)=[A-Za-z_]+")
_CATEGORY = re.compile(
    "L[Cltmou]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|Letter|Mark|Number|Punctuation|Symbol|Separator|"
    "(?:Uppercase|Lowercase)_Letter|Decimal_Number"
)
_QUANTIFIER = re.compile(r"[*+?]|\{[0-9]+(?:,[0-9]*)?\}")
_HEX = {
    "x": re.compile(r"([0-9A-Fa-f]{2})"),
    "u": re.compile(r"([0-9A-Fa-f]{4})"),
    "u{": re.compile(r"\{0*([0-9A-Fa-f]{1,6})\}"),
}


def rust_pattern(pattern: str) -> str:
    """Translate a pattern. Raises AutomatonError for what JavaScript does not have, or reads back."""
    return _Reader(pattern).translated()


def anchored_pattern(pattern: str) -> tuple[bool, str, bool] | None:
    """Return (whether it begins with `^`, the rest in Rust's syntax, whether it ends with `$`), if `^` and `$` are nowhere else
    and no alternative stands outside of brackets; otherwise None.

    >>> anchored_pattern("^[0-9]+")
    (True, '[[0-9]&&[^\\x02\\x03]]+', False)
    """
    reader = _Reader(pattern)
    parts = reader.parts()
    begins, ends = parts[:1] == [_MARKS_OF["^"]], parts[-1:] == [_MARKS_OF["$"]]
    inside = parts[begins : len(parts) - ends]
    if reader.has_alternatives or not inside or any(part in _MARKS_OF.values() for part in inside):
        return None
    return begins, "".join(inside), ends


def leading_conditions(pattern: str) -> tuple[list[str], list[str], str]:
    """Return (required, excluded, rest): the patterns that the looking ahead at the beginning requires and excludes.

    >>> leading_conditions("^(?!a|b)[a-z]+$")
    ([], ['^(?:a|b)'], '^[a-z]+$')
    """
    required, excluded, rest = list[str](), list[str](), pattern
    while rest.startswith(("^(?!", "^(?=")):
        end = _end_of_group(rest, 1)
        (excluded if rest[3] == "!" else required).append(f"^(?:{rest[4:end]})")
        rest = "^" + rest[end + 1 :]
    if "|" in re.sub(r"\\.|\(.*\)|\[[^]]*\]", "", rest):  # an alternative without it
        return [], [], pattern
    return required, excluded, rest


def _end_of_group(pattern: str, begin: int) -> int:
    """Return the index of the bracket that closes the one at `begin`. Raises AutomatonError if there is none."""
    depth, at, in_class = 0, begin, False
    while at < len(pattern):
        sign = pattern[at]
        at += sign == "\\"
        in_class = (in_class or sign == "[") and sign != "]"
        if not in_class:
            depth += {"(": 1, ")": -1}.get(sign, 0)
            if not depth:
                return at
        at += 1
    raise AutomatonError(f"the pattern {short_repr(pattern)} does not close the bracket at {begin}")


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self.has_alternatives = False  # outside of brackets

    def translated(self) -> str:
        return "".join(self.parts())

    def parts(self) -> list[str]:
        parts, may_repeat, depth = list[str](), False, 0
        while self._at < len(self._pattern):
            sign = self._pattern[self._at]
            quantifier = _QUANTIFIER.match(self._pattern, self._at)
            if quantifier is not None:
                if not may_repeat or parts[-1] in _MARKS_OF.values():
                    raise self._refused(quantifier[0], "nothing stands before it that it could repeat")
                parts.append(quantifier[0] + ("?" if self._pattern[quantifier.end() :].startswith("?") else ""))
                self._at += len(parts[-1])
                may_repeat = False
            elif sign in "(|)":
                depth += {"(": 1, ")": -1}.get(sign, 0)
                if depth < 0:
                    raise self._refused(sign, "it closes a bracket that was not opened")
                self.has_alternatives |= sign == "|" and not depth
                parts.append(self._group() if sign == "(" else sign)
                self._at += sign != "("
                may_repeat = sign == ")"
            else:
                parts.append(self._atom(sign))
                may_repeat = True
        if depth:
            raise self._refused("(", f"{depth} of its brackets are not closed")
        return parts

    def _group(self) -> str:
        opening = re.compile(r"\((?:\?:|\?<[A-Za-z_$][\w$]*>|(?!\?))").match(self._pattern, self._at)
        if opening is None:
            sign = self._pattern[self._at : self._at + 4].partition(")")[0]
            raise self._refused(sign, "expected (...), (?:...) or (?<name>...): flags and looking around are not supported")
        self._at = opening.end()
        return "(?:"

    def _atom(self, sign: str) -> str:
        if sign == "[":
            return self._class()
        if sign == "\\":
            escape = self._escape(in_class=False)
            return self._literal(escape) if isinstance(escape, int) else _class_of(escape)
        if sign in "{]":
            raise self._refused(sign, f"write \\{sign} for the sign itself")
        self._at += 1
        if sign in _MARKS_OF:
            return _MARKS_OF[sign]
        return rf"[^\n\r\x{{2028}}\x{{2029}}{MARKS}]" if sign == "." else self._literal(ord(sign))

    def _literal(self, code: int) -> str:
        if code in (2, 3):
            raise self._refused(f"\\x0{code}", "no text has this control character")
        return _character(code)

    def _escape(self, *, in_class: bool) -> int | str:
        """Return a character, or the inside of a class, for an escape."""
        sign = self._pattern[self._at + 1 : self._at + 2]
        begin, self._at = self._at, self._at + 2
        if sign.lower() in _CLASSES and sign.isascii() and sign:
            inside = _CLASSES[sign.lower()]
            return inside if sign.islower() else f"[^{inside}]"
        if sign in ("p", "P"):
            name = re.compile(r"\{([^}]*)\}").match(self._pattern, self._at)
            if name is None or not (_CATEGORY.fullmatch(name[1]) or _SCRIPTS.fullmatch(name[1])):
                raise self._refused(
                    self._pattern[begin : begin + 20], r"expected \p{Letter}, \p{Lu}, \p{Script=Greek} and others"
                )
            self._at = name.end()
            return f"\\{sign}{{{name[1]}}}"
        if sign in _CONTROLS:
            return _CONTROLS[sign]
        if sign in ("x", "u"):
            return self._numbered(sign, begin)
        if sign == "c" and re.match(r"[A-Za-z]", self._pattern[self._at :]):
            self._at += 1
            return ord(self._pattern[self._at - 1]) % 32
        if sign == "0" and not self._pattern[self._at : self._at + 1].isdigit():
            return 0
        if in_class and sign == "b":
            return 8
        if sign and (sign == "_" or not (sign.isalnum() or sign.isspace())) and sign.isascii():
            return ord(sign)
        raise self._refused(self._pattern[begin : begin + 2], "JavaScript has no such escape, or it looks back")

    def _numbered(self, sign: str, begin: int) -> int:
        form = "u{" if sign == "u" and self._pattern.startswith("{", self._at) else sign
        digits = _HEX[form].match(self._pattern, self._at)
        if digits is None or int(digits[1], 16) > 0x10FFFF:
            raise self._refused(self._pattern[begin : begin + 8], r"expected \xHH, \uHHHH or \u{H...}")
        self._at, code = digits.end(), int(digits[1], 16)
        low = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})").match(self._pattern, self._at)
        if form == "u" and 0xD800 <= code < 0xDC00 and low is not None:
            self._at = low.end()
            return 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if 0xD800 <= code < 0xE000:
            raise self._refused(self._pattern[begin : begin + 6], "half a surrogate pair is not a character")
        return code

    def _class(self) -> str:
        begin, self._at = self._at, self._at + 1
        is_negated = self._pattern.startswith("^", self._at)
        self._at += is_negated
        items = list[str]()
        while not self._pattern.startswith("]", self._at):
            low = self._class_item(begin)
            if not self._pattern.startswith("-", self._at) or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
                items.append(_character(low) if isinstance(low, int) else low)
                continue
            self._at += 1
            high = self._class_item(begin)
            if not isinstance(low, int) or not isinstance(high, int) or low > high:
                raise self._refused(self._pattern[begin : self._at], "a range goes from one character to a later one")
            items.append(f"{_character(low)}-{_character(high)}")
        self._at += 1
        if not items:
            raise self._refused(self._pattern[begin : self._at], "the class is empty")
        return _class_of(f"{'^' if is_negated else ''}{''.join(items)}")

    def _class_item(self, begin: int) -> int | str:
        if self._at >= len(self._pattern):
            raise self._refused(self._pattern[begin:], "the class is not closed")
        if self._pattern[self._at] == "\\":
            return self._escape(in_class=True)
        for operator in ("&&", "--", "~~"):
            if self._pattern.startswith(operator, self._at):
                raise self._refused(operator, "JavaScript's classes have no operations: list the characters")
        self._at += 1
        return ord(self._pattern[self._at - 1])

    def _refused(self, sign: str, why: str) -> AutomatonError:
        return AutomatonError(f"leafbeam refuses the pattern {short_repr(self._pattern)} for its {sign!r}: {why}")


def _class_of(inside: str) -> str:
    """Return a class in Rust's syntax, without the marks."""
    return f"[[{inside}]&&[^{MARKS}]]"


def _character(code: int) -> str:
    """Return a character in Rust's syntax, inside or outside of a class."""
    return chr(code) if chr(code).isalnum() and code < 128 else f"\\x{{{code:x}}}"
