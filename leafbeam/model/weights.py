"""Checkpoint directories: Hugging Face's model.safetensors and config.json, and leafbeam.json with the vocabulary."""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leafbeam.errors import CheckpointError, counted
from leafbeam.files import CHECKSUMS, check_checksums, read_json, write_checksums, write_json, write_tensors
from leafbeam.json_reader import Json
from leafbeam.machine import Machine
from leafbeam.model.config import EncoderDecoderConfig, ModelConfig
from leafbeam.model.vocabulary import AnyVocabulary, vocabulary_from_dict

Config = TypeVar("Config", ModelConfig, EncoderDecoderConfig)

_FORMAT = 1
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_BIN = "pytorch_model.bin"
_BIN_INDEX = "pytorch_model.bin.index.json"
_ADAPTER = "adapter_config.json"
_GENERATION = "generation_config.json"
_HEAD = "lm_head.weight"
_ITEMSIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorNames:
    """The content of a model's files: its embedding, copies of it, unused tensors that are not read, and how others are stored.

    stored: yields the tensors of the model that a stored one holds, by name. offset: added to the weights of norms, which
    then stay in float32.
    """

    embedding: str
    copies: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    stored: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]] = lambda name, tensor: iter([(name, tensor)])
    offset: float = 0.0

    def is_shifted(self, name: str) -> bool:
        """Return whether the offset is added to a tensor."""
        return self.offset != 0 and name.endswith("norm.weight")

    def dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of a tensor in a model of `dtype`."""
        return torch.float32 if self.is_shifted(name) else dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """The directory of a checkpoint, and the version of its files: a hash of their checksums.

    Without checksums it is one of config.json and of the sizes and times of the weights' files.
    """

    directory: Path
    version: str

    @property
    def is_outdated(self) -> bool:
        """Return whether the directory has other files now."""
        return ModelSource.of(self.directory).version != self.version

    @classmethod
    def of(cls, directory: Path) -> "ModelSource":
        """Return the source of a checkpoint as its files are now. Raises CheckpointError if there is no config.json."""
        try:
            content = (directory / CHECKSUMS).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            content = repr(read_hf(directory)).encode()
            for path in _files(directory):
                stat = path.stat()
                content += f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode()
        return cls(directory=directory, version=blake2b(content, digest_size=6).hexdigest())


def read_config(directory: Path, vocabulary: AnyVocabulary | None, kind: type[Config]) -> tuple[Config, AnyVocabulary]:
    """Return the config and the vocabulary of a checkpoint. vocabulary: needed where there is no leafbeam.json."""
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
    if kind is EncoderDecoderConfig and (directory / _GENERATION).is_file():  # then `generate` reads no config.json
        hf = {**hf, **_first_token(read_generation_config(directory))}
    try:
        config = kind.from_hf(hf, dropout=own.get("dropout", 0.0))
    except CheckpointError as error:
        raise CheckpointError(f"{directory}: {error}") from error
    if vocabulary.size > config.vocab_size:
        sizes = f"the vocabulary has {counted(vocabulary.size, 'token')}, but vocab_size is {config.vocab_size:,}"
        raise CheckpointError(f"{sizes} in {directory / 'config.json'}: the two do not belong together")
    return config, vocabulary


def _first_token(generation: Json) -> Json:
    """Return the fields of a generation_config.json that name the decoder's first token for `generate` of transformers.

    Without any, `generate` refuses the model, and config.json decides here.
    """
    named = {name: generation.get(name) for name in ("decoder_start_token_id", "bos_token_id")}
    return named if any(token is not None for token in named.values()) else {}


def read_tensors(
    directory: Path,
    shapes: Mapping[str, torch.Size],
    names: TensorNames,
    *,
    tied: bool,
    dtype: torch.dtype | None,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint named in `shapes`; CheckpointError for a missing, unexpected or mis-shaped one.

    tied: the head is the embedding; the result holds a `lm_head.weight` only if the files do and it differs from the embedding.
    dtype: cast to it; None keeps the file's, or the widest if the files mix several.
    """
    tensors: dict[str, Tensor] = {}
    paths: dict[str, Path] = {}
    embedding = names.embedding
    copies = dict.fromkeys(names.copies, shapes[embedding]) | ({_HEAD: shapes[embedding]} if tied else {})
    known = copies | dict(shapes)
    for path, name, tensor in _stored_as(directory, device, names):
        if name in names.unused:
            continue
        if name in paths:
            raise CheckpointError(f"{name} is both in {paths[name]} and in {path}: copy the whole checkpoint again")
        _check_tensor(path, name, tensor, known)
        # copied, since a CPU tensor of safetensors is mapped: a truncated file would end the process
        tensors[name] = tensor.to(names.dtype(name, dtype or tensor.dtype), copy=device.type == "cpu")
        if names.is_shifted(name):
            tensors[name] += names.offset
        paths[name] = path
    _stack_parts(tensors, known)
    copied = {name: tensors.pop(name) for name in copies if name in tensors}
    if embedding not in tensors and copied:  # files hold what is shared once, under any of its names
        tensors[embedding] = next(iter(copied.values()))
    if missing := [name for name in shapes if name not in tensors]:
        lack = f"{directory} lacks {len(missing):,} of {counted(len(shapes), 'tensor')}, the first is {missing[0]}"
        if missing == [_HEAD]:
            lack += ", which tie_word_embeddings=false in config.json demands"
        raise CheckpointError(f"{lack}: copy the whole checkpoint again{_other_weights(directory)}")
    for name, copy in copied.items():
        if torch.equal(copy.to(tensors[embedding].dtype), tensors[embedding]):
            continue
        if name != _HEAD:
            raise CheckpointError(
                f"{directory} holds {name}, which differs from {embedding}: leafbeam has one embedding for both"
            )
        tensors[name] = copy
    widest = reduce(torch.promote_types, {tensor.dtype for name, tensor in tensors.items() if not names.is_shifted(name)})
    return {name: tensor.to(names.dtype(name, widest)) for name, tensor in tensors.items()}


