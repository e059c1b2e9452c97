"""The report on Semantic IDs as a picture: how evenly codes are used, what each level explains, who collides.

Shapes: N items, V codes of a level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from leafbeam.errors import MissingExtraError
from leafbeam.semid.collisions import group_sizes
from leafbeam.semid.report import SidReport
from leafbeam.semid.table import SidTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_report"]

_COLOURS = ("#1f7a4a", "#d9822b", "#3b82b8", "#7b5ea7", "#b03a48", "#8a8f8c")


def draw_report(report: SidReport, table: SidTable) -> Figure:
    """Three panels: items of each code from the fullest to the emptiest, variance left by level, SIDs by items that share them.

    Raises MissingExtraError without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing a report needs matplotlib: pip install 'leafbeam[bench]'") from error
    matplotlib.use("agg")
    figure = Figure(figsize=(12.6, 3.8), layout="constrained")
    use, left, shared = figure.subplots(1, 3)
    for level, of_level in enumerate(report.levels):
        counts = np.sort(np.bincount(table.codes[:, level], minlength=of_level.codebook_size))[::-1]
        label = f"level {level}: {of_level.codes_used:,} used, perplexity {of_level.perplexity:.0f}"
        use.plot(np.arange(1, len(counts) + 1), counts, color=_COLOURS[level % len(_COLOURS)], label=label)
    use.set_yscale("symlog")
    use.set_xlabel("codes, fullest first")
    use.set_ylabel("items")
    use.legend(fontsize=7, frameon=False)
    unexplained = [level.unexplained for level in report.levels if level.unexplained is not None]
    left.bar(range(len(unexplained)), unexplained, color=_COLOURS[0])
    left.set_xticks(range(len(unexplained)))
    left.set_xlabel("after level")
    left.set_ylabel("variance left")
    left.set_title(f"{report.neighbour_overlap:.0%} of ten nearest neighbours kept", fontsize=9)
    sizes, counts = np.unique(group_sizes(table.codes), return_counts=True)
    shared.bar(sizes, counts, color=_COLOURS[2])
    shared.set_yscale("log")
    shared.set_xlabel("items that share a SID, after the repair")
    shared.set_ylabel("SIDs")
    shared.set_title(f"{report.colliding_items:,} of {report.items:,} collided before repair={report.repair!r}", fontsize=9)
    figure.suptitle(f"{report.method}, {' x '.join(str(size) for size in table.codebook_sizes)}", fontsize=10)
    return figure
