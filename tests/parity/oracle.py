"""The float64 brute-force oracle: enumerates a tiny catalog, with no trie, no ranges and no bitmaps.

For every round it lists every (parent, code) whose prefix is the prefix of an allowed item, scores it in float64 and sorts by
(score desc, parent asc, code asc). Every backend has to give these beams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Prefix = tuple[int, ...]
LogitsOf = Callable[[int, Prefix], np.ndarray]
LargestBelow = Callable[[Prefix], float]


def log_sum_exp(values: np.ndarray) -> float:
    top = values.max(initial=-np.inf)
    return -np.inf if top == -np.inf else float(top + np.log(np.exp(values - top).sum()))


def search(
    allowed_sids: Sequence[Prefix],
    logits_of: LogitsOf,
    widths: Sequence[int],
    scoring: str,
    largest_below: LargestBelow = lambda prefix: 0.0,
) -> list[list[tuple[float, int, Prefix]]]:
    """The beams after each round: (score, parent, prefix), best first. `logits_of(level, prefix)` is the model, with one more
    logit, of any other token, for scoring "vocabulary".

    largest_below: the largest boost of the live items below a prefix, which is part of its score.
    """
    beams: list[tuple[float, int, Prefix]] = [(largest_below(()), 0, ())]
    rounds: list[list[tuple[float, int, Prefix]]] = []
    for level, width in enumerate(widths):
        codes_after: dict[Prefix, set[int]] = {}
        for sid in allowed_sids:
            codes_after.setdefault(sid[:level], set()).add(sid[level])
        candidates: list[tuple[float, int, Prefix]] = []
        for parent, (score, _, prefix) in enumerate(beams):
            logits = logits_of(level, prefix).astype(np.float64)
            legal = sorted(codes_after.get(prefix, ()))
            normal = log_sum_exp(logits[legal]) if scoring == "allowed" else log_sum_exp(logits)
            before = largest_below(prefix)
            for code in legal:
                if logits[code] > -np.inf:
                    child = score + (logits[code] - normal) + (largest_below((*prefix, code)) - before)
                    candidates.append((max(float(child), float(np.finfo(np.float32).min)), parent, (*prefix, code)))
        beams = sorted(candidates, key=lambda one: (-one[0], one[1], one[2][-1]))[:width]
        rounds.append(beams)
    return rounds