def check_memory(directory: Path, *, dtype: torch.dtype | None, device: torch.device) -> None:
    """Raise CheckpointError if the weights of a checkpoint need more memory than there is now, before any is read.

    dtype: that of the loaded weights; None keeps the files'. The sizes are those in the headers of safetensors files.
    """
    needed = 0
    for path in _files(directory):
        if path.suffix == ".bin":
            needed += path.stat().st_size
            continue
        for _, shape, itemsize in _shapes(path):
            needed += prod(shape) * (itemsize if dtype is None else dtype.itemsize)
    free = free_memory(device)
    if free is not None and needed > free:
        kind = "" if dtype is None else f" in {str(dtype).removeprefix('torch.')}"
        raise CheckpointError(
            f"the weights of {directory} take {needed / 2**30:,.2f} GiB of memory{kind}, and {free / 2**30:,.2f} GiB are free "
            f"on {device}: free some, take a larger machine, or a smaller model"
        )


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a device now; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return Machine.this().available if device.type == "cpu" else None


def _shapes(path: Path) -> Iterator[tuple[str, list[int], int]]:
    """Yield (name, shape, bytes of a value) of the tensors of a safetensors file, from its header alone."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no dict)
                part = file.get_slice(name)
                yield name, part.get_shape(), _ITEMSIZES.get(part.get_dtype(), 1)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file ({error}): copy it again") from error


def _check_tensor(path: Path, name: str, tensor: Tensor, known: Mapping[str, torch.Size]) -> None:
    """Raise CheckpointError unless a tensor has the shape of the model's, or of a part, and values that are finite floats."""
    stack, _, number = name.partition(":")
    shape = known[stack][1:] if number.isdigit() and stack in known and int(number) < known[stack][0] else known.get(name)
    if tensor.shape != shape:
        expected = "no such tensor" if shape is None else f"shape {tuple(shape)}"
        raise CheckpointError(
            f"{path} holds {name} of shape {tuple(tensor.shape)}, config.json has {expected}: they do not belong together"
        )
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        raise CheckpointError(f"{path} holds {name} as {tensor.dtype}, quantised: use the original checkpoint, of floats")
    if not tensor.isfinite().all():
        raise CheckpointError(f"{path} holds {name} with values that are not finite (NaN, infinity): copy it again")


def _stack_parts(tensors: dict[str, Tensor], known: Mapping[str, torch.Size]) -> None:
    """Replace the parts NAME:0, NAME:1, ... of tensors that are complete by the tensors."""
    for stack in {name.partition(":")[0] for name in tensors if ":" in name}:
        names = [f"{stack}:{number}" for number in range(known[stack][0])]
        if all(name in tensors for name in names):
            tensors[stack] = torch.stack([tensors.pop(name) for name in names])


