"""Languages joined at nodes, as one byte automaton: sequences, unions, options and repetitions without a pattern's text.

    network = Network(max_states)
    item, done = network.node(), network.node()
    network.add_text(START, b"[", item)
    network.add(item, integers, done)          # a byte automaton, or another network, between two nodes
    network.add_text(done, b",", item)         # a repetition is a path back
    network.add_text(done, b"]", END)
    network.language()

The language has the string of every path from START to END. One determinisation (Rabin and Scott, 1959) of all paths merges
what they have in common, and the result is minimised: of networks inside networks only the outermost is determinised.

Shapes: X nodes and states of the byte automata, E edges, F edges without a byte, J classes of bytes, U units (networks, then
byte automata), P byte automata, C copies of units, N texts.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA, indptr_of
from leafbeam.automata.counted_text import CountedText
from leafbeam.automata.determinize import CHARACTERS, END, START, NetworkArrays
from leafbeam.automata.lazy_dfa import LazyDFA
from leafbeam.automata.minimize import Edges, useful_states
from leafbeam.errors import AutomatonError, counted
from leafbeam.jit import njit

__all__ = ["END", "START", "Language", "Network", "common_classes", "determinized", "relabel"]

_SPARE = 4  # before minimisation there may be this many times more states than the limit
_MAX_SIZE = 1 << 60  # of a network with repetitions written out, so that states are numbers of 64 bits


class Network:
    """Nodes, and the languages between them; `language` ends the construction.

    Args:
        what: The name of what is built, for errors.
        pointer: Returns the JSON pointer of what is built, for errors.

    Examples:
        >>> network = Network(100)
        >>> for text in (b"ab", b"b"):
        ...     network.add_text(START, text, END)
        >>> [network.language().accepts(text) for text in (b"ab", b"b", b"a")]
        [True, True, False]
    """

    def __init__(self, max_states: int, what: str = "the language", *, pointer: Callable[[], str] | None = None) -> None:
        self._max_states, self._what, self._pointer = max_states, what, pointer
        self._num_nodes = 2  # and the states within texts
        self._size = self._num_written = 0  # the number of states of its parts, and without repetitions and nested networks
        self._parts: list[tuple[_Part, int, int, int, int, int]] = []  # (part, node, node, count, low, more)
        self._texts: list[tuple[bytes, int, int, int]] = []  # (text, the number of its first inner state, node, node)
        self._skips: list[tuple[int, int]] = []
        self._paths: dict[str, bool] = {}

    @property
    def size(self) -> int:
        """Return the number of states, as if repetitions were written out."""
        return self._num_nodes + self._size

    def like(self) -> Network:
        """Return a new network with the same limit and the same name in errors."""
        return Network(self._max_states, self._what, pointer=self._pointer)

    def node(self) -> int:
        """Return a new node."""
        self._num_nodes += 1
        return self._num_nodes - 1

    def add(self, node: int, language: Language, to: int) -> None:
        """Join two nodes by the strings of a language; an empty language joins nothing. An added network may not change."""
        if not language.is_empty:
            self._add_part(language, node, to, 1, 1, 0)

    def add_repeated(self, node: int, language: Language, to: int, low: int, high: int | None) -> None:
        """Join two nodes by `low` to `high` strings of a language, one after another; without a bound if `high` is None.

        The repetitions are counted, and not written out, unless the language has the empty string.
        """
        count = max(low, 1) if high is None else high
        if low == 0:
            self.skip(node, to)
        if language.is_empty or not count:
            return
        part = determinized(language) if isinstance(language, Network) and language.has_empty_string else language
        if not part.has_empty_string:
            self._add_part(part, node, to, count, max(low, 1), int(high is None))
            return
        for number in range(low if high is None else high):
            if number >= low:
                self.skip(node, to)
            after = self.node()
            self.add(node, part, after)
            node = after
        if high is None:
            self.add(node, part, node)
        self.skip(node, to)

    def add_counted(self, node: int, text: CountedText, to: int) -> None:
        """Join two nodes by the texts between bounds of their lengths. Their characters are counted, and not written out."""
        if not text.is_empty:
            self._add_part(text, node, to, text.num_turns, text.low + 1, CHARACTERS + (text.high is None))

    def _add_part(self, part: _Part, node: int, to: int, count: int, low: int, more: int) -> None:
        """Join two nodes by a part, which is repeated as `determinize` says."""
        self._size += count * part.size
        self._num_written += part._num_nodes if isinstance(part, Network) else _dfa_of(part).num_states
        if self._size > _MAX_SIZE or self._num_nodes + self._num_written > 2 * _SPARE * self._max_states:
            raise self._too_large()
        self._parts.append((part, node, to, count, low, more))

    def add_text(self, node: int, text: bytes, to: int) -> None:
        """Join two nodes by one string."""
        if not text:
            self._skips.append((node, to))
            return
        self._texts.append((text, self._num_nodes, node, to))
        self._num_nodes += len(text) - 1

    def skip(self, node: int, to: int) -> None:
        """Let paths go from one node to another without a byte."""
        self._skips.append((node, to))

    @property
    def is_empty(self) -> bool:
        """Return whether no path leads from START to END. No path may be added after this call."""
        if "any" not in self._paths:
            self._paths["any"] = self._has_path(silent=False)
        return not self._paths["any"]

    @property
    def has_empty_string(self) -> bool:
        """Return whether a path leads from START to END without a byte. No path may be added after this call."""
        if "silent" not in self._paths:
            self._paths["silent"] = self._has_path(silent=True)
        return self._paths["silent"]

    def _has_path(self, *, silent: bool) -> bool:
        """Return whether a path leads from START to END; if `silent`, one without a byte."""
        following: dict[int, list[int]] = {}
        for part, node, to, *_ in self._parts:
            if not silent or part.has_empty_string:
                following.setdefault(node, []).append(to)
        for *_, node, to in (*(() if silent else self._texts), *self._skips):
            following.setdefault(node, []).append(to)
        seen, waiting = {START}, [START]
        while waiting and END not in seen:
            new = [to for to in following.get(waiting.pop(), ()) if to not in seen]
            seen.update(new)
            waiting += new
        return END in seen

    def language(self) -> ByteDFA:
        """Return the language of all paths from START to END. Raises AutomatonError above the limit of states.

        Cost: linear in the copies if a string can be in only a few of them at a time; exponential at worst, up to the limit.
        """
        if self.is_empty:
            return ByteDFA.from_strings([])
        try:
            dfa = LazyDFA(self.arrays(), _SPARE * self._max_states).language()
        except AutomatonError as error:
            raise self._too_large() from error
        if dfa.num_states > self._max_states:
            raise self._too_large()
        return dfa

    def arrays(self) -> NetworkArrays:
        """Return this network as kernels read it, without what does not lead to END. It may not be empty."""
        flat = self._flat()
        num_nodes, num_states = int(flat.node_indptr[-1]), [_dfa_of(part).num_states for part in flat.parts]
        if num_nodes + sum(num_states) > 2 * _SPARE * self._max_states:
            raise self._too_large()
        text_256 = np.zeros(256, np.int16)
        text_256[flat.bytes_T] = flat.bytes_T.astype(np.int16) + 1
        class_256, first_J = common_classes([text_256, *(_dfa_of(part).edges.class_256 for part in flat.parts)])
        *parts, accepting_X, shortest_X, longest_X = _part_arrays(flat.parts)
        copies, *edges = _assemble(first_J, class_256, tuple(parts), flat[1:])
        is_end = np.zeros(num_nodes, np.bool_)
        is_end[flat.node_indptr[:-1] + END] = True
        no_length = np.zeros(num_nodes, np.int32)
        states = zip((is_end, no_length, no_length), (accepting_X, shortest_X, longest_X), strict=True)
        return NetworkArrays(
            class_256,
            *copies,
            flat.size_U,
            np.cumsum([*np.diff(flat.node_indptr, prepend=0), *num_states]),
            *edges[:4],
            *map(np.concatenate, states),
            *edges[4:],
        )

    def _too_large(self) -> AutomatonError:
        pointer = None if self._pointer is None else self._pointer()
        return AutomatonError(
            f"{pointer or self._what} unrolls to more than max_states={counted(self._max_states, 'state')}: simplify it, "
            "bound repetitions more tightly, or raise the limit",
            pointer=pointer,
        )

    def _flat(self) -> _Flat:
        """Return this network and those inside it, each once."""
        networks, parts, number_of = [self], list[ByteDFA | CountedText](), {id(self): 0}
        for network in networks:  # which grows
            for part, *_ in network._parts:
                if id(part) not in number_of:
                    number_of[id(part)] = len(networks) if isinstance(part, Network) else ~len(parts)
                    networks.append(part) if isinstance(part, Network) else parts.append(part)
        node_indptr = np.concatenate([[0], np.cumsum([network._num_nodes for network in networks])])
        copies: list[tuple[int, ...]] = []
        texts: list[tuple[int, ...]] = []
        skips: list[tuple[int, ...]] = []
        strings: list[bytes] = []
        for base, network in zip(node_indptr.tolist(), networks, strict=False):
            skips += [(base + node, base + to, base) for node, to in network._skips]
            texts += [(base + node, base + to, base, base + first) for _, first, node, to in network._texts]
            strings += [text for text, *_ in network._texts]
            for part, node, to, count, low, more in network._parts:
                number = number_of[id(part)]
                margin = part.margin if isinstance(part, CountedText) else 0
                unit = number if number >= 0 else len(networks) + ~number
                copies.append((base + node, base + to, base, unit, count, low, more, margin))
        rows = _columns(copies, 8), _columns(texts, 4), _columns(skips, 3)
        starts = node_indptr[:-1]
        outside = np.full(len(starts), node_indptr[-1])  # a node before all networks
        joined = np.concatenate([*(part[:, :2] for part in rows), np.stack([outside, starts + START], axis=1)])
        is_end = np.zeros(node_indptr[-1] + 1, np.bool_)
        is_end[starts + END] = True
        useful_X = useful_states(*joined.T.astype(np.int32), is_end, int(node_indptr[-1]))
        kept = [useful_X[part[:, :2]].all(axis=1) for part in rows]
        strings = list(compress(strings, kept[1].tolist()))
        return _Flat(
            parts,
            node_indptr,
            np.array([unit.size for unit in (*networks, *parts)]),
            *(part[is_useful] for part, is_useful in zip(rows, kept, strict=True)),
            np.frombuffer(b"".join(strings), np.uint8),
            indptr_of(strings),
        )


Language = ByteDFA | Network
_Part = Language | CountedText


def _dfa_of(part: ByteDFA | CountedText) -> ByteDFA:
    return part if isinstance(part, ByteDFA) else part.dfa


def determinized(language: Language) -> ByteDFA:
    """Return a language as a byte automaton."""
    return language if isinstance(language, ByteDFA) else language.language()


class _Flat(NamedTuple):
    """A network and those inside it, each once. All nodes have different numbers; `base` is the first of a row's network.

    Args:
        parts: The byte automata. They are the units after the networks.
        node_indptr: The first node of each network.
        size_U: The number of states of each unit, with repetitions written out.
        join_C8: The nodes that a copy joins, base, its unit, and how it is repeated (`determinize`).
        text_N4: The nodes that a text joins, base, and its first inner state.
        skip_F3: The nodes that no byte joins, and base.
        bytes_T, text_indptr: The texts.
    """

    parts: list[ByteDFA | CountedText]
    node_indptr: NDArray[np.int64]
    size_U: NDArray[np.int64]
    join_C8: NDArray[np.int64]
    text_N4: NDArray[np.int64]
    skip_F3: NDArray[np.int64]
    bytes_T: NDArray[np.uint8]
    text_indptr: NDArray[np.int64]


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, count)


def _part_arrays(parts: Sequence[ByteDFA | CountedText]) -> tuple[NDArray[Any], ...]:
    """Return (part_indptr, class_P256, edge_indptr, label_E, next_E, begins_E, accepting_X, shortest_X, longest_X) of several
    byte automata one after another.

    Those of part p begin at state part_indptr[p], and edge_indptr has one more entry for each part.
    """
    parts = parts or [ByteDFA.from_strings([])]
    dfas = [_dfa_of(part) for part in parts]
    edges = [dfa.edges for dfa in dfas]
    num_edges = [len(part.label_E) for part in edges]
    begins = np.cumsum([0, *num_edges]).tolist()
    counted_texts = [part if isinstance(part, CountedText) else None for part in parts]
    sizes = [dfa.num_states for dfa in dfas]

    def of_texts(name: str, dtype: type, sizes: Sequence[int]) -> NDArray[Any]:
        texts = zip(counted_texts, sizes, strict=True)
        return np.concatenate([np.zeros(size, dtype) if text is None else getattr(text, name) for text, size in texts])

    return (
        np.cumsum([0, *sizes]),
        np.stack([part.class_256 for part in edges]),
        np.concatenate([part.edge_indptr + begin for part, begin in zip(edges, begins[:-1], strict=True)]),
        np.concatenate([part.label_E for part in edges]),
        np.concatenate([part.next_E for part in edges]),
        of_texts("begins_E", np.bool_, num_edges),
        np.concatenate([dfa.accepting_X for dfa in dfas]),
        of_texts("shortest_X", np.int32, sizes),
        of_texts("longest_X", np.int32, sizes),
    )


def common_classes(classes: Sequence[NDArray[np.integer]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (class_256, first_J): classes of bytes that share a class in every table, and each class's first byte."""
    return _common_classes(np.array(classes, np.int16).reshape(-1, 256))


