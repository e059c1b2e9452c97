"""The languages of strings: first of the strings themselves, then of their JSON texts.

Patterns, formats, lengths and lists of names are languages of strings in UTF-8, and are joined there: all of them hold by
intersection, and what must not hold by difference. `quoted` then writes each string as JSON does, so that a pattern may allow a
quote or a backslash. Control characters without a short escape cannot be written: no language of strings has them.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from leafbeam.automata.boolean import difference, intersection
from leafbeam.automata.byte_dfa import ByteDFA, DfaEdges, run
from leafbeam.automata.counted_text import CountedText, finite_lengths
from leafbeam.automata.ecma_pattern import MARKS, anchored_pattern, leading_conditions, rust_pattern
from leafbeam.automata.json_text import CHARACTER, FORMATS, NUMBER, STRING, integers
from leafbeam.automata.minimize import Edges
from leafbeam.automata.network import END, START, Network, common_classes, relabel
from leafbeam.automata.regex import compile_fixed, compile_pattern
from leafbeam.errors import AutomatonError, counted

_WRITABLE = r"[^\x00-\x07\x0b\x0e-\x1f\x7f-\x9f]"
_FIXED = {
    *(CHARACTER, NUMBER, STRING, _WRITABLE, f"{_WRITABLE}*", integers(None, None), integers(0, None), integers(1, None)),
    *(f"[^{MARKS}]*", f"{MARKS[:4]}[^{MARKS}]*{MARKS[4:]}"),
    *(f"(?:{pattern})" for pattern in FORMATS.values()),
}
_ALWAYS_WRITABLE = np.array([32 <= byte < 127 for byte in range(256)])
_ESCAPES = {ord('"'): b'"', ord("\\"): b"\\", 8: b"b", 9: b"t", 10: b"n", 12: b"f", 13: b"r"}


@dataclass(frozen=True, kw_only=True)
class Strings:
    """The languages of strings of one compilation, each built once.

    Args:
        max_states: The largest number of states of a language.
    """

    max_states: int
    built: dict[tuple[object, ...], ByteDFA] = field(default_factory=dict[tuple[object, ...], ByteDFA])

    def compiled(self, pattern: str) -> ByteDFA:
        """Return the texts that a pattern in Rust's syntax matches as a whole."""
        if pattern in _FIXED and (language := compile_fixed(pattern)).num_states <= self.max_states:
            return language
        key = "compiled", pattern
        if key not in self.built:
            self.built[key] = compile_pattern(pattern, self.max_states)
        return self.built[key]

    def all(self) -> ByteDFA:
        """Return all strings that can be written."""
        return self.compiled(f"{_WRITABLE}*")

    def of_length(self, low: int, high: int | None) -> ByteDFA:
        """Return the strings of `low` to `high` characters."""
        key = "length", low, high
        if key not in self.built:
            part, count, network = self.compiled(_WRITABLE), low if high is None else high, self._network()
            if (part.num_states - 1) * count > self.max_states:  # the end of one is the start of the next
                raise AutomatonError(
                    f"strings of up to {counted(count, 'character')} unroll to more than max_states="
                    f"{counted(self.max_states, 'state')}: bound them more tightly"
                )
            network.add_repeated(START, part, END, low, high)
            self.built[key] = network.language()
        return self.built[key]

    def format(self, name: str) -> ByteDFA:
        """Return the strings of a format of `FORMATS`."""
        return self.compiled(f"(?:{FORMATS[name]})")

    def matching(self, pattern: str) -> ByteDFA:
        """Return the strings in which a pattern of a JSON Schema matches somewhere."""
        key = "matching", pattern
        if key not in self.built:
            required, excluded, rest = leading_conditions(pattern)
            language = self._search(rest)
            for condition in required:
                language = self.both(language, self._search(condition))
            for condition in excluded:
                language = self.without(language, self._search(condition))
            self.built[key] = language
        return self.built[key]

    def writable(self, strings: ByteDFA) -> ByteDFA:
        """Return the strings that can be written."""
        return strings if not (strings.used_256 & ~_ALWAYS_WRITABLE).any() else self.both(strings, self.all())

    def both(self, first: ByteDFA, second: ByteDFA) -> ByteDFA:
        return intersection(first, second, self.max_states)

    def without(self, first: ByteDFA, second: ByteDFA) -> ByteDFA:
        return difference(first, second, self.max_states)

    def all_but(self, texts: Sequence[bytes]) -> ByteDFA:
        """Return all strings that can be written, except some."""
        key = "all but", frozenset(texts)
        if key not in self.built:
            self.built[key] = self.without(self.all(), ByteDFA.from_strings(texts))
        return self.built[key]

    def quoted(self, strings: ByteDFA) -> ByteDFA:
        """Return the JSON texts of strings that can be written, with the short escapes where JSON needs them."""
        inside, _ = self.escaped(strings)
        if inside.is_empty:
            return inside
        class_256, indptr, label_E, next_E = inside.edges
        quote, closed = class_256[ord('"')], inside.num_states + 1
        num_lower = np.concatenate([[0], np.cumsum(label_E < quote)])
        at_E = (indptr[:-1] + num_lower[indptr[1:]] - num_lower[indptr[:-1]])[inside.accepting_X]  # where edges ascend
        behind = 1 + indptr + np.concatenate([[0], np.cumsum(inside.accepting_X)])
        edges = DfaEdges(
            class_256,
            np.concatenate([[0], behind, behind[-1:]]).astype(np.int32),
            np.concatenate([[quote], np.insert(label_E, at_E, quote)]).astype(np.uint8),
            np.concatenate([[1], np.insert(next_E + 1, at_E, closed)]).astype(np.int32),
        )
        return ByteDFA(edges=edges, accepting_X=np.arange(closed + 1) == closed)

    def escaped(self, strings: ByteDFA) -> tuple[ByteDFA, int]:
        """Return the texts without quotes of strings that can be written, and how many states are not behind a backslash.

        The states behind a backslash follow the others.
        """
        if not strings.num_states:
            return strings, 0
        special_256 = np.zeros(256, np.int64)
        special = sorted({*_ESCAPES, *b"".join(_ESCAPES.values())})
        special_256[special] = np.arange(1, len(special) + 1)
        class_256, first_J = common_classes([strings.edges.class_256, special_256])
        edges = relabel(strings, first_J)
        letter_J = np.array([class_256[_ESCAPES[byte][0]] if byte in _ESCAPES else -1 for byte in first_J])
        is_escaped_E = letter_J[edges.label_E] >= 0
        plain, escaped = edges.take(~is_escaped_E), edges.take(is_escaped_E)
        origins, escape_e = np.unique(escaped.from_E, return_inverse=True)
        num_plain, backslash = strings.num_states, int(class_256[ord("\\")])
        columns = (
            (plain.from_E, plain.label_E, plain.to_E),
            (origins, np.full(len(origins), backslash), num_plain + np.arange(len(origins))),
            (num_plain + escape_e.reshape(-1), letter_J[escaped.label_E], escaped.to_E),
        )
        from_e, label_e, to_e = (np.concatenate(part) for part in zip(*columns, strict=True))
        order = np.lexsort((label_e, from_e))
        indptr = np.searchsorted(from_e[order], np.arange(num_plain + len(origins) + 1)).astype(np.int32)
        edges = DfaEdges(class_256, indptr, label_e[order].astype(np.uint8), to_e[order].astype(np.int32))
        accepting_X = np.concatenate([strings.accepting_X, np.zeros(len(origins), np.bool_)])
        return ByteDFA(edges=edges, accepting_X=accepting_X), num_plain

    def counted(self, strings: ByteDFA, low: int, high: int | None) -> CountedText | None:
        """Return the texts, without quotes, of strings of `low` to `high` characters; None if these may leave dead ends."""
        return CountedText.of(*self.escaped(strings), low, high)

    def _search(self, pattern: str) -> ByteDFA:
        """Return the strings in which a pattern matches somewhere."""
        if (parts := anchored_pattern(pattern)) is None:
            return self._search_with_marks(pattern)
        begins, inside, ends = parts
        language = self.compiled(inside)
        if begins and ends:
            return language
        network = self._network()
        before, behind = START if begins else network.node(), END if ends else network.node()
        if not begins:
            network.add(START, self.all(), before)
        network.add(before, language, behind)
        if not ends:
            network.add(behind, self.all(), END)
        return network.language()

    def _search_with_marks(self, pattern: str) -> ByteDFA:
        """Return the strings in which a pattern matches somewhere, by marks around each string."""
        part, anything = self.compiled(rust_pattern(pattern)), self.compiled(f"[^{MARKS}]*")
        network = self._network()
        inside, matched, after = network.node(), network.node(), network.node()
        begin, end = (mark.encode().decode("unicode_escape").encode() for mark in (MARKS[:4], MARKS[4:]))
        network.add(START, part, matched)
        network.add_text(START, begin, inside)
        before = network.node()
        network.add(inside, anything, before)
        network.add(before, part, matched)
        network.skip(matched, END)
        network.add(matched, anything, after)
        network.add_text(after, end, END)
        whole = self.compiled(f"{MARKS[:4]}[^{MARKS}]*{MARKS[4:]}")
        return _between_marks(intersection(network.language(), whole, self.max_states), begin, end)

    def _network(self) -> Network:
        return Network(self.max_states, "the strings")


