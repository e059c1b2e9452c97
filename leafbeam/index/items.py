"""The items of a trie: their ids, and the leaf of each. Shapes: N items, M leaves, w bytes of an id.

A *row* is an item's position in the caller's order, an *ordinal* its position in leaf order (then in the caller's).
"""

# numba has no types.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ItemIdError, counted, short_repr
from leafbeam.ids import ID_KINDS
from leafbeam.index import bit_kernels as bits
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.radix_sort import in_threads, sort_rows, threads_for
from leafbeam.jit import njit

_SLICE = 1 << 20

_TOO_LARGE = "item ids are beyond 64 bits: pass them as strings"

ItemIds = Sequence[int | str] | NDArray[np.generic]  # ids of one kind


def check_item_ids(item_ids: ItemIds, num_items: int, first_row: int = 0, *, may_be_new: bool = True) -> NDArray[np.generic]:
    """Return the ids as an int64 or UTF-8 array of the right length. first_row: the number of row 0.

    Raises ItemIdError, also for empty ids and control characters if items may be new: many clients could not name such an item.
    """
    ids = as_id_array(item_ids)
    check_utf8(ids, first_row)
    if may_be_new:
        check_printable(ids, first_row)
    if ids.shape != (num_items,):
        raise ItemIdError(f"item_ids has shape {ids.shape}: expected ({num_items:,},), one id for each row of codes")
    return ids


def as_id_array(item_ids: ItemIds) -> NDArray[np.generic]:
    """Return ids of either kind as a 1-D array of int64, or of UTF-8 bytes of fixed width (a quarter of numpy's str)."""
    if isinstance(item_ids, list | tuple):  # numpy would write numbers among texts as texts
        _check_types(item_ids)
    try:
        ids = np.asarray(item_ids)
    except ValueError as error:  # ragged
        raise ItemIdError(f"item ids have to be a flat sequence of integers or of strings: {error}") from error
    if ids.dtype == object:
        types = {type(item_id) for item_id in ids.flat}
        if types <= {str, np.str_}:
            _check_no_nul(ids.ravel().tolist())
            ids = ids.astype(np.str_) if ids.size else ids.astype(np.int64)
        elif not types <= {int, np.int64, np.int32}:
            raise ItemIdError(f"item ids hold {sorted(kind.__name__ for kind in types)}: expected all integers or all strings")
    if ids.ndim != 1:
        raise ItemIdError(f"item ids have shape {ids.shape}: expected a flat sequence")
    if ids.size == 0:
        return ids.astype(np.int64) if ids.dtype.kind not in "US" else ids.astype("S1")
    if ids.dtype.kind in "iu":
        if ids.dtype.kind == "u" and int(ids.max()) > np.iinfo(np.int64).max:
            raise ItemIdError(_TOO_LARGE)
        return ids.astype(np.int64)
    if ids.dtype.kind == "S":
        return ids
    if ids.dtype.kind == "U":
        try:
            return np.char.encode(ids.astype(np.str_), "utf-8")
        except UnicodeEncodeError as error:
            raise ItemIdError(
                f"item ids have to be a flat sequence of integers or of strings that UTF-8 can encode: {error}"
            ) from error
    if ids.dtype.kind in "fO" and all(
        isinstance(item_id, int) for item_id in item_ids
    ):  # numpy makes objects or floats of numbers beyond 64 bits
        raise ItemIdError(_TOO_LARGE)
    raise ItemIdError(f"item ids have dtype {ids.dtype}: expected integers or strings")


def _check_types(item_ids: Sequence[object]) -> None:
    """Raise ItemIdError for integers and strings together."""
    types = set(map(type, item_ids))
    if len(types) > 1 and not any(
        all(issubclass(kind, of_ids) and kind is not bool for kind in types) for of_ids in (str, bytes, (int, np.integer))
    ):
        raise ItemIdError(f"item ids hold {sorted(kind.__name__ for kind in types)}: expected all integers or all strings")
    if types <= {str, np.str_, bytes, np.bytes_}:
        _check_no_nul(item_ids)


def _check_no_nul(item_ids: Sequence[Any]) -> None:
    """Raise ItemIdError for a text that ends in NUL: numpy would drop the NUL, and so name another item."""
    nul: Any = b"\0" if item_ids and isinstance(item_ids[0], bytes) else "\0"
    if nul in nul[:0].join(item_ids):
        for row, text in enumerate(item_ids):
            if text.endswith(nul):
                raise ItemIdError(f"item id {text!r:.90} of row {row:,} ends in NUL: expected text that can be printed")


