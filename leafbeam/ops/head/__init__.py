"""The allowed-only head: one verb, `head`, one file per backend; `reference` is the truth."""

from leafbeam.ops.head.cost import HeadCosts, HeadPath, Workload, cheapest_path
from leafbeam.ops.head.types import HeadLogits, LegalCodes, Normalize

__all__ = ["HeadCosts", "HeadLogits", "HeadPath", "LegalCodes", "Normalize", "Workload", "cheapest_path"]
