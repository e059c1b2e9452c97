"""The widths of first passes: prefixes to keep at each level, learnt from what the proofs of recent requests needed.

Shapes: L levels of the index, n recent requests.
"""

import json
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import log2
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leafbeam import files
from leafbeam.decode.config import beams_of_levels, first_width
from leafbeam.errors import ArgumentError, check_choice
from leafbeam.index import Filter, Version
from leafbeam.ops.constrain import Scoring

log = logging.getLogger("leafbeam.engine")

_CALL_ROWS = 48  # a call of the model costs as much as so many rows: 25 at 0.44 B parameters, 50 with a layer of 128
_MEMORY, _EVERY = 64, 8  # requests that are remembered of a kind, and requests from one choice to the next
_MAX_KINDS = 256
_QUANTILES = 0.5, 0.75, 0.9, 0.95, 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchKind:
    """Requests whose searches need about as many prefixes.

    Args:
        num_items: The number of items that the search proves.
        octave: The share of the items that the rules allow, as a power of two: 0 for all or more than 71 %, -3 for about 1/8.
        scoring: The scoring of the search; with "allowed" the share does not matter, and `octave` is 0.
        boosted: Whether the search has boosts.
    """

    num_items: int
    octave: int
    scoring: Scoring
    boosted: bool = False

    def __post_init__(self) -> None:
        check_choice("scoring", self.scoring, Scoring)
        if self.num_items < 1 or not -64 <= self.octave <= 0:
            raise ArgumentError(f"num_items={self.num_items} and octave={self.octave}: expected 1 or more, and -64 to 0")

    @classmethod
    def of(
        cls, version: Version, item_filter: Filter | None, num_items: int, scoring: Scoring, *, boosted: bool = False
    ) -> "SearchKind":
        """Return the kind of a request under a filter."""
        if scoring == "allowed" or item_filter is None or not version.num_items:
            return cls(num_items=num_items, octave=0, scoring=scoring, boosted=boosted)
        share = max(1, len(item_filter)) / version.num_items
        return cls(num_items=num_items, octave=min(0, round(log2(share))), scoring=scoring, boosted=boosted)

    @property
    def guess(self) -> int:
        """Return how many prefixes of a level such requests are expected to need."""
        return first_width(2.0**self.octave, self.num_items, self.scoring)


@dataclass(kw_only=True, slots=True)
class _Recent:
    """The needs of recent requests of a kind, the number of requests so far, and the choice for the next ones."""

    needed: deque[NDArray[np.int64]] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    observed: int = 0
    widths: tuple[int, ...] | None = None


class SearchWidths:
    """The widths of first passes, for each kind of search. Threads may share it.

    Args:
        learnt: The widths of some kinds, for requests until a few more have run.
        restarts: Whether a search that needs more prefixes starts again from its prompts, as it does on a device.

    Example:
        >>> widths, kind = SearchWidths(), SearchKind(num_items=10, octave=0, scoring="full")
        >>> for needed in (11, 13, 9, 12, 11, 10, 12, 13):
        ...     widths.observe(kind, np.array([[needed]]))
        >>> widths.of(kind)
        (13,)
    """

    def __init__(self, learnt: Mapping[SearchKind, Sequence[int]] | None = None, *, restarts: bool = False) -> None:
        self._restarts = restarts
        self._kinds = OrderedDict((kind, _Recent(widths=tuple(widths))) for kind, widths in (learnt or {}).items())
        self._lock = threading.Lock()  # the latest observed kind is the last

    @property
    def learnt(self) -> dict[SearchKind, tuple[int, ...]]:
        """Return the widths of each kind of which enough requests have run."""
        with self._lock:
            return {kind: recent.widths for kind, recent in self._kinds.items() if recent.widths is not None}

    def of(self, kind: SearchKind) -> tuple[int, ...] | None:
        """Return the prefixes that a first pass keeps at each level but the last; None until a few requests have run."""
        recent = self._kinds.get(kind)
        return None if recent is None else recent.widths

    @classmethod
    def load(cls, path: Path, num_levels: int, *, restarts: bool = False) -> "SearchWidths":
        """Return the widths of a file that `save` wrote; none, with a warning, if it is damaged or of another index."""
        try:
            rows = files.read_json(path)
            learnt = {SearchKind(**row["kind"]): beams_of_levels(row["widths"], num_levels - 1, "widths") for row in rows}
        except FileNotFoundError:
            return cls(restarts=restarts)
        except (OSError, ValueError, TypeError, KeyError, RecursionError, ArgumentError) as error:
            log.warning("the widths in %s are not used, and are learnt again: %s", path, error)
            return cls(restarts=restarts)
        return cls(learnt, restarts=restarts)

    def save(self, path: Path) -> None:
        """Write what was learnt to a JSON file; a warning says if it cannot be written."""
        rows = [{"kind": asdict(kind), "widths": widths} for kind, widths in self.learnt.items()]
        try:
            with files.replacing(path) as part:
                part.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        except OSError as error:
            log.warning("the learnt widths are not kept: %s", error)

    def observe(self, kind: SearchKind, needed_BL: NDArray[np.int64]) -> None:
        """Learn from the requests of a batch: `SearchResult.beams_needed`."""
        with self._lock:
            recent = self._kinds.pop(kind, None) or _Recent()
            self._kinds[kind] = recent
            if len(self._kinds) > _MAX_KINDS:
                self._kinds.popitem(last=False)
            before = recent.observed
            recent.needed.extend(needed_BL)
            recent.observed += len(needed_BL)
            if recent.observed // _EVERY > before // _EVERY:
                recent.widths = cheapest_widths(np.stack(recent.needed), restarts=self._restarts)


def cheapest_widths(needed_nL: NDArray[np.int64], *, restarts: bool = False) -> tuple[int, ...]:
    """Return the widths with which these requests would have computed the fewest rows, a call of the model counted as rows.

    A request that needs more prefixes of a level than run at first runs these later, in one more call for the level. If it
    restarts, all levels run again, with all that it needs.
    """

    def rows(widths_L: NDArray[np.int64]) -> float:
        more_nL = np.maximum(0, needed_nL - widths_L)
        if restarts:
            more_nL = np.where(more_nL.any(1, keepdims=True), needed_nL, 0)
        return float(widths_L.sum() + (more_nL + _CALL_ROWS * (more_nL > 0)).sum(1).mean())

    choices = [np.maximum(1, np.ceil(np.quantile(needed_nL, quantile, axis=0))).astype(np.int64) for quantile in _QUANTILES]
    return tuple(min(choices, key=rows).tolist())