def ids_from_arrow(column: Any) -> NDArray[np.generic]:
    """Return `as_id_array` of a pyarrow column without nulls, with no Python object an id; ItemIdError for other types."""
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)
    if str(column.type) not in ("string", "large_string"):
        return as_id_array(np.asarray(column))
    text = column.cast("large_string")
    text = text.combine_chunks() if hasattr(text, "num_chunks") else text
    _, offsets, data = text.buffers()
    starts = np.frombuffer(offsets or bytes(8), np.int64)[text.offset : text.offset + len(text) + 1]
    lengths = np.diff(starts)
    ids_nw = np.zeros((len(text), max(1, int(lengths.max(initial=1)))), np.uint8)
    if data is not None:
        values = np.frombuffer(data, np.uint8)[starts[0] : starts[-1]]
        columns = np.arange(len(values)) - np.repeat(starts[:-1] - starts[0], lengths)
        ids_nw[np.repeat(np.arange(len(text)), lengths), columns] = values
    return ids_nw.view(f"S{ids_nw.shape[1]}").reshape(-1)


def decode_ids(ids_n: NDArray[np.generic]) -> NDArray[Any]:
    """Return ids of `as_id_array` as the caller wrote them: int64 or str. Raises ItemIdError for bytes that are not UTF-8."""
    try:
        return np.char.decode(ids_n.astype(np.bytes_), "utf-8") if ids_n.dtype.kind == "S" else ids_n
    except UnicodeDecodeError as error:
        raise ItemIdError(f"item ids hold bytes that are not UTF-8 ({error}): expected integers or strings") from error


def check_utf8(ids_n: NDArray[np.generic], first_row: int = 0) -> None:
    """Raise ItemIdError unless each id is UTF-8, or an integer. first_row: the number of row 0. Cost: one read."""
    for begin, ids, part in _slices(ids_n):
        try:  # together valid, and none begins inside a character: each is valid
            str(part.data, "utf-8")
            is_text = not ((part[:, 0] & 0xC0) == 0x80).any()
        except UnicodeDecodeError:
            is_text = False
        if not is_text:
            row = next(row for row, item_id in enumerate(ids.tolist(), begin) if not _is_utf8(item_id))
            raise ItemIdError(
                f"item id {bytes(ids_n[row])!r} of row {first_row + row:,} has to be UTF-8, and is not: encode it, or pass str"
            )


def check_printable(ids_n: NDArray[np.generic], first_row: int = 0) -> None:
    """Raise ItemIdError for an id, in UTF-8, that is empty or has a control character. Cost: a few passes over the bytes."""
    for begin, ids, part in _slices(ids_n):
        wrong = (part - np.uint8(1) < 31) | (part == 0x7F)  # 0 wraps to 255: it fills up each id to the longest
        if part.shape[1] > 1:
            before, after = part[:, :-1], part[:, 1:]
            wrong[:, 1:] |= ((before == 0xC2) & (after & 0xE0 == 0x80)) | ((before == 0) & (after != 0))
        wrong[:, 0] |= part[:, 0] == 0
        if wrong.any():
            row = int(wrong.any(axis=1).argmax())
            if not ids[row]:
                raise ItemIdError(f"the item id of row {first_row + begin + row:,} is empty: expected text that can be printed")
            raise ItemIdError(
                f"item id {ids[row].decode()!r:.90} of row {first_row + begin + row:,} has a control character, such as a line "
                "break: expected text that can be printed"
            )


def _slices(ids_n: NDArray[np.generic]) -> Iterator[tuple[int, NDArray[np.generic], NDArray[np.uint8]]]:
    """Yield (the first row, ids, the bytes of each) of slices of ids that are text, and nothing of integers."""
    if ids_n.dtype.kind == "S":
        for begin in range(0, len(ids_n), _SLICE):
            ids = np.ascontiguousarray(ids_n[begin : begin + _SLICE])
            yield begin, ids, ids.view(np.uint8).reshape(len(ids), ids.dtype.itemsize)


