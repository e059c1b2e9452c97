from collections.abc import Callable, Iterator

import pytest
import torch

from leafbeam.model import AnyModel, EncoderDecoder, EncoderDecoderConfig, ModelConfig, TokenTable, Transformer, Vocabulary

MakeModel = Callable[..., Transformer]
VOCABULARY = Vocabulary(codebook_sizes=(16, 12, 9, 5))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def drawn(model: AnyModel, generator: torch.Generator) -> AnyModel:
    """The model with norms far from where they start, so that a wrong formula shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


@pytest.fixture
def make_model(generator: torch.Generator) -> MakeModel:
    """Small decoders of random weights, norms included."""

    def make(vocabulary: Vocabulary | None = None, **fields: object) -> Transformer:
        vocabulary = vocabulary or VOCABULARY
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
        return drawn(Transformer(ModelConfig(**(sizes | fields)), vocabulary, generator), generator)  # type: ignore

    return make


@pytest.fixture
def make_encoder_decoder(generator: torch.Generator) -> Callable[..., EncoderDecoder]:
    """Small encoder-decoders of random weights, norms included."""

    def make(vocabulary: Vocabulary | TokenTable = VOCABULARY, **fields: object) -> EncoderDecoder:
        sizes: dict[str, object] = {
            "vocab_size": vocabulary.size,
            "d_model": 24,
            "d_kv": 10,
            "d_ff": 40,
            "num_heads": 3,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "max_position_embeddings": 64,
        }
        return drawn(EncoderDecoder(EncoderDecoderConfig(**(sizes | fields)), vocabulary, generator), generator)  # type: ignore

    return make


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nobody has written holds NaN: torch.empty gives it so under deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
