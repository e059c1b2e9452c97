"""Products of a few rows: the kernel equals the reference for any number of rows, outputs, inputs and threads."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
import ctypes
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytest
import torch

from leafbeam import jit
from leafbeam.ops.linear import blas, cpu, onednn, reference


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 8, 11, 37, 130])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (7, 5), (16, 128), (129, 33), (130, 33)])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equals_the_reference(rows: int, outputs: int, inputs: int, add: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows * outputs * inputs)
    rows_ND = torch.randn(rows, inputs, generator=generator)
    weight_VD = torch.randn(outputs, inputs, generator=generator).to(dtype)
    out_NV = torch.randn(rows, outputs, generator=generator) if add else torch.full((rows, outputs), torch.nan)
    expected = reference.linear(rows_ND, weight_VD) + (out_NV if add else 0)
    cpu.linear(rows_ND, weight_VD, out_NV, add=add)
    torch.testing.assert_close(out_NV, expected, rtol=1e-5, atol=1e-5)


def test_every_bfloat16_is_widened_exactly() -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    weight_VD = bits.view(torch.bfloat16)[:, None]
    weight_VD = weight_VD[weight_VD.isfinite().all(1)]
    for rows in (1, 4, 9):
        out_NV = torch.full((rows, len(weight_VD)), torch.nan)
        cpu.linear(torch.ones(rows, 1), weight_VD, out_NV)
        assert torch.equal(out_NV, weight_VD.float().T.expand(rows, -1))


@pytest.mark.parametrize("rows", [2, 12])
def test_threads_share_a_large_matrix(rows: int) -> None:
    weight_VD = torch.randn(1027, 1024, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows_ND = torch.randn(rows, 1024, generator=torch.Generator().manual_seed(1))
    alone, shared = torch.full((2, rows, 1027), torch.nan).unbind()
    cpu.linear(rows_ND, weight_VD, alone)
    cpu.linear(rows_ND, weight_VD, shared, threads=3)
    assert torch.equal(alone, shared)
    torch.testing.assert_close(alone, reference.linear(rows_ND, weight_VD), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_number_of_rows_takes_the_faster_product(dtype: torch.dtype) -> None:
    own_and_library = (1, 2), (2, 1), (1, 2), (2, 1), (1, 1), (1, 2), (1, 2), (2, 1)  # for 1 row, for 2, 3, 4, 8, 16, 32, 64
    answers = (float(second) for pair in own_and_library for second in pair)
    timed: list[tuple[int, ...]] = []

    def seconds(multiply: Any, weights: Sequence[torch.Tensor]) -> float:
        assert all(weight_VD.dtype == dtype for weight_VD in weights)
        for weight_VD in weights:
            multiply(weight_VD)
        timed.append(tuple(weights[0].shape))
        return next(answers)

    assert cpu.rows_faster(24, 40, dtype, 2, seconds) == {1, 3, 16, 32}  # those from 128 on follow from 64
    assert timed == [(24, 40)] * 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_choice_is_the_measured_one(dtype: torch.dtype) -> None:
    weight_VD = torch.ones(512, 512, dtype=dtype)
    found = cpu.rows_faster(512, 512, dtype, 1, cpu.fastest_run)
    assert [rows for rows in cpu.MEASURED_ROWS if cpu.is_faster(rows, weight_VD, 1)] == sorted(found)
    assert [cpu.is_faster(rows, weight_VD, 1) for rows in (5, 6, 7, 8)] == [8 in found] * 4
    assert not cpu.is_faster(257, weight_VD, 1)


def test_small_matrices_are_not_measured() -> None:
    measured = cpu.rows_faster.cache_info().misses
    assert not cpu.is_faster(8, torch.ones(511, 512), 1)
    assert cpu.is_faster(256, torch.ones(511, 512, dtype=torch.bfloat16), 1)
    assert cpu.rows_faster.cache_info().misses == measured


packs = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtype, marks=pytest.mark.skipif(not onednn.is_available(dtype), reason=f"oneDNN packs no {dtype} here"))
        for dtype in (torch.float32, torch.bfloat16)
    ],
)


@packs
@pytest.mark.parametrize("rows", [1, 2, 7, 129])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (7, 5), (130, 33), (512, 512)])
def test_packed_equals_the_reference(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows * outputs * inputs)
    rows_ND = torch.randn(rows, inputs, generator=generator).to(dtype)
    weight_VD = torch.randn(outputs, inputs, generator=generator).to(dtype)
    packed_VD = onednn.pack(weight_VD)
    product_NV, expected_NV = onednn.linear(rows_ND, packed_VD), reference.linear(rows_ND, weight_VD).to(dtype)
    torch.testing.assert_close(product_NV, expected_NV, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)
    assert torch.equal(onednn.unpack(packed_VD), weight_VD)
    assert onednn.unpack(weight_VD) is weight_VD


@packs
def test_the_gain_is_over_the_faster_plain_product(dtype: torch.dtype) -> None:
    plain = [4.0, 3.0] if dtype == torch.float32 else [3.0]  # torch's product, and of float32 leafbeam's
    answers = iter([*plain, 2.0] * len(onednn.MEASURED_ROWS))
    was_packed: list[bool] = []

    def seconds(multiply: Any, weights: Sequence[torch.Tensor]) -> float:
        for weight_VD in weights:
            multiply(weight_VD)
        was_packed.append(weights[0].is_mkldnn)
        return next(answers)

    assert onednn.gain(24, 40, dtype, 2, seconds) == pytest.approx(1.5)
    assert was_packed == [*[False] * len(plain), True] * len(onednn.MEASURED_ROWS)


def test_small_matrices_are_not_packed() -> None:
    measured = onednn.gain.cache_info().misses
    assert not onednn.is_faster(torch.ones(511, 512), 1)
    assert not onednn.is_faster(torch.ones(512, 512, dtype=torch.float64), 1)
    assert onednn.gain.cache_info().misses == measured


@numba.njit
def multiply(begin: int, end: int, rows_ND: Any, weight_VD: Any, out_NV: Any, kept: int) -> None:
    blas.multiply(begin, end, rows_ND, weight_VD.ctypes.data, out_NV, kept)


@numba.njit
def product(x_ND: Any, weight_DV: Any, out_NV: Any) -> None:
    (rows, inputs), outputs = x_ND.shape, weight_DV.shape[1]
    blas.sgemm(x_ND.ctypes.data, weight_DV.ctypes.data, out_NV.ctypes.data, rows, outputs, inputs, False, 0)


@pytest.mark.skipif(not blas.is_available(), reason="torch exports no sgemm here")
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 1, 1), (3, 5, 7), (7, 40, 24), (50, 9, 130), (120, 9, 130)])
def test_products_inside_kernels_equal_the_reference(rows: int, outputs: int, inputs: int) -> None:
    rng = np.random.default_rng(rows)
    x_ND, weight_VD = (rng.normal(size=(size, inputs)).astype(np.float32) for size in (rows, outputs))
    out_NV = rng.normal(size=(rows, outputs)).astype(np.float32)
    before, begin, end = out_NV.copy(), rows // 3, rows - rows // 4
    expected = before.astype(np.float64)
    truth = x_ND.astype(np.float64) @ weight_VD.T.astype(np.float64)
    expected[begin:end] += truth[begin:end]
    multiply(begin, end, x_ND, weight_VD, out_NV, 1)
    np.testing.assert_allclose(out_NV, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out_NV[end:], before[end:])
    out_NV[:] = np.nan
    multiply(0, rows, x_ND, weight_VD, out_NV, 0)
    np.testing.assert_allclose(out_NV, truth, rtol=1e-5, atol=1e-5)
    out_NV[:] = np.nan
    product(x_ND, np.ascontiguousarray(weight_VD.T), out_NV)
    np.testing.assert_allclose(out_NV, truth, rtol=1e-5, atol=1e-5)


def test_without_the_function_kernels_name_another(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols: dict[str, int] = {}

    def missing(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(jit.binding, "add_symbol", symbols.__setitem__)
    assert not blas.name_function()
    assert list(symbols) == ["leafbeam_sgemm_"]
    assert all(symbols.values())