@njit(cache=True)
def _common_classes(column_P256):
    hash_256 = np.zeros(256, np.uint64)
    for column in range(len(column_P256)):
        for byte in range(256):
            state = (hash_256[byte] ^ np.uint64(column_P256[column, byte])) * np.uint64(0x9E3779B97F4A7C15)
            hash_256[byte] = state ^ (state >> np.uint64(29))
    class_256, first_J, count = np.empty(256, np.uint8), np.empty(256, np.int64), 0
    for byte in range(256):
        number = 0
        while number < count:
            first = first_J[number]
            if hash_256[first] == hash_256[byte] and np.array_equal(column_P256[:, first], column_P256[:, byte]):
                break
            number += 1
        if number == count:
            first_J[count] = byte
            count += 1
        class_256[byte] = number
    return class_256, first_J[:count].copy()


def relabel(dfa: ByteDFA, first_J: NDArray[np.int64]) -> Edges:
    """Return the edges, labelled with finer classes, whose first bytes are given."""
    indptr, label_E, next_E = dfa.edges.edge_indptr, dfa.edges.label_E, dfa.edges.next_E
    coarse_J = dfa.edges.class_256[first_J]
    order_J = np.argsort(coarse_J, kind="stable")
    begin_E, end_E = (np.searchsorted(coarse_J[order_J], label_E, side=side) for side in ("left", "right"))
    edge_e = np.repeat(np.arange(len(label_E)), end_E - begin_E)
    within_e = np.arange(len(edge_e)) - np.repeat(np.cumsum(end_E - begin_E) - (end_E - begin_E), end_E - begin_E)
    from_E = np.repeat(np.arange(dfa.num_states, dtype=np.int32), np.diff(indptr))
    return Edges(from_E[edge_e], order_J[begin_E[edge_e] + within_e].astype(np.int32), next_E[edge_e])


