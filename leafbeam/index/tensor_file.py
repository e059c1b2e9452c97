"""One safetensors file of arrays and a JSON header: written in one step, mapped, and refused where it is not what it says.

The header is the metadata entry named by `kind`. It carries `format_version`, and `digest`, a hash of all arrays.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from leafbeam.errors import IndexFileError
from leafbeam.index import bit_kernels as bits

__all__ = ["digest", "read", "write"]

_DTYPES = {"U8": np.uint8, "I32": np.int32, "U32": np.uint32, "I64": np.int64, "U64": np.uint64}

Tensors = dict[str, NDArray[Any]]


def digest(tensors: Tensors) -> str:
    """Sixteen hex digits that change with the name, dtype, shape or content of any array. Cost: one read of them all."""
    state = 0
    for name in sorted(tensors):
        array = tensors[name]
        for raw in (f"{name} {array.dtype} {array.shape}".encode(), np.ascontiguousarray(array).reshape(-1).view(np.uint8)):
            flat = np.frombuffer(raw, np.uint8)
            padded = np.zeros(-len(flat) % 8, np.uint8)
            whole = flat[: len(flat) // 8 * 8]
            tail = np.concatenate([flat[len(whole) :], padded])
            state = int(bits.word_hash(whole.view(np.uint64), np.uint64(state)))
            state = int(bits.word_hash(tail.view(np.uint64), np.uint64(state)))
    return f"{state:016x}"


def write(path: Path, kind: str, header: dict[str, Any], tensors: Tensors) -> None:
    """Write the file beside its place, then move it there, so that a reader sees the old one or the new one whole."""
    beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        beside.touch()
        mode = beside.stat().st_mode  # safetensors' own files only their owner may read, but the reader may be somebody else
        save_file(tensors, beside, metadata={kind: json.dumps({**header, "digest": digest(tensors)})})
        beside.chmod(mode)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read(path: Path, kind: str, newest: int) -> tuple[dict[str, Any], Tensors]:
    """(header, arrays), the arrays mapped copy-on-write and equal to those that were written.

    Raises IndexFileError where the file is missing, of another kind, newer than format version `newest`, truncated or changed.
    """
    foreign = IndexFileError(f"{path} is not a file of kind {kind}: expected one that leafbeam saved as such")
    try:
        size = path.stat().st_size
        raw = np.memmap(path, np.uint8, "c") if size else np.empty(0, np.uint8)
    except OSError as error:
        raise IndexFileError(f"cannot open {path}: {error.strerror}") from error
    length = int(raw[:8].view(np.uint64)[0]) if size >= 8 else size
    if length > min(size - 8, 1 << 26):
        raise foreign
    try:
        table = json.loads(raw[8 : 8 + length].tobytes())
        metadata = table.pop("__metadata__")
        header = json.loads(metadata.get(kind) or metadata[kind.replace("leafbeam", "pleach")])  # the project's first name
        format_version, written = int(header["format_version"]), str(header["digest"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise foreign from error
    if not 1 <= format_version <= newest:
        raise IndexFileError(
            f"{path} has format version {format_version}, this leafbeam reads up to {newest}: upgrade leafbeam"
        )
    body, tensors = raw[8 + length :], Tensors()
    try:
        for name, entry in table.items():
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(body):
                raise IndexFileError(
                    f"{path} is truncated: {name} ends at byte {end:,} of {len(body):,}; copy or save it again"
                )
            tensors[name] = np.asarray(body[begin:end]).view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        found = digest(tensors)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise foreign from error
    if found != written:
        raise IndexFileError(f"{path} is damaged: its arrays hash to {found}, and it says {written}; copy or save it again")
    return header, tensors
