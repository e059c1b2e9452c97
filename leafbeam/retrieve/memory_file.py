"""The file of an item memory: tensors and a header. It is checked like a file from a stranger."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leafbeam.errors import IndexFileError, ItemIdError
from leafbeam.index import tensor_file
from leafbeam.index.items import check_utf8
from leafbeam.retrieve.config import MemoryConfig
from leafbeam.retrieve.fusion import Fusion, Fusions
from leafbeam.retrieve.state import MemoryState
from leafbeam.retrieve.text import TextEncoder, TextVectors
from leafbeam.retrieve.transitions import MAX_STEP, Transitions, item_dtype

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
                raise ValueError("its texts are in a form of before the first release")
            found = cls(
                state=_state_of(tensors, float(header["step"]), verify=verify),
                encoder=_encoder_of(tensors),
                config=MemoryConfig(**header["config"]),
                fusion=_fusions_of(header) if "fusion" in header else None,
                follows=str(header["follows"]),
            )
            found.state.texts.check(0 if found.encoder is None else len(found.encoder.hashes_T))
            return found, str(header["digest"])
        except (ItemIdError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise IndexFileError(f"{path} does not hold a complete item memory ({error}): fit and save it again") from error


def _fusions_of(header: Mapping[str, Any]) -> Fusions:
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
