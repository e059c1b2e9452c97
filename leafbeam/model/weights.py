"""Checkpoint directories: Hugging Face's model.safetensors and config.json, and leafbeam.json with the vocabulary."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leafbeam.errors import CheckpointError
from leafbeam.files import check_checksums, read_json, write_checksums, write_json, write_tensors
from leafbeam.model.config import EncoderDecoderConfig, ModelConfig
from leafbeam.model.vocabulary import AnyVocabulary, vocabulary_from_dict

Config = TypeVar("Config", ModelConfig, EncoderDecoderConfig)

_FORMAT = 1
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorNames:
    """Names in a model's files: its embedding, tensors that are copies of it, and unused ones that are not read."""

    embedding: str
    copies: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def read_config(directory: Path, vocabulary: AnyVocabulary | None, kind: type[Config]) -> tuple[Config, AnyVocabulary]:
    """The config and the vocabulary of a checkpoint. vocabulary: needed where there is no leafbeam.json."""
    hf = read_hf(directory)
    check_checksums(directory)
    path, own = directory / "leafbeam.json", {}
    if path.exists():
        own = _read_json(path)
        if own.get("format") != _FORMAT or not isinstance(own.get("vocabulary"), dict):
            found = f"{path} has format {own.get('format')!r}, this leafbeam reads format {_FORMAT}"
            raise CheckpointError(f"{found}: save the model again, or install the leafbeam that wrote it")
        saved = vocabulary_from_dict(own["vocabulary"])
        if vocabulary not in (None, saved):
            raise CheckpointError(f"the vocabulary given is not the one in {path}: leave it out to use the saved one")
        vocabulary = saved
    if vocabulary is None:
        raise CheckpointError(f"{path} is missing: pass vocabulary=Vocabulary(...) or TokenTable(...), which names SID tokens")
    try:
        config = kind.from_hf(hf, dropout=own.get("dropout", 0.0))
    except CheckpointError as error:
        raise CheckpointError(f"{directory}: {error}") from error
    if vocabulary.size > config.vocab_size:
        sizes = f"the vocabulary has {vocabulary.size:,} tokens, but vocab_size is {config.vocab_size:,}"
        raise CheckpointError(f"{sizes} in {directory / 'config.json'}: the two do not belong together")
    return config, vocabulary


def read_tensors(
    directory: Path,
    shapes: Mapping[str, torch.Size],
    names: TensorNames,
    *,
    tied: bool,
    dtype: torch.dtype | None,
    device: torch.device,
) -> dict[str, Tensor]:
    """The tensors of a checkpoint named in `shapes`; CheckpointError for a missing, unexpected or mis-shaped one.

    tied: the head is the embedding; a file may then hold `lm_head.weight` too if it is the same matrix.
    dtype: cast to it; None keeps the file's, which then must be the same for all tensors.
    """
    tensors: dict[str, Tensor] = {}
    copied: dict[str, Tensor] = {}
    embedding, copies = names.embedding, (*names.copies, *(["lm_head.weight"] if tied else []))
    for path, name, tensor in _stored(directory, device):
        if name in copies:
            copied[name] = tensor
            continue
        if name in names.unused:
            continue
        if tensor.shape != shapes.get(name):
            expected = f"shape {tuple(shapes[name])}" if name in shapes else "no such tensor"
            raise CheckpointError(
                f"{path} holds {name} of shape {tuple(tensor.shape)}, config.json has {expected}: they do not belong together"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(f"{path} holds {name} as {tensor.dtype}, quantised: use the original checkpoint, of floats")
        # copied, since a CPU tensor of safetensors is mapped: a truncated file would end the process
        tensors[name] = tensor.to(dtype or tensor.dtype, copy=device.type == "cpu")
    if missing := [name for name in shapes if name not in tensors]:
        found = f"{directory} lacks {len(missing):,} of {len(shapes):,} tensors, the first is {missing[0]}"
        raise CheckpointError(f"{found}: copy the whole checkpoint again")
    for name, copy in copied.items():
        if not torch.equal(copy.to(tensors[embedding].dtype), tensors[embedding]):
            reason = "leafbeam has one embedding for both"
            if name == "lm_head.weight":
                reason = f"set tie_word_embeddings to false in config.json, or remove {name}"
            raise CheckpointError(f"{directory} holds {name}, which differs from {embedding}: {reason}")
    if len(dtypes := {tensor.dtype for tensor in tensors.values()}) > 1:
        raise CheckpointError(f"{directory} mixes {', '.join(sorted(map(str, dtypes)))}: choose one with dtype=torch.float32")
    return tensors


def write_checkpoint(
    directory: Path, config: ModelConfig | EncoderDecoderConfig, vocabulary: AnyVocabulary, tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json, model.safetensors and leafbeam.json, each atomically, and then their checksums."""
    directory.mkdir(parents=True, exist_ok=True)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    specials = {"pad_token_id": vocabulary.pad, "bos_token_id": vocabulary.bos, "eos_token_id": vocabulary.eos}
    own = {"format": _FORMAT, "vocabulary": vocabulary.to_dict(), "dropout": config.dropout}

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(directory / _SINGLE, on_cpu, save_file)
    (directory / _INDEX).unlink(missing_ok=True)
    write_json(directory / "config.json", config.to_hf() | specials | {"torch_dtype": dtype})
    write_json(directory / "leafbeam.json", own)
    write_checksums(directory, ("config.json", "leafbeam.json", _SINGLE))


def read_hf(directory: Path) -> dict[str, Any]:
    """The fields of config.json."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory: give the one that holds config.json and {_SINGLE}")
    return _read_json(directory / "config.json")


def read_generation_config(directory: Path) -> dict[str, Any]:
    """Read generation_config.json; where there is none, config.json, which holds such fields in older checkpoints."""
    path = directory / "generation_config.json"
    return _read_json(path) if path.is_file() else read_hf(directory)


def _stored(directory: Path, device: torch.device) -> Iterator[tuple[Path, str, Tensor]]:
    """The tensors of the single file, or of the shards in the index, one at a time."""
    if (directory / _INDEX).exists():
        shards = _read_json(directory / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(
            isinstance(file, str) and Path(file).name == file for file in shards.values()
        ):
            raise CheckpointError(f"{directory / _INDEX} has no weight_map from tensors to file names: copy it again")
        paths = [directory / shard for shard in sorted(set(shards.values()))]
    else:
        paths = [directory / _SINGLE]
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: copy the whole checkpoint (leafbeam reads safetensors only, not .bin)")
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                for name in file.keys():  # noqa: SIM118 (it is no dict)
                    yield path, name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or not a safetensors file ({error}): copy it again") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {path.parent} is not a complete checkpoint") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}): copy it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected an object of fields: copy it again")
    return content
