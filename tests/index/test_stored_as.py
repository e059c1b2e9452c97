"""Floats are stored as float32 or as the bits of the nearest bfloat16, as torch rounds."""

import numba
import numpy as np
import torch

from leafbeam.index.bit_kernels import stored_as, widened


@numba.njit
def store(values_N, out_N):
    for n in range(len(values_N)):
        out_N[n] = stored_as(out_N[n], values_N[n])


@numba.njit
def read(values_N, out_N):
    for n in range(len(values_N)):
        out_N[n] = widened(values_N[n])


def test_every_kind_of_float_is_rounded_as_torch_rounds_it() -> None:
    bits = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, 200_000).astype(np.int32)
    ties = (np.arange(1 << 16, dtype=np.int64) << 16 | 0x8000).astype(np.uint32).view(np.int32)
    special = np.array([0x7FFFFFFF, -1, 0x7F800001, 0x7F7FFFFF, 0x7F800000, 0x80000000 - (1 << 32), 0, 1], np.int32)
    values_N = np.concatenate([bits, ties, special]).view(np.float32)
    expected = torch.from_numpy(values_N).bfloat16()
    out_N = np.full(len(values_N), -1, np.int16)
    store(values_N, out_N)
    found = torch.from_numpy(out_N).view(torch.bfloat16)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found[~found.isnan()], expected[~found.isnan()])
    wide_N = np.empty(len(out_N), np.float32)
    read(out_N, wide_N)
    assert torch.equal(torch.from_numpy(wide_N)[~found.isnan()], expected.float()[~found.isnan()])


def test_a_float32_stays_as_it_is() -> None:
    values_N = np.array([1.1, -np.inf, 3e-40], np.float32)
    out_N = np.zeros(3, np.float32)
    store(values_N, out_N)
    np.testing.assert_array_equal(out_N, values_N)
