"""Semantic IDs of other programs: tables, JSON indexes (LETTER, LC-Rec, OpenOneRec), tensors (GRID).

Shapes: N items, L levels.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.cli.codes import CodesTable, codes_of_table, found_id_column
from leafbeam.errors import ArgumentError, CodesError, DataError, LeafbeamError, counted, short_repr
from leafbeam.extras import require
from leafbeam.files import open_regular
from leafbeam.ids import is_id
from leafbeam.index.items import decode_ids, ids_from_arrow
from leafbeam.index.level import MAX_LEVELS
from leafbeam.tables import CsvFormat, SourceTable, csv_rows, json_rows, read_array, read_ids, read_table
from leafbeam.tables.json_rows import read_json, read_json_table
from leafbeam.tables.reader import SUFFIXES
from leafbeam.tables.table import check_content, ending_of

_FEWEST = 16  # with fewer items, or codes of a level, equal distances may be chance


def offsets_of(numbers_NL: NDArray[np.int64], sizes: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the numbers added to the codes of each level, and the codebook sizes; None for plain codes.

    If the codebook `sizes` are known, offsets are sums of these sizes, if plain codes would not fit. Without sizes, each level
    must begin exactly one size after the level before, or where that level ends; the last of three or more levels may be plain,
    such as a level that numbers collisions.
    """
    num_levels = numbers_NL.shape[1]
    if num_levels < 2 or len(numbers_NL) == 0:
        return None
    low, high = (values.tolist() for values in (numbers_NL.min(axis=0), numbers_NL.max(axis=0)))
    if sizes is not None:
        return _of_sizes(low, high, tuple(sizes))
    if len(numbers_NL) < _FEWEST:
        return None
    offsets = _of_ranges(low, high)
    if offsets is None and num_levels > 2 and low[-1] == 0:
        before = _of_ranges(low[:-1], high[:-1])
        offsets = before and ((*before[0], 0), (*before[1], high[-1] + 1))
    return offsets


def possible_offsets(numbers_NL: NDArray[np.int64]) -> bool:
    """Return whether all codes of each level are above those of the level before, as with offsets."""
    below, above = numbers_NL.max(axis=0)[:-1], numbers_NL.min(axis=0)[1:]
    return numbers_NL.shape[1] > 1 and bool((below < above).all())


