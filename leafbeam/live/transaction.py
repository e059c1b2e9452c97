"""What a transaction changes: ids that go, rows that come.

Shapes: R removed ids, A added rows, L levels, n ids of one call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import CodesError, ItemIdError
from leafbeam.index import Version
from leafbeam.index.build import check_codes
from leafbeam.index.items import ItemIds, as_id_array, check_item_ids
from leafbeam.index.level import code_dtype
from leafbeam.index.sequences import SequenceTable, check_ends

__all__ = ["Change", "Transaction", "join_ids", "kind_of"]

_HEADER = struct.Struct("<BBHIII")  # kind of ids, levels, bytes of a code, bytes of an id, R, A
_NO_IDS = np.empty(0, np.int64)
_KINDS = ("rows", "int64", "utf-8")


@dataclass(frozen=True, kw_only=True, eq=False)
class Change:
    """The net effect of one transaction: first the removed ids go, then the added rows come.

    Think of it as a patch: it fits one state only, in which every removed id is alive and every added id is not, unless it is
    among the removed (a replaced item). An id stands at most once in each of the two.

    removed_R, added_A: int64, or UTF-8 bytes of fixed width. codes_AL: the narrowest unsigned dtype that holds all codes.
    """

    removed_R: NDArray[np.generic]
    added_A: NDArray[np.generic]
    codes_AL: NDArray[np.unsignedinteger]

    def __post_init__(self) -> None:
        assert len(self.added_A) == len(self.codes_AL)

    @property
    def is_empty(self) -> bool:
        return len(self.removed_R) == len(self.added_A) == 0

    def encode(self) -> bytes:
        """The payload of a log record (docs/format.md)."""
        ids = join_ids([self.removed_R, self.added_A])
        header = _HEADER.pack(
            _KINDS.index(kind_of(ids)),
            self.codes_AL.shape[1],
            self.codes_AL.dtype.itemsize,
            ids.dtype.itemsize,
            len(self.removed_R),
            len(self.added_A),
        )
        return header + ids.tobytes() + self.codes_AL.tobytes()

    @classmethod
    def decode(cls, payload: bytes, codebook_sizes: Sequence[int]) -> Change:
        """The change of a log record. Raises ValueError where the bytes are not one of a catalog with these codebooks."""
        if len(payload) < _HEADER.size:
            raise ValueError(f"{len(payload)} bytes are no change")
        kind, num_levels, code_bytes, id_bytes, num_removed, num_added = _HEADER.unpack_from(payload)
        code = narrow_dtype(codebook_sizes)
        if (num_levels, code_bytes) != (len(codebook_sizes), code.itemsize):
            raise ValueError(f"codes of {num_levels} levels and {code_bytes} bytes in a catalog of {tuple(codebook_sizes)}")
        if kind not in (1, 2) or id_bytes < 1 or (kind == 1 and id_bytes != 8):
            raise ValueError(f"ids of kind {kind} and {id_bytes} bytes")
        cut = _HEADER.size + (num_removed + num_added) * id_bytes
        if len(payload) != cut + num_added * num_levels * code_bytes:
            raise ValueError(f"{len(payload)} bytes for {num_removed} removed and {num_added} added items")
        ids = np.frombuffer(payload[_HEADER.size : cut], np.int64 if kind == 1 else f"S{id_bytes}")
        codes_AL = np.frombuffer(payload[cut:], code).reshape(num_added, num_levels)
        if np.any(codes_AL >= np.array(codebook_sizes, np.int64)):
            raise ValueError("a code beyond its codebook")
        return cls(removed_R=ids[:num_removed], added_A=ids[num_removed:], codes_AL=codes_AL)

    @classmethod
    def joined(cls, changes: Sequence[Change]) -> Change:
        """One change with the effect of several in a row. Cost: one sort of all their ids.

        Raises ValueError where one does not fit behind those before it.
        """
        if len(changes) == 1:
            return changes[0]
        ids = join_ids([part for change in changes for part in (change.removed_R, change.added_A)])
        counts = [(len(change.removed_R), len(change.added_A)) for change in changes]
        comes = np.repeat(np.tile([False, True], len(changes)), np.array(counts).ravel())
        codes_AL = np.concatenate([change.codes_AL for change in changes])
        if len(ids) == 0:
            return cls(removed_R=ids, added_A=ids, codes_AL=codes_AL)
        order = np.argsort(ids, kind="stable")  # events of one id stand together, in time
        same = ids[order[1:]] == ids[order[:-1]]
        if np.any(same & (comes[order[1:]] == comes[order[:-1]])):
            raise ValueError("an item is removed or added twice in a row")
        first, last = order[np.append(True, ~same)], order[np.append(~same, True)]
        removed = np.sort(first[~comes[first]])
        added = np.sort(last[comes[last]])
        row_of_event = np.cumsum(comes) - 1
        return cls(removed_R=ids[removed], added_A=ids[added], codes_AL=codes_AL[row_of_event[added]])


class Transaction:
    """Changes that come into force together or not at all: what `with segments.transaction() as change:` gives.

    Think of it as the catalog with a sheet of notes over it: each call is checked against both, so an id that was deleted
    here may be inserted here again. A call that raises has noted nothing.

    number: of the version that has the changes, once they are in force.
    """

    def __init__(self, version: Version) -> None:
        self._version = version
        self._kind = kind_of_version(version)
        self._sizes = version.codebook_sizes
        self._end_code = version.segments[0].trie.end_code
        self.number: int | None = None
        self._removed: dict[int | bytes, None] = {}  # alive in the version, deleted here
        self._added: dict[int | bytes, int] = {}  # inserted here: the row among all rows below
        self._rows: list[NDArray[np.unsignedinteger]] = []
        self._num_rows = 0
        self._open = True

    def insert(self, codes: NDArray[np.integer] | Sequence[Sequence[int]], item_ids: ItemIds) -> None:
        """New items. codes: (n, L), or n sequences where the index holds sequences; item_ids: n ids that are not alive.

        Raises CodesError, and ItemIdError where an id is alive (use `replace`), comes twice, or is of another kind.
        """
        rows_nL = self._check_codes(codes)
        ids, keys = self._check_ids(item_ids, len(rows_nL))
        _, alive = self._look_up(ids, keys)
        clashes = [key for key, is_alive in zip(keys, alive, strict=True) if is_alive]
        if clashes:
            raise ItemIdError(
                f"{len(clashes):,} of {len(keys):,} items are in the catalog already, {_shown(clashes[0])} among them: "
                f"use replace(...) to give items other codes"
            )
        self._add(rows_nL, ids, keys)

    def delete(self, item_ids: ItemIds) -> None:
        """Take items out. Raises ItemIdError where an id is not alive or comes twice."""
        ids, keys = self._check_ids(item_ids, None)
        self._remove(ids, keys)

    def replace(self, codes: NDArray[np.integer] | Sequence[Sequence[int]], item_ids: ItemIds) -> None:
        """Other codes for items. codes: (n, L). Raises CodesError, and ItemIdError where an id is not alive or comes twice."""
        rows_nL = self._check_codes(codes)
        ids, keys = self._check_ids(item_ids, len(rows_nL))
        self._remove(ids, keys)
        self._add(rows_nL, ids, keys)

    def close(self) -> Change:
        """The net effect of all calls; no more of them are taken."""
        self._open = False
        rows = np.fromiter(self._added.values(), np.int64, len(self._added))
        empty = np.empty((0, len(self._sizes)), narrow_dtype(self._sizes))
        return Change(
            removed_R=_id_array(list(self._removed)),
            added_A=_id_array(list(self._added)),
            codes_AL=np.concatenate([empty, *self._rows])[rows],
        )

    def discard(self) -> None:
        """Take no more calls, and forget those that came."""
        self._open = False

    def _add(self, rows_nL: NDArray[np.unsignedinteger], ids: NDArray[np.generic], keys: list[int | bytes]) -> None:
        self._added.update(zip(keys, range(self._num_rows, self._num_rows + len(keys)), strict=True))
        self._rows.append(rows_nL)
        self._num_rows += len(keys)
        if len(ids):
            self._kind = kind_of(ids)

    def _remove(self, ids: NDArray[np.generic], keys: list[int | bytes]) -> None:
        before, alive = self._look_up(ids, keys)
        unknown = [key for key, is_alive in zip(keys, alive, strict=True) if not is_alive]
        if unknown:
            raise ItemIdError(
                f"{len(unknown):,} of {len(keys):,} items are not in the catalog, {_shown(unknown[0])} among them: "
                f"only items that are in it can be deleted or replaced"
            )
        for key, was_alive in zip(keys, before, strict=True):
            self._added.pop(key, None)
            if was_alive:
                self._removed[key] = None

    def _look_up(self, ids: NDArray[np.generic], keys: list[int | bytes]) -> tuple[list[bool], list[bool]]:
        """(before, alive): whether each id is alive in the version, and under the notes."""
        before: list[bool] = self._version.knows(ids).tolist()
        if not self._removed and not self._added:
            return before, before
        return before, [
            key in self._added or (known and key not in self._removed) for key, known in zip(keys, before, strict=True)
        ]

    def _check_ids(self, item_ids: ItemIds, count: int | None) -> tuple[NDArray[np.generic], list[int | bytes]]:
        if not self._open:
            raise ItemIdError("the transaction is over: begin another with segments.transaction()")
        try:
            ids = as_id_array(item_ids) if count is None else check_item_ids(item_ids, count)
        except ItemIdError:
            raise
        except ValueError as error:  # ragged, or text that UTF-8 cannot hold
            raise ItemIdError(f"item ids have to be a flat sequence of integers or of strings: {error}") from error
        keys: list[int | bytes] = ids.tolist()
        if len(ids) and self._kind != "rows" and kind_of(ids) != self._kind:
            kinds = {"int64": "integers", "utf-8": "strings"}
            raise ItemIdError(
                f"these item ids are {kinds[kind_of(ids)]} such as {_shown(keys[0])}, but the catalog knows its items by "
                f"{kinds[self._kind]}"
            )
        if len(set(keys)) < len(keys):
            seen: set[int | bytes] = set()
            twice = next(key for key in keys if key in seen or seen.add(key))
            raise ItemIdError(f"item id {_shown(twice)} comes more than once in one call: each needs its own row")
        return ids, keys

    def _check_codes(self, codes: NDArray[np.integer] | Sequence[Sequence[int]]) -> NDArray[np.unsignedinteger]:
        if self._end_code is not None and not isinstance(codes, np.ndarray):
            codes = SequenceTable.of(codes, self._end_code, len(self._sizes) - 1)[:]
        table, sizes = check_codes(codes, self._sizes)
        if self._end_code is not None:
            check_ends(table, sizes, self._end_code)
        for level, size in enumerate(sizes):
            bad = np.flatnonzero((table[:, level] < 0) | (table[:, level] >= size))
            if bad.size:
                raise CodesError(
                    f"row {bad[0]:,} has code {table[bad[0], level]:,} at level {level}, whose codebook has {size:,} codes: "
                    f"expected 0 <= code < {size:,}"
                )
        return table.astype(narrow_dtype(sizes))


def narrow_dtype(codebook_sizes: Sequence[int]) -> np.dtype[np.unsignedinteger]:
    """The narrowest unsigned dtype that holds the codes of every level."""
    return np.dtype(code_dtype(max(codebook_sizes)))


def kind_of(ids: NDArray[np.generic]) -> str:
    """ "int64" or "utf-8"."""
    return "utf-8" if ids.dtype.kind == "S" else "int64"


def kind_of_version(version: Version) -> str:
    """The kind of a version's ids; "rows" where it has no items yet that could tell."""
    for segment in version.segments:
        if segment.trie.num_items:
            ids = segment.trie.items.ids
            return "int64" if ids is None else kind_of(ids)
    return "rows"


def join_ids(parts: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Ids one after the other; they have to be of one kind (ValueError), but for empty parts."""
    filled = [part for part in parts if len(part)]
    for one, other in pairwise(filled):
        if kind_of(one) != kind_of(other):
            raise ValueError("integers and strings among the item ids")
    return np.concatenate(filled) if filled else _NO_IDS


def _id_array(keys: list[int | bytes]) -> NDArray[np.generic]:
    return np.array(keys) if keys else _NO_IDS


def _shown(key: int | bytes) -> str:
    return repr(key.decode("utf-8", "replace") if isinstance(key, bytes) else key)