def _stored_as(directory: Path, device: torch.device, names: TensorNames) -> Iterator[tuple[Path, str, Tensor]]:
    """Yield the tensors of a model that its files hold, under the model's names."""
    for path, stored, tensor in _stored(directory, device):
        for name, part in names.stored(stored, tensor):
            yield path, name, part


def write_checkpoint(
    directory: Path, config: ModelConfig | EncoderDecoderConfig, vocabulary: AnyVocabulary, tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json, model.safetensors and leafbeam.json, each atomically, and then their checksums.

    Removes what another checkpoint has left in the directory and would be read with them: an index, a T5's generation config.
    """
    directory.mkdir(parents=True, exist_ok=True)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    specials = {"pad_token_id": vocabulary.pad, "bos_token_id": vocabulary.bos, "eos_token_id": vocabulary.eos}
    own = {"format": _FORMAT, "vocabulary": vocabulary.to_dict(), "dropout": config.dropout}

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(directory / _SINGLE, on_cpu, save_file)
    (directory / _INDEX).unlink(missing_ok=True)
    if isinstance(config, EncoderDecoderConfig):  # which names the decoder's first token
        (directory / _GENERATION).unlink(missing_ok=True)
    write_json(directory / "config.json", {**config.to_hf(), **specials, "torch_dtype": dtype})
    write_json(directory / "leafbeam.json", own)
    write_checksums(directory, ("config.json", "leafbeam.json", _SINGLE))


def read_hf(directory: Path) -> Json:
    """Return the fields of config.json."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory: give the one that holds config.json and {_SINGLE}")
    return _read_json(directory / "config.json")


def read_generation_config(directory: Path) -> Json:
    """Read generation_config.json; where there is none, config.json, which holds such fields in older checkpoints."""
    path = directory / _GENERATION
    return _read_json(path) if path.is_file() else read_hf(directory)


def _files(directory: Path) -> list[Path]:
    """Return the files of weights of the first kind that is there, as transformers takes it."""
    paths = [directory / _SINGLE]
    if (directory / _ADAPTER).exists():
        raise CheckpointError(f"{directory / _ADAPTER} changes {paths[0]}: merge the adapter into the model, or remove it")
    if not paths[0].exists():
        for index, whole in ((_INDEX, None), (None, _BIN), (_BIN_INDEX, None)):
            if index is not None and (directory / index).exists():
                paths = _shards(directory / index)
                break
            if whole is not None and (directory / whole).exists():
                paths = [directory / whole]
                break
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: copy the whole checkpoint")
    return paths


def _stored(directory: Path, device: torch.device) -> Iterator[tuple[Path, str, Tensor]]:
    """Yield the tensors of the files of a checkpoint, one at a time."""
    for path in _files(directory):
        yield from _pickled(path, device) if path.suffix == ".bin" else _mapped(path, device)


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names."""
    files = _read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) and Path(file).name == file for file in files.values()):
        raise CheckpointError(f"{index} has no weight_map from tensors to file names: copy it again")
    return [index.parent / file for file in sorted(set(files.values()))]


def _mapped(path: Path, device: torch.device) -> Iterator[tuple[Path, str, Tensor]]:
    """Yield the tensors of a safetensors file."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            for name in file.keys():  # noqa: SIM118 (it is no dict)
                yield path, name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file ({error}): copy it again") from error


def _pickled(path: Path, device: torch.device) -> Iterator[tuple[Path, str, Tensor]]:
    """Yield the tensors of a file of torch, without running any code in it."""
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} is damaged, or holds more than tensors ({reason}): save it as safetensors") from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise CheckpointError(f"{path} does not hold tensors by name: save it as safetensors")
    yield from ((path, name, tensor) for name, tensor in content.items())


def _other_weights(directory: Path) -> str:
    """Return which other weights lie beside model.safetensors, which is read before them, for a message about what it lacks."""
    if (directory / _SINGLE).exists() and (directory / _INDEX).exists():
        return f" ({directory / _SINGLE} is read before the shards of {directory / _INDEX}: remove the one that is old)"
    return ""


def _read_json(path: Path) -> Json:
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {path.parent} is not a complete checkpoint") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}): copy it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected an object of fields: copy it again")
    return content
