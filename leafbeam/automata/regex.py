"""From a regular expression to a byte automaton, by outlines-core (optional).

The pattern always has to match the whole text. outlines-core gives an automaton over tokens; with the 256 bytes as tokens that
is a byte automaton, but not that of the pattern:

* It keeps a token only where the text so far could go on *or* is a whole match, and takes a state just behind a match for
  neither: it drops the point of 1.5 from `-?[0-9]+(\\.[0-9]+)?` and the b of `a|ab`, because a match could have ended before
  it.
* It refuses patterns that match the empty text.
* It determinises a search from every place of the text too, which it never uses: `x[a-z]{30}` would take 2^30 states.

So it is asked for `(?:ab(?:PATTERN)\\z|)`. The end of the text, written into it, leaves no match but there. The empty
alternative matches at once, and by leftmost-first priority no search is begun further on. The two letters, one token, step
over the state that this match spoils; the automaton begins behind them, and what is then useless is trimmed.
"""

from __future__ import annotations

import re
from itertools import chain

import numpy as np

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.errors import AutomatonError
from leafbeam.extras import optional_imports

__all__ = ["check_pattern", "compile_pattern"]

_END, _BEFORE = 256, 257  # token numbers beside the bytes: the end of the text, which outlines-core wants, and our two letters
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")


def compile_pattern(pattern: str, max_states: int) -> ByteDFA:
    """The minimal byte automaton of the texts that `pattern` matches as a whole.

    pattern: the syntax of Rust's regex crate: no look-around, no back-references, `\\d` and `.` are Unicode. One `^` at its
    beginning and one `$` at its end change nothing and may be there.
    Raises MissingExtraError without outlines-core, AutomatonError for what `check_pattern` or outlines-core refuses.
    Cost: what outlines-core's determinisation takes, which some short patterns make exponential: it is not bounded here.
    """
    check_pattern(pattern, max_states)
    with optional_imports("an automaton of a pattern or schema"):
        from outlines_core import Index, Vocabulary
    whole = pattern.removeprefix("^")
    if whole.endswith("$") and (len(whole) - len(whole[:-1].rstrip("\\"))) % 2:
        whole = whole[:-1]
    alphabet = {bytes([byte]): [byte] for byte in range(256)}
    try:
        index = Index(rf"(?:ab(?:{whole})\z|)", Vocabulary(_END, {**alphabet, b"ab": [_BEFORE]}))
    except ValueError as error:
        raise AutomatonError(
            f"outlines-core refuses the pattern {_short(pattern)}: {error}. Expected a regular expression in the syntax of "
            f"Rust's regex crate, without look-around and back-references, that can match something"
        ) from error
    dfa = _dfa_of(index.get_transitions(), index.get_initial_state(), index.get_final_states())
    if dfa.num_states > max_states:
        raise AutomatonError(
            f"the pattern {_short(pattern)} needs {dfa.num_states:,} states: expected at most max_states={max_states:,}; "
            f"raise it, or bound repetitions more tightly"
        )
    return dfa


def _dfa_of(transitions: dict[int, dict[int, int]], initial: int, final: set[int]) -> ByteDFA:
    """The minimal automaton behind the two letters. Cost: a few ns an edge."""
    if _BEFORE not in transitions[initial]:
        return ByteDFA.from_strings([])
    number_X = np.fromiter(transitions, np.int64, len(transitions))
    counts_X = np.fromiter(map(len, transitions.values()), np.int64, len(transitions))
    token_e = np.fromiter(chain.from_iterable(transitions.values()), np.int32, int(counts_X.sum()))
    next_e = np.fromiter(chain.from_iterable(edges.values() for edges in transitions.values()), np.int64, len(token_e))
    from_e = np.repeat(np.arange(len(number_X)), counts_X)
    kept = (token_e < _END) & (number_X[from_e] != initial)
    from_e = from_e[kept]
    place_of = np.full(int(number_X.max()) + 1, -1, np.int32)  # outlines-core's numbers are multiples of a power of two
    place_of[number_X] = np.arange(len(number_X))
    return ByteDFA.from_edges(
        np.searchsorted(from_e, np.arange(len(number_X) + 1)),
        token_e[kept].astype(np.uint8),
        place_of[next_e[kept]],
        np.isin(number_X, np.fromiter(final, np.int64, len(final))),
        int(place_of[transitions[initial][_BEFORE]]),
    )


def check_pattern(pattern: str, max_states: int) -> None:
    """Refuse, before any work, what would be taken for something else or would never end.

    Raises AutomatonError for what is not a string, for brackets that are not closed or not opened, for `^`, `\\A` and word
    boundaries (which look at what stands before, and so have no place in a pattern for the whole text), and for repetitions
    that unroll to more than `max_states` characters.
    """
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AutomatonError(f"the pattern is {pattern!r}: expected a string")
    sizes, last, place = [0], 0, 1 if pattern.startswith("^") else 0  # characters of each open group, of the last atom
    while place < len(pattern):
        sign = pattern[place]
        repeat = _REPEAT.match(pattern, place)
        if sign == "\\" and pattern[place + 1 : place + 2] in ("A", "b", "B", "<", ">"):
            raise _anchored(pattern, pattern[place : place + 2])
        if sign == "^":
            raise _anchored(pattern, sign)
        if repeat is not None and (repeat[1] or repeat[3]):
            times = max(1, int(repeat[3] or repeat[1] or 0))
            sizes[-1] += last * (times - 1)
            last *= times
            place = repeat.end() - 1
        elif sign == "(":
            sizes.append(0)
        elif sign == ")":
            if len(sizes) == 1:
                raise AutomatonError(f"the pattern {_short(pattern)} closes a bracket at {place} that it never opened")
            last = sizes.pop()
            sizes[-1] += last
        else:
            last = 1
            sizes[-1] += 1
            place = _end_of_atom(pattern, place)
        if sizes[-1] > max_states:
            raise AutomatonError(
                f"the pattern {_short(pattern)} unrolls to {sizes[-1]:,} characters or more: expected at most "
                f"max_states={max_states:,}; bound its repetitions more tightly"
            )
        place += 1
    if len(sizes) > 1:
        raise AutomatonError(f"the pattern {_short(pattern)} leaves {len(sizes) - 1} of its brackets open")


def _end_of_atom(pattern: str, place: int) -> int:
    """Where a character, an escape or a class that begins at `place` ends."""
    if pattern[place] == "\\":
        if pattern[place + 1 : place + 2] in ("x", "u", "U", "p", "P") and pattern[place + 2 : place + 3] == "{":
            return max(place + 1, pattern.find("}", place))
        return place + 1
    if pattern[place] != "[":
        return place
    depth = 0
    begin = place
    while place < len(pattern):
        if pattern[place] == "\\":
            place += 1
        elif pattern[place] == "[":
            depth += 1
            place += pattern[place + 1 : place + 2] == "^"
            place += pattern[place + 1 : place + 2] == "]"  # right after the opening it stands for itself
        elif pattern[place] == "]":
            depth -= 1
            if not depth:
                return place
        place += 1
    raise AutomatonError(f"the pattern {_short(pattern)} leaves the class open that begins at {begin}")


def _anchored(pattern: str, sign: str) -> AutomatonError:
    return AutomatonError(
        f"the pattern {_short(pattern)} looks back with {sign}: a pattern always has to match the whole text, so leave it out"
    )


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else f"{pattern[:60]}...{pattern[-17:]}")
