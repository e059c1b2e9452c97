"""An automaton as one file, and the checks that make its arrays safe to walk.

The metadata's `leafbeam-automaton` entry is a JSON header: format version, vocabulary size, number of states, `compressed`,
`lazy` (format version 2: there are no rows and masks), `notes` of a JSON Schema where there are any, and the digest. Tensors:
see `AutomatonArrays.tensors`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.arrays import UNFILLED, AutomatonArrays, TransitionTable
from leafbeam.automata.byte_dfa import ByteDFA, DfaEdges
from leafbeam.automata.json_notes import SchemaNote
from leafbeam.errors import IndexFileError, counted
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.tensor_file import FileKind, Tensors, expect, read, write

KIND = FileKind(key="leafbeam-automaton", noun="automaton", writer="Automaton.save", newest=2, has_digest=True)


class SavedAutomaton(NamedTuple):
    """The content of a file: `compressed` if forced chains are computed again, `lazy` if there are no rows and masks."""

    arrays: AutomatonArrays
    compressed: bool
    lazy: bool
    notes: tuple[SchemaNote, ...]


def save(path: Path, saved: SavedAutomaton) -> None:
    """Write an automaton; forced chains are computed again at loading if there were any."""
    header = {
        "format_version": 2 if saved.lazy else 1,
        **({"lazy": True} if saved.lazy else {}),
        "vocabulary_size": saved.arrays.vocabulary_size,
        "num_states": len(saved.arrays.table.mask_S),
        "compressed": saved.compressed,
        **({"notes": [note.as_json() for note in saved.notes]} if saved.notes else {}),
    }
    write(path, KIND, header, saved.arrays.tensors())


def load(path: Path) -> SavedAutomaton:
    """Read an automaton. Every array is read once: no state, token or mask can point outside."""
    header, tensors = read(path, KIND)
    try:
        lazy = bool(header.get("lazy", False))
        arrays = _arrays_of(tensors, int(header["vocabulary_size"]), int(header["num_states"]), lazy)
        notes = tuple(SchemaNote.from_json(note) for note in header.get("notes", ()))
        return SavedAutomaton(arrays, bool(header["compressed"]), lazy, notes)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise IndexFileError(f"{path} is damaged ({type(error).__name__}: {error}): build and save it again") from error


def _arrays_of(tensors: Tensors, vocabulary_size: int, num_states: int, lazy: bool) -> AutomatonArrays:
    if not 1 <= vocabulary_size < 2**31 or not 1 <= num_states < 2**31:
        raise ValueError(f"{counted(num_states, 'state')} over {counted(vocabulary_size, 'token')}")
    mask_MW = tensors["masks"]
    if mask_MW.dtype != np.uint64 or mask_MW.ndim != 2 or mask_MW.shape[1] != vocabulary_size // 64 + 1:
        raise ValueError(f"masks are {mask_MW.dtype} {mask_MW.shape}")
    num_entries, num_edges, num_dfa_states = len(tensors["code"]), len(tensors["dfa.label"]), len(tensors["dfa.accepting"])
    edges = DfaEdges(
        class_256=expect(tensors, "dfa.class", np.uint8, 256),
        edge_indptr=_indptr(tensors, "dfa.first", np.int32, num_dfa_states, num_edges),
        label_E=expect(tensors, "dfa.label", np.uint8, num_edges),
        next_E=_bounded(tensors, "dfa.next", np.int32, num_edges, 0, num_dfa_states),
    )
    accepting_X = _bounded(tensors, "dfa.accepting", np.uint8, num_dfa_states, 0, 2).view(np.bool_)
    row_indptr = _indptr(tensors, "row_ptr", np.int64, num_states, num_entries)
    code_E = _bounded(tensors, "code", np.int32, num_entries, 0, vocabulary_size)
    is_first_E = np.zeros(num_entries + 1, np.bool_)
    is_first_E[row_indptr] = True
    if not ((np.diff(code_E) > 0) | is_first_E[1:-1]).all():
        raise ValueError("the tokens of a row do not ascend")
    words_W = expect(tensors, "accepting", np.uint64, num_states // 64 + 1)
    if int(words_W[-1]) >> (num_states & 63) or (mask_MW[:, -1] >> np.uint64(vocabulary_size & 63)).any():
        raise ValueError("bits are set beyond the last state or token")
    bytes_T = expect(tensors, "token.bytes", np.uint8, len(tensors["token.bytes"]))
    if len(mask_MW) and not num_dfa_states:
        raise ValueError("there are masks and no byte automaton to walk")
    if lazy and (num_dfa_states != num_states or num_entries or len(mask_MW)):
        raise ValueError("it has rows or masks, or other states than its byte automaton")
    if 0 < num_dfa_states < num_states:
        raise ValueError(f"the byte automaton has {counted(num_dfa_states, 'state')}, the automaton {num_states}")
    return AutomatonArrays(
        vocabulary_size=vocabulary_size,
        table=TransitionTable(
            row_indptr=row_indptr,
            code_E=code_E,
            next_E=_bounded(tensors, "next", np.int32, num_entries, 0, num_states),
            mask_S=_bounded(tensors, "mask_of", np.int32, num_states, UNFILLED if lazy else -1, len(mask_MW)),
            mask_MW=mask_MW,
        ),
        accepting=Bitmap.from_words(np.ascontiguousarray(words_W), num_states),
        dfa=ByteDFA(edges=edges, accepting_X=accepting_X),
        bytes_T=bytes_T,
        token_indptr=_indptr(tensors, "token.start", np.int32, vocabulary_size if lazy or len(mask_MW) else 0, len(bytes_T)),
    )


def _bounded(tensors: Tensors, name: str, dtype: type[np.generic], length: int, low: int, end: int) -> NDArray[Any]:
    """Return an array whose numbers are at least `low` and below `end`."""
    array = expect(tensors, name, dtype, length)
    if array.size and not low <= int(array.min()) <= int(array.max()) < end:
        raise ValueError(f"{name} has numbers outside {low} to {end - 1}")
    return array


def _indptr(tensors: Tensors, name: str, dtype: type[np.generic], length: int, end: int) -> NDArray[Any]:
    """Return an array of length + 1 offsets that ascends from 0 to `end`."""
    array = expect(tensors, name, dtype, length + 1)
    if array[0] != 0 or array[-1] != end or (array[1:] < array[:-1]).any():  # no differences, which may overflow
        raise ValueError(f"{name} does not ascend from 0 to {end}")
    return array
