"""Recall for users and items of each kind, and the items that lists show.

Shapes: U users, N items, K items of a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import counted
from leafbeam.extras import optional_imports
from leafbeam.train.metrics import Estimate, Ranks, Seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POPULARITY = (0, 1, 5, 20, 100)
"""The smallest number of training interactions of an item in each segment."""

HISTORY = (1, 3, 6, 11, 21)
"""The smallest number of items of a history in each segment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """The users of one kind, and how many of them find their item.

    Args:
        name: The numbers that the segment holds, such as "5 to 19".
        users: The number of users.
        recall_10: Recall@10 of each ranking by its name.
    """

    name: str
    users: int
    recall_10: Mapping[str, Estimate]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListFigures:
    """The items that a ranking shows among its first ten.

    Args:
        coverage: The share of the catalog that is in a list of at least one user.
        novelty: The mean self-information of a listed item in bits: -log2 of its share of the training interactions. An item
            without any counts as if it had one. Popular items have little.
    """

    coverage: float
    novelty: float

    @classmethod
    def of(cls, shown_N: NDArray[np.int64], interactions_N: NDArray[np.int64]) -> ListFigures:
        """Return the figures of lists that show each item so often. interactions_N: the training interactions of each."""
        bits_N = -np.log2(np.maximum(interactions_N, 1) / max(1, interactions_N.sum()))
        return cls(coverage=float((shown_N > 0).mean()), novelty=float(shown_N @ bits_N / max(1, shown_N.sum())))


def segments_of(
    ranks: Mapping[str, Ranks], seen: Seen, values_U: NDArray[np.int64], least: Sequence[int]
) -> tuple[Segment, ...]:
    """Return the segments that have users, by a number of each user.

    Args:
        ranks: The ranks of each ranking by its name.
        seen: The lists that count: with seen items, or without.
        values_U: The number of each user.
        least: The smallest number of each segment, ascending.
    """
    segments: list[Segment] = []
    for name, chosen_U in split_by(values_U, least):
        recalls: dict[str, Estimate] = {}
        for ranking, ranking_ranks in ranks.items():
            ranks_u = getattr(ranking_ranks, seen)[chosen_U]
            recalls[ranking] = Estimate.from_values(((ranks_u >= 0) & (ranks_u < 10)).astype(np.float64))
        segments.append(Segment(name=name, users=int(chosen_U.sum()), recall_10=recalls))
    return tuple(segments)


def split_by(values_N: NDArray[np.int64], least: Sequence[int]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the name and the members of each segment that is not empty. least: the smallest number of each, ascending."""
    for low, high in pairwise([*least, None]):
        assert low is not None
        chosen_N = (values_N >= low) & (values_N < high) if high is not None else values_N >= low
        if chosen_N.any():
            yield f"{low} or more" if high is None else f"{low}" if high == low + 1 else f"{low} to {high - 1}", chosen_N


def plot(segments: Mapping[str, Sequence[Segment]], names: Mapping[str, str], title: str) -> Figure:
    """Plot Recall@10 by segment with standard errors.

    Args:
        segments: The segments of each panel, by the label of its axis.
        names: The name of each ranking that is drawn.
        title: The title of the figure.
    """
    with optional_imports("a plot"):
        import matplotlib
        from matplotlib.figure import Figure
    matplotlib.use("agg")
    figure = Figure(figsize=(5.2 * len(segments), 4.2), layout="constrained")
    panels = figure.subplots(1, len(segments), squeeze=False, sharey=True)[0]
    for axes, (label, shown) in zip(panels, segments.items(), strict=True):
        positions = np.arange(len(shown))
        for number, (ranking, name) in enumerate(names.items()):
            estimates = [segment.recall_10[ranking] for segment in shown]
            shift = 0.08 * (number - (len(names) - 1) / 2)
            means, errors = [estimate.mean for estimate in estimates], [estimate.error for estimate in estimates]
            axes.errorbar(positions + shift, means, errors, marker="o", markersize=4, capsize=2, linewidth=1, label=name)
        axes.set_xticks(positions, [f"{segment.name}\n{counted(segment.users, 'user')}" for segment in shown], fontsize=8)
        axes.set(xlabel=label, ylim=(0, None))
    panels[0].set_ylabel("Recall@10")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure
