"""One safetensors file of arrays and a JSON header: replaced atomically, memory-mapped, refused where it is damaged."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import IndexFileError
from leafbeam.files import open_regular, replacing
from leafbeam.index import bit_kernels as bits
from leafbeam.json_reader import Json

_DTYPES = {"U64": np.uint64, "I64": np.int64, "U32": np.uint32, "I32": np.int32, "U16": np.uint16, "U8": np.uint8}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_ORDER = list(_DTYPES)  # the order of the arrays in a file, then by name

Number = TypeVar("Number", bound=np.generic)
Tensors = dict[str, NDArray[Any]]

log = logging.getLogger("leafbeam.index")

_REPORT = 1 << 30  # bytes between two lines of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """A kind of file. key: the metadata entry with the header. newest: the newest version read. has_digest: arrays are
    hashed."""

    key: str
    noun: str
    writer: str
    newest: int
    has_digest: bool


def digest(tensors: Tensors) -> str:
    """Sixteen hex digits that change with the name, dtype, shape or content of any array. Cost: one read of them all."""
    state = 0
    for name in sorted(tensors):
        array = tensors[name]
        for raw in (f"{name} {array.dtype} {array.shape}".encode(), np.ascontiguousarray(array).reshape(-1).view(np.uint8)):
            flat = np.frombuffer(raw, np.uint8)
            whole = len(flat) // 8 * 8
            tail = np.concatenate([flat[whole:], np.zeros(-len(flat) % 8, np.uint8)])
            state = int(bits.word_hash(flat[:whole].view(np.uint64), np.uint64(state)))
            state = int(bits.word_hash(tail.view(np.uint64), np.uint64(state)))
    return f"{state:016x}"


def write(path: Path, kind: FileKind, header: Mapping[str, object], tensors: Tensors) -> None:
    """Write the bytes of `safetensors.numpy.save_file` to a temporary file and rename it: readers see a complete file."""
    if kind.has_digest:
        header = {**header, "digest": digest(tensors)}
    table: dict[str, object] = {"__metadata__": {kind.key: json.dumps(header)}}
    names = sorted(tensors, key=lambda name: (_ORDER.index(_NAMES[tensors[name].dtype]), name))
    offset = 0
    for name in names:
        array, end = tensors[name], offset + tensors[name].nbytes
        table[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    with replacing(path) as part, part.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            file.write(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)


def read(path: Path, kind: FileKind, *, mapped: bool = False) -> tuple[Json, Tensors]:
    """Read (header, arrays), into memory or mapped copy-on-write. Raises IndexFileError for a file that cannot be read."""
    foreign = IndexFileError(f"{path} is not a leafbeam {kind.noun}: expected a safetensors file written by {kind.writer}")
    try:
        with open_regular(path) as file:
            length, size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size - 8
            if length > min(size, 1 << 26):
                raise foreign
            table = json.loads(file.read(length))
            metadata = table.pop("__metadata__")
            header = json.loads(metadata.get(kind.key) or metadata[kind.key.replace("leafbeam", "pleach")])  # the first name
            format_version = int(header["format_version"])
            expected = str(header["digest"]) if kind.has_digest else ""
            if not 1 <= format_version <= kind.newest:
                raise IndexFileError(
                    f"{path} has format version {format_version}, this leafbeam reads up to {kind.newest}: upgrade leafbeam"
                )
            size -= length
            if size > max((entry["data_offsets"][1] for entry in table.values()), default=0):  # before all of it is read
                raise IndexFileError(f"{path} is damaged: there are bytes after its arrays; copy or save it again")
            is_mapped = mapped and size > 0
            body = np.memmap(file, np.uint8, "c", 8 + length) if is_mapped else _body(file, size, kind.noun)
    except OSError as error:
        raise IndexFileError(f"cannot open the {kind.noun} {path}: {error.strerror}") from error
    except IndexFileError:  # a ValueError too
        raise
    except MemoryError as error:
        raise IndexFileError(f"the {kind.noun} {path} does not fit into memory: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise foreign from error
    tensors = Tensors()
    try:
        for name, entry in table.items():
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(body):
                raise IndexFileError(f"{path} is truncated: {name} ends at byte {end:,} of {len(body):,}; save it again")
            flat = np.asarray(body[begin:end]).view(_DTYPES[entry["dtype"]])
            tensors[name] = np.require(flat, requirements="A").reshape(entry["shape"])
        computed = digest(tensors) if kind.has_digest else ""
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise foreign from error
    if computed != expected:
        raise IndexFileError(f"{path} is damaged: its arrays hash to {computed}, and it says {expected}; copy or save it again")
    return header, tensors


def _body(file: BufferedReader, size: int, noun: str) -> NDArray[np.uint8]:
    """Return the rest of a file, with a line of progress for each gigabyte; shorter if the file is."""
    body = np.empty(size, np.uint8)
    for begin in range(0, size, _REPORT):
        part = body[begin : begin + _REPORT]
        count = file.readinto(part.data)
        if count < len(part):
            return body[: begin + count]
        if size > _REPORT:
            log.info("read %.0f of %.0f GB of the %s", (begin + count) / 1e9, size / 1e9, noun)
    return body


def expect(tensors: Tensors, name: str, dtype: type[Number], length: int) -> NDArray[Number]:
    """Return the 1-D array of this name; KeyError or ValueError where it is missing or has another dtype or length."""
    array = tensors[name]
    if array.dtype != dtype or array.shape != (length,):
        raise ValueError(f"{name} is {array.dtype} {array.shape}: expected {np.dtype(dtype)} ({length},)")
    return array
