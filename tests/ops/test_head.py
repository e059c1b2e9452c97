"""Logits of legal codes on a CPU: every path against the reference, the choice between paths, and invalid input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops.head import HeadCosts, LegalCodes, Workload, cheapest_path, cpu, reference

PATHS = ("dense", "gather", "tokens")
SHAPES = [(1, 1, 1), (1, 200, 7), (3, 64, 16), (5, 1000, 33), (16, 129, 64), (140, 300, 20)]


def problem(
    seed: int, rows: int, codes: int, hidden: int, density: float
) -> tuple[NDArray[np.float32], NDArray[np.float32], LegalCodes[NDArray[np.int64]]]:
    rng = np.random.default_rng(seed)
    legal = [np.flatnonzero(rng.random(codes) < density) for _ in range(rows)]
    legal_codes = LegalCodes.of(np.cumsum([0, *map(len, legal)]), np.concatenate(legal))
    return rng.standard_normal((rows, hidden), np.float32), rng.standard_normal((codes, hidden), np.float32), legal_codes


def on_torch(legal_codes: LegalCodes[NDArray[np.int64]]) -> LegalCodes[torch.Tensor]:
    return LegalCodes(
        indptr_R1=torch.from_numpy(legal_codes.indptr_R1),
        code_C=torch.from_numpy(legal_codes.code_C),
        max_row=legal_codes.max_row,
    )


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normalize", ["full", "allowed"])
def test_every_path_equals_the_reference(shape: tuple[int, int, int], density: float, normalize: str) -> None:
    hidden, weight, legal_codes = problem(1, *shape, density)
    expected = reference.head(torch.from_numpy(hidden), torch.from_numpy(weight), on_torch(legal_codes), normalize)  # type: ignore[arg-type]
    for path in PATHS if normalize == "allowed" else ("dense",):
        found = cpu.head(hidden, weight, legal_codes, normalize, path=path)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.logit_C, expected.logit_C.numpy(), rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(found.lse_R, expected.lse_R.numpy(), rtol=2e-5, atol=2e-5)
        assert found.path == path


def test_a_slice_of_a_larger_head_is_read_in_place() -> None:
    hidden, weight, legal_codes = problem(2, 4, 90, 16, 0.2)
    larger = np.full((300, 16), np.nan, np.float32)
    larger[100:190] = weight
    for path in PATHS:
        found = cpu.head(torch.from_numpy(hidden), torch.from_numpy(larger)[100:190], legal_codes, "allowed", path=path)
        assert np.array_equal(found.logit_C, cpu.head(hidden, weight, legal_codes, "allowed", path=path).logit_C)


def test_large_logits_do_not_overflow() -> None:
    hidden, weight, legal_codes = problem(3, 3, 500, 8, 0.5)
    found = cpu.head(hidden * 100, weight * 100, legal_codes, "full")
    expected = reference.head(torch.from_numpy(hidden * 100), torch.from_numpy(weight * 100), on_torch(legal_codes), "full")
    np.testing.assert_allclose(found.lse_R, expected.lse_R.numpy(), rtol=1e-5)


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 150), unique=True, max_size=40), min_size=1, max_size=12), st.integers(1, 40))
def test_any_ragged_set_of_codes(rows: list[list[int]], hidden: int) -> None:
    rng = np.random.default_rng(len(rows))
    codes = np.concatenate([np.array(sorted(row), np.int64) for row in rows])
    legal_codes = LegalCodes.of(np.cumsum([0, *map(len, rows)]), codes)
    hidden_RD, weight_VD = rng.standard_normal((len(rows), hidden), np.float32), rng.standard_normal((151, hidden), np.float32)
    exact = hidden_RD.astype(np.float64) @ weight_VD.astype(np.float64).T
    row_C = np.repeat(np.arange(len(rows)), np.diff(legal_codes.indptr_R1))
    for path in PATHS:
        found = cpu.head(hidden_RD, weight_VD, legal_codes, "allowed", path=path)
        np.testing.assert_allclose(found.logit_C, exact[row_C, codes], rtol=1e-4, atol=1e-4)


def test_the_cheapest_path_follows_the_costs() -> None:
    sizes = {"codes": 131_072, "hidden": 3072}
    costs = HeadCosts()
    few = Workload(rows=1, legal=131, distinct=131, **sizes)
    assert cheapest_path(costs, few, "allowed") == "gather"
    assert cheapest_path(costs, few, "full") == "dense"
    everything = Workload(rows=64, legal=64 * 131_072, distinct=131_072, **sizes)
    assert cheapest_path(costs, everything, "allowed") == "dense"
    shared = Workload(rows=64, legal=64 * 1310, distinct=40_000, **sizes)
    assert cheapest_path(HeadCosts(token=0.05, gather=1.0), shared, "allowed") == "tokens"


def test_inputs_that_do_not_fit_are_refused_before_anything_runs() -> None:
    hidden, weight, legal_codes = problem(5, 3, 50, 8, 0.5)
    for error, call, message in (
        (LogitsError, lambda: cpu.head(hidden[:, :7], weight, legal_codes, "allowed"), "do not fit"),
        (LogitsError, lambda: cpu.head(hidden[:2], weight, legal_codes, "allowed"), "2 hidden states"),
        (ArgumentError, lambda: cpu.head(hidden.astype(np.float64), weight, legal_codes, "allowed"), "float64"),
        (ArgumentError, lambda: cpu.head(hidden, torch.from_numpy(weight).bfloat16(), legal_codes, "allowed"), "bfloat16"),
        (ArgumentError, lambda: cpu.head(hidden, np.asfortranarray(weight), legal_codes, "allowed"), "contiguous"),
        (ArgumentError, lambda: cpu.head(hidden, weight, legal_codes, "fulll"), "normalize"),
        (ArgumentError, lambda: cpu.head(hidden, weight, legal_codes, "full", path="gather"), "always 'dense'"),
        (ArgumentError, lambda: cpu.head(hidden, weight, legal_codes, "allowed", path="magic"), "path is"),
    ):
        with pytest.raises(error, match=message):
            call()
