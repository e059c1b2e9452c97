"""The Triton kernels of the head, and the study log's, under the interpreter, on small shapes."""

import pytest
import torch
from torch import Tensor

from benchmarks.peers.masked_head import masked_logits
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops.head import HeadCosts, LegalCodes, reference, triton

pytestmark = pytest.mark.usefixtures("poison")

SHAPES = [(1, 70, 24), (3, 129, 100), (18, 200, 64)]


def problem(rows: int, codes: int, hidden: int, density: float) -> tuple[Tensor, Tensor, LegalCodes[Tensor]]:
    generator = torch.Generator().manual_seed(rows)
    legal_RV = torch.rand(rows, codes, generator=generator) < density
    row_C, code_C = legal_RV.nonzero(as_tuple=True)
    sizes_R = legal_RV.sum(1)
    legal_codes = LegalCodes(
        indptr_R1=torch.cat([torch.zeros(1, dtype=torch.int64), sizes_R.cumsum(0)]), code_C=code_C, max_row=int(sizes_R.max())
    )
    assert len(row_C) == len(code_C)
    return torch.randn(rows, hidden, generator=generator), torch.randn(codes, hidden, generator=generator), legal_codes


@pytest.mark.parametrize("density", [0.0, 0.03, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", ["gather", "dense", "full"])
def test_every_kernel_equals_the_reference(path: str, shape: tuple[int, int, int], density: float) -> None:
    if density == 1.0 and shape[0] == 18 and path == "gather":
        density = 0.08  # 3,600 legal codes are minutes under the interpreter
    hidden, weight, legal_codes = problem(*shape, density)
    normalize = "full" if path == "full" else "allowed"
    expected = reference.head(hidden, weight, legal_codes, normalize)
    found = triton.head(hidden, weight, legal_codes, normalize, path="dense" if path == "full" else path)  # type: ignore[arg-type]
    torch.testing.assert_close(found.logit_C, expected.logit_C, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.lse_R, expected.lse_R, rtol=1e-5, atol=1e-4)


def test_the_full_head_of_many_rows_and_codes_sums_by_blocks() -> None:
    hidden, weight, legal_codes = problem(17, 9000, 8, 0.001)
    expected = reference.head(hidden, weight, legal_codes, "full")
    found = triton.head(hidden, weight, legal_codes, "full")
    torch.testing.assert_close(found.logit_C, expected.logit_C, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.lse_R, expected.lse_R, rtol=1e-5, atol=1e-4)


def test_a_slice_of_a_head_is_read_in_place() -> None:
    hidden, weight, legal_codes = problem(2, 80, 32, 0.2)
    larger = torch.full((200, 32), torch.nan)
    larger[60:140] = weight
    expected = reference.head(hidden, weight, legal_codes, "allowed").logit_C
    for path in ("gather", "dense"):
        found = triton.head(hidden, larger[60:140], legal_codes, "allowed", path=path)
        torch.testing.assert_close(found.logit_C, expected, rtol=1e-4, atol=1e-4)
    found = triton.head(hidden, larger[60:140], legal_codes, "full")
    torch.testing.assert_close(found.logit_C, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", ["block", "column"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("shared", [True, False])
def test_the_study_logs_kernels_write_what_the_mask_allows(level: str, rows: int, shared: bool) -> None:
    hidden, weight, _ = problem(rows, 150, 70, 0.1)
    mask = torch.rand(1 if shared else rows, 150, generator=torch.Generator().manual_seed(3)) < 0.05
    found = masked_logits(hidden, weight, mask, level=level)  # type: ignore[arg-type]
    wanted = mask.expand(rows, 150)
    torch.testing.assert_close(found[wanted], (hidden @ weight.T)[wanted], rtol=1e-4, atol=1e-4)


def test_the_choice_does_not_synchronise_the_device() -> None:
    hidden, weight, legal_codes = problem(3, 129, 100, 0.03)
    chosen = triton.head(hidden, weight, legal_codes, "allowed", costs=HeadCosts(call=0.0))
    assert chosen.path == "gather"
    assert triton.head(hidden, weight, legal_codes, "full").path == "dense"


def test_inputs_that_do_not_fit_are_refused_before_a_launch() -> None:
    hidden, weight, legal_codes = problem(3, 129, 100, 0.03)
    for error, call, message in (
        (LogitsError, lambda: triton.head(hidden[:, :9], weight, legal_codes, "allowed"), "do not fit"),
        (ArgumentError, lambda: triton.head(hidden.double(), weight, legal_codes, "allowed"), "float64"),
        (ArgumentError, lambda: triton.head(hidden.half(), weight, legal_codes, "allowed"), "one dtype"),
        (ArgumentError, lambda: triton.head(hidden, weight.T.contiguous().T, legal_codes, "allowed"), "contiguous"),
    ):
        with pytest.raises(error, match=message):
            call()
    narrow = LegalCodes(indptr_R1=legal_codes.indptr_R1.int(), code_C=legal_codes.code_C, max_row=legal_codes.max_row)
    for error, call, message in (
        (ArgumentError, lambda: triton.head(hidden, weight, narrow, "allowed"), "int64"),
        (ArgumentError, lambda: triton.head(hidden, weight, legal_codes, "full", path="gather"), "always 'dense'"),
        (ArgumentError, lambda: triton.head(hidden, weight, legal_codes, "allowed", path="magic"), "path is"),
        (LogitsError, lambda: masked_logits(hidden, weight, torch.ones(2, 129, dtype=torch.bool), level="block"), "mask"),
    ):
        with pytest.raises(error, match=message):
            call()