@njit(cache=True)
def _finer(part, class_P256, first_J):
    """Return (indptr, fine_J): the classes into which each class of a byte automaton falls."""
    indptr, fine_J = np.zeros(258, np.int64), np.empty(len(first_J), np.int64)
    for byte in first_J:
        indptr[class_P256[part, byte] + 2] += 1
    for number in range(1, 258):
        indptr[number] += indptr[number - 1]
    for label in range(len(first_J)):
        coarse = class_P256[part, first_J[label]]
        fine_J[indptr[coarse + 1]] = label
        indptr[coarse + 1] += 1
    return indptr, fine_J


@njit(cache=True)
def _assemble(first_J, class_256, parts, flat):
    """Return ((copies, copy_indptr), edge_indptr, labels, targets, begins, skip_indptr, skips)."""
    own_indptr, class_P256, own_edge_indptr, own_label_E, own_next_E, own_begins_E = parts
    node_indptr, size_U, join_C8, text_N4, skip_F3, bytes_T, text_indptr = flat
    num_parts, num_nodes = len(own_indptr) - 1, node_indptr[-1]
    num_states = num_nodes + own_indptr[-1]
    edge_indptr = np.zeros(num_states + 2, np.int64)
    label_E, next_E, begins_E = np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.bool_)
    for is_count in (True, False):  # first the number of edges of each state, then the edges
        _add_texts(is_count, bytes_T, text_indptr, text_N4, class_256, edge_indptr, label_E, next_E)
        for part in range(num_parts):
            fine_indptr, fine_J = _finer(part, class_P256, first_J)
            for state in range(own_indptr[part], own_indptr[part + 1]):
                for edge in range(own_edge_indptr[state + part], own_edge_indptr[state + part + 1]):
                    label, own = own_label_E[edge], num_nodes + state
                    if is_count:
                        edge_indptr[own + 2] += fine_indptr[label + 1] - fine_indptr[label]
                        continue
                    for index in range(fine_indptr[label], fine_indptr[label + 1]):
                        at = edge_indptr[own + 1]
                        label_E[at], next_E[at], begins_E[at] = fine_J[index], own_next_E[edge], own_begins_E[edge]
                        edge_indptr[own + 1] += 1
        if is_count:
            for state in range(num_states):
                edge_indptr[state + 2] += edge_indptr[state + 1]
            label_E, next_E = np.empty(edge_indptr[-1], np.uint8), np.empty(edge_indptr[-1], np.int32)
            begins_E = np.zeros(edge_indptr[-1], np.bool_)
    copy_C7, copy_indptr = _copies(node_indptr, size_U, join_C8)
    skip_indptr = np.zeros(num_states + 2, np.int64)
    for number in range(len(join_C8) + len(skip_F3)):
        node = join_C8[number, 0] if number < len(join_C8) else skip_F3[number - len(join_C8), 0]
        skip_indptr[node + 2] += 1
    for state in range(num_states):
        skip_indptr[state + 2] += skip_indptr[state + 1]
    skip_F = np.empty(skip_indptr[-1], np.int64)
    for number in range(len(join_C8) + len(skip_F3)):
        skip = number - len(join_C8)
        node, to = (
            (join_C8[number, 0], copy_C7[number, 0]) if skip < 0 else (skip_F3[skip, 0], skip_F3[skip, 1] - skip_F3[skip, 2])
        )
        skip_F[skip_indptr[node + 1]] = to
        skip_indptr[node + 1] += 1
    return (copy_C7, copy_indptr), edge_indptr[:-1].copy(), label_E, next_E, begins_E, skip_indptr[:-1].copy(), skip_F


