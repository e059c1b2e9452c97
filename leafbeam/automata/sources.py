"""Builders of automata: from texts and token sequences to `AutomatonArrays`.

Shapes: S states, E entries of rows, V tokens, T bytes or tokens of all texts or sequences, N texts or sequences.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.arrays import AutomatonArrays, AutomatonLimits, TransitionTable
from leafbeam.automata.byte_dfa import ByteDFA, indptr_of, prefix_tree
from leafbeam.automata.minimize import Edges, minimize
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.errors import AutomatonError
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.sequences import SequenceTable
from leafbeam.jit import njit


def choice_bytes(choices: Sequence[str | bytes]) -> list[bytes]:
    """Return the bytes of each text. Raises AutomatonError if there are no choices, or one is not text."""
    if not hasattr(choices, "__len__") or isinstance(choices, (str, bytes)) or not len(choices):
        raise AutomatonError(f"choices is {choices!r}: expected a list with at least one text")
    texts: list[bytes] = []
    for index, choice in enumerate(choices):
        if not isinstance(choice, (str, bytes)):
            raise AutomatonError(f"choice {index} is {choice!r}: expected text or bytes (for token ids: from_sequences)")
        try:
            texts.append(choice.encode() if isinstance(choice, str) else choice)
        except UnicodeEncodeError as error:
            raise AutomatonError(f"choice {index} is {choice!r}, which is not Unicode text: {error}") from error
    return texts


def language_of_choices(choices: Sequence[str | bytes], tokens: TokenTrie) -> ByteDFA:
    """Return the language of these texts. Raises AutomatonError if one cannot be written with these tokens."""
    texts = choice_bytes(choices)
    dfa = ByteDFA.from_strings(texts)
    if not tokens.has_bytes_of(dfa):
        index = _unwritable(np.frombuffer(b"".join(texts), np.uint8), indptr_of(texts), tokens.nodes)
        if index >= 0:
            raise AutomatonError(f"choice {index}, {choices[index]!r}, cannot be written with the tokens of this vocabulary")
    return dfa


def from_sequences(
    sequences: Sequence[Sequence[int] | NDArray[np.integer]], vocabulary_size: int, limits: AutomatonLimits
) -> AutomatonArrays:
    table = SequenceTable.of(sequences, vocabulary_size)
    if not len(table):
        raise AutomatonError("there are no sequences: expected at least one")
    order_N = np.lexsort(table[:].T[::-1])
    lengths_N = np.diff(table.sequence_indptr)[order_N]
    indptr = np.concatenate([[0], np.cumsum(lengths_N)])
    positions_T = np.repeat(table.sequence_indptr[:-1][order_N] - indptr[:-1], lengths_N) + np.arange(len(table.tokens_T))
    parent_E, token_E, accepting_X = prefix_tree(table.tokens_T[positions_T].astype(np.int32), indptr)
    edges = Edges(parent_E, token_E, np.arange(1, len(accepting_X), dtype=np.int32))
    block_X, edges = minimize(edges, accepting_X, 0)
    num_states = int(block_X.max()) + 1
    accepting_S = np.zeros(num_states, np.bool_)
    accepting_S[block_X[accepting_X]] = True
    limits.check_states(num_states)
    no_masks = np.empty((0, vocabulary_size // 64 + 1), np.uint64)
    row_indptr = np.searchsorted(edges.from_E, np.arange(num_states + 1))
    arrays = AutomatonArrays(
        vocabulary_size=vocabulary_size,
        table=TransitionTable(row_indptr, edges.label_E, edges.to_E, np.full(num_states, -1, np.int32), no_masks),
        accepting=Bitmap.from_mask(accepting_S),
        dfa=ByteDFA.from_strings([]),
        bytes_T=np.empty(0, np.uint8),
        token_indptr=np.zeros(1, np.int32),
    )
    return limits.checked(arrays)


@njit(cache=True)
def _unwritable(bytes_T, text_indptr, nodes):
    """Return the first text that no sequence of tokens spells, -1 where there is none."""
    for row in range(len(text_indptr) - 1):
        begin, end = text_indptr[row], text_indptr[row + 1]
        reached = np.zeros(end - begin + 1, np.bool_)
        reached[0] = True
        for start in range(begin, end):
            if not reached[start - begin]:
                continue
            node, position = 0, start
            while position < end:
                child, child_end = node + 1, nodes.end_P[node]
                while child < child_end and nodes.byte_P[child] != bytes_T[position]:
                    child = nodes.end_P[child]
                if child == child_end:
                    break
                node = child
                position += 1
                if nodes.own_end_P[node] > nodes.lo_P[node]:
                    reached[position - begin] = True
        if not reached[end - begin]:
            return row
    return -1
