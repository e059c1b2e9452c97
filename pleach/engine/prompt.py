"""From the item ids of a request to what model and search take.

Shapes: n items of a history, L levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pleach.engine.request import ItemId, Request
from pleach.errors import CheckpointError, ItemIdError
from pleach.index import Trie


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prompt:
    """A request's ids, read: codes (n, L) int64 of the history's known items, oldest first, and the known denied ids."""

    codes: NDArray[np.int64]
    deny: NDArray[Any] | None
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]


class Reader:
    """Reads item ids the way one index knows them, and as many as one model can see.

    max_positions: the model's; a prompt is `bos` and L tokens an item, and one more SID has to fit behind it.
    """

    def __init__(self, trie: Trie, max_positions: int) -> None:
        self._trie = trie
        self._max_items = max_positions // trie.num_levels - 1
        if self._max_items < 0:
            raise CheckpointError(f"the model has {max_positions} positions, too few for one SID of {trie.num_levels} codes")
        ids = trie.items.ids
        self._is_text = ids is not None and ids.dtype.kind != "i"
        self._max_bytes = ids.dtype.itemsize if ids is not None else 0

    def read(self, request: Request) -> Prompt:
        """Look the ids up; unknown ones are set aside. The newest items of the history that fit the model stay.

        Raises ItemIdError where ids are numbers and the index's text, or the other way round.
        """
        known, ignored_history = self._split("history", request.history)
        deny, ignored_deny = self._split("deny_item_ids", request.deny_item_ids)
        newest = known[max(0, len(known) - self._max_items) :]
        codes = self._trie.codes_of(newest) if newest else np.empty((0, self._trie.num_levels), np.int64)  # type: ignore[arg-type]
        denied = np.array(deny) if deny else None
        return Prompt(codes=codes, deny=denied, ignored_history=ignored_history, ignored_deny=ignored_deny)

    def _split(self, name: str, ids: Sequence[ItemId]) -> tuple[list[ItemId], tuple[ItemId, ...]]:
        """(known ids in their order, unknown ids in theirs)."""
        wrong = [one for one in ids if isinstance(one, str) != self._is_text]
        if wrong and len(self._trie):
            kind = "text" if self._is_text else "whole numbers"
            example = self._trie.items.ids_of(np.zeros(1, np.int64))[0].item()
            raise ItemIdError(f"{name} holds {_shown(wrong[0])}, but this index knows its items by {kind} such as {example!r}")
        possible = [one for one in ids if self._may_be_known(one)]
        found = self._trie.find(possible) >= 0  # type: ignore[arg-type]
        known = {one for one, there in zip(possible, found.tolist(), strict=True) if there}
        return [one for one in possible if one in known], tuple(one for one in ids if one not in known)

    def _may_be_known(self, one: ItemId) -> bool:
        """False for ids that no index can hold, so that look-ups meet nothing they would stumble over or grow by."""
        if isinstance(one, int):
            return -(2**63) <= one < 2**63
        try:
            return "\0" not in one and len(one.encode()) <= self._max_bytes
        except UnicodeEncodeError:  # half a surrogate pair
            return False


def _shown(one: ItemId) -> str:
    text = repr(one) if isinstance(one, str) else f"{one}" if abs(one) < 10**18 else "a number of more than 18 digits"
    return text if len(text) <= 60 else text[:57] + "..."
