"""The index as one file: safetensors, memory-mapped (docs/format.md).

The metadata's `leafbeam` entry is a JSON header: format version, index version, counts, and each level's size and node count.
Tensors: `level.{t}.codes`, `.firsts`, `.words`, `.before`; `items.order`, `.first`, `.ids` (int64, or uint8 rows of UTF-8).
Readers accept every older format version forever; a newer one is refused.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import IndexFileError
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.items import ItemTable
from leafbeam.index.level import Level, code_dtype, packed_words

__all__ = ["FORMAT_VERSION", "load", "save"]

FORMAT_VERSION = 2  # a file that needs nothing newer is written as version 1
_DTYPES = {"U64": np.uint64, "I64": np.int64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8}  # in the order of a file


def save(
    path: Path, levels: tuple[Level, ...], items: ItemTable, num_leaves: int, version: str, end_code: int | None = None
) -> None:
    """Write the file beside its place, then move it there, so that a reader sees the old one or the new one whole."""
    tensors: dict[str, NDArray[Any]] = {"items.order": items.order_N}
    for number, level in enumerate(levels):
        tensors[f"level.{number}.codes"] = level.codes
        if level.firsts is not None:
            tensors[f"level.{number}.firsts"] = level.firsts
        if level.boundary is not None:
            tensors[f"level.{number}.words"] = level.boundary.words_W
            tensors[f"level.{number}.before"] = level.boundary.before_W
    if items.first_M1 is not None:
        tensors["items.first"] = items.first_M1
    if items.ids is not None:
        tensors["items.ids"] = _encode_ids(items.ids)
    header = {
        "format_version": 2 if end_code is not None or any(level.width for level in levels) else 1,
        "version": version,
        "num_leaves": num_leaves,
        "num_items": items.num_items,
        "levels": [_describe(level) for level in levels],
        "ids": "rows" if items.ids is None else "int64" if items.ids.dtype.kind == "i" else "utf-8",
        **({} if end_code is None else {"end_code": end_code}),
    }
    beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        _write(beside, tensors, {"leafbeam": json.dumps(header)})
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _write(path: Path, tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    """What `safetensors.numpy.save_file` writes, byte for byte, without its copy of all arrays."""
    names = list(_DTYPES)
    kinds = {name: names[list(_DTYPES.values()).index(array.dtype.type)] for name, array in tensors.items()}
    order = sorted(tensors, key=lambda name: (names.index(kinds[name]), name))
    table: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name in order:
        end = offset + tensors[name].nbytes
        table[name] = {"dtype": kinds[name], "shape": tensors[name].shape, "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in order:
            file.write(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)


def load(path: Path) -> tuple[tuple[Level, ...], ItemTable, int, str, int | None]:
    """Map the file and check that its parts fit each other; the arrays themselves are not read."""
    tensors, header = _map(path)
    try:
        return _assemble(tensors, header)
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise IndexFileError(f"{path} is damaged ({type(error).__name__}: {error}): build and save the index again") from error


def _map(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Views of all tensors of a safetensors file and the `leafbeam` header."""
    try:
        size = path.stat().st_size
        # Copy-on-write: pages are shared and never written back, and numba sees ordinary arrays.
        raw = np.memmap(path, np.uint8, "c") if size else np.empty(0, np.uint8)
    except OSError as error:
        raise IndexFileError(f"cannot open the index {path}: {error.strerror}") from error
    foreign = IndexFileError(f"{path} is not a leafbeam index: expected a safetensors file written by Trie.save")
    if size < 8:
        raise foreign
    length = int(raw[:8].view(np.uint64)[0])
    if length > min(size - 8, 1 << 26):
        raise foreign
    try:
        table = json.loads(raw[8 : 8 + length].tobytes())
        metadata = table.pop("__metadata__")
        header = json.loads(metadata.get("leafbeam") or metadata["pleach"])  # the project's first name
        format_version = int(header["format_version"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise foreign from error
    if not 1 <= format_version <= FORMAT_VERSION:
        raise IndexFileError(
            f"{path} has format version {format_version}, this leafbeam reads up to {FORMAT_VERSION}: upgrade leafbeam"
        )
    body = raw[8 + length :]
    tensors: dict[str, NDArray[Any]] = {}
    try:
        for name, entry in table.items():
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(body):
                raise IndexFileError(
                    f"{path} is truncated: {name} ends at byte {end:,} of {len(body):,}; copy or save it again"
                )
            tensors[name] = np.asarray(body[begin:end]).view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise foreign from error
    return tensors, header


def _assemble(
    tensors: dict[str, NDArray[Any]], header: dict[str, Any]
) -> tuple[tuple[Level, ...], ItemTable, int, str, int | None]:
    num_leaves, num_items = int(header["num_leaves"]), int(header["num_items"])
    levels: list[Level] = []
    for number, entry in enumerate(header["levels"]):
        size, num_nodes, width = int(entry["size"]), int(entry["num_nodes"]), int(entry.get("width", 0))
        codes, firsts = tensors[f"level.{number}.codes"], tensors.get(f"level.{number}.firsts")
        boundary = None
        if f"level.{number}.words" in tensors:
            words_W, before_W = tensors[f"level.{number}.words"], tensors[f"level.{number}.before"]
            _expect(words_W, np.uint64, num_leaves // 64 + 1)
            _expect(before_W, np.uint32, num_leaves // 64 + 1)
            boundary = Bitmap(words_W=words_W, before_W=before_W, size=num_leaves, count=num_nodes)
        num_codes = num_leaves if firsts is None else num_nodes
        _expect(codes, np.uint64 if width else code_dtype(size), packed_words(num_codes, width) if width else num_codes)
        if firsts is not None:
            _expect(firsts, np.uint32, num_nodes)
        if boundary is None and num_nodes != num_leaves:
            raise ValueError(f"level {number} has {num_nodes} nodes on {num_leaves} leaves and no boundary")
        levels.append(Level(size=size, num_nodes=num_nodes, codes=codes, firsts=firsts, boundary=boundary, width=width))
    order_N, first_M1 = tensors["items.order"], tensors.get("items.first")
    _expect(order_N, np.uint32, num_items)
    if first_M1 is not None:
        _expect(first_M1, np.uint32, num_leaves + 1)
    elif num_items != num_leaves:
        raise ValueError(f"{num_items} items on {num_leaves} leaves without items.first")
    ids = None if header["ids"] == "rows" else _decode_ids(tensors["items.ids"], header["ids"], num_items)
    items = ItemTable(ids=ids, order_N=order_N, first_M1=first_M1)
    end_code = None if header.get("end_code") is None else int(header["end_code"])
    if end_code is not None and {level.size for level in levels} != {end_code + 1}:
        raise ValueError(f"end code {end_code} is not the last code of every level")
    return tuple(levels), items, num_leaves, str(header["version"]), end_code


def _describe(level: Level) -> dict[str, int]:
    packed = {"width": level.width} if level.width else {}
    return {"size": level.size, "num_nodes": level.num_nodes, **packed}


def _expect(array: NDArray[Any], dtype: type[np.generic], length: int) -> None:
    if array.dtype != dtype or array.shape != (length,):
        raise ValueError(f"expected {np.dtype(dtype)} ({length},), found {array.dtype} {array.shape}")


def _encode_ids(ids: NDArray[np.generic]) -> NDArray[Any]:
    if ids.dtype.kind == "i":
        return ids
    return np.ascontiguousarray(ids).view(np.uint8).reshape(len(ids), ids.dtype.itemsize)


def _decode_ids(stored: NDArray[Any], kind: str, num_items: int) -> NDArray[np.generic]:
    if kind == "int64":
        _expect(stored, np.int64, num_items)
        return stored
    if kind != "utf-8" or stored.dtype != np.uint8 or stored.ndim != 2 or len(stored) != num_items:
        raise ValueError(f"expected the ids of {num_items} items, found {kind} {stored.dtype} {stored.shape}")
    return stored.view(f"S{stored.shape[1]}").reshape(-1)
