"""generation_config.json: the decoder's first token is that of `generate`; other fields change no score, or are named."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import GenerationConfig

from leafbeam.errors import CheckpointError, LeafbeamError
from leafbeam.model import EncoderDecoder, load_model
from leafbeam.model.generation_settings import changing_settings
from tests.model.config_cases import ARCHITECTURES, T5, TOKENS, VOCABULARY, scores, values_for


@pytest.fixture(scope="module", params=["t5", pytest.param("t5 with experts", marks=pytest.mark.slow), "qwen3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path]:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    architecture, directory = ARCHITECTURES[request.param], tmp_path_factory.mktemp("checkpoint")
    theirs = architecture.build(architecture.base)
    architecture.write_weights(theirs, directory)
    return request.param, theirs, directory


def write(directory: Path, kind: str, config: dict[str, Any], generation: dict[str, Any] | None) -> None:
    experts = {"model_type": "leafbeam_t5_moe", "num_experts": 2, "num_experts_per_tok": 2} if "experts" in kind else {}
    (directory / "config.json").write_text(json.dumps(ARCHITECTURES[kind].base | experts | config))
    (directory / "generation_config.json").unlink(missing_ok=True)
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))


def first_logits(theirs: Any, directory: Path, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits, scores) of the first step of the `generate` of transformers, with the settings of the directory."""
    name = "generation_config.json" if (directory / "generation_config.json").exists() else "config.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.generation_config = GenerationConfig.from_pretrained(
            directory, config_file_name=name, **({"_from_model_config": True} if name == "config.json" else {})
        )
        mask = torch.ones_like(TOKENS)
        out = theirs.generate(
            TOKENS,
            attention_mask=mask,
            max_new_tokens=1,
            return_dict_in_generate=True,
            output_logits=True,
            output_scores=True,
            **settings,
        )
    return out.logits[0].float(), out.scores[0].float()


STARTS: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"decoder_start_token_id": 5}, None),
    ({"decoder_start_token_id": 5}, {"decoder_start_token_id": 6}),
    ({}, {"decoder_start_token_id": 6}),
    ({"pad_token_id": 3}, {"decoder_start_token_id": 6, "bos_token_id": 7, "pad_token_id": 4}),
    ({}, {"bos_token_id": 7}),
    ({"decoder_start_token_id": 5}, {"bos_token_id": 7}),
    ({"bos_token_id": 7}, None),
    ({"bos_token_id": 7, "decoder_start_token_id": 5}, None),
    ({"bos_token_id": 8}, {"decoder_start_token_id": 0}),
    ({"decoder_start_token_id": 5}, {"decoder_start_token_id": 23, "eos_token_id": [1, 2]}),
]


