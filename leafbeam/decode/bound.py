"""A search that proves its answer: passes of growing width, until no dropped prefix scores above the last item.

    widths  how many prefixes the first pass runs at each level, of each request
    tau     the score of the last item of the answer
    bound   the highest score of a prefix that was dropped

    repeat:  search with `widths`, without prefixes that score below tau
             if bound <= tau: the answer is proved
             tau only rises; widths *= 4

Where a model can run more beams of an earlier level, the first pass finds more prefixes than it runs, and then runs those that
score above tau (`spares`). Another pass from the prompts is needed only if even more of them may do so.

Each code adds a log probability, which is at most 0, so a prefix's score bounds every item below it. A prefix that scores no
higher than tau can be dropped for good, and one that scores higher must be kept. When no dropped prefix is above tau, the
items are the best of all allowed ones.

Shapes: B requests, K items, L levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import Cut
from leafbeam.decode.results import SearchResult, with_passes

Pass = Callable[[SearchConfig, Cut | None], SearchResult]
_GROWTH, _FIRST_GROWN = 4, 64
# Two passes compute a prefix in batches of different shapes, and its score differs by rounding.
_ROUNDING = 1e-4


def search_until_proved(
    limits: SearchConfig,
    search: Pass,
    widths_BL: NDArray[np.int64],
    *,
    num_items: int | None = None,
    first: SearchResult | None = None,
    on_pass: Callable[[SearchResult], None] | None = None,
    explain: bool = False,
    has_spares: bool = False,
) -> SearchResult:
    """Repeat a search with more beams until every request's answer is proved, or no level may have more beams.

    Args:
        limits: The largest number of beams of each level.
        search: Runs a pass, with the beams that each request keeps, where they differ. Requests that are proved keep none.
        widths_BL: The beams of the first pass, for each request and each level but the last, within the limits.
        num_items: The beams of the last level in the first pass, if they are fewer than its limit: a leaf may count more than
            its items do if they have boosts.
        first: The result of the first pass, if it has run already.
        on_pass: Called with the result of each pass but the last.
        explain: Run proved requests again as well, so that the levels of the last pass show all requests.
        has_spares: Whether a pass finds more prefixes than it runs, and then runs the ones that the proof needs.

    Returns:
        The result of each request's last pass. `is_proved` is False only where the limits were reached.
    """
    most = limits.num_beams
    config = replace(limits, num_beams=(*widths_BL.max(0).tolist(), num_items or most[-1]))
    differ = bool((widths_BL != widths_BL[0]).any()) and not has_spares
    if has_spares and first is None:
        config = _wider(config, most)
    cut = Cut(widths_BL=widths_BL) if differ or has_spares else None
    result = search(config, cut) if first is None else first
    while not (proved_B := result.is_proved).all():
        wider = _wider(config, most)
        if wider == config and not differ:
            break
        config, differ = wider, False
        if on_pass is not None:
            on_pass(result)
        with np.errstate(over="ignore"):  # below the lowest score: nothing is dropped
            least_B = result.last_scores - np.float32(_ROUNDING) * (1 + np.abs(result.last_scores))
        done_B = np.zeros_like(proved_B) if explain else proved_B
        cut = Cut(least_B=np.where(done_B, np.float32(np.inf), least_B))
        result = _merged(result, search(config, cut), done_B)
    return result


def _wider(config: SearchConfig, limits: Sequence[int]) -> SearchConfig:
    """Return the config of the next pass; the same one if all levels have as many beams as they may."""
    widths = config.num_beams
    grown = [min(limit, max(_GROWTH * width, _FIRST_GROWN)) for width, limit in zip(widths, limits, strict=True)]
    return replace(config, num_beams=tuple(map(max, widths, grown)))


def _merged(before: SearchResult, after: SearchResult, proved_B: NDArray[np.bool_]) -> SearchResult:
    """Return the earlier result for requests that were proved, and the later one for the others."""

    def rows(name: str) -> NDArray[np.generic] | None:
        old, new = getattr(before, name), getattr(after, name)
        if old is None or new is None:
            return None
        return np.where(proved_B.reshape(-1, *[1] * (old.ndim - 1)), old, new)

    names = "scores", "codes", "num_valid", "bound", "beams_needed", "boosts"
    return replace(
        after,
        **{name: rows(name) for name in names},
        item_ids=[(before if proved else after).item_ids[b] for b, proved in enumerate(proved_B)],
        levels=with_passes(after.levels, before.levels, before.passes + after.passes),
        rows=None if before.rows is None or after.rows is None else before.rows + after.rows,
        rounds_saved=before.rounds_saved + after.rounds_saved,
        passes=before.passes + after.passes,
    )
