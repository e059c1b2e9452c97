"""From a regular expression to a byte automaton, by outlines-core (optional).

The pattern always has to match the whole text. outlines-core builds an automaton over tokens; with the 256 bytes as tokens that
is a byte automaton, but not the pattern's:

* It keeps a token only where the text so far could go on *or* is a whole match, and treats a state just behind a match as
  neither: it drops the point of 1.5 from `-?[0-9]+(\\.[0-9]+)?` and the b of `a|ab`.
* It refuses patterns that match the empty text.
* It also determinises a search from every position of the text, which it never uses: `x[a-z]{30}` would take 2^30 states.

So we compile `(?:ab(?:PATTERN)\\z|)`. The end of the text, written into the pattern, leaves no earlier match. The empty
alternative matches at once, and by leftmost-first priority no search begins further on. The token `ab` steps over the state
that this match spoils; our automaton begins behind it, and useless states are dropped.

Its time grows with the number of tokens. Bytes that a pattern cannot tell apart need one token, so each group of neighbours
between those that the pattern names has its first byte alone.
"""

import re
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA, DfaEdges
from leafbeam.errors import AutomatonError, counted, short_repr
from leafbeam.extras import optional_imports

_END, _START = 256, 257  # token numbers besides the bytes: the end of the text, which outlines-core requires, and `ab`
_MAX_FIXED_STATES = 100_000  # of a pattern of this package
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(r"\\(?:[xuU]\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}
_NAMED_CLASSES = re.compile(r"\(\?[^:P<]|\[:")  # and flags, which change what a letter means
# The first bytes of groups that UTF-8 treats alike: characters of one to four bytes, and what may follow their first byte.
_UTF_8 = (0, 0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5)


def compile_pattern(pattern: str, max_states: int) -> ByteDFA:
    """Return the minimal byte automaton of the texts that `pattern` matches as a whole.

    pattern: the syntax of Rust's regex crate: no look-around, no back-references, `\\d` and `.` are Unicode. One `^` at its
    beginning and one `$` at its end are allowed and change nothing.
    Raises MissingExtraError without outlines-core, AutomatonError for what `check_pattern` or outlines-core refuses.
    Cost: outlines-core's determinisation, which takes exponential time for some short patterns and has no bound.
    """
    check_pattern(pattern, max_states)
    with optional_imports("an automaton of a pattern or schema"):
        from outlines_core import Index, Vocabulary
    whole = pattern.removeprefix("^")
    if whole.endswith("$") and (len(whole) - len(whole[:-1].rstrip("\\"))) % 2:
        whole = whole[:-1]
    first_256 = first_bytes(whole)
    alphabet = {bytes([byte]): [byte] for byte in np.unique(first_256).tolist()}
    try:
        index = Index(rf"(?:ab(?:{whole})\z|)", Vocabulary(_END, {**alphabet, b"ab": [_START]}))
    except ValueError as error:
        raise AutomatonError(
            f"outlines-core refuses the pattern {short_repr(pattern)}: {error}. Expected a regular expression in the syntax of "
            f"Rust's regex crate, without look-around and back-references, that can match something"
        ) from error
    dfa = _dfa_of(index.get_transitions(), index.get_initial_state(), index.get_final_states())
    edges = DfaEdges(dfa.edges.class_256[first_256], *dfa.edges[1:])
    dfa = ByteDFA(edges=edges, accepting_X=dfa.accepting_X)
    if dfa.num_states > max_states:
        raise AutomatonError(
            f"the pattern {short_repr(pattern)} needs {counted(dfa.num_states, 'state')}: "
            f"expected at most max_states={max_states:,}; "
            f"raise it, or bound repetitions more tightly"
        )
    return dfa


def first_bytes(pattern: str) -> NDArray[np.int64]:
    """Return, for each byte, the first of a group of neighbours that a pattern cannot tell apart.

    A group ends before and behind each byte of a character that is in the pattern, also of those that are only its syntax.
    All bytes are groups of their own if the pattern has classes with names, or flags.
    """
    codes = {10, *map(ord, pattern)}
    for escape in _ESCAPE.finditer(pattern):
        digits, sign = next(filter(None, escape.groups()[:4]), None), escape[5]
        if digits is None and sign.isalnum() and sign not in _CONTROLS:
            return np.arange(256)
        codes.add(int(digits, 16) if digits is not None else _CONTROLS.get(sign, ord(sign)))
    if _NAMED_CLASSES.search(pattern):
        return np.arange(256)
    is_first_256 = np.zeros(257, np.bool_)
    is_first_256[[*_UTF_8]] = True
    for code in codes:
        if code <= 0x10FFFF:
            for byte in chr(code).encode(errors="replace"):
                is_first_256[byte : byte + 2] = True
    return np.maximum.accumulate(np.where(is_first_256[:256], np.arange(256), 0))


@lru_cache(maxsize=256)
def compile_fixed(pattern: str) -> ByteDFA:
    """Return the automaton of one of this package's own patterns, which is built once."""
    return compile_pattern(pattern, _MAX_FIXED_STATES)


def _dfa_of(transitions: dict[int, dict[int, int]], initial: int, final: set[int]) -> ByteDFA:
    """Return the minimal automaton of what follows the token `ab`. Cost: a few ns an edge."""
    if _START not in transitions[initial]:
        return ByteDFA.from_strings([])
    number_X = np.fromiter(transitions, np.int64, len(transitions))
    counts_X = np.fromiter(map(len, transitions.values()), np.int64, len(transitions))
    token_e = np.fromiter(chain.from_iterable(transitions.values()), np.int32, int(counts_X.sum()))
    next_e = np.fromiter(chain.from_iterable(edges.values() for edges in transitions.values()), np.int64, len(token_e))
    from_e = np.repeat(np.arange(len(number_X)), counts_X)
    kept = (token_e < _END) & (number_X[from_e] != initial)
    from_e = from_e[kept]
    state_of = np.full(int(number_X.max()) + 1, -1, np.int32)  # outlines-core's numbers are multiples of a power of two
    state_of[number_X] = np.arange(len(number_X))
    return ByteDFA.from_edges(
        np.searchsorted(from_e, np.arange(len(number_X) + 1)),
        token_e[kept].astype(np.uint8),
        state_of[next_e[kept]],
        np.isin(number_X, np.fromiter(final, np.int64, len(final))),
        int(state_of[transitions[initial][_START]]),
    )


def check_pattern(pattern: str, max_states: int) -> None:
    """Refuse patterns that would be misread or take forever to compile.

    Raises AutomatonError for values that are not strings, unbalanced brackets, `^`, `\\A` and word boundaries (they look
    back), and repetitions that unroll to more than `max_states` characters.
    """
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AutomatonError(f"the pattern is {pattern!r}: expected a string")
    sizes, last, at = [0], 0, 1 if pattern.startswith("^") else 0  # characters of each open group, of the last atom
    while at < len(pattern):
        sign = pattern[at]
        repeat = _REPEAT.match(pattern, at)
        if sign == "\\" and pattern[at + 1 : at + 2] in ("A", "b", "B", "<", ">"):
            raise _anchored(pattern, pattern[at : at + 2])
        if sign == "^":
            raise _anchored(pattern, sign)
        if repeat is not None and (repeat[1] or repeat[3]):
            count = max(1, int(repeat[3] or repeat[1] or 0))
            sizes[-1] += last * (count - 1)
            last *= count
            at = repeat.end() - 1
        elif sign == "(":
            sizes.append(0)
        elif sign == ")":
            if len(sizes) == 1:
                raise AutomatonError(f"the pattern {short_repr(pattern)} closes a bracket at {at} that was not opened")
            last = sizes.pop()
            sizes[-1] += last
        else:
            last = 1
            sizes[-1] += 1
            at = _end_of_atom(pattern, at)
        if sizes[-1] > max_states:
            raise AutomatonError(
                f"the pattern {short_repr(pattern)} unrolls to {counted(sizes[-1], 'character')} or more: expected at most "
                f"max_states={max_states:,}; bound its repetitions more tightly"
            )
        at += 1
    if len(sizes) > 1:
        raise AutomatonError(f"the pattern {short_repr(pattern)} does not close {len(sizes) - 1} of its brackets")


def _end_of_atom(pattern: str, at: int) -> int:
    """Return the end of the character, escape or class that begins at `at`."""
    if pattern[at] == "\\":
        if pattern[at + 1 : at + 2] in ("x", "u", "U", "p", "P") and pattern[at + 2 : at + 3] == "{":
            return max(at + 1, pattern.find("}", at))
        return at + 1
    if pattern[at] != "[":
        return at
    depth = 0
    begin = at
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth += 1
            at += pattern[at + 1 : at + 2] == "^"
            at += pattern[at + 1 : at + 2] == "]"  # a literal right after the opening
        elif pattern[at] == "]":
            depth -= 1
            if not depth:
                return at
        at += 1
    raise AutomatonError(f"the pattern {short_repr(pattern)} does not close the class that begins at {begin}")


def _anchored(pattern: str, sign: str) -> AutomatonError:
    return AutomatonError(
        f"the pattern {short_repr(pattern)} looks back with {sign}: a pattern always has to match the whole text, so "
        "leave it out"
    )
