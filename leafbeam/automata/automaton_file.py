"""An automaton as one file, and the checks that make its arrays safe to walk.

The metadata's `leafbeam-automaton` entry is a JSON header: format version, vocabulary size, number of states, `compressed`,
`lazy` (format version 2: there are no rows and masks; version 3: nor a byte automaton, but a network; version 4: which may
count characters; version 5: which may have copies of networks), `notes` of a JSON Schema where there are any, and the digest.
Tensors: see `SavedAutomaton.tensors`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.arrays import UNFILLED, AutomatonArrays, TransitionTable
from leafbeam.automata.byte_dfa import ByteDFA, DfaEdges
from leafbeam.automata.determinize import END, NetworkArrays
from leafbeam.automata.json_notes import SchemaNote
from leafbeam.errors import IndexFileError, counted
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.tensor_file import FileKind, Tensors, expect, read, write

KIND = FileKind(key="leafbeam-automaton", noun="automaton", writer="Automaton.save", newest=5, has_digest=True)


class SavedAutomaton(NamedTuple):
    """The content of a file.

    Args:
        compressed: Whether forced chains are computed again.
        lazy: Whether there are no rows and masks.
        network: What the automaton's states are found in when they are reached; None if they are in `arrays`.
    """

    arrays: AutomatonArrays
    compressed: bool
    lazy: bool
    notes: tuple[SchemaNote, ...]
    num_states: int
    network: NetworkArrays | None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by their names in the file."""
        network = {} if self.network is None else self.network._asdict()
        return {**self.arrays.tensors(), **{f"network.{name}": _viewed(array) for name, array in network.items()}}


