"""Byte automata made of others: free text up to a stop, and one language after another.

Shapes: X states, E edges, J classes of bytes that several automata share.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.minimize import Edges
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError


def free_text(stop: str | None, max_length: int | None, max_states: int) -> ByteDFA:
    """Any text of at most `max_length` characters; with a stop: the text, then the stop, which the text does not hold before.

    None: no stop, no bound. Raises AutomatonError for a stop or length that is none, and above `max_states`;
    MissingExtraError without outlines-core.
    """
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise AutomatonError(f"max_length is {max_length!r}: expected at least 1 character, or None")
    if stop is not None and not isinstance(stop, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AutomatonError(f"the stop is {stop!r}: expected text, or None")
    if stop is None:
        return compile_pattern(f"(?s:.){_up_to(max_length)}", max_states)
    try:
        stop_bytes = stop.encode()
    except UnicodeEncodeError as error:
        raise AutomatonError(f"the stop {stop!r} is not Unicode text: {error}") from error
    if not stop_bytes:
        raise AutomatonError("the stop is empty: expected text, or None")
    text = compile_pattern(f"(?s:.){_up_to(None if max_length is None else max_length + len(stop))}", max_states)
    return _until(text, stop_bytes, max_states)


def _up_to(max_length: int | None) -> str:
    return "*" if max_length is None else f"{{0,{max_length}}}"


def _until(text: ByteDFA, stop: bytes, max_states: int) -> ByteDFA:
    """The strings of a prefix-closed language that end with `stop` and do not hold it before (Knuth, Morris and Pratt).

    State (x, k) is number x * len(stop) + k: the language's state, and how many bytes of the stop were just read.
    """
    length, num_states = len(stop), text.num_states * len(stop)
    if num_states > max_states:
        raise AutomatonError(f"the free text takes {num_states:,} states: expected at most {max_states:,}; lower max_length")
    next_K256 = np.zeros((length, 256), np.int64)
    for read in range(length):
        for byte in set(stop):
            seen = stop[:read] + bytes([byte])
            next_K256[read, byte] = next(n for n in range(len(seen), -1, -1) if seen.endswith(stop[:n]))
    is_stop_256 = np.array([stop.index(byte) + 1 if byte in stop else 0 for byte in range(256)])
    class_256, first_J = _joined(text.edges.class_256, is_stop_256)
    edges = _relabelled(text, first_J)
    from_e, label_e, to_e, read_e = (
        np.concatenate(part)
        for part in zip(
            *(
                (edges.from_E * length + read, edges.label_E, edges.to_E * length, next_K256[read, first_J][edges.label_E])
                for read in range(length)
            ),
            strict=True,
        )
    )
    end = num_states  # one state behind the whole stop
    accepting_X = np.zeros(num_states + 1, np.bool_)
    accepting_X[end] = True
    to_e = np.where(read_e == length, end, to_e + read_e % length)
    return ByteDFA.of_classes(class_256, _ascending(from_e, label_e, to_e), accepting_X, 0)


def concatenate(parts: Sequence[ByteDFA], max_states: int) -> ByteDFA:
    """The strings of the first language followed by one of the second, and so on.

    Cost: that of the parts, where it is certain from byte to byte which part a string is in; else a determinisation of the
    places where it is not. Raises AutomatonError above `max_states`.
    """
    return reduce(lambda later, part: _followed(part, later, max_states), reversed(parts[:-1]), parts[-1])


def _followed(first: ByteDFA, second: ByteDFA, max_states: int) -> ByteDFA:
    """One language after another.

    A state is (x, Y): the state in the first language, -1 where it is left, and the set of states in the second. (x, no Y) is
    number x, (-1, {y}) is number X + y, both with the edges that they had; the others are numbered when they are found.
    """
    if not first.num_states or not second.num_states:
        return ByteDFA.from_strings([])
    class_256, first_J = _joined(first.edges.class_256, second.edges.class_256)
    before, after = _relabelled(first, first_J), _relabelled(second, first_J)
    next_x, next_y = _Rows(before, first.num_states, len(first_J)), _Rows(after, second.num_states, len(first_J))
    num_copied = first.num_states + second.num_states
    numbers: dict[tuple[int, frozenset[int]], int] = {}
    found: list[tuple[int, frozenset[int]]] = []

    def number(x: int, states: frozenset[int]) -> int:
        if x >= 0 and first.accepting_X[x]:
            states |= {0}
        if not states:
            return x
        if x < 0 and len(states) == 1:
            return first.num_states + next(iter(states))
        if (x, states) not in numbers:
            numbers[x, states] = num_copied + len(found)
            found.append((x, states))
            if num_copied + len(found) > max_states:
                raise AutomatonError(
                    f"a part and what follows it take more than max_states={max_states:,} states: make it clearer where the "
                    "part ends, or raise max_states"
                )
        return numbers[x, states]

    start = number(0, frozenset())
    from_e, label_e, to_e = list[int](), list[int](), list[int]()
    entered = np.array([number(x, frozenset()) for x in range(first.num_states)], np.int64)
    for index, (x, states) in enumerate(found):  # grows
        after_xJ = next_x.of([x] if x >= 0 else [])
        after_yJ = next_y.of(sorted(states))
        for label in np.flatnonzero((after_xJ >= 0).any(axis=0) | (after_yJ >= 0).any(axis=0)).tolist():
            column = after_yJ[:, label]
            from_e.append(num_copied + index)
            label_e.append(label)
            to_e.append(number(int(after_xJ[:, label].max(initial=-1)), frozenset(column[column >= 0].tolist())))
    edges = _ascending(
        np.concatenate([before.from_E, after.from_E + first.num_states, np.array(from_e, np.int64)]),
        np.concatenate([before.label_E, after.label_E, np.array(label_e, np.int64)]),
        np.concatenate([entered[before.to_E], after.to_E + first.num_states, np.array(to_e, np.int64)]),
    )
    accepting_X = np.zeros(num_copied + len(found), np.bool_)
    accepting_X[first.num_states : num_copied] = second.accepting_X
    accepting_X[num_copied:] = [bool(second.accepting_X[list(states)].any()) for _, states in found]
    return ByteDFA.of_classes(class_256, edges, accepting_X, start)


def _joined(*classes: NDArray[np.integer]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(class_256, first_J): bytes in one class if they are in one class each time, and the first byte of each class."""
    _, first_J, class_256 = np.unique(np.stack(classes, axis=1), axis=0, return_index=True, return_inverse=True)
    return class_256.reshape(-1).astype(np.uint8), first_J


