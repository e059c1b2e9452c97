"""What is said of the products of a model's layers is what its layers do."""

from collections.abc import Callable

import pytest
import torch

from leafbeam.model import Transformer
from leafbeam.model.cpu import products
from leafbeam.ops.linear import cpu, onednn

MakeModel = Callable[..., Transformer]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every matrix is large; the own kernel is faster for few rows, and packing for the feed-forward block alone."""
    shapes: list[tuple[int, int]] = []

    def faster_rows(outputs: int, inputs: int, dtype: torch.dtype, threads: int) -> frozenset[int]:
        shapes.append((outputs, inputs))
        return frozenset({2, 1}) if outputs == inputs else frozenset()

    monkeypatch.setattr(cpu, "MIN_MEASURED_WEIGHTS", 1)
    monkeypatch.setattr(products.linear, "MIN_MEASURED_WEIGHTS", 1)
    monkeypatch.setattr(cpu, "faster_rows", faster_rows)
    monkeypatch.setattr(onednn, "is_faster", lambda weight, threads: 96 in weight.shape)
    return shapes


def test_a_small_model_runs_in_one_call(make_model: MakeModel) -> None:
    tuning = make_model().tune_products()
    assert tuning is not None
    assert tuning.is_fused == products.blas.is_available()
    assert (tuning.num_packed, tuning.num_matrices, tuning.few_rows, tuning.is_measured) == (0, 14, {}, False)
    if tuning.is_fused:
        assert str(tuning) == "all layers in one call"


@pytest.mark.skipif(not onednn.is_available(torch.float32), reason="this build of torch has no packed matrices")
def test_packed_matrices_and_kernels_for_few_rows_are_counted(make_model: MakeModel, measured: list[tuple[int, int]]) -> None:
    model = make_model(num_attention_heads=3, num_key_value_heads=1, hidden_size=48, intermediate_size=96)
    tuning = model.pack().tune_products()
    assert tuning is not None
    assert tuning.is_measured
    assert measured == [(48, 48), (16, 48)]  # queries and outputs, keys and values; those of the feed-forward block are packed
    assert (
        str(tuning)
        == "6 of 14 matrices packed for oneDNN; own kernel at batches of 1, 2 for weights of 48 x 48; torch for the others"
    )


def test_models_of_torch_modules_have_no_products_to_choose(make_model: MakeModel) -> None:
    assert make_model().double().tune_products() is None
