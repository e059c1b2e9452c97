"""Every experiment by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.papers import figure_2, figure_3, figure_4, memory, table_1
from benchmarks.papers.experiment import Experiment

if TYPE_CHECKING:
    from benchmarks.papers.learning import LearningTable
    from benchmarks.papers.xgr import ServingFigure

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
    from benchmarks.papers import xgr_http, xgr_kernels, xgr_latency, xgr_memory, xgr_motivation, xgr_scheduling

    figures = (
        xgr_motivation.FIGURE_3,
        xgr_motivation.FIGURE_4,
        xgr_motivation.FIGURE_5,
        xgr_http.FIGURE_13,
        xgr_http.FIGURE_14,
        xgr_memory.FIGURE_15,
        xgr_memory.FIGURE_16,
        xgr_kernels.FIGURE_17,
        xgr_scheduling.FIGURE_18,
        xgr_latency.FIGURE_19,
    )
    return {figure.name: figure for figure in figures}.get(name)


def learning_table(name: str) -> LearningTable | None:
    """The table about learning of this name, or None: those are measured from data sets, not from catalogs.

    They need what training needs (`leafbeam[train]`), which the others do without.
    """
    if name not in LEARNING:
        return None
    from benchmarks.papers import exactness, static_table_3, tiger_table_1

    return {module.TABLE.name: module.TABLE for module in (static_table_3, tiger_table_1, exactness)}[name]
