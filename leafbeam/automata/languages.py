"""Byte automata made of others: free text up to a stop, and one language after another.

Shapes: X states, E edges, J classes of bytes that several automata share.
"""

from collections.abc import Sequence

import numpy as np

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.minimize import Edges
from leafbeam.automata.network import END, START, Network, common_classes, relabel
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError, counted


def free_text(stop: str | None, max_length: int | None, max_states: int) -> ByteDFA:
    """Return the language of texts of at most `max_length` characters, each followed by the stop, which it does not contain.

    Without a stop, or without a bound, pass None. Raises AutomatonError for an invalid stop or length, and above `max_states`;
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
    """Return the strings of a prefix-closed language that end with `stop` and do not hold it before (Knuth, Morris and Pratt).

    State (x, k) is number x * len(stop) + k: the language's state, and how many bytes of the stop were just read.
    """
    length, num_states = len(stop), text.num_states * len(stop)
    if num_states > max_states:
        raise AutomatonError(
            f"the free text takes {counted(num_states, 'state')}: expected at most {max_states:,}; lower max_length"
        )
    next_K256 = np.zeros((length, 256), np.int64)
    for read in range(length):
        for byte in set(stop):
            seen = stop[:read] + bytes([byte])
            next_K256[read, byte] = next(n for n in range(len(seen), -1, -1) if seen.endswith(stop[:n]))
    is_stop_256 = np.array([stop.index(byte) + 1 if byte in stop else 0 for byte in range(256)])
    class_256, first_J = common_classes([text.edges.class_256, is_stop_256])
    edges = relabel(text, first_J)
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
    order = np.lexsort((label_e, from_e))
    ascending = Edges(*(part[order].astype(np.int32) for part in (from_e, label_e, to_e)))
    return ByteDFA.of_classes(class_256, ascending, accepting_X, 0)


def concatenate(parts: Sequence[ByteDFA], max_states: int) -> ByteDFA:
    """Return the concatenation of languages, in this order. Raises AutomatonError above `max_states`."""
    network = Network(max_states, "a part and what follows it")
    node = START
    for part in parts[:-1]:
        before, node = node, network.node()
        network.add(before, part, node)
    network.add(node, parts[-1], END)
    return network.language()
