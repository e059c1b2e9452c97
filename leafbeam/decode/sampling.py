"""The distribution that sampling draws from.

Shapes: R rows, C legal codes of all rows together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, LogitsError, check_number, check_whole


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The distribution from which codes are drawn: softmax(logits / temperature) over the most likely legal codes.

    Args:
        temperature: The divisor of the logits.
        top_k: Keep this many codes; None keeps all.
        top_p: Keep the smallest set of codes that has this share of the probability; None keeps all. If top_k is set too, a
            code has to be in both sets.

    Raises:
        ArgumentError: If a value is out of range.

    Examples:
        >>> Sampling(temperature=0.7, top_p=0.9)
        Sampling(temperature=0.7, top_k=None, top_p=0.9)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and np.isfinite(self.temperature)):
            raise ArgumentError(
                f"temperature is {self.temperature}: expected more than 0 (for greedy, leave sampling out and use one beam)"
            )
        check_whole(top_k=1 if self.top_k is None else self.top_k)
        check_number(exclusive=True, most=1, top_p=1 if self.top_p is None else self.top_p)

    def log_probabilities(self, logits_C: NDArray[np.floating], row_C: NDArray[np.int64], where: str) -> NDArray[np.float64]:
        """Return the log-probability of each legal code among those of its row; -inf for a code that is cut.

        This costs a few passes, and a sort of the codes that may be kept.

        Args:
            logits_C: The logit of each legal code.
            row_C: The row of each code, ascending.
            where: The end of the message, such as "at level 2".

        Raises:
            LogitsError: If a logit is NaN or +inf.
        """
        if np.isnan(logits_C).any() or np.isposinf(logits_C).any():
            raise LogitsError(f"the logits {where} hold NaN or +inf: expected finite numbers, or -inf")
        scaled_C = log_softmax(logits_C.astype(np.float64), row_C, self.temperature)
        if not len(row_C) or (self.top_k is None and self.top_p is None):
            return scaled_C
        # Codes below (1 - top_p) / (codes of the row) have less than 1 - top_p together, so none of them is in the smallest set
        # and they need no sorting; half of it leaves room for rounding.
        least = 0.0 if self.top_p is None else (1 - self.top_p) / 2
        kept = np.flatnonzero(np.exp(scaled_C) * np.bincount(row_C)[row_C] >= least)
        kept = kept[np.lexsort((-scaled_C[kept], row_C[kept]))]  # by row, most likely first, ties by code
        starts = np.flatnonzero(np.diff(row_C[kept], prepend=-1))
        first_of = np.repeat(starts, np.diff(np.append(starts, len(kept))))
        keep = np.ones(len(kept), np.bool_)
        if self.top_k is not None:
            keep &= np.arange(len(kept)) - first_of < self.top_k
        if self.top_p is not None:
            mass = np.cumsum(np.exp(scaled_C[kept]))
            before = mass - np.exp(scaled_C[kept])
            keep &= (before - before[first_of] < self.top_p) | (np.arange(len(kept)) == first_of)
        cut_C = np.full(len(scaled_C), -np.inf)
        cut_C[kept[keep]] = scaled_C[kept[keep]]
        return log_softmax(cut_C, row_C)


def log_softmax(values_C: NDArray[np.float64], row_C: NDArray[np.int64], temperature: float = 1.0) -> NDArray[np.float64]:
    """Return the log-softmax of values / temperature among the codes of each row; all -inf in a row of nothing else.

    row_C: the row of each code, ascending.
    """
    if len(values_C) == 0:
        return values_C
    starts = np.flatnonzero(np.diff(row_C, prepend=-1))
    sizes = np.diff(np.append(starts, len(row_C)))
    top = np.maximum.reduceat(values_C, starts)
    top = np.where(top > -np.inf, top, 0.0)
    with np.errstate(over="ignore"):  # at a tiny temperature -inf for all but the best, which is then certain
        shifted_C = (values_C - np.repeat(top, sizes)) / temperature
    total = np.add.reduceat(np.exp(shifted_C), starts)
    return shifted_C - np.repeat(np.log(np.where(total > 0, total, 1.0)), sizes)
