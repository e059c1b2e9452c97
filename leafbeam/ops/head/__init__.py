"""The allowed-only head: one verb, `head`, one file per backend; `reference` is the truth."""

from leafbeam.ops.head.cost import Costs, Path, Work, choose
from leafbeam.ops.head.types import HeadLogits, Normalize, States

__all__ = ["Costs", "HeadLogits", "Normalize", "Path", "States", "Work", "choose"]
