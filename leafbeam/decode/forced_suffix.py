"""Forced suffixes: when every live beam has one leaf left, its remaining codes are known.

    "full": one call of the model scores what would have been many rounds
    "allowed": nothing is left to score, among one legal code that one is certain

Forced codes of a trie are the codes that the search would have taken, so the result is exact; forced text, which is tokenised
anew, is not.

Shapes: S segments, B requests, K beams, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leafbeam.decode.config import end_code_of
from leafbeam.decode.model_calls import JumpForward
from leafbeam.index import Version
from leafbeam.ops.backend import to_numpy
from leafbeam.ops.constrain import Beams, RequestFilter

__all__ = ["forced_suffix"]


def forced_suffix(
    version: Version, requests: Sequence[tuple[RequestFilter, ...]], level: int, beams: Beams[Any]
) -> JumpForward | None:
    """The codes from `level` on, until the longest sequence has ended.

    None unless every live beam has one allowed SID left, which may stand in both segments. Cost: two ranks a beam.
    """
    lo_SBK, hi_SBK = (to_numpy(array) for array in (beams.lo, beams.hi))
    live_BK = to_numpy(beams.scores) > -np.inf
    if not any(parts[0].leaves for parts in requests) and (hi_SBK - lo_SBK)[:, live_BK].max(initial=0) > 1:
        return None
    leaves_SBK = np.full(lo_SBK.shape, -1, np.int64)
    codes_BKL = np.zeros((*live_BK.shape, version.num_levels), np.int64)
    for s, segment in enumerate(version.segments):
        for b, parts in enumerate(requests):
            beams_n = np.flatnonzero(live_BK[b] & (hi_SBK[s, b] > lo_SBK[s, b]))
            leaves = parts[s].sole_leaves(lo_SBK[s, b, beams_n], hi_SBK[s, b, beams_n])
            if (leaves < 0).any():
                return None
            codes = segment.trie.codes_at(leaves)
            again = leaves_SBK[:s, b, beams_n].max(axis=0, initial=-1) >= 0
            if not np.array_equal(codes[again], codes_BKL[b, beams_n[again]]):
                return None
            leaves_SBK[s, b, beams_n], codes_BKL[b, beams_n] = leaves, codes
    codes_BKT = codes_BKL[:, :, level:]
    end_code = end_code_of(version)
    if end_code is not None:
        going_T = (codes_BKT[live_BK] != end_code).any(axis=0)
        codes_BKT = codes_BKT[:, :, : int(going_T.sum()) + 1]
    return JumpForward(codes_BKT=codes_BKT, lo_SBK=np.maximum(leaves_SBK, 0), hi_SBK=leaves_SBK + 1, decides=False)