@lru_cache(maxsize=64)
def quoted_format(name: str, max_states: int) -> ByteDFA:
    """Return the JSON texts of a format of `FORMATS`, which are built once. Raises AutomatonError above the limit of states."""
    strings = Strings(max_states=max_states)
    return strings.quoted(strings.writable(strings.format(name)))


@lru_cache(maxsize=64)
def format_lengths(name: str) -> tuple[int, int | None]:
    """Return the numbers of characters of the shortest and the longest string of a format; 0 and None if some have no end."""
    return finite_lengths(compile_fixed(f"(?:{FORMATS[name]})")) or (0, None)


def _between_marks(language: ByteDFA, begin: bytes, end: bytes) -> ByteDFA:
    """Return the strings of a language without the mark that each begins with and the one that each ends with."""
    if not language.num_states:
        return language
    begin_T, end_T = np.frombuffer(begin, np.uint8), np.frombuffer(end, np.uint8)
    start = int(run(language.edges, begin_T, 0, 1, 0))
    accepting_X = np.array([run(language.edges, end_T, 0, 1, state) >= 0 for state in range(language.num_states)])
    class_256, indptr, label_E, next_E = language.edges
    from_E = np.repeat(np.arange(language.num_states, dtype=np.int32), np.diff(indptr))
    kept = label_E != class_256[end[0]]
    edges = Edges(from_E[kept], label_E[kept].astype(np.int32), next_E[kept])
    return ByteDFA.of_classes(class_256, edges, accepting_X, start)
