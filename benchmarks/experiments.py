"""Every experiment by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.static import figure_2, figure_3, figure_4, memory, table_1
from benchmarks.static.experiment import Experiment

if TYPE_CHECKING:
    from benchmarks.learning import LearningTable
    from benchmarks.xgr.serving_figure import ServingFigure

__all__ = ["LEARNING", "experiment", "learning_table", "serving_figure"]

LEARNING = ("static-table-3", "tiger-table-1", "exactness")


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    modules = (table_1, figure_2, figure_3, figure_4, memory)
    return {module.EXPERIMENT.name: module.EXPERIMENT for module in modules}[name]


def serving_figure(name: str) -> ServingFigure | None:
    """The figure of the xGR paper of this name, or None. They need what serving needs (`leafbeam[serve]`) beside `[bench]`."""
    if not name.startswith("xgr-"):
        return None
    from benchmarks.xgr import figure_17, figure_18, figure_19, figures_3_to_5, figures_13_14, figures_15_16, histories, sorting

    figures = (
        figures_3_to_5.FIGURE_3,
        figures_3_to_5.FIGURE_4,
        figures_3_to_5.FIGURE_5,
        figures_13_14.FIGURE_13,
        figures_13_14.FIGURE_14,
        histories.FIGURE,
        figures_15_16.FIGURE_15,
        figures_15_16.FIGURE_16,
        figure_17.FIGURE_17,
        figure_18.FIGURE_18,
        figure_19.FIGURE_19,
        sorting.SORTING,
    )
    return {figure.name: figure for figure in figures}.get(name)


def learning_table(name: str) -> LearningTable | None:
    """The table about learning of this name, or None: those are measured from data sets, not from catalogs.

    They need what training needs (`leafbeam[train]`), which the others do without.
    """
    if name not in LEARNING:
        return None
    from benchmarks.static import table_3
    from benchmarks.studies import exactness
    from benchmarks.tiger import table_1 as tiger_table_1

    return {module.TABLE.name: module.TABLE for module in (table_3, tiger_table_1, exactness)}[name]
