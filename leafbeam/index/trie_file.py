"""A trie as one file: safetensors, memory-mapped (docs/reference/file-formats.md).

The metadata's `leafbeam` entry is a JSON header: format version, index version, counts, and each level's size and node count.
Tensors: `level.{t}.codes`, `.firsts`, `.words`, `.before`; `items.order`, `.first`, `.ids` (int64, or uint8 rows of UTF-8).
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import IndexFileError
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.items import ItemTable
from leafbeam.index.level import Level, code_dtype, packed_words
from leafbeam.index.tensor_file import FileKind, Tensors, expect, read, write

KIND = FileKind(key="leafbeam", noun="index", writer="Trie.save", newest=2, has_digest=False)

TrieParts = tuple[tuple[Level, ...], ItemTable, int, str, int | None]  # levels, items, num_leaves, version, end_code


def save(path: Path, parts: TrieParts) -> None:
    """Write the file. What needs no newer format is written as version 1."""
    levels, items, num_leaves, version, end_code = parts
    tensors: Tensors = {"items.order": items.order_N}
    for number, level in enumerate(levels):
        tensors[f"level.{number}.codes"] = level.codes
        if level.firsts is not None:
            tensors[f"level.{number}.firsts"] = level.firsts
        if level.boundary is not None:
            tensors[f"level.{number}.words"] = level.boundary.words_W
            tensors[f"level.{number}.before"] = level.boundary.before_W
    if items.leaf_indptr is not None:
        tensors["items.first"] = items.leaf_indptr
    kind = "rows" if items.ids is None else "int64" if items.ids.dtype.kind == "i" else "utf-8"
    if items.ids is not None:
        ids = np.ascontiguousarray(items.ids)
        tensors["items.ids"] = ids if kind == "int64" else ids.view(np.uint8).reshape(len(ids), ids.dtype.itemsize)
    header = {
        "format_version": 2 if end_code is not None or any(level.width for level in levels) else 1,
        "version": version,
        "num_leaves": num_leaves,
        "num_items": items.num_items,
        "levels": [
            {"size": level.size, "num_nodes": level.num_nodes, **({"width": level.width} if level.width else {})}
            for level in levels
        ],
        "ids": kind,
        **({} if end_code is None else {"end_code": end_code}),
    }
    write(path, KIND, header, tensors)


def load(path: Path) -> TrieParts:
    """Map the file and check that its parts fit each other; the arrays themselves are not read."""
    header, tensors = read(path, KIND)
    try:
        return _parts_of(header, tensors)
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise IndexFileError(f"{path} is damaged ({type(error).__name__}: {error}): build and save the index again") from error


def _parts_of(header: dict[str, Any], tensors: Tensors) -> TrieParts:
    num_leaves, num_items = int(header["num_leaves"]), int(header["num_items"])
    levels = tuple(_level_of(number, entry, num_leaves, tensors) for number, entry in enumerate(header["levels"]))
    indptr = expect(tensors, "items.first", np.uint32, num_leaves + 1) if "items.first" in tensors else None
    if indptr is None and num_items != num_leaves:
        raise ValueError(f"{num_items} items on {num_leaves} leaves without items.first")
    ids = _ids_of(header["ids"], num_items, tensors)
    items = ItemTable(ids=ids, order_N=expect(tensors, "items.order", np.uint32, num_items), leaf_indptr=indptr)
    end_code = None if header.get("end_code") is None else int(header["end_code"])
    if end_code is not None and {level.size for level in levels} != {end_code + 1}:
        raise ValueError(f"end code {end_code} is not the last code of every level")
    return levels, items, num_leaves, str(header["version"]), end_code


def _level_of(number: int, entry: dict[str, Any], num_leaves: int, tensors: Tensors) -> Level:
    size, num_nodes, width = int(entry["size"]), int(entry["num_nodes"]), int(entry.get("width", 0))
    prefix, num_words = f"level.{number}.", num_leaves // 64 + 1
    firsts = expect(tensors, prefix + "firsts", np.uint32, num_nodes) if prefix + "firsts" in tensors else None
    num_codes = num_leaves if firsts is None else num_nodes
    length = packed_words(num_codes, width) if width else num_codes
    codes = expect(tensors, prefix + "codes", np.uint64 if width else code_dtype(size), length)
    boundary = None
    if prefix + "words" in tensors:
        words_W = expect(tensors, prefix + "words", np.uint64, num_words)
        before_W = expect(tensors, prefix + "before", np.uint32, num_words)
        boundary = Bitmap(words_W=words_W, before_W=before_W, size=num_leaves, count=num_nodes)
    elif num_nodes != num_leaves:
        raise ValueError(f"level {number} has {num_nodes} nodes on {num_leaves} leaves and no boundary")
    return Level(size=size, num_nodes=num_nodes, codes=codes, firsts=firsts, boundary=boundary, width=width)


def _ids_of(kind: str, num_items: int, tensors: Tensors) -> NDArray[np.generic] | None:
    if kind == "rows":
        return None
    if kind == "int64":
        return expect(tensors, "items.ids", np.int64, num_items)
    ids = tensors["items.ids"]
    if kind != "utf-8" or ids.dtype != np.uint8 or ids.ndim != 2 or len(ids) != num_items:
        raise ValueError(f"expected the ids of {num_items} items, found {kind} {ids.dtype} {ids.shape}")
    return ids.view(f"S{ids.shape[1]}").reshape(-1)
