"""Transactions of a live index, and their write sets. Shapes: R removed ids, A added rows, L levels, n ids of a call."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ItemIdError, counted
from leafbeam.ids import ID_KINDS
from leafbeam.index import Version
from leafbeam.index.items import ItemIds, as_id_array, check_item_ids, check_utf8
from leafbeam.index.level import check_codes, check_in_codebooks, code_dtype
from leafbeam.index.sequences import SequenceTable, check_end_codes

Codes = NDArray[np.integer] | Sequence[Sequence[int]]

_HEADER = struct.Struct("<BBHIII")  # kind of ids (1: integers, 2: text), levels, bytes of a code, bytes of an id, R, A
_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class WriteSet:
    """The net effect of one transaction: first ids are removed, then rows are added. An id occurs at most once in each
    list.

    It fits a snapshot in which every removed id is live and every added id is not live. An id in both lists is an item
    that is replaced.

    Args:
        removed_R: The ids that are removed, int64 or UTF-8 bytes.
        added_A: The ids that are added.
        codes_AL: The codes of the added ids, in the narrowest unsigned dtype for all codebooks.
    """

    removed_R: NDArray[np.generic]
    added_A: NDArray[np.generic]
    codes_AL: NDArray[np.unsignedinteger]

    def __post_init__(self) -> None:
        assert len(self.added_A) == len(self.codes_AL)

    def __len__(self) -> int:
        return len(self.removed_R) + len(self.added_A)

    def encode(self) -> bytes:
        """Return the payload of a log record (docs/reference/file-formats.md)."""
        ids = concat_ids([self.removed_R, self.added_A])
        codes, kind = self.codes_AL, 1 if ids.dtype.kind == "i" else 2
        sizes = codes.shape[1], codes.dtype.itemsize, ids.dtype.itemsize, len(self.removed_R), len(self.added_A)
        return _HEADER.pack(kind, *sizes) + ids.tobytes() + codes.tobytes()

    @classmethod
    def decode(cls, payload: bytes, codebook_sizes: Sequence[int]) -> "WriteSet":
        """Return the write set of a log record. Raises ValueError if the bytes do not fit an index with these codebooks."""
        if len(payload) < _HEADER.size:
            raise ValueError(f"{counted(len(payload), 'byte is', 'bytes are')} shorter than a header")
        kind, num_levels, code_bytes, id_bytes, num_removed, num_added = _HEADER.unpack_from(payload)
        dtype = codes_dtype(codebook_sizes)
        if (num_levels, code_bytes) != (len(codebook_sizes), dtype.itemsize):
            raise ValueError(
                f"codes of {counted(num_levels, 'level')} and {counted(code_bytes, 'byte')}, "
                f"codebooks of {tuple(codebook_sizes)}"
            )
        if kind not in (1, 2) or not 1 <= id_bytes <= len(payload) or (kind == 1 and id_bytes != 8):
            raise ValueError(f"ids of kind {kind} and {counted(id_bytes, 'byte')}")
        end_of_ids = _HEADER.size + (num_removed + num_added) * id_bytes
        if len(payload) != end_of_ids + num_added * num_levels * code_bytes:
            raise ValueError(
                f"{counted(len(payload), 'byte')} for {num_removed} removed and {counted(num_added, 'added item')}"
            )
        ids = np.frombuffer(payload[_HEADER.size : end_of_ids], np.int64 if kind == 1 else f"S{id_bytes}")
        check_utf8(ids)
        codes_AL = np.frombuffer(payload[end_of_ids:], dtype).reshape(num_added, num_levels)
        if np.any(codes_AL >= np.array(codebook_sizes, np.int64)):
            raise ValueError("a code outside its codebook")
        return cls(removed_R=ids[:num_removed], added_A=ids[num_removed:], codes_AL=codes_AL)

    @classmethod
    def combine(cls, write_sets: "Sequence[WriteSet]") -> "WriteSet":
        """Return one write set with the effect of several in a row. Raises ValueError if one does not fit those before it."""
        if len(write_sets) == 1:
            return write_sets[0]
        ids = concat_ids([part for write_set in write_sets for part in (write_set.removed_R, write_set.added_A)])
        counts = [(len(write_set.removed_R), len(write_set.added_A)) for write_set in write_sets]
        is_added = np.repeat(np.tile([False, True], len(write_sets)), np.array(counts).ravel())
        codes_AL = np.concatenate([write_set.codes_AL for write_set in write_sets])
        if len(ids) == 0:
            return cls(removed_R=ids, added_A=ids, codes_AL=codes_AL)
        order = np.argsort(ids, kind="stable")  # the events of one id are adjacent, in time order
        same = ids[order[1:]] == ids[order[:-1]]
        if np.any(same & (is_added[order[1:]] == is_added[order[:-1]])):
            raise ValueError("an item is removed or added twice in a row")
        first, last = order[np.append(True, ~same)], order[np.append(~same, True)]
        removed = np.sort(first[~is_added[first]])
        added = np.sort(last[is_added[last]])
        row_of_event = np.cumsum(is_added) - 1
        return cls(removed_R=ids[removed], added_A=ids[added], codes_AL=codes_AL[row_of_event[added]])


class Transaction:
    """Changes that become visible together or not at all: the target of `with index.transaction() as transaction:`.

    Each call is checked against those before it; a call that raises has no effect. `number` is the number of the version that
    will have the changes.

    Args:
        version: The version before the changes.
    """

    def __init__(self, version: Version) -> None:
        self.number: int | None = None
        self._version = version
        self._kind = version.id_kind
        self._sizes = version.codebook_sizes
        self._end_code = version.segments[0].trie.end_code
        self._removed: dict[int | bytes, None] = {}  # live in the version, deleted here
        self._added: dict[int | bytes, int] = {}  # inserted here: the index of its row in `_rows`, concatenated
        self._rows: list[NDArray[np.unsignedinteger]] = []
        self._num_rows = 0
        self._open = True

    def insert(self, codes: Codes, item_ids: ItemIds) -> None:
        """Add items (see LiveIndex.insert).

        Raises:
            CodesError: If the codes do not fit the index.
            ItemIdError: If an id is live, occurs twice or is of another kind.
        """
        rows_nL = self._check_codes(codes)
        ids, keys = self._check_ids(item_ids, len(rows_nL))
        clashes = [key for key, is_live in zip(keys, self._is_live(ids, keys)[1], strict=True) if is_live]
        if clashes:
            raise ItemIdError(
                f"{len(clashes):,} of {counted(len(keys), 'item')} {'is' if len(clashes) == 1 else 'are'} in the index "
                f"already, {_shown(clashes[0])} among them: use replace(...) to give items other codes"
            )
        self._add(rows_nL, ids, keys)

    def delete(self, item_ids: ItemIds) -> None:
        """Remove items (see LiveIndex.delete).

        Raises:
            ItemIdError: If an id is not live or occurs twice.
        """
        self._remove(*self._check_ids(item_ids, None))

    def replace(self, codes: Codes, item_ids: ItemIds) -> None:
        """Give items other codes (see LiveIndex.replace).

        Raises:
            CodesError: If the codes do not fit the index.
            ItemIdError: If an id is not live or occurs twice.
        """
        rows_nL = self._check_codes(codes)
        ids, keys = self._check_ids(item_ids, len(rows_nL), may_be_new=False)
        self._remove(ids, keys)
        self._add(rows_nL, ids, keys)

    def check_live(self, item_ids: ItemIds) -> None:
        """Check that all ids are live and that none occurs twice; raise ItemIdError otherwise."""
        self._check_live(*self._check_ids(item_ids, None))

    def write_set(self) -> WriteSet:
        """Return the net effect of all calls so far."""
        rows = np.fromiter(self._added.values(), np.int64, len(self._added))
        empty = np.empty((0, len(self._sizes)), codes_dtype(self._sizes))
        removed, added = (np.array(list(keys)) if keys else _NO_IDS for keys in (self._removed, self._added))
        return WriteSet(removed_R=removed, added_A=added, codes_AL=np.concatenate([empty, *self._rows])[rows])

    def close(self) -> None:
        """Accept no more calls."""
        self._open = False

    def _add(self, rows_nL: NDArray[np.unsignedinteger], ids: NDArray[np.generic], keys: list[int | bytes]) -> None:
        self._added.update(zip(keys, range(self._num_rows, self._num_rows + len(keys)), strict=True))
        self._rows.append(rows_nL)
        self._num_rows += len(keys)
        if len(ids):
            self._kind = ids.dtype.kind

    def _remove(self, ids: NDArray[np.generic], keys: list[int | bytes]) -> None:
        for key, was_live in zip(keys, self._check_live(ids, keys), strict=True):
            self._added.pop(key, None)
            if was_live:
                self._removed[key] = None

    def _check_live(self, ids: NDArray[np.generic], keys: list[int | bytes]) -> list[bool]:
        """Return whether each id is live in the version. Raises ItemIdError if one is not live in the transaction."""
        before, now = self._is_live(ids, keys)
        unknown = [key for key, is_live in zip(keys, now, strict=True) if not is_live]
        if unknown:
            raise ItemIdError(
                f"{len(unknown):,} of {counted(len(keys), 'item')} {'is' if len(unknown) == 1 else 'are'} not in the index, "
                f"{_shown(unknown[0])} among them: insert them before you delete, replace or update them"
            )
        return before

    def _is_live(self, ids: NDArray[np.generic], keys: list[int | bytes]) -> tuple[list[bool], list[bool]]:
        """Return (before, now): whether each id is live in the version, and in the transaction."""
        before: list[bool] = self._version.knows(ids).tolist()
        if not self._removed and not self._added:
            return before, before
        return before, [
            key in self._added or (known and key not in self._removed) for key, known in zip(keys, before, strict=True)
        ]

    def _check_ids(
        self, item_ids: ItemIds, count: int | None, *, may_be_new: bool = True
    ) -> tuple[NDArray[np.generic], list[int | bytes]]:
        if not self._open:
            raise ItemIdError("the transaction is over: begin another with transaction()")
        ids = as_id_array(item_ids) if count is None else check_item_ids(item_ids, count, may_be_new=may_be_new)
        check_utf8(ids)
        keys: list[int | bytes] = ids.tolist()
        if len(ids) and self._kind not in (None, ids.dtype.kind):
            new, old = ID_KINDS[ids.dtype.kind], ID_KINDS[self._kind]
            raise ItemIdError(f"these item ids are {new} such as {_shown(keys[0])}, but the ids of this index are {old}")
        if len(set(keys)) < len(keys):
            seen: set[int | bytes] = set()
            repeated = next(key for key in keys if key in seen or seen.add(key))
            raise ItemIdError(f"item id {_shown(repeated)} occurs more than once in one call: expected one row for each id")
        return ids, keys

    def _check_codes(self, codes: Codes) -> NDArray[np.unsignedinteger]:
        if self._end_code is not None and not isinstance(codes, np.ndarray):
            codes = SequenceTable.of(codes, self._end_code, len(self._sizes) - 1)[:]
        table, sizes = check_codes(codes, self._sizes)
        if self._end_code is not None:
            check_end_codes(table, sizes, self._end_code)
        check_in_codebooks(table, sizes)
        return table.astype(codes_dtype(sizes))


def codes_dtype(codebook_sizes: Sequence[int]) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest unsigned dtype for the codes of every level."""
    return np.dtype(code_dtype(max(codebook_sizes)))


def concat_ids(parts: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Return the ids of all parts in order. Raises ValueError if non-empty parts differ in kind."""
    filled = [part for part in parts if len(part)]
    if len({part.dtype.kind for part in filled}) > 1:
        raise ValueError("integers and strings among the item ids")
    return np.concatenate(filled) if filled else _NO_IDS


def _shown(key: int | bytes) -> str:
    return repr(key.decode("utf-8", "replace") if isinstance(key, bytes) else key)