@njit(cache=True)
def _copies(node_indptr, size_U, join_C8):
    """Return (copy_C7, copy_indptr); the copies come unit by unit."""
    copy_C7, copy_indptr = np.empty((len(join_C8), 7), np.int64), np.zeros(len(size_U) + 1, np.int64)
    unit, first = -1, np.int64(0)
    for copy in range(len(join_C8)):
        base, inner, count = join_C8[copy, 2], join_C8[copy, 3], join_C8[copy, 4]
        while unit < 0 or node_indptr[unit] < base:
            unit += 1
            first = node_indptr[unit + 1] - node_indptr[unit]
        copy_C7[copy, 0], copy_C7[copy, 1], copy_C7[copy, 2:5] = first, inner, join_C8[copy, 4:7]
        copy_C7[copy, 5], copy_C7[copy, 6] = join_C8[copy, 1] - base, join_C8[copy, 7]
        copy_indptr[unit + 1] += 1
        first += count * size_U[inner]
    for number in range(len(size_U)):
        copy_indptr[number + 1] += copy_indptr[number]
    return copy_C7, copy_indptr


@njit(cache=True)
def _add_texts(is_count, bytes_T, text_indptr, text_N4, class_256, indptr, label_E, next_E):
    """Count or write the edges of the texts."""
    for number in range(len(text_N4)):
        begin, end = text_indptr[number], text_indptr[number + 1]
        state, last, base, inner = text_N4[number, 0], text_N4[number, 1], text_N4[number, 2], text_N4[number, 3]
        for index in range(begin, end):
            following = last if index + 1 == end else inner + index - begin
            if is_count:
                indptr[state + 2] += 1
            else:
                label_E[indptr[state + 1]], next_E[indptr[state + 1]] = class_256[bytes_T[index]], following - base
                indptr[state + 1] += 1
            state = following
