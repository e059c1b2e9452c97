"""Every experiment by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pleach.bench.reproduce import figure_2, figure_3, figure_4, memory, table_1
from pleach.bench.reproduce.experiment import Experiment

if TYPE_CHECKING:
    from pleach.bench.reproduce.learning import LearningTable

__all__ = ["LEARNING", "experiment", "learning_table"]

LEARNING = ("static-table-3", "tiger-table-1")


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    modules = (table_1, figure_2, figure_3, figure_4, memory)
    return {module.EXPERIMENT.name: module.EXPERIMENT for module in modules}[name]


def learning_table(name: str) -> LearningTable | None:
    """The table about learning of this name, or None: those are measured from data sets, not from catalogues.

    They need what training needs (`pleach[train]`), which the others do without.
    """
    if name not in LEARNING:
        return None
    from pleach.bench.reproduce import static_table_3, tiger_table_1

    return {module.TABLE.name: module.TABLE for module in (static_table_3, tiger_table_1)}[name]
