"""An automaton as one file, and the checks that make its arrays safe to walk.

The header (metadata entry `leafbeam-automaton`) holds format version, vocabulary size, number of states, `compressed`, and the
digest. Tensors: `row_ptr`, `code`, `next`, `accepting`, `mask_of`, `masks`, `dfa.class`, `.first`, `.label`, `.next`,
`.accepting`, `token.bytes`, `token.start` (see `Rows`). Shapes: S states, E entries, M masks, V tokens, X states and F edges
of the byte automaton.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.sources import Rows
from leafbeam.errors import IndexFileError
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.tensor_file import Tensors, read, write

__all__ = ["FORMAT_VERSION", "load", "save"]

FORMAT_VERSION = 1
_KIND = "leafbeam-automaton"


def save(path: Path, rows: Rows, *, compressed: bool) -> None:
    """Write the arrays; chains are found again at loading, where there were any."""
    header = {
        "format_version": FORMAT_VERSION,
        "vocabulary_size": rows.vocabulary_size,
        "num_states": len(rows.mask_S),
        "compressed": compressed,
    }
    write(path, _KIND, header, rows.tensors())


def load(path: Path) -> tuple[Rows, bool]:
    """(the arrays, whether chains are wanted). Every array is read once: no state, token or mask can point outside."""
    header, tensors = read(path, _KIND, FORMAT_VERSION)
    try:
        rows = _assemble(tensors, int(header["vocabulary_size"]), int(header["num_states"]))
        return rows, bool(header["compressed"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise IndexFileError(f"{path} is damaged ({type(error).__name__}: {error}): build and save it again") from error


def _assemble(tensors: Tensors, vocabulary_size: int, num_states: int) -> Rows:
    if not 1 <= vocabulary_size < 2**31 or not 1 <= num_states < 2**31:
        raise ValueError(f"{num_states} states over {vocabulary_size} tokens")
    mask_MW = tensors["masks"]
    if mask_MW.dtype != np.uint64 or mask_MW.ndim != 2 or mask_MW.shape[1] != vocabulary_size // 64 + 1:
        raise ValueError(f"masks are {mask_MW.dtype} {mask_MW.shape}")
    dfa = _dfa_of(tensors)
    row_ptr_S1 = _pointers(tensors, "row_ptr", np.int64, num_states, len(tensors["code"]))
    code_E = _numbers(tensors, "code", np.int32, len(tensors["code"]), 0, vocabulary_size)
    starts_E = np.zeros(len(code_E) + 1, np.bool_)
    starts_E[row_ptr_S1] = True
    if not ((np.diff(code_E) > 0) | starts_E[1:-1]).all():
        raise ValueError("the tokens of a row do not ascend")
    mask_S = _numbers(tensors, "mask_of", np.int32, num_states, -1, len(mask_MW))
    words_W = _numbers(tensors, "accepting", np.uint64, num_states // 64 + 1)
    if int(words_W[-1]) >> (num_states & 63) or (mask_MW[:, -1] >> np.uint64(vocabulary_size & 63)).any():
        raise ValueError("bits are set beyond the last state or token")
    bytes_T = _numbers(tensors, "token.bytes", np.uint8, len(tensors["token.bytes"]))
    num_spelled = vocabulary_size if len(mask_MW) else 0
    start_V1 = _pointers(tensors, "token.start", np.int32, num_spelled, len(bytes_T))
    if len(mask_MW) and not dfa.num_states:
        raise ValueError("there are masks and no byte automaton to walk")
    if dfa.num_states and (dfa.num_states < num_states):
        raise ValueError(f"the byte automaton has {dfa.num_states} states, the automaton {num_states}")
    return Rows(
        vocabulary_size=vocabulary_size,
        row_ptr_S1=row_ptr_S1,
        code_E=code_E,
        next_E=_numbers(tensors, "next", np.int32, len(code_E), 0, num_states),
        accepting=Bitmap.from_words(np.ascontiguousarray(words_W), num_states),
        mask_S=mask_S,
        mask_MW=mask_MW,
        dfa=dfa,
        bytes_T=bytes_T,
        start_V1=start_V1,
    )


def _dfa_of(tensors: Tensors) -> ByteDFA:
    num_states, num_edges = len(tensors["dfa.accepting"]), len(tensors["dfa.label"])
    return ByteDFA(
        class_256=_numbers(tensors, "dfa.class", np.uint8, 256),
        first_X1=_pointers(tensors, "dfa.first", np.int32, num_states, num_edges),
        label_E=_numbers(tensors, "dfa.label", np.uint8, num_edges),
        next_E=_numbers(tensors, "dfa.next", np.int32, num_edges, 0, num_states),
        accepting_X=_numbers(tensors, "dfa.accepting", np.uint8, num_states, 0, 2).view(np.bool_),
    )


def _numbers(
    tensors: Tensors, name: str, dtype: type[np.generic], length: int, low: int | None = None, past: int | None = None
) -> NDArray[Any]:
    """An array of this dtype and length, with all numbers at least `low` and below `past`."""
    array = tensors[name]
    if array.dtype != dtype or array.shape != (length,):
        raise ValueError(f"{name} is {array.dtype} {array.shape}: expected {np.dtype(dtype)} ({length},)")
    if low is not None and past is not None and array.size and not low <= int(array.min()) <= int(array.max()) < past:
        raise ValueError(f"{name} has numbers outside {low} to {past - 1}")
    return array


def _pointers(tensors: Tensors, name: str, dtype: type[np.generic], length: int, end: int) -> NDArray[Any]:
    """An array of length + 1 places that ascends from 0 to `end`."""
    array = _numbers(tensors, name, dtype, length + 1)
    if array[0] != 0 or array[-1] != end or (np.diff(array) < 0).any():
        raise ValueError(f"{name} does not ascend from 0 to {end}")
    return array