def _viewed(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def save(path: Path, saved: SavedAutomaton) -> None:
    """Write an automaton; forced chains are computed again at loading if there were any."""
    header = {
        "format_version": 5 if saved.network is not None else 2 if saved.lazy else 1,
        **({"lazy": True} if saved.lazy else {}),
        "vocabulary_size": saved.arrays.vocabulary_size,
        "num_states": saved.num_states,
        "compressed": saved.compressed,
        **({"notes": [note.as_json() for note in saved.notes]} if saved.notes else {}),
    }
    write(path, KIND, header, saved.tensors())


def load(path: Path) -> SavedAutomaton:
    """Read an automaton. Every array is read once: no state, token or mask can point outside."""
    header, tensors = read(path, KIND)
    try:
        lazy = bool(header.get("lazy", False))
        num_states = int(header["num_states"])
        network = _network_of(_with_units(_with_counts(tensors))) if "network.class_256" in tensors else None
        arrays = _arrays_of(tensors, int(header["vocabulary_size"]), 0 if network is not None else num_states, lazy)
        notes = tuple(SchemaNote.from_json(note) for note in header.get("notes", ()))
        return SavedAutomaton(arrays, bool(header["compressed"]), lazy, notes, num_states, network)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise IndexFileError(f"{path} is damaged ({type(error).__name__}: {error}): build and save it again") from error


def _arrays_of(tensors: Tensors, vocabulary_size: int, num_states: int, lazy: bool) -> AutomatonArrays:
    if not 1 <= vocabulary_size < 2**31 or not 0 <= num_states < 2**31:
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


def _with_counts(tensors: Tensors) -> Tensors:
    """Return tensors of which those of a network of format version 3, in which nothing counts characters, are of version 4."""
    if "network.copy_C6" not in tensors:
        return tensors
    none_X = np.zeros(len(tensors["network.accepting_X"]), np.int32)
    return {
        **tensors,
        "network.copy_C7": np.pad(tensors["network.copy_C6"], ((0, 0), (0, 1))),
        "network.begins_E": np.zeros(len(tensors["network.label_E"]), np.uint8),
        "network.shortest_X": none_X,
        "network.longest_X": none_X,
    }


def _with_units(tensors: Tensors) -> Tensors:
    """Return tensors of which those of a network of format version 4, in which only unit 0 has copies, are of version 5."""
    if "network.part_indptr" not in tensors:
        return tensors
    unit_indptr, skip_indptr = tensors["network.part_indptr"], tensors["network.skip_indptr"]
    copy_C7, accepting_X = tensors["network.copy_C7"][1:], tensors["network.accepting_X"].copy()
    accepting_X[END] = 1
    size_U = np.diff(unit_indptr)
    ends = copy_C7[:, 0] + copy_C7[:, 2] * size_U[copy_C7[:, 1]]
    size_U[0] = max(size_U[0], ends.max(initial=0))
    num_copies = np.full(len(size_U) + 1, len(copy_C7))
    num_copies[0] = 0
    return {
        **tensors,
        "network.copy_C7": copy_C7,
        "network.copy_indptr": num_copies,
        "network.size_U": size_U,
        "network.unit_indptr": unit_indptr,
        "network.accepting_X": accepting_X,
        "network.skip_indptr": np.pad(skip_indptr, (0, len(accepting_X) + 1 - len(skip_indptr)), "edge"),
    }


def _network_of(tensors: Tensors) -> NetworkArrays:
    """Return a network all of whose states, edges and skips lead to states that it has."""
    num_copies, num_edges = len(tensors["network.copy_C7"]), len(tensors["network.label_E"])
    num_states, num_units = len(tensors["network.accepting_X"]), len(tensors["network.size_U"])
    class_256 = expect(tensors, "network.class_256", np.uint8, 256)
    unit_indptr = _indptr(tensors, "network.unit_indptr", np.int64, num_units, num_states)
    own_U, size_U = np.diff(unit_indptr), _bounded(tensors, "network.size_U", np.int64, num_units, 1, 2**61)
    if own_U[0] < 2 or own_U.min() < 1 or (size_U < own_U).any():
        raise ValueError("a unit has fewer states than its own")
    copy_indptr = _indptr(tensors, "network.copy_indptr", np.int64, num_units, num_copies)
    copy_C7 = _copies_of(tensors, np.repeat(np.arange(num_units), np.diff(copy_indptr)), own_U, size_U)
    edge_indptr = _indptr(tensors, "network.edge_indptr", np.int64, num_states, num_edges)
    next_E = _bounded(tensors, "network.next_E", np.int32, num_edges, 0, int(own_U.max()))
    if (next_E >= np.repeat(np.repeat(own_U, own_U), np.diff(edge_indptr))).any():
        raise ValueError("an edge leads out of its unit")
    skip_F = _bounded(tensors, "network.skip_F", np.int64, len(tensors["network.skip_F"]), 0, int(size_U.max()))
    skip_indptr = _indptr(tensors, "network.skip_indptr", np.int64, num_states, len(skip_F))
    if (skip_F >= np.repeat(np.repeat(size_U, own_U), np.diff(skip_indptr))).any():
        raise ValueError("a skip leads out of its unit")
    return NetworkArrays(
        class_256,
        copy_C7,
        copy_indptr,
        size_U,
        unit_indptr,
        edge_indptr,
        _bounded(tensors, "network.label_E", np.uint8, num_edges, 0, int(class_256.max()) + 1),
        next_E,
        _bounded(tensors, "network.begins_E", np.uint8, num_edges, 0, 2).view(np.bool_),
        _bounded(tensors, "network.accepting_X", np.uint8, num_states, 0, 2).view(np.bool_),
        _bounded(tensors, "network.shortest_X", np.int32, num_states, 0, 2**31),
        _bounded(tensors, "network.longest_X", np.int32, num_states, 0, 2**31),
        skip_indptr,
        skip_F,
    )


def _copies_of(
    tensors: Tensors, unit_C: NDArray[np.int64], own_U: NDArray[np.int64], size_U: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the copies, which are behind the own states of the units that have them, one after another, within their size.

    So a unit is larger than what it has copies of, and no unit is within itself.
    """
    copy_C7 = tensors["network.copy_C7"]
    if copy_C7.dtype != np.int64 or copy_C7.shape != (len(unit_C), 7):
        raise ValueError(f"the copies are {copy_C7.dtype} {copy_C7.shape}")
    if not copy_C7.size:
        return np.ascontiguousarray(copy_C7)
    if not 0 <= copy_C7.min() <= copy_C7.max() < 2**61:
        raise ValueError("a copy has a number that there is not")
    first, inner, count, _, _, to, _ = copy_C7.T
    if inner.max() >= len(size_U) or (to >= own_U[unit_C]).any() or count.min() < 1 or count.max() >= 2**31:
        raise ValueError("a copy has a unit, a node or a number that there is not")
    ends = first + count * size_U[inner]
    is_first = np.append(True, unit_C[1:] != unit_C[:-1])
    starts = np.where(is_first, own_U[unit_C], np.append(0, ends[:-1]))
    too_large = count.astype(np.float64) * size_U[inner] >= 2.0**61
    if too_large.any() or (first < starts).any() or (ends > size_U[unit_C]).any() or (size_U[inner] >= size_U[unit_C]).any():
        raise ValueError("the copies do not follow one another within their units")
    return np.ascontiguousarray(copy_C7)


def _bounded(tensors: Tensors, name: str, dtype: type[np.generic], length: int, low: int, end: int) -> NDArray[Any]:
    """Return an array whose numbers are at least `low` and below `end`."""
    array = expect(tensors, name, dtype, length)
    if array.size and not low <= int(array.min()) <= int(array.max()) < end:
        raise ValueError(f"{name} has numbers outside {low} to {end - 1}")
    return array


def _indptr(tensors: Tensors, name: str, dtype: type[np.generic], length: int, end: int) -> NDArray[Any]:
    """Return an array of length + 1 offsets that ascends from 0 to `end`."""
    array: NDArray[Any] = expect(tensors, name, dtype, length + 1)
    if array[0] != 0 or array[-1] != end or (array[1:] < array[:-1]).any():  # no differences, which may overflow
        raise ValueError(f"{name} does not ascend from 0 to {end}")
    return array