@pytest.mark.parametrize(("config", "generation"), STARTS)
def test_the_first_token_of_a_t5_is_that_of_generate(
    checkpoint: tuple[str, Any, Path], config: dict[str, Any], generation: dict[str, Any] | None
) -> None:
    """M2: it was read from config.json alone."""
    kind, theirs, directory = checkpoint
    if kind == "qwen3":
        config = {}
    write(directory, kind, config, generation)
    logits = scores(directory)[:, -1 if kind == "qwen3" else 0]
    torch.testing.assert_close(logits, first_logits(theirs, directory)[0], atol=1e-4, rtol=1e-4)
    model = load_model(directory, vocabulary=VOCABULARY, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(model.start(TOKENS).step_fn(), VOCABULARY.level_rows(logits.T, 0).T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        ({"decoder_start_token_id": 5}, {}),
        ({"decoder_start_token_id": 5}, {"decoder_start_token_id": None}),
        ({"pad_token_id": 5}, None),
    ],
)
def test_where_generate_has_no_first_token_the_config_or_the_padding_is_it(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None
) -> None:
    """M2: `generate` refuses these; the model was trained with that token."""
    architecture = ARCHITECTURES["t5"]
    theirs = architecture.build(T5)
    architecture.write_weights(theirs, tmp_path)
    write(tmp_path, "t5", config, generation)
    torch.testing.assert_close(scores(tmp_path), architecture.truth(theirs, 5), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("token", [[6, 7], "6", 6.0, True, 99, -1])
def test_first_tokens_that_are_not_tokens_are_refused_by_name(tmp_path: Path, token: Any) -> None:
    """M2: of either file."""
    ARCHITECTURES["t5"].write_weights(ARCHITECTURES["t5"].build(T5), tmp_path)
    for config, generation in (({"decoder_start_token_id": token}, None), ({}, {"decoder_start_token_id": token})):
        write(tmp_path, "t5", config, generation)
        with pytest.raises(CheckpointError, match="decoder_start_token_id"):
            scores(tmp_path)


def test_a_model_that_is_saved_over_another_keeps_its_first_token(tmp_path: Path) -> None:
    """M2: a generation config left by another checkpoint would name its own."""
    ARCHITECTURES["t5"].write_weights(ARCHITECTURES["t5"].build(T5), tmp_path)
    write(tmp_path, "t5", {"decoder_start_token_id": 5}, None)
    model = load_model(tmp_path, vocabulary=VOCABULARY)
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 9}')
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, EncoderDecoder)
    assert again.config.decoder_start_token_id == 5


SETTINGS: dict[str, list[Any]] = {
    "repetition_penalty": [1.0, 1.3],
    "encoder_repetition_penalty": [1.0, 1.3],
    "no_repeat_ngram_size": [0, 1],
    "encoder_no_repeat_ngram_size": [0, 1],
    "guidance_scale": [1.0, 2.0],
    "bad_words_ids": [[[3]], [[4]]],
    "suppress_tokens": [[3], [4, 5]],
    "begin_suppress_tokens": [[3], [4, 5]],
    "sequence_bias": [[[[3], 2.0]], [[[4], -2.0]]],
    "forced_bos_token_id": [3, 4],
    "forced_eos_token_id": [3, 4],
    "eos_token_id": [1, [1, 2]],
    "min_new_tokens": [0, 1],
    "min_length": [0, 20],
    "num_return_sequences": [1],
    "num_beams": [1],
    "temperature": [1.0, 0.5],
}


FIELDS = sorted({*GenerationConfig().to_dict(), "custom_note"} - {"_from_model_config"})


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        *(("qwen3", name) for name in FIELDS),
        *(pytest.param("t5", name, marks=() if "coder" in name or "bos" in name else pytest.mark.slow) for name in FIELDS),
    ],
    indirect=["checkpoint"],
)
def test_every_field_of_a_generation_config_changes_no_score_of_a_code_or_is_named(
    checkpoint: tuple[str, Any, Path], name: str
) -> None:
    """M2, M3: `import` prints the names; the logits are always those of the model."""
    kind, theirs, directory = checkpoint
    codes = VOCABULARY.tokens_at(torch.arange(4), 0)
    changes = [{name: value} for value in SETTINGS.get(name, values_for(name, None))]
    changes += [change | {"do_sample": True} for change in changes if name in ("temperature", "top_k", "top_p", "min_p")]
    for change in changes:
        settings = {"decoder_start_token_id": 6} | change
        write(directory, kind, {}, settings)
        try:
            logits, processed = first_logits(theirs, directory)
        except Exception:  # whatever transformers raises for a value of another type
            continue
        try:
            ours = scores(directory)[:, -1 if kind == "qwen3" else 0]
        except LeafbeamError as error:
            assert name in str(error)  # noqa: PT017
            continue
        torch.testing.assert_close(ours, logits, atol=1e-4, rtol=1e-4)
        if not torch.allclose(processed[:, codes], logits[:, codes], atol=1e-4, rtol=1e-4):
            named = changing_settings(settings, lambda token: token in codes.tolist(), same_length=True, applied=False)
            assert set(named) & set(change), f"{change} changes scores"
