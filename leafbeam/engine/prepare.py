"""From the item ids of a request to what model and search take.

Shapes: n items of a history, L levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.engine.request import ItemId, Request
from leafbeam.errors import CheckpointError, ItemIdError
from leafbeam.index import Version


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prompt:
    """A request's ids, read: codes (n, L) int64 of the history's known items, oldest first, and the known denied ids."""

    codes: NDArray[np.int64]
    deny: NDArray[Any] | None
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]


class Reader:
    """Reads item ids the way an index knows them, and as many as one model can see.

    max_positions: the model's; a prompt is `num_leading` tokens and L an item, and one more SID, of which nobody asks what
    follows its last code, has to fit behind it.
    """

    def __init__(self, num_levels: int, max_positions: int, num_leading: int = 1) -> None:
        self._num_levels, self._num_leading = num_levels, num_leading
        self.max_items = (max_positions + 1 - num_leading) // num_levels - 1
        if self.max_items < 0:
            raise CheckpointError(f"the model has {max_positions} positions, too few for one SID of {num_levels} codes")

    def tokens(self, num_items: int) -> int:
        """Of a prompt with so many items of history."""
        return self._num_leading + num_items * self._num_levels

    def read(self, request: Request, version: Version) -> Prompt:
        """Look the ids up in a version; unknown ones are set aside. The newest items of the history that fit the model stay.

        Raises ItemIdError where ids are numbers and the index's text, or the other way round.
        """
        known, segment_n, row_n, ignored_history = _split("history", request.history, version)
        deny, _, _, ignored_deny = _split("deny_item_ids", request.deny_item_ids, version)
        newest = slice(max(0, len(known) - self.max_items), None)
        codes = version.codes_at(segment_n[newest], row_n[newest]) if known else np.empty((0, self._num_levels), np.int64)
        denied = np.array(deny) if deny else None
        return Prompt(codes=codes, deny=denied, ignored_history=ignored_history, ignored_deny=ignored_deny)


def _split(
    name: str, ids: Sequence[ItemId], version: Version
) -> tuple[list[ItemId], NDArray[np.int64], NDArray[np.int64], tuple[ItemId, ...]]:
    """(known ids in their order, the segment and the row of each, unknown ids in their order)."""
    tables = [segment.trie.items for segment in version.segments if segment.trie.num_items]
    if not ids or not tables:
        nowhere = np.empty(0, np.int64)
        return [], nowhere, nowhere, tuple(ids)
    arrays = [table.ids for table in tables if table.ids is not None and table.ids.dtype.kind != "i"]
    wrong = [one for one in ids if isinstance(one, str) != bool(arrays)]
    if wrong:
        kind = "text" if arrays else "whole numbers"
        example = tables[0].ids_of(np.zeros(1, np.int64))[0].item()
        raise ItemIdError(f"{name} holds {_shown(wrong[0])}, but this index knows its items by {kind} such as {example!r}")
    max_bytes = max((array.dtype.itemsize for array in arrays), default=0)
    possible = [one for one in ids if _may_be_known(one, max_bytes)]
    segment_n, row_n = version.locate(possible)  # type: ignore[arg-type]
    found_n = segment_n >= 0
    known = [one for one, there in zip(possible, found_n.tolist(), strict=True) if there]
    of_known = set(known)
    return known, segment_n[found_n], row_n[found_n], tuple(one for one in ids if one not in of_known)


def _may_be_known(one: ItemId, max_bytes: int) -> bool:
    """False for ids that no index can hold, so that look-ups meet nothing they would stumble over or grow by."""
    if isinstance(one, int):
        return -(2**63) <= one < 2**63
    try:
        return "\0" not in one and len(one.encode()) <= max_bytes
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def _shown(one: ItemId) -> str:
    text = repr(one) if isinstance(one, str) else f"{one}" if abs(one) < 10**18 else "a number of more than 18 digits"
    return text if len(text) <= 60 else text[:57] + "..."
