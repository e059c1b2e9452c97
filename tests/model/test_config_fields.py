"""Every field of a config that transformers knows, with other values: the scores are those of transformers, or a refusal."""

import copy
import json
from typing import Any

import pytest
import torch
import transformers

from leafbeam.errors import LeafbeamError
from tests.model.config_cases import ARCHITECTURES, EXPERTS, TOGETHER, Checkpoints, config_of, fields_of, scores, values_for


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


def first_token(fields: dict[str, Any]) -> int:
    """As `generate` takes it from a config.json, else the token of padding, with which T5 is trained."""
    tokens = (fields.get("decoder_start_token_id"), fields.get("bos_token_id"), fields.get("pad_token_id", 0), 0)
    return next(token for token in tokens if isinstance(token, int))


def outcome(checkpoints: Checkpoints, kind: str, change: dict[str, Any]) -> str:
    """Return "equal", "refused" or "no truth" for a change of config.json, and check it as transformers saves it, too."""
    architecture = ARCHITECTURES[kind]
    fields = architecture.base | copy.deepcopy(change)
    checkpoint = checkpoints.of(kind, fields)
    written = fields | (EXPERTS | change if architecture.has_experts else {})
    result = load(checkpoints, kind, written, fields, set(change))
    if checkpoint is not checkpoints.base(kind) and checkpoint.theirs is not None:
        base, saved = checkpoints.base(kind).saved, checkpoint.saved
        names = {name for name in saved if saved[name] != base.get(name)} | set(change)
        load(checkpoints, kind, saved | (EXPERTS if architecture.has_experts else {}), fields, names)
    return result


def load(checkpoints: Checkpoints, kind: str, written: dict[str, Any], fields: dict[str, Any], names: set[str]) -> str:
    """Load the checkpoint of `fields` with a config.json of `written`. names: one of them is in the message of a refusal."""
    architecture, checkpoint = ARCHITECTURES[kind], checkpoints.of(kind, fields)
    (checkpoint.directory / "config.json").write_text(json.dumps(written))
    try:
        config = config_of(checkpoint.directory)
        if config in checkpoint.proven:  # of the same weights
            return "equal"
        ours = scores(checkpoint.directory)
    except LeafbeamError as error:
        message = str(error)
        if checkpoint.theirs is None and "they do not belong together" in message:
            return "refused"  # transformers cannot make such a model, and the weights are those of another
    else:
        if checkpoint.theirs is None:
            return "no truth"
        start = first_token(written)
        if start not in checkpoint.truths:
            checkpoint.truths[start] = architecture.truth(checkpoint.theirs, start)
        torch.testing.assert_close(ours, checkpoint.truths[start], atol=1e-4, rtol=1e-4, msg=lambda text: f"{written}: {text}")
        checkpoint.proven.add(config)
        return "equal"
    assert any(name in message for name in names | ({"experts."} if "num_experts" in names else set())), f"{names}: {message}"
    return "refused"


def case(kind: str, name: str) -> Any:
    """A field of an architecture. Fields that all configs of transformers have are swept quickly for Qwen3 alone."""
    if kind not in ("qwen3", "t5", "t5 with experts"):
        return pytest.param(kind, name, marks=pytest.mark.full)
    repeated = {"qwen3": False, "t5": name in fields_of("qwen3"), "t5 with experts": "expert" not in name}[kind]
    return pytest.param(kind, name, marks=pytest.mark.slow if repeated else ())


CASES = [case(kind, name) for kind in ARCHITECTURES for name in fields_of(kind)]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_value_of_every_field_gives_the_scores_of_transformers_or_is_refused_by_name(
    checkpoints: Checkpoints, kind: str, name: str
) -> None:
    """M3, M4: one field changed at a time."""
    for value in values_for(name, checkpoints.base(kind).theirs.config.to_dict().get(name)):
        outcome(checkpoints, kind, {name: value})


@pytest.mark.parametrize(("kind", "change"), [(kind, change) for kind, changes in TOGETHER.items() for change in changes])
def test_fields_that_matter_together_give_the_scores_of_transformers_or_are_refused_by_name(
    checkpoints: Checkpoints, kind: str, change: dict[str, Any]
) -> None:
    """M3: sliding windows, rotary positions in their forms, activations named twice, tied and scaled heads."""
    outcome(checkpoints, kind, change)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("qwen3", {"attention_dropout": 0.1}),
        ("qwen3", {"attention_dropout": 1}),
        ("qwen3", {"hidden_act": "swish"}),
        ("qwen3", {"rope_scaling": {"type": "default"}}),
        ("qwen3", {"rope_scaling": {"rope_type": "default"}, "rope_theta": 500.0}),
        ("qwen3", {"rope_scaling": None}),
        ("qwen3", {"rope_scaling": {}}),
        ("qwen3", {"rope_parameters": {"type": "default", "rope_theta": 500.0}}),
        ("qwen3", {"use_sliding_window": True}),  # from layer 28 on, of two
        ("qwen3", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 0}),
        ("qwen3", {"num_key_value_heads": None}),
        ("qwen3", {"eos_token_id": [2, 3], "pad_token_id": 5, "dtype": "bfloat16"}),
        ("qwen3", {"output_hidden_states": True, "use_cache": False, "custom_note": {"by": "us"}}),
        ("t5", {"dropout_rate": 0.3, "classifier_dropout": 0.5}),
        ("t5", {"feed_forward_proj": "gated-swish"}),
        ("t5", {"feed_forward_proj": "gated-gelu_new"}),
        ("t5", {"scale_decoder_outputs": False}),
        ("t5", {"hidden_size": 16, "num_hidden_layers": 2}),
        ("t5", {"num_experts": 7, "norm_topk_prob": True}),  # which T5 does not have
        ("t5", {"n_positions": None}),
        ("t5", {"is_decoder": True}),
    ],
)
def test_fields_that_change_nothing_or_are_read_are_accepted(
    checkpoints: Checkpoints, kind: str, change: dict[str, Any]
) -> None:
    """M4: refused before, or easily refused."""
    assert outcome(checkpoints, kind, change) == "equal"


@pytest.mark.parametrize("value", [["qwen3"], {"t5": 1}, 3, None, True, "T5"])
def test_a_model_type_of_any_json_type_is_refused_by_name(checkpoints: Checkpoints, value: Any) -> None:
    """M3: a list was a TypeError."""
    directory = checkpoints.base("t5").directory
    (directory / "config.json").write_text(json.dumps(ARCHITECTURES["t5"].base | {"model_type": value}))
    with pytest.raises(LeafbeamError, match="model_type"):
        scores(directory)
