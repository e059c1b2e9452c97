"""Constrained beam search: knows ranges and scores, no transformer.

Shapes: S segments, B requests, K beams, V codes of a level, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from leafbeam.decode.forced_suffix import Suffixes, SuffixFn, SuffixReplay
from leafbeam.decode.results import (
    SearchResult,
    StepFn,
    all_finished,
    check_batch,
    check_logits,
    collect_items,
    finished_beams,
    root_ranges,
)
from leafbeam.errors import ArgumentError
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds
from leafbeam.ops import backend as backends
from leafbeam.ops.constrain import Scoring

__all__ = ["BeamSearch"]


class BeamSearch:
    """Beam search over the Semantic IDs of an index; every beam is a leaf range, so it can only reach items that exist.

    Think of it as the usual beam search with the illegal codes never looked at: each round asks the model for the logits of
    one level and keeps the best legal extensions. `num_beams` is one width, or one for each level (`[64, 128, 256]`); the last
    is the number of items that an answer has at most. One width of 1 is greedy decoding.

    scoring "full" adds log-softmax over the level's whole codebook (STATIC); "allowed" over the legal codes alone (xGR). They
    rank differently. backend: "cpu" (numba), "reference" (plain torch, slow), "auto".

    >>> search = BeamSearch(index, num_beams=70)
    >>> result = search.run(step_fn, batch_size=2, filters=[fresh, None])
    >>> result.item_ids[0][:10], result.scores[0, :10]
    """

    def __init__(
        self, index: Trie | Version, num_beams: int | Sequence[int] = 20, scoring: Scoring = "full", backend: str = "auto"
    ) -> None:
        widths = [num_beams] * index.num_levels if isinstance(num_beams, int) else [int(width) for width in num_beams]
        if len(widths) != index.num_levels or min(widths) < 1:
            raise ArgumentError(
                f"num_beams is {num_beams!r}: expected a positive number, or one for each of the {index.num_levels} levels"
            )
        if scoring not in get_args(Scoring):
            raise ArgumentError(f"scoring is {scoring!r}: expected 'full' or 'allowed'")
        self.index = index
        self.version = Version.of(index)
        self.widths = tuple(widths)
        self.scoring: Scoring = scoring
        self.backend, self._ops = backends.load(backend)
        self._arrays = self._ops.bind(self.version)

    def run(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None = None,
        deny: Sequence[ItemIds | None] | None = None,
        suffix_fn: SuffixFn | None = None,
    ) -> SearchResult:
        """Decode a batch of requests, each with its own filter and its own denied items.

        step_fn(codes_BK, parents_BK) -> logits: the first call passes (None, None) and expects (B, V) for level 0; each later
        one passes the code that every beam just took and the beam of the round before that it extends (int64, dead beams 0),
        and expects (B, K, V) for the next level. Arrays arrive as the kind (numpy, or torch on the same device) that the first
        call returned.

        filters: one for all requests, or one for each (None allows everything). deny: item ids for each request; unknown ones
        change nothing. Cost: L calls of step_fn, fewer where no request has a legal item left or, with an index of sequences,
        where every beam has ended; the rows of beams that ended (their code is the index's end_code) are not looked at.

        suffix_fn(codes_BKT, parents_BK) -> the logits of T levels, each (B, K, V of the level): given, the search asks it once,
        as soon as all live beams have one allowed item left, instead of step_fn T times, with the same answer. The codes are
        the one that every beam just took and those that must follow, less the last. With scoring "allowed" it is not even
        called: what is forced is certain, unless the model excludes it by a logit of -inf (then do without suffix_fn).
        Raises ArgumentError, ForeignFilterError, LogitsError.
        """
        requests = check_batch(self.version, batch_size, filters, deny)
        bound = self._ops.bind_filters(self._arrays, requests)
        lo_SBK, hi_SBK = root_ranges(self.version, requests)
        scores_BK = np.zeros((batch_size, 1), np.float32)
        num_valid_B = np.asarray((hi_SBK > lo_SBK).any(axis=(0, 2)), np.int64)
        codes_BK = parents_BK = sample = None
        answer: StepFn = step_fn
        rounds_saved = 0
        for level, width in enumerate(self.widths):
            if not num_valid_B.any():
                break
            finished_BK = finished_beams(self.version, codes_BK)
            if all_finished(finished_BK, num_valid_B):
                num_valid_B = np.minimum(num_valid_B, min(self.widths[level:]))
                break
            if suffix_fn is not None and codes_BK is not None and answer is step_fn:
                suffixes = Suffixes.of(self.version, requests, (lo_SBK, hi_SBK), num_valid_B)
                if suffixes is not None and self.scoring == "allowed":
                    lo_SBK, hi_SBK = suffixes.ranges
                    num_valid_B = np.minimum(num_valid_B, min(self.widths[level:]))
                    rounds_saved = suffixes.num_rounds(level)
                    break
                if suffixes is not None and (num_rounds := suffixes.num_rounds(level)) > 1:
                    forced_BKT = backends.to_kind_of(suffixes.codes_BKL[:, :, level - 1 : level - 1 + num_rounds], sample)
                    answer = SuffixReplay(suffix_fn(forced_BKT, parents_BK), num_rounds)
                    rounds_saved = num_rounds - 1
            logits = answer(codes_BK, parents_BK)
            sample = logits if sample is None else sample
            shape = (batch_size, lo_SBK.shape[2], self.version.codebook_sizes[level])
            lo, hi, scores, logits_BKV = lo_SBK, hi_SBK, scores_BK, check_logits(logits, level, shape, finished_BK)
            if self.backend == "reference":
                lo, hi, scores, logits_BKV = (backends.to_torch(array) for array in (lo, hi, scores, logits_BKV))
            # More beams than nodes of the level would only be dead weight for the model.
            beams = self._ops.step(
                self._arrays,
                level,
                lo,
                hi,
                scores,
                logits_BKV,
                bound,
                num_beams=min(width, self.version.num_nodes(level)),
                scoring=self.scoring,
            )
            lo_SBK, hi_SBK, scores_BK = (backends.to_numpy(array) for array in (beams.lo, beams.hi, beams.scores))
            num_valid_B = backends.to_numpy(beams.num_valid)
            codes_BK, parents_BK = (backends.to_kind_of(array, sample) for array in (beams.code, beams.parent))
        ranges, width = (lo_SBK, hi_SBK), self.widths[-1]
        return collect_items(self.version, requests, ranges, scores_BK, num_valid_B, width, rounds_saved)
