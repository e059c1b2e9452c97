"""The inputs and outputs of a round of constrained search, the same for every backend.

Shapes: S segments, B requests, K beams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import LogitsError
from leafbeam.index import Filter, ItemColumn, Trie, Version
from leafbeam.index.items import ItemIds

# The tokens over which a code's probability is taken: the level's codes, the legal ones, or the model's whole vocabulary.
Scoring = Literal["full", "allowed", "vocabulary"]
# A score that would be lower is this one: masks of a dtype's lowest number at two levels would add up to -inf, which means that
# the model excludes a code.
LOWEST = float(np.finfo(np.float32).min)
Array = TypeVar("Array", covariant=True)
# The boost of each request, None for one that has none; None without any.
Boosts = Sequence[ItemColumn | None] | None


class AnyArray(Protocol):
    """An array of numpy, torch or JAX, with what all three have."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...
    def any(self, axis: int, /) -> Any: ...
    def sum(self, axis: int, /) -> Any: ...
    def reshape(self, *shape: int) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Beams(Generic[Array]):
    """The beams after a round, best first, each [B, K]; a dead slot has score -inf and everything else 0.

    Args:
        scores: float32, the sum of log-probabilities; with a boost, also the largest boost below the beam.
        parent: int64, the beam that was extended.
        code: int64, the code taken.
        lo, hi: int64 [S, B, K], the leaf range reached in each segment, (0, 0) where nothing of it is alive.
        num_valid: int64 [B], the number of live slots.
    """

    scores: Array
    parent: Array
    code: Array
    lo: Array
    hi: Array
    num_valid: Array

    @classmethod
    def start(cls, lo: AnyArray, hi: AnyArray, scores: AnyArray) -> Beams[Any]:
        """Return beams that start from leaf ranges; their parents and codes are 0."""
        zeros_BK = lo[0] * 0
        num_valid_B = (hi > lo).any(0).sum(1)
        return Beams(scores=scores, parent=zeros_BK, code=zeros_BK, lo=lo, hi=hi, num_valid=num_valid_B)


HostBeams = Beams[NDArray[Any]]  # columns of two dtypes, see there


def num_columns(size: int, scoring: Scoring) -> int:
    """Return the number of logits of a row: one for each code of the level, and with "vocabulary" one for any other token.

    The last one is the log-sum-exp of the logits of all other tokens. So the probabilities of a row add up to 1, and those of
    the codes are what they are in the whole vocabulary.
    """
    return size + (scoring == "vocabulary")


def waiting(launch: Callable[..., tuple[Beams[Array], Any]], where: str = "at level") -> Callable[..., Beams[Array]]:
    """Return the `step` that calls `launch`, waits for the device, and raises LogitsError if a row held NaN or +inf."""

    def step(
        arrays: object,
        level: int,
        beams: Beams[AnyArray],
        logits_BKV: AnyArray,
        filters: object,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> Beams[Array]:
        best, bad_row = launch(arrays, level, beams, logits_BKV, filters, num_beams=num_beams, scoring=scoring)
        if number := bad_row.item():  # not int(): it costs 8 µs more in JAX
            request, beam = divmod(number - 1, beams.scores.shape[1])
            raise LogitsError.not_finite(request, beam, f"{where} {level}")
        return best

    return step


def request_filters(
    index: Trie | Version,
    batch_size: int,
    filters: Filter | Sequence[Filter | None] | None,
    deny: Sequence[ItemIds | None] | None,
) -> list[Filter]:
    """Return the filter of each request of a batch, less its denied items, from one shared filter or a list.

    Items that are deleted in the index stay so under every filter, and without a filter. Raises ForeignFilterError,
    ItemIdError.
    """
    version = Version.of(index)
    per_request = list(filters) if isinstance(filters, Sequence) else [filters] * batch_size
    allowed = {id(item_filter): version.request_filter(item_filter) for item_filter in per_request}
    denied = [None] * batch_size if deny is None else deny
    return [
        allowed[id(item_filter)] if ids is None else allowed[id(item_filter)].deny(version.deny_ids(ids))
        for item_filter, ids in zip(per_request, denied, strict=True)
    ]
