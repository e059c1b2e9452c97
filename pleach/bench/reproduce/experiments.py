"""Every experiment by name."""

from __future__ import annotations

from pleach.bench.reproduce import figure_2, figure_3, figure_4, memory, table_1
from pleach.bench.reproduce.experiment import Experiment

__all__ = ["experiment"]


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    modules = (table_1, figure_2, figure_3, figure_4, memory)
    return {module.EXPERIMENT.name: module.EXPERIMENT for module in modules}[name]
