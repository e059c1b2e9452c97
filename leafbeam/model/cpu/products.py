"""Products of a layer's matrices on a CPU: how each matrix is multiplied is chosen here, and nowhere else.

    small matrices of float32          all layers in one call (`are_fused`)
    rounded matrices (int8)            `ops.linear.rounded`
    packed for oneDNN                  `ops.linear.onednn`, in float32 or bfloat16
    others, in bfloat16                torch
    others, in float32, of a few rows  `ops.linear.cpu` where it was measured to be faster, else torch

Shapes: N rows, D inputs, V outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import counted
from leafbeam.model.cpu.workspace import Workspace, array_of
from leafbeam.ops.linear import blas, onednn
from leafbeam.ops.linear import cpu as linear
from leafbeam.ops.linear.rounded import Matrix, RoundedMatrix


class Products:
    """dtype: what rows are multiplied in, float32 or bfloat16. Matrices are (V, D) packed, or transposed (D, V)."""

    def __init__(self, dtype: torch.dtype, space: Workspace) -> None:
        self.dtype, self._space = dtype, space

    def of(self, rows_ND: Tensor, weight: Matrix, buffer: tuple[Tensor, NDArray[Any]]) -> tuple[Tensor, NDArray[Any]]:
        """Return a product (N, V), as tensor and array: in the buffer, or in what oneDNN allocates for a packed matrix."""
        if isinstance(weight, RoundedMatrix) or weight.is_mkldnn:
            product_NV = _multiply_packed(rows_ND, weight)
            return product_NV, array_of(product_NV)
        self._multiply(rows_ND, weight, buffer[0], add=False)
        return buffer

    def add(self, rows_ND: Tensor, weight: Matrix, out_NV: Tensor) -> None:
        """Add a product to `out_NV`, float32."""
        if isinstance(weight, RoundedMatrix) or weight.is_mkldnn:
            out_NV.add_(_multiply_packed(rows_ND, weight))
        else:
            self._multiply(rows_ND, weight, out_NV, add=True)

    def _multiply(self, rows_ND: Tensor, weight_DV: Tensor, out_NV: Tensor, *, add: bool) -> None:
        """In float32, a matrix of bfloat16 is read as it is for few rows, else widened first."""
        if self.dtype == torch.bfloat16:
            product_NV = self._space.buffer("product", *out_NV.shape, dtype=torch.bfloat16)[0] if add else out_NV
            torch.mm(rows_ND, weight_DV, out=product_NV)
            if add:
                out_NV.add_(product_NV)
            return
        threads = torch.get_num_threads()
        if linear.is_faster(len(rows_ND), weight_DV, threads):
            linear.linear(rows_ND, weight_DV.t(), out_NV, add=add, threads=threads)
            return
        if weight_DV.dtype != torch.float32:
            weight_DV = self._space.buffer("widened matrix", *weight_DV.t().shape)[0].copy_(weight_DV.t()).t()
        if add:
            out_NV.addmm_(rows_ND, weight_DV)
        else:
            torch.mm(rows_ND, weight_DV, out=out_NV)


def _multiply_packed(rows_ND: Tensor, weight: Matrix) -> Tensor:
    return weight.multiply(rows_ND) if isinstance(weight, RoundedMatrix) else onednn.linear(rows_ND, weight)


def transposed(weight: Matrix) -> Matrix | None:
    """Return a matrix (V, D) for `Products`: transposed, unless it is packed; None for one without rows."""
    if isinstance(weight, RoundedMatrix) or weight.is_mkldnn:
        return weight
    return weight.t() if len(weight) else None


def are_fused(matrices: Sequence[Matrix], products: torch.dtype) -> bool:
    """Return whether layers with these matrices run in one call: calling a product takes as long as each of their products."""
    return (
        products == torch.float32
        and blas.is_available()
        and all(
            isinstance(weight, Tensor)
            and not weight.is_mkldnn
            and weight.dtype == torch.float32
            and weight.numel() < linear.MIN_MEASURED_WEIGHTS
            and weight.is_contiguous()
            for weight in matrices
        )
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductTuning:
    """The products of the layers' matrices.

    Args:
        is_fused: Whether all layers run in one call, because their matrices are small.
        num_int8: The matrices of int8.
        num_packed: The other matrices that are kept in oneDNN's layout.
        num_matrices: All matrices of the layers that are not of int8.
        few_rows: For each shape (outputs, inputs) of other matrices, the numbers of rows of which a kernel of leafbeam's own is
            faster than torch's product.
    """

    is_fused: bool
    num_int8: int
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
        int8 = [f"{counted(self.num_int8, 'matrix', 'matrices')} of int8"] if self.num_int8 else []
        return "; ".join([*int8, packed, *few, "torch for the others"])


def tune_products(layers: Sequence[Sequence[Matrix]], products: torch.dtype) -> ProductTuning:
    """Return how the matrices of each layer are multiplied with torch's number of threads, measuring what is new.

    Args:
        layers: The seven matrices (V, D) of each layer; those that are part of another have no rows.
        products: The dtype of the products.
    """
    stored = [weight for layer in layers for weight in layer if weight.shape[0]]
    matrices = [weight for weight in stored if isinstance(weight, Tensor)]
    plain = [] if products == torch.bfloat16 else [weight for weight in matrices if not weight.is_mkldnn]
    measured = {
        (weight.shape[0], weight.shape[1]): weight.dtype for weight in plain if weight.numel() >= linear.MIN_MEASURED_WEIGHTS
    }
    threads = torch.get_num_threads()
    few_rows = {shape: linear.faster_rows(*shape, dtype, threads) for shape, dtype in measured.items()}
    return ProductTuning(
        is_fused=bool(layers) and are_fused(layers[0], products),
        num_int8=len(stored) - len(matrices),
        num_packed=sum(weight.is_mkldnn for weight in matrices),
        num_matrices=len(matrices),
        few_rows={shape: tuple(sorted(rows)) for shape, rows in few_rows.items()},
    )
