"""The files of a checkpoint: which are read where several hold weights, and what is shared, doubled, mixed or missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from leafbeam.errors import CheckpointError
from leafbeam.model import EncoderDecoder, EncoderDecoderConfig, Vocabulary, load_for_decoding, load_model
from tests.model.config_cases import ARCHITECTURES, VOCABULARY, scores

INDEX = "model.safetensors.index.json"
QWEN3, T5 = "qwen3", "t5"


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def save(kind: str, directory: Path, **fields: Any) -> dict[str, Tensor]:
    """Write a checkpoint as transformers does, and return its tensors."""
    architecture = ARCHITECTURES[kind]
    architecture.write_weights(architecture.build(architecture.base | fields), directory)
    return load_file(directory / "model.safetensors")


def shard(directory: Path, tensors: dict[str, Tensor], factor: float = 1.0) -> list[str]:
    """Write two shards and their index; the names of the shards."""
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] * factor for name in held}, directory / file)
    weight_map = {name: file for file, held in parts.items() for name in held}
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return list(parts)


def check(kind: str, directory: Path) -> None:
    """The scores are those of the model that transformers reads from the directory."""
    theirs = ARCHITECTURES[kind].model.from_pretrained(directory, dtype=torch.float32).eval()
    torch.testing.assert_close(scores(directory), ARCHITECTURES[kind].truth(theirs, 0), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [QWEN3, T5])
@pytest.mark.parametrize("stale", ["shards", "whole file", "index of shards that are gone", "index that is empty"])
def test_a_whole_file_is_read_before_an_index_as_in_transformers(tmp_path: Path, kind: str, stale: str) -> None:
    """M1: the shards were read, whose scores differ."""
    tensors = save(kind, tmp_path)
    files = shard(tmp_path, tensors, factor=0.5 if stale != "whole file" else 1.0)
    if stale == "whole file":
        save_file({name: tensor * 0.5 for name, tensor in tensors.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    elif stale != "shards":
        for file in files:
            (tmp_path / file).unlink()
    if stale == "index that is empty":
        (tmp_path / INDEX).write_text("{}")
    check(kind, tmp_path)


def _lacks(directory: Path, tensors: dict[str, Tensor]) -> None:
    save_file(dict(sorted(tensors.items())[1:]), directory / "model.safetensors")


def _missing_shard(directory: Path, tensors: dict[str, Tensor]) -> None:
    (directory / "model.safetensors").unlink()
    (directory / shard(directory, tensors)[1]).unlink()


def _doubled(directory: Path, tensors: dict[str, Tensor]) -> None:
    (directory / "model.safetensors").unlink()
    first = directory / shard(directory, tensors)[0]
    save_file(load_file(first) | {sorted(tensors)[1]: tensors[sorted(tensors)[1]] * 2}, first)


def _stale_index(directory: Path, tensors: dict[str, Tensor]) -> None:
    (directory / "model.safetensors").unlink()
    files = shard(directory, tensors)
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], files[0])
    (directory / INDEX).write_text(json.dumps(index))


def _only_bin(directory: Path, tensors: dict[str, Tensor]) -> None:
    (directory / "model.safetensors").unlink()
    torch.save(tensors, directory / "pytorch_model.bin")


def _nothing(directory: Path, tensors: dict[str, Tensor]) -> None:
    (directory / "model.safetensors").unlink()


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this code ran",)


def _pickle_of_code(directory: Path, tensors: dict[str, Tensor]) -> None:
    _only_bin(directory, tensors | {"code": _Code()})  # type: ignore[dict-item]


def _truncated_bin(directory: Path, tensors: dict[str, Tensor]) -> None:
    _only_bin(directory, tensors)
    content = (directory / "pytorch_model.bin").read_bytes()
    (directory / "pytorch_model.bin").write_bytes(content[: len(content) // 2])


def _list_in_bin(directory: Path, tensors: dict[str, Tensor]) -> None:
    (directory / "model.safetensors").unlink()
    torch.save(list(tensors.values()), directory / "pytorch_model.bin")


def _not_a_number(directory: Path, tensors: dict[str, Tensor]) -> None:
    name = next(name for name in tensors if name.endswith(("o_proj.weight", "wo.weight")))
    tensors[name][0, 1] = torch.nan
    save_file(tensors, directory / "model.safetensors")


def _adapter(directory: Path, tensors: dict[str, Tensor]) -> None:
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def _eight_bits(directory: Path, tensors: dict[str, Tensor]) -> None:
    name = next(name for name in tensors if name.endswith(("o_proj.weight", "wo.weight")))
    save_file(tensors | {name: tensors[name].to(torch.float8_e4m3fn)}, directory / "model.safetensors")


@pytest.mark.parametrize("kind", [QWEN3, T5])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_lacks, "lacks 1 of .* tensors"),
        (_missing_shard, "model-00002-of-00002.safetensors is missing"),
        (_doubled, r"is both in .*00001-of-00002.safetensors and in .*00002-of-00002.safetensors|lacks"),
        (_stale_index, "lacks .* tensors"),
        (_nothing, r"model.safetensors is missing"),
        (_pickle_of_code, r"pytorch_model.bin is damaged, or holds more than tensors"),
        (_truncated_bin, r"pytorch_model.bin is damaged"),
        (_list_in_bin, r"pytorch_model.bin does not hold tensors by name"),
        (_not_a_number, r"holds .* with values that are not finite"),
        (_adapter, "adapter_config.json changes .*model.safetensors: merge the adapter"),
        (_eight_bits, "quantised"),
    ],
)
def test_files_that_do_not_make_one_model_are_refused(
    tmp_path: Path, kind: str, spoil: Callable[[Path, dict[str, Tensor]], None], message: str
) -> None:
    """M1: each is named."""
    spoil(tmp_path, save(kind, tmp_path))
    with pytest.raises(CheckpointError, match=message):
        scores(tmp_path)


def test_an_incomplete_whole_file_beside_an_index_names_both(tmp_path: Path) -> None:
    """M1: the file that has priority is not the whole model."""
    tensors = save(QWEN3, tmp_path)
    shard(tmp_path, tensors)
    save_file(dict(sorted(tensors.items())[1:]), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks 1 of .*model\.safetensors is read before .*index\.json: remove"):
        scores(tmp_path)


@pytest.mark.parametrize("kind", [QWEN3, T5])
@pytest.mark.parametrize("are_sharded", [False, True])
def test_files_of_torch_are_read_where_there_are_no_safetensors(tmp_path: Path, kind: str, are_sharded: bool) -> None:
    tensors = save(kind, tmp_path)
    _only_bin(tmp_path, tensors)
    if are_sharded:
        (tmp_path / "pytorch_model.bin").unlink()
        names = sorted(tensors)
        parts = {"pytorch_model-1.bin": names[::2], "pytorch_model-2.bin": names[1::2]}
        for file, part in parts.items():
            torch.save({name: tensors[name] for name in part}, tmp_path / file)
        weight_map = {name: file for file, part in parts.items() for name in part}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    check(kind, tmp_path)


@pytest.mark.parametrize("kind", [QWEN3, T5])
def test_a_bin_file_beside_safetensors_is_not_read(tmp_path: Path, kind: str) -> None:
    """M1: as in transformers."""
    tensors = save(kind, tmp_path)
    torch.save({name: tensor * 0.5 for name, tensor in tensors.items()}, tmp_path / "pytorch_model.bin")
    check(kind, tmp_path)


@pytest.mark.parametrize("kind", [QWEN3, T5])
@pytest.mark.parametrize("head", ["the same", "another"])
def test_a_head_beside_the_embedding_it_is_tied_to_is_used(tmp_path: Path, kind: str, head: str) -> None:
    """M1: another head was refused; transformers uses it, and saves T5 1.1 so."""
    tensors = save(kind, tmp_path, tie_word_embeddings=True)
    embedding = tensors["shared.weight" if kind == T5 else "model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.clone() if head == "the same" else embedding.flip(0).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    check(kind, tmp_path)
    model = load_model(tmp_path, vocabulary=VOCABULARY)
    assert model.config.tie_word_embeddings == (head == "the same")
    model.save_pretrained(tmp_path / "again")
    torch.testing.assert_close(scores(tmp_path / "again"), scores(tmp_path))
    check(kind, tmp_path / "again")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (T5, "encoder.embed_tokens.weight"),
        (T5, "decoder.embed_tokens.weight"),
        (T5, "lm_head.weight"),
        (QWEN3, "lm_head.weight"),
    ],
)
def test_a_shared_embedding_may_be_stored_under_any_of_its_names(tmp_path: Path, kind: str, name: str) -> None:
    """M1: files hold shared tensors once, and the writer chooses the name."""
    tensors = save(kind, tmp_path, tie_word_embeddings=True)
    tensors[name] = tensors.pop("shared.weight" if kind == T5 else "model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    check(kind, tmp_path)


def test_an_untied_head_that_is_missing_is_named_with_its_setting(tmp_path: Path) -> None:
    """M1: transformers would draw it at random."""
    tensors = save(QWEN3, tmp_path, tie_word_embeddings=False)
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="tie_word_embeddings=false in config"):
        scores(tmp_path)


@pytest.mark.parametrize("kind", [QWEN3, T5])
@pytest.mark.parametrize(("matrices", "norms"), [("bfloat16", "float32"), ("float16", "float32"), ("bfloat16", "float16")])
def test_mixed_dtypes_are_read_in_the_widest(tmp_path: Path, kind: str, matrices: str, norms: str) -> None:
    """M4: bfloat16 with norms of float32, as trainers save, was refused."""
    tensors = save(kind, tmp_path)
    mixed = {name: tensor.to(getattr(torch, norms if "norm" in name else matrices)) for name, tensor in tensors.items()}
    save_file(mixed, tmp_path / "model.safetensors", {"format": "pt"})
    check(kind, tmp_path)
    assert {weight.dtype for weight in load_model(tmp_path, vocabulary=VOCABULARY).parameters()} == {torch.float32}
    narrow = load_model(tmp_path, vocabulary=VOCABULARY, dtype=torch.bfloat16)
    assert {weight.dtype for weight in narrow.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_under_a_decoders_name_beside_another_head_is_not_mistaken_for_it(tmp_path: Path, tied: bool) -> None:
    """M1: as MADLAD-400 is published, whose encoder got the head's matrix in some loaders; its config is rewritten as tied."""
    tensors = save(T5, tmp_path, scale_decoder_outputs=False)
    tensors["lm_head.weight"] = tensors["shared.weight"].flip(0).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    expected = scores(tmp_path)
    tensors["decoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.testing.assert_close(scores(tmp_path), expected)


def test_a_model_larger_than_the_memory_is_said_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the headers of the files: in float32, and as they are."""
    vocabulary = Vocabulary(codebook_sizes=(4, 4))
    config = EncoderDecoderConfig(vocab_size=vocabulary.size, d_model=64, d_ff=64)
    EncoderDecoder(config, vocabulary).to(torch.bfloat16).save_pretrained(tmp_path)
    half = sum(parameter.numel() for parameter in load_model(tmp_path).parameters()) * 2

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr("leafbeam.model.weights.free_memory", lambda device: half)
    assert load_model(tmp_path).head_weight.dtype == torch.bfloat16
    monkeypatch.setattr("leafbeam.model.base.read_tensors", read)
    with pytest.raises(CheckpointError, match=r"take [0-9.]+ GiB of memory in float32, and [0-9.]+ GiB are free on cpu"):
        load_for_decoding(tmp_path)
    monkeypatch.setattr("leafbeam.model.weights.free_memory", lambda device: half - 1)
    with pytest.raises(CheckpointError, match=r"take [0-9.]+ GiB of memory, and [0-9.]+ GiB are free on cpu"):
        load_model(tmp_path)