def _of_sizes(
    low: Sequence[int], high: Sequence[int], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if len(sizes) != len(low) or all(largest < size for largest, size in zip(high, sizes, strict=True)):
        return None
    begins = [0, *np.cumsum(sizes)[:-1].tolist()]
    for base in {0, low[0]}:  # numbers may begin behind special tokens
        offsets = tuple(base + begin for begin in begins)
        ranges = zip(low, high, offsets, sizes, strict=True)
        if all(offset <= smallest and largest < offset + size for smallest, largest, offset, size in ranges):
            return offsets, sizes
    return None


def _of_ranges(low: Sequence[int], high: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return offsets if the levels' smallest codes have equal distances, or if each level ends where the next begins."""
    step, count = low[1] - low[0], len(low)
    if step < _FEWEST or low[0] >= step:
        return None
    if all(low[level] == low[0] + level * step and high[level] < low[level] + step for level in range(count)):
        return tuple(low), (step,) * count
    if all(low[level + 1] == high[level] + 1 for level in range(count - 1)):
        return tuple(low), tuple(largest + 1 - smallest for smallest, largest in zip(low, high, strict=True))
    return None


_PICKLES, _TORCH, _ARRAY = (".pkl", ".pickle"), (".pt", ".pth"), ".npy"
FORMATS = (*SUFFIXES, *_TORCH, _ARRAY)
# The number of a token is its last one, without a sign, a point or zeros before it; a text that begins as a number does is not
# a token.
_TOKEN = re.compile(r"(?=[A-Za-z_<\[({|])([!-~]*)(?<![0-9.])(?<![^0-9A-Za-z][+-])(0|[1-9][0-9]{0,8})([!-/:-~]*)")
_AROUND = re.compile(r"<\|sid_(begin|end)\|>")  # what OpenOneRec writes around a Semantic ID
_WRITTEN_TOKEN = re.compile(r"<[^<>\s]*[0-9][^<>\s]*>")
_MAX_NUMBER = 10**9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ForeignSids:
    """The numbers of each item's codes, as they are in a file.

    `item_ids` is int64 or text (N,). `is_text_file` says that ids are text because the format has no other type, so that they
    may stand for whole numbers. `numbers_NL` is int64. `names` are those of the tokens of each level, such as `<a_*>`, or () if
    the file holds only numbers. `codebook_sizes` is () if the file does not say them. `notes` say how an ambiguous file was
    read.
    """

    source: str
    item_ids: NDArray[np.int64] | NDArray[np.str_]
    is_text_file: bool
    numbers_NL: NDArray[np.int64]
    names: tuple[str, ...] = ()
    codebook_sizes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.numbers_NL.size == 0:
            raise DataError(f"{self.source} holds no codes: expected at least one item of at least one level")

    def without_offsets(self, codebook_sizes: Sequence[int] | None) -> "ForeignSids":
        """Return plain codes, with a note, if the codes of each level continue those of the level before.

        `codebook_sizes` are the sizes that the caller knows. Numbers of named tokens stay as they are.
        """
        if self.names:
            return self
        offsets_and_sizes = offsets_of(self.numbers_NL, codebook_sizes or self.codebook_sizes or None)
        if offsets_and_sizes is None:
            hint = "codes of each level are above those of the level before: if these are offsets, pass --codebook-sizes"
            could_be = not codebook_sizes and not self.codebook_sizes and possible_offsets(self.numbers_NL)
            return replace(self, notes=(*self.notes, hint)) if could_be else self
        offsets, sizes = offsets_and_sizes
        note = f"codes are read without the offsets of their levels: {', '.join(f'{offset:,}' for offset in offsets)}"
        return replace(self, numbers_NL=self.numbers_NL - np.array(offsets), codebook_sizes=sizes, notes=(*self.notes, note))


def read_sids(
    path: Path,
    *,
    id_column: str = "item_id",
    form: CsvFormat | None = None,
    transposed: bool = False,
    packed_sizes: Sequence[int] = (),
) -> ForeignSids:
    """Read a file by its ending. It never unpickles: a `.pt` file is read with `weights_only`.

    Args:
        path: The file.
        id_column: The column of item ids of tables and JSON lines; `item_id` if they have no such column.
        form: The form of a CSV file.
        transposed: Whether a matrix has a row for each level, not for each item.
        packed_sizes: The sizes of the codebooks, if keys of JSON may be Semantic IDs that are written as one number; ().

    Raises:
        DataError: If the file is unusable.
        CodesError: If codes are invalid.
        ItemIdError: If ids are invalid.
        ArgumentError: If the options do not fit the file.
        MissingExtraError: If a `.pt` file is read without torch.
    """
    if not path.exists():
        raise DataError(f"there is no {path}: name a file of Semantic IDs ({', '.join(FORMATS)})")
    ending = ending_of(path, (*FORMATS, *_PICKLES))
    if ending in _PICKLES:
        raise DataError(
            f"{path} is a pickle, which could run any program: save the tensor alone with torch.save, or save it as .npy"
        )
    if transposed and ending not in (_ARRAY, *_TORCH, *json_rows.WHOLE):
        raise ArgumentError(
            f"{path}: --transposed is only for matrices (.npy, .pt, .json), whose rows may be levels: leave it out"
        )
    if path.is_dir() or ending == ".parquet":
        table = CodesTable.open(path, None, id_column=id_column, sizes_needed=False)
        return _joined(path, list(table.batches()), codebook_sizes=table.codebook_sizes)
    try:
        if ending in csv_rows.SUFFIXES:
            table = read_table(path, ids=(id_column, "item_id"), form=form)
            return _joined(path, [codes_of_table(path, table, id_column)], is_text_file=True)
        if ending in json_rows.SUFFIXES:
            check_content(path)
            return _of_json(path, id_column, transposed, packed_sizes)
    except (OSError, EOFError, ValueError, RecursionError, MemoryError, pa.ArrowException) as error:
        if isinstance(error, LeafbeamError):
            raise
        raise DataError(f"{path} cannot be read: {error}") from error
    if ending == _ARRAY:
        return _of_matrix(path, read_array(path), transposed)
    if ending in _TORCH:
        return _of_torch(path, transposed)
    raise ArgumentError(f"{path}: expected a file of Semantic IDs that ends in {', '.join(FORMATS)}")


def _joined(
    path: Path,
    batches: Sequence[tuple[NDArray[np.integer], NDArray[np.generic]]],
    *,
    is_text_file: bool = False,
    codebook_sizes: tuple[int, ...] = (),
) -> ForeignSids:
    if not batches:
        raise DataError(f"{path} holds no codes: expected at least one item of at least one level")
    codes = np.concatenate([codes for codes, _ in batches])
    if np.any((codes < 0) | (codes > _MAX_NUMBER)):
        raise CodesError(f"{path} has codes below 0 or above {_MAX_NUMBER:,}")
    return ForeignSids(
        source=str(path),
        item_ids=decode_ids(np.concatenate([ids for _, ids in batches])),
        is_text_file=is_text_file,
        numbers_NL=codes.astype(np.int64),
        codebook_sizes=codebook_sizes,
    )


def _of_matrix(path: Path, array: NDArray[Any], transposed: bool) -> ForeignSids:
    """Return the codes of the items 0, 1, ...: (N, L), or transposed (L, N), as GRID's TIGER reads them."""
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise DataError(f"{path} holds {array.dtype} of shape {array.shape}: expected whole numbers (items, levels)")
    codes_NL = array.T if transposed else array
    num_items, num_levels = codes_NL.shape
    if num_levels > MAX_LEVELS:
        turned = "without" if transposed else "with"
        raise DataError(
            f"{path} holds {counted(num_items, 'item')} of {counted(num_levels, 'level')}, "
            f"but at most {MAX_LEVELS} levels are possible: read it {turned} "
            f"--transposed if its {'rows' if transposed else 'columns'} are the items"
        )
    turned = f"{counted(num_levels, 'item')} of {counted(num_items, 'level')}"
    note = f"read as {counted(num_items, 'item')} of {counted(num_levels, 'level')}; --transposed reads {turned}"
    sids = _joined(path, [(codes_NL, np.arange(num_items))])
    return replace(sids, notes=(note,)) if num_items < num_levels and not transposed else sids


def _of_torch(path: Path, transposed: bool) -> ForeignSids:
    require(f"reading {path.name}", "torch")
    import torch

    try:
        with open_regular(path) as file:
            content: object = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # its unpickler raises any
        raise DataError(f"{path} is not a file of tensors that can be read safely ({type(error).__name__})") from error
    if isinstance(content, torch.Tensor):
        if content.layout != torch.strided or content.is_floating_point() or content.is_complex() or content.is_quantized:
            raise DataError(f"{path} holds a tensor of {content.dtype}: expected whole numbers (items, levels)")
        return _of_matrix(path, content.numpy(), transposed)
    if transposed:
        raise ArgumentError(
            f"{path} holds a {type(content).__name__}: --transposed is only for matrices, whose rows may be levels"
        )
    if isinstance(content, Mapping):
        tensors = cast("Mapping[object, object]", content)
        return _of_lists(path, {key: row.tolist() if isinstance(row, torch.Tensor) else row for key, row in tensors.items()})
    raise DataError(f"{path} holds a {type(content).__name__}: expected a tensor (items, levels), or codes by item")


def _of_json(path: Path, id_column: str, transposed: bool, packed_sizes: Sequence[int]) -> ForeignSids:
    content, where = read_json(path)
    rows: list[Any] = content if isinstance(content, list) else [content]
    if ending_of(path, json_rows.WHOLE) and rows and all(isinstance(row, list) for row in rows):
        widths = {len(row) for row in rows}
        whole = all(type(code) is int and 0 <= code <= _MAX_NUMBER for row in rows for code in row)
        if len(widths) > 1 or not whole:
            raise DataError(f"{path}: expected lists of equally many whole numbers from 0, the codes of each item")
        return _of_matrix(path, np.array(rows, np.int64), transposed)
    if transposed:
        raise ArgumentError(f"{path} holds no lists of codes: --transposed is only for matrices, whose rows may be levels")
    if isinstance(content, dict):
        by_id = cast("dict[str, object]", content)
        if packed_sizes and by_id and all(isinstance(value, list) and value and _is_item(value[0]) for value in by_id.values()):
            return _of_lists(path, _by_item(path, by_id, lambda key: _unpacked(path, key, packed_sizes)), is_text_file=True)
        return _of_lists(path, _by_item(path, by_id) if _has_sids_as_keys(path, by_id) else by_id, is_text_file=True)
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected an object from items to codes, or objects with {id_column} and codes")
    if any("codes" in row for row in rows):
        by_id = {}
        id_column = found_id_column(list(rows[0]), id_column)
        for number, row in enumerate(rows):
            item_id = row.get(id_column)
            if not is_id(item_id):
                raise DataError(f"{path}: {where(number)} has {id_column} {short_repr(item_id)}: expected a number or a text")
            if item_id in by_id:
                raise DataError(f"{path}: item {short_repr(item_id)} is in {where(number)} and in an earlier one: keep one")
            by_id[item_id] = row.get("codes")
        return _of_lists(path, by_id)
    return _joined(path, [codes_of_table(path, read_json_table(path, (id_column, "item_id")), id_column)])


def _has_sids_as_keys(path: Path, by_sid: Mapping[str, object]) -> bool:
    """Return whether the keys of an object are Semantic IDs, such as <a_1><b_2>, and its values the items that have them.

    Raises:
        DataError: If some keys are and others are not.
    """
    others = [key for key in by_sid if len(_split_tokens(key)) < 2]
    if 0 < len(others) < len(by_sid):
        raise DataError(f"{path} has Semantic IDs as keys, but also {short_repr(others[0])}: expected keys of one kind")
    return bool(by_sid) and not others


def _split_tokens(text: str) -> list[str]:
    """Return the tokens of a text such as <a_1><b_2> or <a_1>, <b_2>; none for any other text."""
    text = _AROUND.sub("", text)
    tokens = _WRITTEN_TOKEN.findall(text)
    return tokens if not re.sub(r"[\s,\[\]()'\"]", "", _WRITTEN_TOKEN.sub("", text)) else []


def _is_item(value: object) -> bool:
    """Return whether a value is an object with an item's id, such as {"pid": 7, "count": 12}."""
    return isinstance(value, Mapping) and ("pid" in value or "iid" in value)


def _unpacked(path: Path, key: str, sizes: Sequence[int]) -> list[int] | list[str]:
    """Return the codes of a Semantic ID that is written as one number, the last level's code in its last digits."""
    if tokens := _split_tokens(key):
        return tokens
    if not re.fullmatch(r"0|[1-9][0-9]{0,18}", key) or int(key) >= prod(sizes):
        raise DataError(f"{path} has the key {short_repr(key)}: expected a Semantic ID as a number below {prod(sizes):,}")
    return [int(code) for code in np.unravel_index(int(key), tuple(sizes))]


def _by_item(
    path: Path, by_sid: Mapping[str, object], codes_of: Callable[[str], Sequence[object]] = _split_tokens
) -> dict[object, Sequence[object]]:
    """Return the codes of each item, from an object whose keys are Semantic IDs and whose values are an item or a list."""
    by_id: dict[object, Sequence[object]] = {}
    for sid, value in by_sid.items():
        codes = codes_of(sid)
        for item in value if isinstance(value, list) else [value]:
            item_id = item.get("pid", item.get("iid")) if _is_item(item) else item
            if not is_id(item_id):
                raise DataError(f"{path}: {sid} has the item {short_repr(item_id)}: expected a number or a text")
            if item_id in by_id:
                raise DataError(f"{path}: item {short_repr(item_id)} is in {sid} and in an earlier one: keep one")
            by_id[item_id] = codes
    return by_id


def _of_lists(path: Path, by_id: Mapping[Any, object], *, is_text_file: bool = False) -> ForeignSids:
    """Return the SIDs of lists of tokens, such as ["<a_12>", "<b_3>"], or of numbers, by item."""
    kinds = {type(item_id) for item_id in by_id}
    if not kinds <= {int} and not kinds <= {str}:
        types = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"{path} has item ids of the types {types}: expected only numbers, or only text")
    if kinds == {int} and not all(-(1 << 63) <= item_id < 1 << 63 for item_id in by_id):
        raise DataError(f"{path} has an item id that does not fit into a signed 64-bit number: write ids as text")
    parsed: dict[str, tuple[str, int]] = {}
    names: list[str] = []
    numbers: list[list[int]] = []
    for item_id, codes in by_id.items():
        where = f"{path}: item {short_repr(item_id)}"
        codes = _split_tokens(codes) if isinstance(codes, str) and _split_tokens(codes) else codes
        if not isinstance(codes, list) or not codes:
            raise CodesError(f"{where} has the codes {short_repr(codes)}: expected a list of tokens or numbers")
        row = [_parsed(code, where, parsed) for code in cast("list[object]", codes)]
        names = names or [name for name, _ in row]
        if len(row) != len(names):
            raise CodesError(
                f"{where} has {counted(len(row), 'code')}, other items have {len(names)}: expected the same number for all"
            )
        for level, (name, _) in enumerate(row):
            if name != names[level]:
                expected = names[level] or "a number"
                raise CodesError(
                    f"{where} has {short_repr(codes[level])} at level {level}, where the first item has {expected}"
                )
        numbers.append([number for _, number in row])
    named = [name for name in names if name]
    if named and len(named) < len(names):
        raise CodesError(f"{path} has tokens at some levels and numbers at others: expected one of the two")
    ids = _checked_ids(path, list(by_id), is_text_file)
    numbers_NL = np.array(numbers, np.int64).reshape(len(ids), len(names))
    return ForeignSids(source=str(path), item_ids=ids, is_text_file=is_text_file, numbers_NL=numbers_NL, names=tuple(named))


def _checked_ids(path: Path, item_ids: list[object], is_text_file: bool) -> NDArray[np.int64] | NDArray[np.str_]:
    """Return ids of one kind as an array. Raises DataError as `read_ids` does, and for an id that occurs twice."""
    try:
        table = pa.table({"item_id": pa.array(item_ids)})
    except UnicodeEncodeError as error:
        raise DataError(f"{path} has the item id {short_repr(error.object)}, which is not valid text: correct it") from error
    ids = read_ids(SourceTable(table=table, source=str(path), is_text=is_text_file), "item_id", "item_of_items")
    if len(ids.values) < len(item_ids):
        row = next(row for row, code in enumerate(ids.codes_E) if code < row)  # the first code that is not new
        raise DataError(f"{path}: item {short_repr(item_ids[row])} occurs twice, with different blanks around it: keep one")
    return decode_ids(ids_from_arrow(ids.column))


def _parsed(code: object, where: str, parsed: dict[str, tuple[str, int]]) -> tuple[str, int]:
    """Return the name and the number of a token; a number has no name."""
    if isinstance(code, int) and not isinstance(code, bool) and 0 <= code <= _MAX_NUMBER:
        return "", code
    if isinstance(code, str):
        if code in parsed:
            return parsed[code]
        match = _TOKEN.fullmatch(code)
        if match and "*" not in code:
            return parsed.setdefault(code, (f"{match[1]}*{match[3]}", int(match[2])))
    raise CodesError(
        f"{where} has the code {short_repr(code)}: expected a token of ASCII such as <a_12>, without zeros before its number, "
        f"or a number up to {_MAX_NUMBER:,}"
    )
