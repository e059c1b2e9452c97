"""The products that a model's layers use on this machine, each chosen by what the matrix is and by one measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leafbeam.errors import counted
from leafbeam.model.cpu.layers import are_fused
from leafbeam.ops.linear import cpu as linear

__all__ = ["ProductTuning", "tune_products"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductTuning:
    """How the layers' matrices are multiplied.

    Args:
        is_fused: Whether all layers run in one call, because their matrices are small.
        num_packed: The matrices that are kept in oneDNN's layout.
        num_matrices: All matrices of the layers.
        few_rows: For each shape (outputs, inputs) of other matrices, the numbers of rows of which a kernel of leafbeam's own is
            faster than torch's product.
    """

    is_fused: bool
    num_packed: int
    num_matrices: int
    few_rows: dict[tuple[int, int], tuple[int, ...]]

    @property
    def is_measured(self) -> bool:
        """Return whether anything was measured to choose."""
        return self.num_packed > 0 or bool(self.few_rows)

    def __str__(self) -> str:
        if self.is_fused:
            return "all layers in one call"
        packed = f"{self.num_packed:,} of {counted(self.num_matrices, 'matrix', 'matrices')} packed for oneDNN"
        few = [
            f"own kernel at batches of {', '.join(map(str, rows))} for weights of {outputs:,} x {inputs:,}"
            for (outputs, inputs), rows in self.few_rows.items()
            if rows
        ]
        return "; ".join([packed, *few, "torch for the others"])


def tune_products(layers: Sequence[Sequence[Tensor]], products: torch.dtype) -> ProductTuning:
    """Return how the matrices of each layer are multiplied with torch's number of threads, measuring what is new.

    Args:
        layers: The seven matrices (V, D) of each layer; those that are part of another have no rows.
        products: The dtype of the products.
    """
    matrices = [weight for layer in layers for weight in layer if len(weight)]
    plain = [] if products == torch.bfloat16 else [weight for weight in matrices if not weight.is_mkldnn]
    measured = {
        (weight.shape[0], weight.shape[1]): weight.dtype for weight in plain if weight.numel() >= linear.MIN_MEASURED_WEIGHTS
    }
    threads = torch.get_num_threads()
    few_rows = {shape: linear.faster_rows(*shape, dtype, threads) for shape, dtype in measured.items()}
    return ProductTuning(
        is_fused=bool(layers) and are_fused(layers[0], products),
        num_packed=sum(weight.is_mkldnn for weight in matrices),
        num_matrices=len(matrices),
        few_rows={shape: tuple(sorted(rows)) for shape, rows in few_rows.items()},
    )
