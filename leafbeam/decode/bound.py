"""A search that proves its answer: passes of growing width, until no dropped prefix scores above the last item.

    widths  how many prefixes the first pass keeps at each level
    tau     the score of the last item of the answer
    bound   the highest score of a prefix that was dropped

    repeat:  search with `widths`, without prefixes that score below tau
             if bound <= tau: the answer is proved
             tau only rises; widths *= 4

Each code adds a log probability, which is at most 0, so a prefix's score bounds every item below it. A prefix that scores no
higher than tau can be dropped for good, and one that scores higher must be kept. When no dropped prefix is above tau, the
items are the best of all allowed ones.

Shapes: B requests, K items, L levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.config import SearchConfig
from leafbeam.decode.results import SearchResult

Pass = Callable[[SearchConfig, NDArray[np.float32] | None], SearchResult]
_GROWTH, _FIRST_GROWN = 4, 64
# Two passes compute a prefix in batches of different shapes, and its score differs by rounding.
_ROUNDING = 1e-4


def search_until_proved(
    config: SearchConfig, limits: Sequence[int], search: Pass, num_items: Sequence[int], *, explain: bool = False
) -> SearchResult:
    """Repeat a search with more beams until every request's answer is proved, or no level may have more beams.

    Args:
        config: The first pass; its last level has as many beams as the answer has items.
        limits: The largest number of beams of each level but the last.
        search: Runs a pass. Its second argument, shape (B,), is the score below which each request drops a prefix: None in the
            first pass, +inf for a request whose answer is proved.
        num_items: The number of items of each request, at most those of the last level.
        explain: Run proved requests again as well, so that the levels of the last pass show all requests.

    Returns:
        The result of each request's last pass. `proves` is False only where the limits were reached.
    """
    result = search(config, None)
    while not (proved_B := result.proves(num_items)).all() and (wider := _wider(config, limits)) != config:
        config = wider
        with np.errstate(over="ignore"):  # below the lowest score: nothing is dropped
            least_B = result.last_scores(num_items) * np.float32(1 + _ROUNDING) - np.float32(_ROUNDING)  # scores are at most 0
        if not explain:
            least_B = np.where(proved_B, np.float32(np.inf), least_B)
        result = _merged(result, search(config, least_B), np.zeros_like(proved_B) if explain else proved_B)
    return result


def _wider(config: SearchConfig, limits: Sequence[int]) -> SearchConfig:
    """Return the config of the next pass; the same one if all levels have as many beams as they may."""
    *widths, num_items = config.num_beams
    grown = [min(limit, max(_GROWTH * width, _FIRST_GROWN)) for width, limit in zip(widths, limits, strict=True)]
    return replace(config, num_beams=(*map(max, widths, grown), num_items))


def _merged(before: SearchResult, after: SearchResult, proved_B: NDArray[np.bool_]) -> SearchResult:
    """Return the earlier result for requests that were proved, and the later one for the others."""

    def rows(name: str) -> NDArray[Any] | None:
        old, new = getattr(before, name), getattr(after, name)
        if old is None or new is None:
            return None
        return np.where(proved_B.reshape(-1, *[1] * (old.ndim - 1)), old, new)

    names = "scores", "codes", "num_valid", "bound", "beams_needed"
    return replace(
        after,
        **{name: rows(name) for name in names},
        item_ids=[(before if proved else after).item_ids[b] for b, proved in enumerate(proved_B)],
        rows=None if before.rows is None or after.rows is None else before.rows + after.rows,
        rounds_saved=before.rounds_saved + after.rounds_saved,
        passes=before.passes + after.passes,
    )
