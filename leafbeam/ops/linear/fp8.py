"""Products with matrices of float8 (e4m3) on a GPU, by torch's scaled product: half of the bytes of bfloat16.

Each output of a matrix and each row have a scale of their own: their largest magnitude becomes 448. Products are summed in
float32 and rounded to bfloat16. Nothing here has been measured on a GPU.

Shapes: N rows, V outputs, D inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

import torch
from torch import Tensor

from leafbeam.ops.backend import is_installed
from leafbeam.ops.linear.rounded import RoundedMatrix, round_rows

_CAPABILITY = 8, 9  # of Ada and Hopper, the first GPUs with such products


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8Matrix(RoundedMatrix):
    """A matrix (V, D) of float8, and the scale (1, V) of each output, float32."""

    multiple: ClassVar[int] = 16

    rounded_VD: Tensor
    scale_1V: Tensor

    @staticmethod
    def unavailable_reason(device: torch.device) -> str | None:
        if device.type != "cuda":
            return "products of float8 need a GPU, and this model is on a CPU: use int8"
        if torch.cuda.get_device_capability(device) < _CAPABILITY:
            name, (major, minor) = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
            return f"products of float8 need compute capability 8.9, and {name} has {major}.{minor}"
        return None

    @classmethod
    def of(cls, weight_VD: Tensor) -> Fp8Matrix:
        rounded_VD, scale_V = round_rows(weight_VD, torch.float8_e4m3fn)
        return cls(rounded_VD=rounded_VD, scale_1V=scale_V[None])

    @property
    def shape(self) -> tuple[int, int]:
        return self.rounded_VD.shape[0], self.rounded_VD.shape[1]

    def multiply(self, rows_ND: Tensor) -> Tensor:
        rounded_ND, scale_N = _round_on(rows_ND)
        return torch._scaled_mm(  # pyright: ignore[reportPrivateUsage]
            rounded_ND,
            self.rounded_VD.t(),
            scale_a=scale_N[:, None],
            scale_b=self.scale_1V,
            out_dtype=torch.bfloat16,  # the only one that all of these GPUs give
            use_fast_accum=False,
        ).to(rows_ND.dtype)


def _round_on(rows_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows in one launch where Triton is installed."""
    if rows_ND.is_cuda and is_installed("triton"):
        return import_module("leafbeam.ops.linear.triton").round_rows(rows_ND)
    return round_rows(rows_ND, torch.float8_e4m3fn)
