"""Quality of Semantic IDs: codebook use, collisions, loss. Shapes: N items, L levels, D dimensions, n rows of a sample."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import counted
from leafbeam.extras import optional_imports
from leafbeam.html_table import html_table
from leafbeam.semid.table import SidTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NEIGHBOURS, _SAMPLE = 10, 1000  # of `neighbour_overlap`
_COLOURS = ("#1f7a4a", "#d9822b", "#3b82b8", "#7b5ea7", "#b03a48", "#8a8f8c")


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelReport:
    """The number of used codes of a level, and how evenly they are used (entropy in bits).

    `unexplained` is the share of the vectors' variance that is left after this level. It is None for a level that only
    numbers the items of a SID.
    """

    codebook_size: int
    codes_used: int
    entropy: float
    perplexity: float
    unexplained: float | None

    @classmethod
    def of(cls, codes_N: NDArray[np.int64], codebook_size: int, unexplained: float | None) -> "LevelReport":
        """Count the codes of one level."""
        shares = np.bincount(codes_N, minlength=codebook_size) / max(1, len(codes_N))
        used = shares[shares > 0]
        entropy = float(-(used * np.log2(used)).sum()) + 0.0
        return cls(
            codebook_size=codebook_size, codes_used=len(used), entropy=entropy, perplexity=2**entropy, unexplained=unexplained
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SidReport:
    """The figures of one `fit_sids`.

    Three figures describe the SIDs before collisions were resolved: `distinct_sids` is the number of different SIDs,
    `colliding_items` the number of items that share a SID, and `largest_group` the largest number of items with one
    SID. `moved_items` is the number of items whose codes were then changed, and `distinct_after` the number of
    different SIDs afterwards. `neighbour_overlap` is the share of an item's ten nearest vectors that are among the ten
    nearest after quantisation. `notes` are whole sentences about what is probably wrong with the vectors or codes.
    """

    items: int
    levels: tuple[LevelReport, ...]
    method: str
    collision_strategy: str
    distinct_sids: int
    distinct_after: int
    colliding_items: int
    largest_group: int
    moved_items: int
    neighbour_overlap: float
    dims: int
    text_columns: tuple[str, ...]
    items_without_text: int
    items_without_behaviour: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"warning: {note}" for note in self.notes)])

    @property
    def summary(self) -> str:
        """Return the figures, without the notes."""
        lines = [
            f"{counted(self.items, 'item')}, vectors of {counted(self.dims, 'dimension')}; "
            f"text from {', '.join(self.text_columns) or 'no column'}",
            f"without text {self.items_without_text:,}, without behaviour {self.items_without_behaviour:,}",
            "level    size    used  perplexity  bits  variance left",
        ]
        for number, level in enumerate(self.levels):
            left = "-" if level.unexplained is None else f"{level.unexplained:.3f}"
            used = f"{level.codes_used:7,} {level.perplexity:11.1f} {level.entropy:5.2f}"
            lines.append(f"{number:5} {level.codebook_size:7,} {used} {left:>14}")
        moved = f" moved {counted(self.moved_items, 'item')}" if self.moved_items else ""
        collisions = "no item shares its SID"
        if self.colliding_items:
            shares = "shares its SID" if self.colliding_items == 1 else "share their SID"
            collisions = f"{counted(self.colliding_items, 'item')} {shares}, at most {self.largest_group:,} have the same"
        lines.append(
            f"{counted(self.distinct_sids, 'distinct SID')}, {collisions}; "
            f"collision_strategy={self.collision_strategy!r}{moved}, {self.distinct_after:,} distinct"
        )
        lines.append(f"{self.method}: {self.neighbour_overlap:.1%} of ten nearest neighbours kept by the codes")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        kept = f"{self.neighbour_overlap:.1%} of ten nearest neighbours kept"
        caption = f"{self.method}: {counted(self.items, 'item')}, {self.distinct_after:,} distinct Semantic IDs, {kept}"
        return html_table(caption, ["level", "size", "used", "perplexity", "bits", "variance left"], _levels(self))


def _levels(report: SidReport) -> list[tuple[object, ...]]:
    """Return the rows of a table of levels."""
    return [
        (
            number,
            level.codebook_size,
            level.codes_used,
            f"{level.perplexity:.1f}",
            f"{level.entropy:.2f}",
            "-" if level.unexplained is None else f"{level.unexplained:.3f}",
        )
        for number, level in enumerate(report.levels)
    ]


def neighbour_overlap(vectors_ND: NDArray[np.float32], decoded_ND: NDArray[np.float32]) -> float:
    """Return the mean share of an item's nearest vectors (Euclidean) that are also nearest in `decoded_ND`, for a fixed
    sample of items.
    """
    count = len(vectors_ND)
    neighbours = min(_NEIGHBOURS, count - 1)
    if neighbours < 1:
        return 1.0
    sampled = np.sort(np.random.default_rng(0).choice(count, min(_SAMPLE, count), replace=False))
    common = 0
    for start in range(0, len(sampled), 100):
        rows_n = sampled[start : start + 100]
        before, after = (_nearest_rows(values_ND, rows_n, neighbours) for values_ND in (vectors_ND, decoded_ND))
        common += int((before[:, :, None] == after[:, None, :]).any(axis=2).sum())
    return common / (len(sampled) * neighbours)


def _nearest_rows(vectors_ND: NDArray[np.float32], rows_n: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    distance_nN = 0.5 * (vectors_ND**2).sum(axis=1) - vectors_ND[rows_n] @ vectors_ND.T
    distance_nN[np.arange(len(rows_n)), rows_n] = np.inf
    return np.argpartition(distance_nN, count - 1, axis=1)[:, :count]


def plot_report(report: SidReport, table: SidTable) -> "Figure":
    """Plot the items of each code, the variance left after each level, and the SIDs by items that share them."""
    with optional_imports("a plot"):
        import matplotlib
        from matplotlib.figure import Figure
    matplotlib.use("agg")
    figure = Figure(figsize=(12.6, 3.8), layout="constrained")
    use, variance, shared = figure.subplots(1, 3)
    for number, level in enumerate(report.levels):
        counts = np.sort(np.bincount(table.codes[:, number], minlength=level.codebook_size))[::-1]
        label = f"level {number}: {level.codes_used:,} used, perplexity {level.perplexity:.0f}"
        use.plot(np.arange(1, len(counts) + 1), counts, color=_COLOURS[number % len(_COLOURS)], label=label)
    use.set(yscale="symlog", xlabel="codes by number of items", ylabel="items")
    use.legend(fontsize=7, frameon=False)
    unexplained = [level.unexplained for level in report.levels if level.unexplained is not None]
    variance.bar(range(len(unexplained)), unexplained, color=_COLOURS[0])
    variance.set(xticks=range(len(unexplained)), xlabel="after level", ylabel="variance left")
    variance.set_title(f"{report.neighbour_overlap:.0%} of ten nearest neighbours kept", fontsize=9)
    _, items_of_sid = np.unique(table.codes, axis=0, return_counts=True)
    sizes, counts = np.unique(items_of_sid, return_counts=True)
    shared.bar(sizes, counts, color=_COLOURS[2])
    shared.set(yscale="log", xlabel="items that share a SID, collisions resolved", ylabel="SIDs")
    strategy = f"collision_strategy={report.collision_strategy!r}"
    shared.set_title(f"{report.colliding_items:,} of {report.items:,} collided before {strategy}", fontsize=9)
    figure.suptitle(f"{report.method}, {' x '.join(str(size) for size in table.codebook_sizes)}", fontsize=10)
    return figure
