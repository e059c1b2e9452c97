"""The report of an evaluation, as JSON and as a table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from leafbeam.errors import counted
from leafbeam.html_table import html_table
from leafbeam.train.metrics import SEEN, Estimate, Ranking, RankingMetrics, Ranks, Seen
from leafbeam.train.segments import ListFigures, Segment, plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

SERVED = ("model", "memory", "fused")
"""The rankings that a server of the run returns: its channels."""

LABELS = {
    "model": "model alone",
    "memory": "item memory alone",
    "fused": "model and item memory",
    "popularity": "most popular",
    "text": "nearest by text",
    "transitions": "transitions from the last item",
    "graph": "transition graph",
    "graph_text": "transition graph and text",
    "sasrec": "SASRec",
}
"""What tables call a ranking; another name stands for itself."""

SEGMENT_LABELS = {"popularity": "training interactions of the item", "history": "items of the history"}
"""The labels of plots for the number that tells segments apart."""

_ROWS = {"popularity": "item seen {} x", "history": "history of {}"}

_SHOWN = "Recall@10", "NDCG@10"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnconstrainedReport:
    """The figures of the same model and prompts, searched with and without the index.

    `invalid` is the share of a user's beams whose SID does not exist. `scores` are the metrics of the unconstrained beams,
    invalid ones included; `constrained` those of the constrained search on the same users. `prompt_s`, `constrained_s` and
    `unconstrained_s` are the seconds of the shared prompts, and of the decoding rounds of each search.
    """

    users: int
    invalid: Estimate
    scores: RankingMetrics
    constrained: RankingMetrics
    prompt_s: float
    constrained_s: float
    unconstrained_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The best ranking by Recall@10, and its lead over the best of the other kind: served, or a baseline.

    `seen` says whether the compared lists keep seen items; the choice that gives the higher Recall@10. `lead` is the mean
    difference of the same users' hits, with its standard error.
    """

    best: str
    other: str
    seen: Seen
    lead: Estimate

    @classmethod
    def from_ranks(cls, ranks: Mapping[str, Ranks]) -> "Verdict":
        """Return the verdict on the ranks of at least one served ranking and one baseline, on the same users."""

        def hits(name: str, seen: Seen) -> "NDArray[np.float64]":
            ranks_U = getattr(ranks[name], seen)
            return ((ranks_U >= 0) & (ranks_U < 10)).astype(np.float64)

        seen = max(SEEN, key=lambda seen: max(hits(name, seen).mean() for name in ranks))
        best = max(ranks, key=lambda name: hits(name, seen).mean())
        others = [name for name in ranks if (name in SERVED) != (best in SERVED)]
        other = max(others, key=lambda name: hits(name, seen).mean())
        return cls(best=best, other=other, seen=seen, lead=Estimate.from_values(hits(best, seen) - hits(other, seen)))

    def __str__(self) -> str:
        return self.advice("leafbeam train --resume --minutes 30")

    def advice(self, train: str) -> str:
        """Say which ranking is best, and what to do; `train` is the command that trains this model longer."""
        errors = self.lead.mean / self.lead.error if self.lead.error else 0.0
        best, other = (LABELS.get(name, name) for name in (self.best, self.other))
        lead = f"With seen items {self.seen}, the best Recall@10 is that of {best}, {errors:.1f} standard errors above {other}"
        if errors <= 2:
            return f"{lead}: no clear difference. Evaluate more users, or train longer: {train}"
        if self.best in SERVED:
            channel = "requests get it by default" if self.best == "fused" else f'name the channel "{self.best}" in requests'
            return f"{lead}: {channel}."
        if self.best == "text":
            return f"{lead}: the log is small beside its texts. Train longer: {train}"
        return f"{lead}: the model has not learnt enough. Train longer: {train}"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationReport:
    """The metrics of a model and of baselines on one part of a split, with the settings.

    Attributes:
        rankings: The metrics by method, "model" first.
        fit_on: The parts on which the baselines, and the model, were fitted.
        segments: Recall@10 for items by "popularity" (their training interactions) and for users by the length of their
            "history", in the lists that the verdict compares.
        lists: The shares and novelty of the lists of each method.
    """

    part: str
    fit_on: str
    users: int
    items: int
    num_beams: int
    scoring: str
    max_items: int
    trie_version: str
    rankings: Mapping[str, Ranking]
    verdict: Verdict
    segments: Mapping[str, Sequence[Segment]]
    lists: Mapping[str, ListFigures]
    unconstrained: UnconstrainedReport | None
    seconds: float

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(asdict(self))

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        """Return heads and rows of the table: figures of each ranking with standard errors, seen items kept and removed."""
        rows: dict[str, tuple[RankingMetrics, ...]] = {
            LABELS.get(name, name): tuple(getattr(ranking, seen) for seen in SEEN) for name, ranking in self.rankings.items()
        }
        if (free := self.unconstrained) is not None:
            rows[f"model alone, {counted(free.users, 'user')}"] = (free.constrained,)
            rows["without a constraint, these users"] = (free.scores,)
        heads = ["", *(f"{name}, seen {seen}" for seen in SEEN for name in _SHOWN)]
        cells = {
            name: [str(metric.estimates[shown]) for metric in metrics for shown in _SHOWN] for name, metrics in rows.items()
        }
        return heads, [[name, *row, *[""] * (len(heads) - 1 - len(row))] for name, row in cells.items()]

    def table(self) -> Table:
        """Return Recall@10 and NDCG@10 of each ranking with their standard errors, in lists that keep seen items and lists
        without.
        """
        heads, rows = self._rows()
        table = Table(title=self.title, caption=self.caption)
        for number, name in enumerate(heads):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        return table

    @property
    def compared(self) -> dict[str, str]:
        """Return the names and labels of the served rankings and the best baseline."""
        baseline = self.verdict.best if self.verdict.best not in SERVED else self.verdict.other
        return {name: LABELS.get(name, name) for name in self.rankings if name in SERVED or name == baseline}

    def segment_table(self) -> Table:
        """Return Recall@10 of the served rankings and the best baseline by segment, and the figures of their lists."""
        table = Table(title=f"Recall@10 by segment, seen items {self.verdict.seen}")
        for name in ("", "users", *self.compared.values()):
            table.add_column(name, justify="right" if name else "left")
        for kind, segments in self.segments.items():
            for segment in segments:
                recalls = [str(segment.recall_10[name]) for name in self.compared]
                table.add_row(_ROWS[kind].format(segment.name), f"{segment.users:,}", *recalls)
            table.add_section()
        lists = [self.lists[name] for name in self.compared]
        table.add_row("catalog that is shown", "", *(f"{segment_list.coverage:.1%}" for segment_list in lists))
        table.add_row("novelty, bits", "", *(f"{segment_list.novelty:.1f}" for segment_list in lists))
        return table

    def plot(self) -> "Figure":
        """Plot Recall@10 of the served rankings and the best baseline by segment."""
        labels = {SEGMENT_LABELS[kind]: segments for kind, segments in self.segments.items()}
        return plot(labels, self.compared, f"{self.title}; seen items {self.verdict.seen}")

    def _repr_html_(self) -> str:
        return html_table(f"{self.title}. {self.caption}", *self._rows())

    @property
    def title(self) -> str:
        """Return what was measured, in one line."""
        users = f"{counted(self.users, 'user')}, {counted(self.items, 'item')}, {counted(self.num_beams, 'beam')}"
        return f"{users}; fitted on {self.fit_on.replace('+', ' and ')}, measured on {self.part}"

    @property
    def caption(self) -> str:
        """Return the invalid items and times, in a few sentences."""
        if self.unconstrained is None:
            return "Invalid items: 0 constrained."
        free = self.unconstrained
        speed = free.unconstrained_s / max(free.constrained_s, 1e-9)
        return (
            f"Invalid items: 0 constrained, {free.invalid.mean:.2%} ± {free.invalid.error:.2%} unconstrained. "
            f"Decoding for {counted(free.users, 'user')}: {free.constrained_s:.1f} s constrained, "
            f"{free.unconstrained_s:.1f} s unconstrained ({speed:.2f}x as fast); prompts {free.prompt_s:.1f} s."
        )
