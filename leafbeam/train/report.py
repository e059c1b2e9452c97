"""The report of an evaluation, as JSON and as a table."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table

from leafbeam.errors import DataError
from leafbeam.train.metrics import Estimate, RankingMetrics


@dataclass(frozen=True, kw_only=True, slots=True)
class UnconstrainedReport:
    """The same model and prompts, searched with and without the index.

    invalid: share of a user's beams whose SID does not exist. scores: metrics of the unconstrained beams, invalid ones
    included. constrained: metrics of the constrained search on the same users.
    prompt_s, constrained_s, unconstrained_s: seconds of the shared prompts, and of the decoding rounds of each search.
    """

    users: int
    invalid: Estimate
    scores: RankingMetrics
    constrained: RankingMetrics
    prompt_s: float
    constrained_s: float
    unconstrained_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationReport:
    """Metrics of a model and of baselines on one part of a split, with the settings. seen: whether seen items were kept."""

    part: str
    users: int
    items: int
    num_beams: int
    scoring: str
    max_items: int
    trie_version: str
    model: RankingMetrics
    popularity: RankingMetrics
    text_neighbours: RankingMetrics | None
    unconstrained: UnconstrainedReport | None
    seconds: float
    seen: Literal["kept", "removed"] = "kept"

    def to_json(self) -> str:
        """One line; `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "EvaluationReport":
        """The inverse of `to_json`. Raises DataError for anything else."""
        try:
            content: dict[str, Any] = json.loads(text)
            for name in ("model", "popularity", "text_neighbours"):
                content[name] = content[name] and RankingMetrics.from_dict(content[name])
            if (free := content["unconstrained"]) is not None:
                free |= {name: RankingMetrics.from_dict(free[name]) for name in ("scores", "constrained")}
                content["unconstrained"] = UnconstrainedReport(**(free | {"invalid": Estimate(**free["invalid"])}))
            return cls(**content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"this is not a report of an evaluation ({error}): write one with `leafbeam evaluate`") from error

    def table(self) -> Table:
        """The metrics with their standard errors, one row for the model and one for each baseline, for rich."""
        rows = {"leafbeam": self.model, "most popular": self.popularity}
        if self.text_neighbours is not None:
            rows["nearest by text"] = self.text_neighbours
        if (free := self.unconstrained) is not None and free.users < self.users:
            rows |= {f"leafbeam, {free.users:,} users": free.constrained, "unconstrained, the same users": free.scores}
        elif free is not None:
            rows["unconstrained"] = free.scores
        table = Table(title=f"{self.users:,} users, {self.items:,} items, {self.num_beams} beams", caption=self.caption)
        for name in ("", *self.model.estimates):
            table.add_column(name, justify="right" if name else "left")
        for name, metrics in rows.items():
            table.add_row(name, *(str(estimate) for estimate in metrics.estimates.values()))
        return table

    @property
    def caption(self) -> str:
        """Invalid items, treatment of seen items, and times, in a few sentences."""
        if self.unconstrained is None:
            return f"Invalid items: 0 constrained. Seen items are {self.seen}."
        free = self.unconstrained
        speed = free.unconstrained_s / max(free.constrained_s, 1e-9)
        return (
            f"Invalid items: 0 constrained, {free.invalid.mean:.2%} ± {free.invalid.error:.2%} unconstrained. "
            f"Seen items are {self.seen}. Decoding for {free.users:,} users: {free.constrained_s:.1f} s constrained, "
            f"{free.unconstrained_s:.1f} s unconstrained ({speed:.2f}x as fast); prompts {free.prompt_s:.1f} s."
        )
