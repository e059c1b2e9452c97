"""Products of float32 rows with matrices of int8 on a CPU, through oneDNN (VNNI, AMX): a quarter of the bytes of float32.

Each output of a matrix and each row have a scale of their own: their largest magnitude becomes 127. Products of the integers
are summed exactly. torch has these functions for its compiler and promises nothing about them: `unavailable_reason` says where
they cannot be used.

Shapes: N rows, V outputs, D inputs.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leafbeam.index.bit_kernels import bits_float, float_bits
from leafbeam.jit import njit
from leafbeam.ops import openmp
from leafbeam.ops.linear.rounded import RoundedMatrix, round_rows

_FUNCTIONS = "qlinear_prepack", "qlinear_pointwise"
_TINY = np.float32(1e-30)  # a row of smaller magnitudes is zeros
_ZERO = 128  # what a row's zeros are stored as: VNNI multiplies unsigned rows with signed weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Int8Matrix(RoundedMatrix):
    """A matrix (V, D) of int8 in oneDNN's layout, and the scale of each output.

    packed: the matrix. scale_V: float32. zero_V: zeros, which oneDNN asks for.
    """

    packed: Tensor
    scale_V: Tensor
    zero_V: Tensor

    @staticmethod
    def unavailable_reason(device: torch.device) -> str | None:
        """Return why int8 is unavailable: without AVX-512 VNNI, sums of 16 bits may overflow."""
        if device.type != "cpu":
            return f"products of int8 need a CPU, and this model is on {device}: use fp8"
        if not torch.backends.mkldnn.is_available() or not all(hasattr(torch.ops.onednn, name) for name in _FUNCTIONS):
            return "this build of torch lacks oneDNN's int8 products"
        if not torch.cpu._is_vnni_supported():
            return "this processor lacks AVX-512 VNNI"
        return None

    @classmethod
    def of(cls, weight_VD: Tensor) -> Int8Matrix:
        rounded_VD, scale_V = round_rows(weight_VD, torch.int8)
        packed = torch.ops.onednn.qlinear_prepack(rounded_VD, None)
        return cls(packed=packed, scale_V=scale_V, zero_V=torch.zeros(len(scale_V), dtype=torch.int32))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.scale_V), self.packed.shape[0]

    def multiply(self, rows_ND: Tensor) -> Tensor:
        """Return the product of contiguous float32 rows."""
        rounded_ND, scale_N1 = torch.empty(rows_ND.shape, dtype=torch.uint8), torch.empty(len(rows_ND), 1)
        threads = openmp.num_threads(rows_ND.numel())
        _round_rows(rows_ND.numpy(), rounded_ND.numpy(), scale_N1.numpy(), threads)
        weight = self.packed, self.scale_V, self.zero_V, None
        product_NV = torch.ops.onednn.qlinear_pointwise(rounded_ND, 1.0, _ZERO, *weight, 1.0, 0, torch.float32, "none", [], "")
        return product_NV.mul_(scale_N1)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def _round_rows(rows_ND, out_ND, scale_N1, threads):
    """out[n] = round(rows[n] / scale[n]) + 128, scale[n] = the largest magnitude of the row / 127"""
    openmp.fork(_round_rows_of, threads, len(rows_ND), (rows_ND, out_ND, scale_N1))


@njit(nogil=True, _nrt=False, error_model="numpy")
def _round_rows_of(begin, end, rows_ND, out_ND, scale_N1):
    for n in range(begin, end):
        top_bits = np.int32(
            0
        )  # magnitudes have the order of their bits, and NaN is above all: compared so, they are vectorised
        for d in range(rows_ND.shape[1]):
            top_bits = max(top_bits, float_bits(rows_ND[n, d]) & np.int32(0x7FFFFFFF))
        top = bits_float(top_bits)
        factor = np.float32(127) / top if top > _TINY else np.float32(0)
        for d in range(rows_ND.shape[1]):
            out_ND[n, d] = np.uint8(np.int32(rows_ND[n, d] * factor + np.float32(128.5)))
        scale_N1[n, 0] = top / np.float32(127) if top < np.inf else np.float32(np.nan)
