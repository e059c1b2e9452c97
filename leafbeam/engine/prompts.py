"""From the item ids of a request to the codes of its prompt.

Shapes: n items of a history, L levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.engine.request import ItemId, Request, short_repr
from leafbeam.errors import CheckpointError, ItemIdError
from leafbeam.index import Version

__all__ = ["Prompt", "PromptReader"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prompt:
    """The known ids of a request: codes (n, L) int64 of its history, oldest first, and the denied ids."""

    codes: NDArray[np.int64]
    deny: NDArray[Any] | None
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]


class PromptReader:
    """Looks up item ids, and keeps as many of the newest as the model's positions allow.

    A prompt has `num_leading` tokens and `num_levels` for each item. One more item must fit behind it, without the position
    after its last code.
    """

    def __init__(self, num_levels: int, max_positions: int, num_leading: int = 1) -> None:
        self._num_levels, self._num_leading = num_levels, num_leading
        self.max_items = (max_positions + 1 - num_leading) // num_levels - 1
        if self.max_items < 0:
            raise CheckpointError(f"the model has {max_positions} positions, too few for one SID of {num_levels} codes")

    def num_tokens(self, num_items: int) -> int:
        """Tokens of a prompt with a history of `num_items` items."""
        return self._num_leading + num_items * self._num_levels

    def read(self, request: Request, version: Version) -> Prompt:
        """Look up a request's ids in a version of the index.

        Raises ItemIdError if the ids are integers and the index has text, or the other way round.
        """
        known, segment_n, row_n, ignored_history = _lookup("history", request.history, version)
        deny, _, _, ignored_deny = _lookup("deny_item_ids", request.deny_item_ids, version)
        newest = slice(max(0, len(known) - self.max_items), None)
        codes = version.codes_at(segment_n[newest], row_n[newest]) if known else np.empty((0, self._num_levels), np.int64)
        denied = np.array(deny) if deny else None
        return Prompt(codes=codes, deny=denied, ignored_history=ignored_history, ignored_deny=ignored_deny)


def _lookup(
    name: str, ids: Sequence[ItemId], version: Version
) -> tuple[list[ItemId], NDArray[np.int64], NDArray[np.int64], tuple[ItemId, ...]]:
    """(known ids in order, their segments, their rows, unknown ids in order)."""
    tables = [segment.trie.items for segment in version.segments if segment.trie.num_items]
    if not ids or not tables:
        empty = np.empty(0, np.int64)
        return [], empty, empty, tuple(ids)
    text = [table.ids for table in tables if table.ids is not None and table.ids.dtype.kind != "i"]
    wrong = next((item for item in ids if isinstance(item, str) != bool(text)), None)
    if wrong is not None:
        kind = "text" if text else "integers"
        example = tables[0].ids_of(np.zeros(1, np.int64))[0].item()
        raise ItemIdError(f"{name} holds {short_repr(wrong)}, but the item ids of this index are {kind}, such as {example!r}")
    max_bytes = max((array.dtype.itemsize for array in text), default=0)
    possible = [item for item in ids if _is_possible(item, max_bytes)]
    segment_n, row_n = version.locate(possible)  # type: ignore[arg-type]
    found_n = segment_n >= 0
    known = [item for item, found in zip(possible, found_n.tolist(), strict=True) if found]
    of_known = set(known)
    return known, segment_n[found_n], row_n[found_n], tuple(item for item in ids if item not in of_known)


def _is_possible(item: ItemId, max_bytes: int) -> bool:
    """False for ids that no index can hold: beyond int64, longer than the longest id, with NUL or half a surrogate pair."""
    if isinstance(item, int):
        return -(2**63) <= item < 2**63
    try:
        return "\0" not in item and len(item.encode()) <= max_bytes
    except UnicodeEncodeError:
        return False
