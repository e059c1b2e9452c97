"""Matrices in 8 bits: what rounding changes at most, Triton's kernel, and products beside float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from leafbeam.ops.linear import triton
from leafbeam.ops.linear.fp8 import Fp8Matrix
from leafbeam.ops.linear.rounded import LIMITS, round_rows

FLOAT8 = torch.float8_e4m3fn


def rows_of(rows: int, inputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of which one is large, one tiny and one zeros."""
    rows_ND = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows * inputs))
    rows_ND[0] *= 1e4
    rows_ND[rows // 2] *= 1e-20
    rows_ND[-1] = 0
    return rows_ND.to(dtype)


@pytest.mark.parametrize("dtype", LIMITS)
def test_no_number_moves_by_more_than_half_a_step(dtype: torch.dtype) -> None:
    rows_ND = rows_of(9, 200)
    rounded_ND, scale_N = round_rows(rows_ND, dtype)
    exact_ND, scale_N1 = rows_ND.double(), scale_N.double()[:, None]
    error_ND = (rounded_ND.double() * scale_N1 - exact_ND).abs()
    # float8 has 4 bits of precision down to 2^-6 of its scale.
    step_ND = 2.0 ** (exact_ND / scale_N1).abs().clamp(min=2.0**-6).log2().floor() / 8 if dtype == FLOAT8 else 1.0
    assert (error_ND <= 0.50001 * step_ND * scale_N1).all()
    assert (rounded_ND.float().abs().amax(1)[:-1] == LIMITS[dtype]).all()
    assert not rounded_ND[-1].float().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "inputs"), [(3, 1), (5, 16), (40, 80), (3, 1030)])
@pytest.mark.usefixtures("poison")
def test_the_kernel_rounds_as_torch_does(rows: int, inputs: int, dtype: torch.dtype) -> None:
    rows_ND = rows_of(rows, inputs, dtype)
    for one, other in zip(triton.round_rows(rows_ND), round_rows(rows_ND, FLOAT8), strict=True):
        assert torch.equal(one.float(), other.float())
    assert triton.round_rows(rows_ND[:0])[0].shape == (0, inputs)


def test_the_kernel_marks_rows_that_are_not_finite() -> None:
    rows_ND = torch.ones(3, 16)
    rows_ND[0, 3], rows_ND[1, 7] = torch.nan, -torch.inf
    with np.errstate(invalid="ignore"):
        scale_N = triton.round_rows(rows_ND)[1]
    assert scale_N.isfinite().tolist() == [False, False, True]


@pytest.mark.parametrize("rows", [1, 3, 33])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 16), (48, 128), (32, 1040)])
def test_products_are_those_of_the_rounded_numbers(rows: int, outputs: int, inputs: int) -> None:
    """Sums are in float32, and their results are rounded to bfloat16: by 2^-8 of them at most."""
    rows_ND, weight_VD = rows_of(rows + 2, inputs), rows_of(outputs, inputs)
    rounded_ND, scale_N = round_rows(rows_ND, FLOAT8)
    rounded_VD, scale_V = round_rows(weight_VD, FLOAT8)
    exact_ND, exact_VD = rounded_ND.double() * scale_N[:, None], rounded_VD.double() * scale_V[:, None]
    expected = exact_ND @ exact_VD.T
    matrix = Fp8Matrix.of(weight_VD)
    assert matrix.shape == (outputs, inputs)
    found = matrix.multiply(rows_ND)
    assert found.dtype == torch.float32
    bound_NV = 2.0**-8 * expected.abs() + 2e-6 * exact_ND.abs() @ exact_VD.abs().T + 1e-37
    assert ((found - expected).abs() <= bound_NV).all()
    assert matrix.multiply(rows_ND[:0]).shape == (0, outputs)
    rows_ND[0, 3], rows_ND[1, 7] = torch.nan, torch.inf
    assert matrix.multiply(rows_ND).isfinite().all(1).tolist() == [False, False] + [True] * rows
