"""Published sizes against the parameter counts of the published checkpoints."""

import pytest
import torch

from leafbeam.errors import ArgumentError
from leafbeam.model import (
    ModelConfig,
    TokenTable,
    Transformer,
    Vocabulary,
    new_model,
    qwen3_config,
    qwen3_vocabulary,
    tiger_config,
)


@pytest.mark.parametrize(("size", "parameters"), [("0.6B", 596_049_920), ("1.7B", 1_720_574_976), ("4B", 4_022_468_096)])
def test_qwen3_has_as_many_parameters_as_its_checkpoint(size: str, parameters: int):
    config = qwen3_config(size)  # type: ignore[arg-type]
    model = Transformer(config, qwen3_vocabulary([16] * 3), device="meta")
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    assert ModelConfig.from_hf(config.to_hf()) == config


def test_parameters_are_named_and_shaped_as_in_transformers(recwarn: pytest.WarningsRecorder):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = qwen3_config("0.6B")
    with torch.device("meta"):
        theirs = Qwen3ForCausalLM(Qwen3Config(**config.to_hf()))
    ours = Transformer(config, qwen3_vocabulary([16] * 3), device="meta")
    assert {name: weight.shape for name, weight in theirs.named_parameters()} == {
        name: weight.shape for name, weight in ours.named_parameters()
    }


def test_sid_tokens_follow_the_text_tokens_and_add_rows_if_needed():
    small = qwen3_vocabulary([64, 64, 64])
    assert small.size == 151_936
    assert small.level_tokens(0)[0] == 151_669
    assert small.level_tokens(2)[-1] == 151_669 + 191
    large = qwen3_vocabulary([8192, 8192, 8192])
    assert large.size % 128 == 0
    assert 151_669 + 3 * 8192 <= large.size < 151_669 + 3 * 8192 + 128
    assert qwen3_config("4B", vocab_size=large.size).vocab_size == large.size


def test_rows_of_consecutive_tokens_are_a_view_and_others_a_copy():
    matrix = torch.arange(20.0)[:, None].expand(20, 4).contiguous()
    behind = TokenTable.behind(10, [4, 3], size=20, pad=0, bos=1, eos=2)
    assert behind.tokens_per_level == ((10, 11, 12, 13), (14, 15, 16))
    scattered = TokenTable(tokens_per_level=((11, 10, 12, 13), (14, 16, 15)), size=20, pad=0, bos=1, eos=2)
    for level, rows in ((0, [10, 11, 12, 13]), (1, [14, 15, 16])):
        view = behind.level_rows(matrix, level)
        assert view[:, 0].tolist() == rows
        assert view.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr()
    assert scattered.level_rows(matrix, 0)[:, 0].tolist() == [11, 10, 12, 13]
    assert scattered.level_rows(matrix, 1)[:, 0].tolist() == [14, 16, 15]


def test_tiger_is_an_encoder_decoder_of_the_papers_sizes():
    vocabulary = Vocabulary(codebook_sizes=(256, 256, 256, 8))
    model = new_model(tiger_config(vocabulary), vocabulary, device="meta")
    layers = 4 * (4 * 128 * 384 + 2 * 128 * 1024 + 2 * 128) + 4 * (8 * 128 * 384 + 2 * 128 * 1024 + 3 * 128)
    positions, norms = 2 * 32 * 6, 2 * 128
    assert sum(weight.numel() for weight in model.parameters()) == vocabulary.size * 128 + layers + positions + norms


def test_an_unknown_size_is_refused():
    with pytest.raises(ArgumentError, match=r"expected '0\.6B', '1\.7B' or '4B'"):
        qwen3_config("7B")  # type: ignore[arg-type]
