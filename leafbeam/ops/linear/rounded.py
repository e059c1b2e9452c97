"""Matrices that are rounded to 8 bits, with a scale for each output; rows that they multiply are rounded too, with their own.

`int8` has those of a CPU, `fp8` those of a GPU.

Shapes: N rows, V outputs, D inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # the largest number that is stored
TINY = torch.finfo(torch.float32).tiny  # the smallest scale, of zeros


class RoundedMatrix(ABC):
    """A matrix (V, D) in 8 bits, as its products need it. multiple: outputs and inputs have to be multiples of it."""

    __slots__ = ()
    multiple: ClassVar[int] = 1

    @staticmethod
    @abstractmethod
    def unavailable_reason(device: torch.device) -> str | None:
        """Return why these matrices cannot be multiplied on a device; None where they can."""

    @classmethod
    @abstractmethod
    def of(cls, weight_VD: Tensor) -> Self:
        """Return a matrix, rounded. Needs `unavailable_reason() is None`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and of inputs."""

    @abstractmethod
    def multiply(self, rows_ND: Tensor) -> Tensor:
        """Return rows @ matrix.T (N, V), newly allocated, in the dtype of the rows. A row that is not finite gives NaN."""


Matrix = Tensor | RoundedMatrix


def multiply(rows: Tensor, matrix: Matrix) -> Tensor:
    """Return rows (..., D) @ matrix.T, by torch for a plain matrix."""
    if isinstance(matrix, Tensor):
        return functional.linear(rows, matrix)
    return matrix.multiply(rows.reshape(-1, rows.shape[-1])).view(*rows.shape[:-1], -1)


def round_rows(rows_ND: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows in a dtype of `LIMITS`, and the scale (N,) of each, so that their product is about the rows."""
    rows_ND = rows_ND.detach().float()
    scale_N = (rows_ND.abs().amax(1) / LIMITS[dtype]).clamp(min=TINY)
    scaled_ND = rows_ND / scale_N[:, None]
    return (scaled_ND if dtype.is_floating_point else scaled_ND.round_()).to(dtype).contiguous(), scale_N
