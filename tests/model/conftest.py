from collections.abc import Callable, Iterator

import pytest
import torch

from leafbeam.model import ModelConfig, Transformer, Vocabulary

MakeModel = Callable[..., Transformer]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture
def make_model(generator: torch.Generator) -> MakeModel:
    """Small models whose weights, norms included, are far from where they start, so that a wrong formula shows."""

    def make(vocabulary: Vocabulary | None = None, **fields: object) -> Transformer:
        vocabulary = vocabulary or Vocabulary(codebook_sizes=(16, 12, 9, 5))
        sizes: dict[str, object] = {
            "vocab_size": vocabulary.size,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 64,
            "initializer_range": 0.12,
        }
        model = Transformer(ModelConfig(**(sizes | fields)), vocabulary, generator).eval()  # type: ignore[arg-type]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5, generator=generator)
        return model

    return make


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nobody has written holds NaN: torch.empty gives it so under deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
