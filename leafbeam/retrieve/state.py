"""MemoryState: the items, transitions and texts of an item memory at one moment, and their file, which is checked like a file
from a stranger.

Shapes: N items, n items of one call, C transitions.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import IndexFileError, ItemIdError
from leafbeam.index import tensor_file
from leafbeam.index.items import ItemTable, check_utf8
from leafbeam.json_reader import Json
from leafbeam.retrieve.fusion import Fusion, Fusions
from leafbeam.retrieve.text import TextEncoder, TextVectors
from leafbeam.retrieve.transitions import MAX_STEP, MemoryConfig, Transitions, item_dtype


class ChangedRow(NamedTuple):
    """The transitions of an item whose counts have changed: the counts, and the parts of scores that follow from them."""

    items: NDArray[np.unsignedinteger]
    counts: NDArray[np.float64]
    weights: NDArray[np.float32]

    @classmethod
    def of(cls, items: NDArray[np.unsignedinteger], counts: NDArray[np.float64], shrinkage: float) -> "ChangedRow":
        """Return the row of these counts; `items` must not be empty."""
        logs = np.log1p(counts)
        return cls(items, counts, (logs / (shrinkage + logs.max())).astype(np.float32))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryState:
    """The arrays that a search reads. Each change makes a new state, so a search sees one state from beginning to end.

    `taken_N` marks the items that have an interaction.
    """

    items: ItemTable
    transitions: Transitions
    texts: TextVectors
    taken_N: NDArray[np.bool_]

    @classmethod
    def of(cls, ids_N: NDArray[np.generic], transitions: Transitions, texts: TextVectors) -> "MemoryState":
        """Return the state of items in the order of their ids."""
        return cls(items=_table(ids_N), transitions=transitions, texts=texts, taken_N=_taken(transitions))

    def with_transitions(self, transitions: Transitions) -> "MemoryState":
        """Return the state of the same items and texts with other transitions."""
        return replace(self, transitions=transitions, taken_N=_taken(transitions))

    def with_texts(self, ids_n: NDArray[np.generic], vectors: TextVectors) -> "MemoryState":
        """Return the state with texts of new items, or in place of those of known ones. This copies the texts of all items."""
        rows_n = self.items.rows_of(ids_n)
        is_new_n = rows_n < 0
        num_new = int(is_new_n.sum())
        order = np.arange(self.items.num_items)
        order[rows_n[~is_new_n]] = self.items.num_items + np.flatnonzero(~is_new_n)
        order = np.concatenate([order, self.items.num_items + np.flatnonzero(is_new_n)])
        items = _table(np.concatenate([self.items.ids_N, ids_n[is_new_n]])) if num_new else self.items
        indptr_N1 = self.transitions.indptr_N1
        transitions = self.transitions._replace(
            indptr_N1=np.concatenate([indptr_N1, np.full(num_new, indptr_N1[-1])]),
            items_C=self.transitions.items_C.astype(item_dtype(len(order))),
        )
        texts = self.texts.followed_by(vectors).take(order)
        taken_N = np.concatenate([self.taken_N, np.zeros(num_new, np.bool_)])
        return MemoryState(items=items, transitions=transitions, texts=texts, taken_N=taken_N)

    def with_rows(self, changed: Mapping[int, ChangedRow], max_entries: int) -> "MemoryState":
        """Return the state with other counts in some rows. The largest `max_entries` counts of a row are kept."""
        transitions = self.transitions
        lengths_N = np.diff(transitions.indptr_N1.astype(np.int64))
        rows_C = np.repeat(np.arange(len(lengths_N)), lengths_N)
        kept_C = ~np.isin(rows_C, list(changed))
        counts_C = np.expm1(transitions.levels_C[kept_C] * np.float64(transitions.step))
        rows = [rows_C[kept_C], *(np.full(len(row.items), at) for at, row in changed.items())]
        items = [transitions.items_C[kept_C], *(row.items for row in changed.values())]
        counts = [counts_C, *(row.counts for row in changed.values())]
        merged = (np.concatenate(rows), np.concatenate(items).astype(np.int64), np.concatenate(counts))
        return replace(self, transitions=Transitions.of_counts(*merged, len(lengths_N), max_entries))

    def row(self, item: int, shrinkage: float) -> tuple[NDArray[np.unsignedinteger], NDArray[np.float32]]:
        """Return the transitions of an item, divided by the largest and `shrinkage`."""
        begin, end = self.transitions.indptr_N1[item : item + 2].tolist()
        levels = self.transitions.levels_C[begin:end]
        largest = (levels[0] if len(levels) else 1) + shrinkage / self.transitions.step
        return self.transitions.items_C[begin:end], levels.astype(np.float32) / np.float32(largest)


def _taken(transitions: Transitions) -> NDArray[np.bool_]:
    """Return a mask of the items that follow or precede another."""
    taken_N = np.diff(transitions.indptr_N1) > 0
    taken_N[transitions.items_C] = True
    return taken_N


def _table(ids: NDArray[np.generic]) -> ItemTable:
    return ItemTable(ids=ids, order_N=np.arange(len(ids), dtype=np.uint32), leaf_indptr=None)


KIND = tensor_file.FileKind(key="leafbeam-memory", noun="item memory", writer="ItemMemory.save", newest=2, has_digest=True)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryFile:
    """The content of one file, apart from its version; `follows` is the version that it replaces, or ""."""

    state: MemoryState
    encoder: TextEncoder | None
    config: MemoryConfig
    fusion: Fusions | None
    follows: str

    def write(self, path: str | os.PathLike[str]) -> str:
        """Write the file atomically, and return its version, the digest of its content."""
        ids, transitions, texts = self.state.items.ids_N, self.state.transitions, self.state.texts
        tensors: tensor_file.Tensors = {
            "ids": ids if ids.dtype.kind == "i" else ids.view(np.uint8).reshape(len(ids), ids.dtype.itemsize),
            "indptr": transitions.indptr_N1,
            "items": transitions.items_C,
            "levels": transitions.levels_C,
            "text_indptr": texts.indptr_N1,
            "text_terms": texts.terms_C,
            "text_weights": texts.weights_C,
        }
        if self.encoder is not None:
            tensors |= {"term_hashes": self.encoder.hashes_T, "term_idf": self.encoder.idf_T}
        header = {"format_version": 2, "step": transitions.step, "config": asdict(self.config), "follows": self.follows}
        if self.fusion is not None:
            header |= {"fusion": asdict(self.fusion.kept), "fusion_removed": asdict(self.fusion.removed)}
        tensor_file.write(Path(path), KIND, header, tensors)
        return tensor_file.digest(tensors)

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, verify: bool) -> "tuple[MemoryFile, str]":
        """Read a file and its version; for `verify` see `ItemMemory.load`.

        Raises:
            IndexFileError: If the file is missing, damaged or not an item memory.
        """
        header, tensors = tensor_file.read(Path(path), KIND, mapped=not verify)
        try:
            if header["format_version"] < 2:
                raise ValueError("its texts have a format from before the first release")
            content = cls(
                state=_state_of(tensors, float(header["step"]), verify=verify),
                encoder=_encoder_of(tensors),
                config=MemoryConfig(**header["config"]),
                fusion=_fusions_of(header) if "fusion" in header else None,
                follows=str(header["follows"]),
            )
            content.state.texts.check(0 if content.encoder is None else len(content.encoder.hashes_T))
            return content, str(header["digest"])
        except (ItemIdError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise IndexFileError(f"{path} does not hold a complete item memory ({error}): fit and save it again") from error


def _fusions_of(header: Json) -> Fusions:
    """Return the weights in a file; older files have only one set."""
    kept = header["fusion"]
    return Fusions(kept=Fusion(**kept), removed=Fusion(**header.get("fusion_removed", kept)))


def _state_of(tensors: tensor_file.Tensors, step: float, *, verify: bool) -> MemoryState:
    ids = tensors["ids"]
    if ids.ndim == 2:
        ids = ids.view(f"S{ids.shape[1]}").reshape(-1)
    elif ids.dtype != np.int64 or ids.ndim != 1:
        raise ValueError(f"ids are {ids.dtype} {ids.shape}")
    indptr = tensor_file.expect(tensors, "indptr", np.uint32, len(ids) + 1)
    entries = int(indptr[-1])
    transitions = Transitions(
        indptr_N1=indptr,
        items_C=tensor_file.expect(tensors, "items", item_dtype(len(ids)), entries),
        levels_C=tensor_file.expect(tensors, "levels", np.uint8, entries),
        step=step,
    )
    if indptr[0] or (indptr[1:] < indptr[:-1]).any() or (entries and int(transitions.items_C.max()) >= len(ids)):
        raise ValueError("transitions to items that it does not have")
    if not 0 < step <= MAX_STEP or (entries and not transitions.levels_C.min()):
        raise ValueError(f"counts of 0 or above {np.expm1(255 * MAX_STEP):.0e}")
    terms = tensor_file.expect(tensors, "text_terms", np.uint16, tensors["text_terms"].size)
    texts = TextVectors(
        indptr_N1=tensor_file.expect(tensors, "text_indptr", np.uint32, len(ids) + 1),
        terms_C=terms,
        weights_C=tensor_file.expect(tensors, "text_weights", np.uint8, len(terms)),
    )
    state = MemoryState.of(ids, transitions, texts)
    if verify:
        check_utf8(ids)
        state.items.check_unique()
    return state


def _encoder_of(tensors: tensor_file.Tensors) -> TextEncoder | None:
    hashes_T = tensors.get("term_hashes")
    if hashes_T is None:
        return None
    hashes_T = tensor_file.expect(tensors, "term_hashes", np.uint32, len(hashes_T))
    return TextEncoder(hashes_T=hashes_T, idf_T=tensor_file.expect(tensors, "term_idf", np.uint8, len(hashes_T)))