def _is_utf8(item_id: bytes) -> bool:
    try:
        item_id.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_known(item_ids: ItemIds, rows_n: NDArray[np.int64], where: str) -> None:
    """Raise ItemIdError where a row is -1. where: what was searched, for the message."""
    unknown = np.flatnonzero(rows_n < 0)
    if unknown.size:
        first = list(item_ids)[unknown[0]]
        verb = "is" if unknown.size == 1 else "are"
        raise ItemIdError(
            f"{unknown.size:,} of {counted(len(rows_n), 'item id')} {verb} unknown, {first!r} among them: {where}"
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ItemTable:
    """The items of a trie: row -> id (`ids`), ordinal -> row (`order_N`), leaf -> ordinals, and their inverses.

    Args:
        ids: int64, or UTF-8 bytes of fixed width, (N,) in the caller's order; None where the ids are the row numbers.
        leaf_indptr: uint32, leaf m has the ordinals indptr[m] to indptr[m + 1] - 1; None where every leaf has one item.
    """

    ids: NDArray[np.generic] | None
    order_N: NDArray[np.uint32]
    leaf_indptr: NDArray[np.uint32] | None

    @property
    def num_items(self) -> int:
        return len(self.order_N)

    @property
    def num_leaves(self) -> int:
        return self.num_items if self.leaf_indptr is None else len(self.leaf_indptr) - 1

    @property
    def kind(self) -> str:
        """Return the kind of the ids' dtype: "i", or "S" for UTF-8."""
        return "i" if self.ids is None else self.ids.dtype.kind

    @property
    def ids_N(self) -> NDArray[np.generic]:
        """Return the ids, or the row numbers."""
        return np.arange(self.num_items) if self.ids is None else self.ids

    @property
    def nbytes(self) -> int:
        """Return the bytes of the three arrays."""
        return sum(array.nbytes for array in (self.order_N, self.leaf_indptr, self.ids) if array is not None)

    @cached_property
    def ordinal_N(self) -> NDArray[np.uint32]:
        """Return the ordinal of each row, computed at first use."""
        ordinal_N = np.empty(self.num_items, np.uint32)
        threads = threads_for(self.num_items)
        in_threads(lambda begin, end: bits.invert(self.order_N, begin, end, ordinal_N), self.num_items, threads)
        return ordinal_N

    @cached_property
    def _by_hash(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return the hashes of the ids, ascending, and the row of each: a radix sort at first use, 12 bytes an item."""
        assert self.ids is not None
        hashes_N = hash_ids(self.ids)
        rows_N = sort_rows([hashes_N], threads_for(len(hashes_N)))
        return hashes_N, rows_N

    def check_unique(self) -> None:
        """Raise ItemIdError where an id occurs twice. Cost: one read where ids ascend, else the sort that look-ups need."""
        if self.ids is None or _is_ascending(self.ids):
            return
        hashes_N, rows_N = self._by_hash
        same = np.flatnonzero(hashes_N[1:] == hashes_N[:-1])
        candidates = np.unique(np.concatenate([rows_N[same], rows_N[same + 1]]))
        _raise_duplicates(np.sort(self.ids[candidates]))

    def rows_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """Return the row of each id, -1 where it is unknown. Cost: one binary search an id."""
        ids_n = as_id_array(item_ids)
        rows_n = np.full(ids_n.shape, -1, np.int64)
        if self.ids is None or self.num_items == 0:
            if ids_n.dtype.kind == "i":
                known = (ids_n >= 0) & (ids_n < self.num_items)  # type: ignore[operator]
                rows_n[known] = ids_n[known]
            return rows_n
        if ids_n.size == 0 or self.kind != ids_n.dtype.kind:
            return rows_n
        hashes_N, rows_N = self._by_hash
        hashes_n = hash_ids(ids_n)
        at_n = np.searchsorted(hashes_N, hashes_n)
        left = np.arange(len(ids_n))
        while left.size:  # more than once only where two ids have one hash
            left = left[at_n[left] < len(hashes_N)]
            left = left[hashes_N[at_n[left]] == hashes_n[left]]
            rows = rows_N[at_n[left]]
            equal = self.ids[rows] == ids_n[left]
            rows_n[left[equal]] = rows[equal]
            left = left[~equal]
            at_n[left] += 1
        return rows_n

    def check_kind(self, name: str, ids_n: NDArray[np.generic]) -> None:
        """Raise ItemIdError if ids are of the other kind: no id would match, and nothing would report it."""
        if len(ids_n) and self.num_items and ids_n.dtype.kind != self.kind:
            raise self.wrong_kind(name, decode_ids(ids_n[:1])[0].item())

    def wrong_kind(self, name: str, item_id: int | str) -> ItemIdError:
        """Return the error for an id of the other kind. name: the argument that holds the id."""
        example = self.ids_of(np.zeros(1, np.int64))[0].item()
        integers = "integers", "as numbers, or make the Semantic IDs with --text-ids"
        kind, fix = integers if self.kind == "i" else ("text", "as text")
        return ItemIdError(
            f"{name} holds {short_repr(item_id)}, but the item ids of this index are {kind}, such as {example!r}: "
            f"send them {fix}"
        )

    def known_rows_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """Return the row of each id; ItemIdError where one is unknown."""
        rows = self.rows_of(item_ids)
        check_known(item_ids, rows, f"this index has {counted(self.num_items, 'item')} whose ids are {ID_KINDS[self.kind]}")
        return rows

    def ids_of(self, rows: NDArray[np.integer]) -> NDArray[np.generic]:
        """Return the caller's id of each row, int64 or str."""
        return rows.astype(np.int64) if self.ids is None else decode_ids(self.ids[rows])

    def leaves_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the leaf of each row. Cost: one read an item, or a binary search where items share leaves."""
        ordinals, indptr = self.ordinal_N[rows], self.leaf_indptr
        if indptr is None:
            return ordinals.astype(np.int64)
        return np.searchsorted(indptr, ordinals.astype(indptr.dtype), side="right").astype(np.int64) - 1

    def ordinals_of(self, rows: Bitmap) -> Bitmap:
        """Return the ordinals of a set of rows. Cost: a read of the bitmap, and a read and a write for each row of the set."""
        words_W = np.zeros_like(rows.words_W)
        bits.scatter_bits(rows.words_W, self.ordinal_N, words_W)
        return Bitmap.from_words(words_W, self.num_items)

    def ordinals_of_leaf(self, leaf: int) -> tuple[int, int]:
        """Return the ordinals [begin, end) of a leaf's items."""
        indptr = self.leaf_indptr
        return (leaf, leaf + 1) if indptr is None else (int(indptr[leaf]), int(indptr[leaf + 1]))

    def __repr__(self) -> str:
        return f"ItemTable({counted(self.num_items, 'item')}, ids: {'row numbers' if self.ids is None else self.ids.dtype})"


def check_unique(
    ids_N: NDArray[np.generic], memory_limit: int = 1 << 30, *, others: Sequence[NDArray[np.generic]] = ()
) -> None:
    """Raise ItemIdError where an id occurs twice. Cost: one read for each `memory_limit` of 16 bytes an id, and the sorts.

    others: More ids of the same kind, which may be longer.
    """
    if not others and _is_ascending(ids_N):
        return
    num_parts = -(-(len(ids_N) + sum(map(len, others))) * 16 // max(1, memory_limit))
    slices = [ids[begin : begin + _SLICE] for ids in (ids_N, *others) for begin in range(0, len(ids), _SLICE)]
    repeated: list[NDArray[np.uint64]] = []
    for part in range(num_parts):
        hashes = np.concatenate([_of_part(hash_ids(ids), part, num_parts) for ids in slices])
        hashes.sort()
        repeated.append(np.unique(hashes[1:][hashes[1:] == hashes[:-1]]))
    repeated_H = np.sort(np.concatenate(repeated))
    if repeated_H.size == 0:
        return
    # Equal hashes are nearly always equal ids: compare the ids themselves.
    _raise_duplicates(np.sort(np.concatenate([ids[np.isin(hash_ids(ids), repeated_H)] for ids in slices])))


def _raise_duplicates(sorted_ids: NDArray[np.generic]) -> None:
    """Raise ItemIdError where neighbours of an ascending array are equal."""
    same = np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])
    if same.size:
        item_id = sorted_ids[same[0]].item()
        name = item_id.decode() if isinstance(item_id, bytes) else item_id
        raise ItemIdError(
            f"{counted(same.size, 'item id occurs', 'item ids occur')} more than once, {name!r} among them: "
            "each row needs its own id "
            f"(several items may share one Semantic ID, but not one item id)"
        )


def _is_ascending(ids_N: NDArray[np.generic]) -> bool:
    """Return whether each id is larger than the one before. Cost: one read, up to the first that is not."""
    for begin in range(0, len(ids_N) - 1, _SLICE):
        ids = ids_N[begin : begin + _SLICE + 1]
        if not bool(np.greater(ids[1:], ids[:-1]).all()):
            return False
    return True


def hash_ids(ids_n: NDArray[np.generic]) -> NDArray[np.uint64]:
    """64 bits of each id: equal for equal ids (strings: whatever the array's width), different for different numbers."""
    ids_n = np.ascontiguousarray(ids_n)
    hashes_n = np.empty(len(ids_n), np.uint64)
    if ids_n.dtype.kind == "i":
        _hash_numbers(ids_n.view(np.uint64), hashes_n)
    else:
        _hash_bytes(ids_n.view(np.uint8).reshape(len(ids_n), ids_n.dtype.itemsize), hashes_n)
    return hashes_n


def _of_part(hashes_n: NDArray[np.uint64], part: int, num_parts: int) -> NDArray[np.uint64]:
    return hashes_n if num_parts == 1 else hashes_n[hashes_n % np.uint64(num_parts) == part]


@njit(cache=True, nogil=True)
def _hash_numbers(ids_n, hashes_n):
    for row in range(ids_n.size):
        state = ids_n[row] * np.uint64(0x9E3779B97F4A7C15)
        hashes_n[row] = state ^ (state >> np.uint64(32))


@njit(cache=True, nogil=True)
def _hash_bytes(bytes_nw, hashes_n):
    for row in range(bytes_nw.shape[0]):
        state = np.uint64(0xCBF29CE484222325)
        length = bytes_nw.shape[1]
        while length > 0 and bytes_nw[row, length - 1] == 0:
            length -= 1
        for at in range(length):
            state = (state ^ np.uint64(bytes_nw[row, at])) * np.uint64(0x9E3779B97F4A7C15)
            state ^= state >> np.uint64(29)
        hashes_n[row] = state
