"""Logits of legal codes alone: `head`, in one module per backend (`cpu`, `triton`, and `reference`, the truth)."""

from leafbeam.ops.head.cost import HeadCosts, HeadPath, Workload, cheapest_path
from leafbeam.ops.head.types import HeadLogits, LegalCodes, Normalize

__all__ = ["HeadCosts", "HeadLogits", "HeadPath", "LegalCodes", "Normalize", "Workload", "cheapest_path"]
