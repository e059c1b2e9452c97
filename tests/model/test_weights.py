import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.files import CHECKSUMS
from leafbeam.model import TokenTable, Transformer, Vocabulary, Workspace, load_for_decoding, load_model
from leafbeam.model.cpu.threads import torch_threads

MakeModel = Callable[..., Transformer]

TOKENS = torch.tensor([[1, 5, 20, 28, 41], [1, 6, 25, 30, 44]])
VOCABULARY = Vocabulary(codebook_sizes=(16, 12, 9, 5))


@pytest.fixture
def saved(make_model: MakeModel, tmp_path: Path) -> Path:
    make_model(VOCABULARY).save_pretrained(tmp_path)
    return tmp_path


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Copies: the file is going to be written over, so its checksum goes."""
    path.with_name(CHECKSUMS).unlink(missing_ok=True)
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def edit_json(path: Path, **changes: Any) -> None:
    path.with_name(CHECKSUMS).unlink(missing_ok=True)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_model_comes_back_bit_equal(make_model: MakeModel, tmp_path: Path, tied: bool):
    model = make_model(VOCABULARY, tie_word_embeddings=tied, dropout=0.2)
    model.save_pretrained(tmp_path / "new" / "place")
    back = Transformer.from_pretrained(tmp_path / "new" / "place")
    assert (back.config, back.vocabulary, back.training) == (model.config, VOCABULARY, False)
    assert torch.equal(back.logits(back(TOKENS)), model.logits(model(TOKENS)))
    assert all(parameter.requires_grad for parameter in back.parameters())
    assert sorted(path.name for path in (tmp_path / "new" / "place").iterdir()) == [
        "config.json",
        "leafbeam.json",
        "leafbeam.sha256",
        "model.safetensors",
    ]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("key_heads", [1, 4])
def test_transformers_reads_what_leafbeam_saves(make_model: MakeModel, tmp_path: Path, tied: bool, key_heads: int):
    model = make_model(VOCABULARY, tie_word_embeddings=tied, num_key_value_heads=key_heads, rope_theta=5e5)
    model.save_pretrained(tmp_path)
    theirs, report = Qwen3ForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (theirs.config.pad_token_id, theirs.config.bos_token_id, theirs.config.eos_token_id) == (0, 1, 2)
    with torch.no_grad():
        torch.testing.assert_close(model.logits(model(TOKENS)), theirs(TOKENS).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard", ["5GB", "40KB"])
def test_leafbeam_reads_what_transformers_saves(tmp_path: Path, tied: bool, shard: str):
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=40,
        intermediate_size=72,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=24,
        initializer_range=0.15,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 123456.0},
    )
    torch.manual_seed(3)  # transformers draws from the global state
    theirs = Qwen3ForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "40KB")
    model = Transformer.from_pretrained(tmp_path, vocabulary=VOCABULARY)
    with torch.no_grad():
        expected = theirs(TOKENS).logits
        torch.testing.assert_close(model.logits(model(TOKENS)), expected, atol=1e-5, rtol=0)


def test_bfloat16_stays_or_is_cast(make_model: MakeModel, tmp_path: Path):
    model = make_model(VOCABULARY).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert Transformer.from_pretrained(tmp_path).head_weight.dtype == torch.bfloat16
    assert Qwen3ForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16
    wide = Transformer.from_pretrained(tmp_path, dtype=torch.float32)
    assert torch.equal(wide.head_weight, model.head_weight.float())


def test_matrices_are_stored_as_bfloat16_where_that_loses_nothing(make_model: MakeModel, tmp_path: Path):
    model = make_model(VOCABULARY).bfloat16().float()
    model.get_parameter("model.layers.0.mlp.up_proj.weight").data[0, 0] = 1 + 2**-20
    model.store_bfloat16().save_pretrained(tmp_path)
    dtypes = {name: weight.dtype for name, weight in model.named_parameters()}
    narrow = {name for name, dtype in dtypes.items() if dtype == torch.bfloat16}
    assert narrow == {name for name in dtypes if "_proj" in name and name != "model.layers.0.mlp.up_proj.weight"}
    saved = Transformer.from_pretrained(tmp_path)
    assert {weight.dtype for weight in saved.parameters()} == {torch.float32}
    assert torch.equal(saved(TOKENS), model(TOKENS))
    before = saved.start(TOKENS).step_fn()
    with torch_threads(2):
        torch.testing.assert_close(model.start(TOKENS).step_fn(), before, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_of_bfloat16_is_decoded_in_float32(make_model: MakeModel, tmp_path: Path):
    make_model(VOCABULARY).bfloat16().save_pretrained(tmp_path)
    model, wide = load_for_decoding(tmp_path), load_model(tmp_path, dtype=torch.float32)
    assert model.head_weight.dtype == torch.float32
    assert model.get_parameter("model.layers.0.mlp.up_proj.weight").dtype == torch.bfloat16
    logits = model.start(TOKENS, workspace=Workspace()).step_fn()  # of float32 models alone
    torch.testing.assert_close(logits, wide.start(TOKENS).step_fn(), rtol=1e-4, atol=1e-5)


def test_a_token_table_is_saved_with_the_model(make_model: MakeModel, tmp_path: Path):
    table = TokenTable(tokens_per_level=((90, 4, 51), (33, 4, 70)), size=100, pad=0, bos=1, eos=2)
    make_model(table).save_pretrained(tmp_path)
    assert Transformer.from_pretrained(tmp_path).vocabulary == table
    assert Transformer.from_pretrained(tmp_path, vocabulary=table).vocabulary == table


def test_saving_again_replaces_shards(saved: Path):
    model = Transformer.from_pretrained(saved)
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    model.save_pretrained(saved)
    assert torch.equal(Transformer.from_pretrained(saved).head_weight, model.head_weight)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(saved: Path, name: str):
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        Transformer.from_pretrained(saved)


def test_without_leafbeam_json_a_vocabulary_is_required(saved: Path):
    (saved / "leafbeam.json").unlink()
    with pytest.raises(CheckpointError, match="vocabulary="):
        Transformer.from_pretrained(saved)
    assert Transformer.from_pretrained(saved, vocabulary=VOCABULARY).vocabulary == VOCABULARY


def test_another_vocabulary_than_the_saved_one_raises(saved: Path):
    with pytest.raises(CheckpointError, match="vocabulary"):
        Transformer.from_pretrained(saved, vocabulary=Vocabulary(codebook_sizes=(16, 12)))


def test_a_vocabulary_larger_than_the_embedding_raises(saved: Path):
    (saved / "leafbeam.json").unlink()
    with pytest.raises(CheckpointError, match="vocab_size"):
        Transformer.from_pretrained(saved, vocabulary=Vocabulary(codebook_sizes=(99,)))


def test_a_path_that_is_no_directory_raises(saved: Path):
    for place in (saved / "nowhere", saved / "config.json"):
        with pytest.raises(CheckpointError, match="not a directory"):
            Transformer.from_pretrained(place)


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("name", ["config.json", "leafbeam.json", "model.safetensors"])
def test_a_truncated_file_raises(saved: Path, name: str, part: float):
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[: min(int(len(content) * part), len(content) - 3)])
    with pytest.raises(CheckpointError, match=name):
        Transformer.from_pretrained(saved)


@pytest.mark.parametrize("name", ["config.json", "leafbeam.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[]", b"null", b"\x00" * 64, b"PK\x03\x04" * 50])
def test_a_foreign_file_raises(saved: Path, name: str, content: bytes):
    (saved / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        Transformer.from_pretrained(saved)


@pytest.mark.parametrize(
    "changes", [{"format": 2}, {"format": None}, {"vocabulary": None}, {"vocabulary": {}}, {"dropout": 2}, {"dropout": "a"}]
)
def test_a_damaged_leafbeam_json_raises(saved: Path, changes: dict[str, Any]):
    edit_json(saved / "leafbeam.json", **changes)
    with pytest.raises(CheckpointError):
        Transformer.from_pretrained(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt2"},
        {"attention_bias": True},
        {"num_hidden_layers": 3},
        {"hidden_size": 44},
    ],
)
def test_a_config_of_another_model_raises(saved: Path, changes: dict[str, Any]):
    edit_json(saved / "config.json", **changes)
    with pytest.raises(CheckpointError, match=saved.name):
        Transformer.from_pretrained(saved)


def test_missing_unexpected_misshaped_and_quantised_tensors_are_named(saved: Path):
    path, name = saved / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    whole = tensors_of(path)
    damaged = [
        {key: tensor for key, tensor in whole.items() if key != name},
        whole | {"model.layers.2.mlp.up_proj.weight": whole[name].clone()},
        whole | {name: whole[name].T.contiguous()},
        whole | {name: whole[name].to(torch.int8)},
    ]
    said = ["lacks 1 of", "model.layers.2.mlp", "shape", "quantised"]
    for tensors, words in zip(damaged, said, strict=True):
        save_file(tensors, path)
        with pytest.raises(CheckpointError, match=words):
            Transformer.from_pretrained(saved)


def test_other_dtypes_than_floats_are_refused(saved: Path):
    with pytest.raises(ArgumentError, match="floating"):
        Transformer.from_pretrained(saved, dtype=torch.int32)


@pytest.mark.parametrize("index", [{}, {"weight_map": ["a"]}, {"weight_map": {"a": 3}}, {"weight_map": {"a": "../b"}}])
def test_an_invalid_index_raises(saved: Path, index: dict[str, Any]):
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="weight_map"):
        Transformer.from_pretrained(saved)


def test_a_missing_shard_is_named(saved: Path):
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00001-of-2.safetensors"}}))
    with pytest.raises(CheckpointError, match="00001"):
        Transformer.from_pretrained(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("vocab_size", 2**63),
        ("hidden_size", 10**300),
        ("hidden_size", -(2**31)),
        ("head_dim", 2**31 - 2),
        ("rms_norm_eps", 10**400),
        ("rope_theta", 10**400),
    ],
)
def test_absurd_sizes_in_a_config_are_refused_at_once_and_by_name(saved: Path, name: str, value: int):
    edit_json(saved / "config.json", **{name: value})
    if name == "rope_theta":
        edit_json(saved / "config.json", rope_parameters=None)
    with pytest.raises(CheckpointError):
        Transformer.from_pretrained(saved)


def test_nested_json_and_files_that_are_none_are_refused_by_name(saved: Path):
    (saved / CHECKSUMS).unlink(missing_ok=True)
    for name in ("config.json", "leafbeam.json"):
        whole = (saved / name).read_bytes()
        for content in (b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"9" * 5000):
            (saved / name).write_bytes(content)
            with pytest.raises(CheckpointError, match=name):
                Transformer.from_pretrained(saved)
        (saved / name).write_bytes(whole)


def test_a_changed_bit_in_any_file_of_a_saved_model_is_refused_by_name(saved: Path):
    rng = np.random.default_rng(0)
    for name in ("config.json", "leafbeam.json", "model.safetensors"):
        path = saved / name
        whole = path.read_bytes()
        for _ in range(10):
            changed = bytearray(whole)
            changed[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
            path.write_bytes(changed)
            with pytest.raises(CheckpointError):
                load_model(saved)
        path.write_bytes(whole)
    load_model(saved)


def test_a_loaded_model_does_not_change_with_its_file(saved: Path):
    model = Transformer.from_pretrained(saved)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    path = saved / "model.safetensors"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
