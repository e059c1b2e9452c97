"""What an evaluation found: one frozen row of figures, as JSON and as a table."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table

from leafbeam.errors import DataError
from leafbeam.train.metrics import Estimate, Scores

__all__ = ["Report", "Unconstrained"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unconstrained:
    """The same model and prompts, searched with and without the index, and what each took.

    invalid: share of a user's beams whose SID does not exist. scores: where the item's SID comes among the beams, those
    that do not exist taking places too. constrained: the constrained search on the same users.
    prompt_s: seconds for the prompts, which both share; constrained_s, unconstrained_s: for the rounds after them.
    """

    users: int
    invalid: Estimate
    scores: Scores
    constrained: Scores
    prompt_s: float
    constrained_s: float
    unconstrained_s: float

    @property
    def speed(self) -> float:
        """How many times as fast the constrained rounds are."""
        return self.unconstrained_s / max(self.constrained_s, 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Scores of a model and of its baselines on one part of a split, and the conditions that they hold under.

    Every answer of the constrained search was checked against the table of SIDs: none was invalid, or there would be no
    report. seen: whether items of a user's history are kept in the ranking, of the model and of the baselines, or removed.
    """

    part: str
    users: int
    items: int
    num_beams: int
    scoring: str
    max_items: int
    trie_version: str
    model: Scores
    popularity: Scores
    text_neighbours: Scores | None
    unconstrained: Unconstrained | None
    seconds: float
    seen: Literal["kept", "removed"] = "kept"

    def to_json(self) -> str:
        """One line; `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The report that `to_json` wrote; DataError where it is not one."""
        try:
            read: dict[str, Any] = json.loads(text)
            for name in ("model", "popularity", "text_neighbours"):
                read[name] = read[name] and Scores.from_dict(read[name])
            free: dict[str, Any] | None = read["unconstrained"]
            if free is not None:
                free["invalid"] = Estimate(**free["invalid"])
                for name in ("scores", "constrained"):
                    free[name] = Scores.from_dict(free[name])
                read["unconstrained"] = Unconstrained(**free)
            return cls(**read)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"this is not a report of an evaluation ({error}): write one with `leafbeam evaluate`") from error

    def table(self) -> Table:
        """The scores with their standard errors, a row for the model and for each baseline, to be printed by rich."""
        rows = {"leafbeam": self.model, "most popular": self.popularity}
        if self.text_neighbours is not None:
            rows["nearest by text"] = self.text_neighbours
        if self.unconstrained is not None and self.unconstrained.users < self.users:
            rows[f"leafbeam, {self.unconstrained.users:,} users"] = self.unconstrained.constrained
            rows["unconstrained, the same users"] = self.unconstrained.scores
        elif self.unconstrained is not None:
            rows["unconstrained"] = self.unconstrained.scores
        table = Table(title=f"{self.users:,} users, {self.items:,} items, {self.num_beams} beams", caption=self.caption)
        table.add_column("")
        for name in self.model.estimates:
            table.add_column(name, justify="right")
        for name, scores in rows.items():
            table.add_row(name, *(str(estimate) for estimate in scores.estimates.values()))
        return table

    @property
    def caption(self) -> str:
        """What the table does not say: validity, time and conditions, in a few sentences."""
        lines = [f"Invalid items: 0 constrained{self._invalid()}. Seen items are {self.seen}."]
        if (free := self.unconstrained) is not None:
            lines.append(
                f"Rounds of {free.users:,} users: {free.constrained_s:.1f} s constrained, {free.unconstrained_s:.1f} s "
                f"unconstrained ({free.speed:.2f}x as fast); prompts {free.prompt_s:.1f} s."
            )
        return " ".join(lines)

    def _invalid(self) -> str:
        if self.unconstrained is None:
            return ""
        invalid = self.unconstrained.invalid
        return f", {invalid.mean:.2%} ± {invalid.error:.2%} unconstrained"
