"""Products of a layer's matrices on a CPU, each by the function that suits how the matrix is kept.

Shapes: N rows, D inputs, V outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model.cpu.workspace import Workspace, array_of
from leafbeam.ops.linear import cpu as linear
from leafbeam.ops.linear import onednn


class Products:
    """dtype: what rows are multiplied in, float32 or bfloat16. Matrices are (V, D) packed, or transposed (D, V)."""

    def __init__(self, dtype: torch.dtype, space: Workspace) -> None:
        self.dtype, self._space = dtype, space

    def of(self, rows_ND: Tensor, weight: Tensor, buffer: tuple[Tensor, NDArray[Any]]) -> tuple[Tensor, NDArray[Any]]:
        """A product (N, V), as tensor and array: in the buffer, or in what oneDNN allocates for a packed matrix."""
        if weight.is_mkldnn:
            product_NV = onednn.linear(rows_ND, weight)
            return product_NV, array_of(product_NV)
        self._multiply(rows_ND, weight, buffer[0], add=False)
        return buffer

    def add(self, rows_ND: Tensor, weight: Tensor, out_NV: Tensor) -> None:
        """Add a product to `out_NV`, float32."""
        if weight.is_mkldnn:
            out_NV.add_(onednn.linear(rows_ND, weight))
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
