"""Automata of a text that is followed by a token sequence.

Shapes: S states of the texts, N states of the sequences without their start, X states of the byte automaton, E entries of rows,
R states in which a text may end, C legal tokens of all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.arrays import AutomatonArrays, TransitionTable
from leafbeam.automata.byte_dfa import ByteDFA, DfaEdges
from leafbeam.errors import AutomatonError
from leafbeam.index.bitmap import Bitmap

Array = NDArray[np.integer]


def append_sequences(
    texts: AutomatonArrays, sequences: AutomatonArrays, ends_R: Array, rows_3C: tuple[Array, Array, Array]
) -> AutomatonArrays:
    """Return the automaton of a text of the first automaton followed by a sequence of the second.

    Args:
        ends_R: The states in which a text may end.
        rows_3C: The legal tokens there: (state, token, next state). A token may not both go on with a text and begin a sequence
            (AutomatonError).
    """
    num_texts, num_new = len(texts.table.mask_S), len(sequences.table.mask_S) - 1
    begins = int(sequences.table.row_indptr[1])
    first_B, next_B = sequences.table.code_E[:begins], sequences.table.next_E[:begins] + (num_texts - 1)
    both = np.intersect1d(rows_3C[1], first_B)
    if both.size:
        raise AutomatonError(
            f"token {both[0]:,} may go on with the text in front of an item, or begin the item: put a text between them, or "
            "give items tokens of their own"
        )
    row_E = np.repeat(np.arange(num_texts), np.diff(texts.table.row_indptr))
    kept_E = ~np.isin(row_E, ends_R)
    later_E = np.repeat(np.arange(num_new), np.diff(sequences.table.row_indptr[1:]))
    state_E = np.concatenate([row_E[kept_E], rows_3C[0], np.repeat(ends_R, begins), num_texts + later_E])
    code_E = np.concatenate(
        [texts.table.code_E[kept_E], rows_3C[1], np.tile(first_B, len(ends_R)), sequences.table.code_E[begins:]]
    )
    next_E = np.concatenate(
        [
            texts.table.next_E[kept_E],
            rows_3C[2],
            np.tile(next_B, len(ends_R)),
            sequences.table.next_E[begins:] + (num_texts - 1),
        ]
    )
    order_E = np.lexsort((code_E, state_E))
    mask_S = np.concatenate([texts.table.mask_S, np.full(num_new, -1, np.int32)])
    mask_S[ends_R] = -1
    table = TransitionTable(
        row_indptr=np.searchsorted(state_E[order_E], np.arange(num_texts + num_new + 1)),
        code_E=code_E[order_E].astype(np.int32),
        next_E=next_E[order_E].astype(np.int32),
        mask_S=mask_S,
        mask_MW=texts.table.mask_MW,
    )
    is_end_N = sequences.accepting.has(np.arange(1, num_new + 1))
    return AutomatonArrays(
        vocabulary_size=texts.vocabulary_size,
        table=table,
        accepting=Bitmap.from_mask(np.concatenate([np.zeros(num_texts, np.bool_), is_end_N])),
        dfa=_with_states(texts.dfa, num_texts, num_new),
        bytes_T=texts.bytes_T,
        token_indptr=texts.token_indptr,
    )


def _with_states(dfa: ByteDFA, at: int, count: int) -> ByteDFA:
    """Insert states that no byte reaches or leaves, so that the states of a byte automaton from `at` on move up."""
    class_256, edge_indptr, label_E, next_E = dfa.edges
    indptr = np.insert(edge_indptr, [at + 1] * count, edge_indptr[at])
    moved_E = np.where(next_E < at, next_E, next_E + count).astype(np.int32)
    return ByteDFA(
        edges=DfaEdges(class_256, indptr, label_E, moved_E), accepting_X=np.insert(dfa.accepting_X, [at] * count, False)
    )