def _relabelled(dfa: ByteDFA, first_J: NDArray[np.int64]) -> Edges:
    """The edges with a label for each finer class."""
    indptr, label_E, next_E = dfa.edges.edge_indptr, dfa.edges.label_E, dfa.edges.next_E
    coarse_J = dfa.edges.class_256[first_J]
    order_J = np.argsort(coarse_J, kind="stable")
    begin_E, end_E = (np.searchsorted(coarse_J[order_J], label_E, side=side) for side in ("left", "right"))
    edge_e = np.repeat(np.arange(len(label_E)), end_E - begin_E)
    within_e = np.arange(len(edge_e)) - np.repeat(np.cumsum(end_E - begin_E) - (end_E - begin_E), end_E - begin_E)
    from_E = np.repeat(np.arange(dfa.num_states, dtype=np.int32), np.diff(indptr))
    return Edges(from_E[edge_e], order_J[begin_E[edge_e] + within_e].astype(np.int32), next_E[edge_e])


class _Rows:
    """The next states of some states by label, -1 where there is none."""

    def __init__(self, edges: Edges, num_states: int, num_labels: int) -> None:
        self._edges, self._num_labels = edges, num_labels
        self._indptr = np.searchsorted(edges.from_E, np.arange(num_states + 1))

    def of(self, states: Sequence[int]) -> NDArray[np.int64]:
        table = np.full((len(states), self._num_labels), -1, np.int64)
        for row, state in zip(table, states, strict=True):
            entries = slice(self._indptr[state], self._indptr[state + 1])
            row[self._edges.label_E[entries]] = self._edges.to_E[entries]
        return table


def _ascending(from_E: NDArray[np.integer], label_E: NDArray[np.integer], to_E: NDArray[np.integer]) -> Edges:
    order = np.lexsort((label_E, from_E))
    return Edges(*(part[order].astype(np.int32) for part in (from_E, label_E, to_E)))
