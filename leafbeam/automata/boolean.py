"""Intersection and difference of byte automata, by the product of their states (Rabin and Scott, 1959).

Shapes: X, Y states of the two automata, J classes of bytes that both treat alike, E edges.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import numpy as np
from numba.core import types
from numba.typed import Dict
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.minimize import Edges
from leafbeam.automata.network import common_classes, relabel
from leafbeam.errors import AutomatonError, counted
from leafbeam.jit import njit

_SPARE = 4  # before minimisation there may be this many times more states than the limit


def intersection(first: ByteDFA, second: ByteDFA, max_states: int) -> ByteDFA:
    """Return the strings of both languages. Raises AutomatonError above the limit of states."""
    return _product(first, second, max_states, is_difference=False)


def difference(first: ByteDFA, second: ByteDFA, max_states: int) -> ByteDFA:
    """Return the strings of the first language that the second has not. Raises AutomatonError above the limit of states."""
    return _product(first, second, max_states, is_difference=True)


def _product(first: ByteDFA, second: ByteDFA, max_states: int, *, is_difference: bool) -> ByteDFA:
    if not first.num_states or not second.num_states:
        return first if is_difference else ByteDFA.from_strings([])
    class_256, first_J = common_classes([first.edges.class_256, second.edges.class_256])
    from_e, label_e, to_e, accepting_Z = _pairs(
        _table(first, first_J),
        _table(second, first_J),
        first.accepting_X,
        np.append(second.accepting_X, False),
        is_difference,
        _SPARE * max_states,
    )
    if len(accepting_Z) > _SPARE * max_states:
        raise AutomatonError(
            f"two languages together unroll to more than max_states={counted(max_states, 'state')}: simplify them, or "
            "raise the limit"
        )
    return ByteDFA.of_classes(class_256, Edges(from_e, label_e, to_e), accepting_Z, 0)


def _table(dfa: ByteDFA, first_J: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the next state by state and class, -1 where there is none."""
    table_XJ = np.full((dfa.num_states, len(first_J)), -1, np.int32)
    edges = relabel(dfa, first_J)
    table_XJ[edges.from_E, edges.label_E] = edges.to_E
    return table_XJ


@njit(cache=True)
def _pairs(first_XJ, second_YJ, accepting_X, accepting_Y, is_difference, max_pairs):
    """Return (from, label, to, accepting) of the pairs that strings reach; for a difference the second may be dead."""
    dead = len(second_YJ)
    number = Dict.empty(types.int64, types.int32)
    first_z, second_z = [np.int32(0)], [np.int32(0)]
    from_e, label_e, to_e = [np.int32(0) for _ in range(0)], [np.int32(0) for _ in range(0)], [np.int32(0) for _ in range(0)]
    number[np.int64(0)] = np.int32(0)
    head = 0
    while head < len(first_z) <= max_pairs:
        first, second = first_z[head], second_z[head]
        for label in range(first_XJ.shape[1]):
            next_first = first_XJ[first, label]
            next_second = second_YJ[second, label] if second < dead else np.int32(-1)
            if next_first < 0 or (next_second < 0 and not is_difference):
                continue
            if next_second < 0:
                next_second = np.int32(dead)
            key = np.int64(next_first) * (dead + 1) + next_second
            if key not in number:
                number[key] = np.int32(len(first_z))
                first_z.append(next_first)
                second_z.append(next_second)
            from_e.append(np.int32(head))
            label_e.append(np.int32(label))
            to_e.append(number[key])
        head += 1
    accepting_Z = np.zeros(len(first_z), np.bool_)
    for pair in range(len(first_z)):
        accepting_Z[pair] = accepting_X[first_z[pair]] and accepting_Y[second_z[pair]] != is_difference
    return np.array(from_e, np.int32), np.array(label_e, np.int32), np.array(to_e, np.int32), accepting_Z
