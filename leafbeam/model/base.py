"""The base class of `Transformer` and `EncoderDecoder`: the head, the initial weights, reading and writing checkpoints.

Shapes: D hidden, V codes of a level.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import ClassVar, Generic, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.errors import ArgumentError, CheckpointError, counted
from leafbeam.json_reader import Json
from leafbeam.model.decoder import LayerNorm, Linear, RMSNorm, capped
from leafbeam.model.experts import Experts
from leafbeam.model.other_tokens import OtherTokens
from leafbeam.model.session import has_padding
from leafbeam.model.torch_runner import RunnerOptions, TorchRunner, attention_on
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.weights import (
    Config,
    ModelSource,
    TensorNames,
    check_memory,
    read_config,
    read_hf,
    read_tensors,
    write_checkpoint,
)
from leafbeam.ops.linear import onednn
from leafbeam.ops.linear.fp8 import Fp8Matrix
from leafbeam.ops.linear.int8 import Int8Matrix
from leafbeam.ops.linear.rounded import RoundedMatrix
from leafbeam.precision import Precision

log = logging.getLogger("leafbeam.model")
_ROUNDED: dict[Precision, type[RoundedMatrix]] = {"int8": Int8Matrix, "fp8": Fp8Matrix}


class SidModel(nn.Module, Generic[Config]):
    """A model whose head is one matrix over the vocabulary. The codes of a level are rows of it."""

    config_type: ClassVar[type]
    tensor_names: ClassVar[TensorNames]
    precisions: ClassVar[tuple[Precision, ...]] = ("float32", "int8", "fp8")  # of matrix products
    config: Config
    vocabulary: AnyVocabulary
    lm_head: nn.Linear | None
    source: ModelSource | None = None  # None for a model that was made in memory

    def __init__(self, config: Config, vocabulary: AnyVocabulary) -> None:
        super().__init__()
        if vocabulary.size > config.vocab_size:
            raise ArgumentError(
                f"the vocabulary has {counted(vocabulary.size, 'token')}, vocab_size={config.vocab_size:,}: raise vocab_size"
            )
        self.config = config
        self.vocabulary = vocabulary

    def _finish(self, generator: torch.Generator | None, device: torch.device | str) -> None:
        """Add an untied head, then draw all weights; on the meta device they are left to the caller."""
        self.lm_head = None
        if not self.config.tie_word_embeddings:
            self.lm_head = nn.Linear(self.embedding.embedding_dim, self.config.vocab_size, bias=False, device="meta")
        if torch.device(device).type == "meta":
            return
        generator = generator or torch.Generator().manual_seed(0)
        self.to_empty(device=torch.device(device))
        for name, weight in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(weight)
                continue
            if isinstance(self.get_submodule(name.rpartition(".")[0]), RMSNorm | LayerNorm):
                nn.init.ones_(weight)
                continue
            drawn = torch.empty(weight.shape, device=generator.device)
            drawn.normal_(std=self._initial_deviation(name), generator=generator)
            with torch.no_grad():
                weight.copy_(drawn)

    @property
    @abstractmethod
    def embedding(self) -> nn.Embedding: ...

    @abstractmethod
    def _initial_deviation(self, name: str) -> float:
        """Return the standard deviation of a parameter's initial values."""

    @property
    def head_weight(self) -> Tensor:
        """Return the matrix (vocab_size, D) from hidden states to logits, which is the embedding if the two are tied."""
        return self.embedding.weight if self.lm_head is None else self.lm_head.weight

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self.embedding.weight.device

    def head(self, hidden: Tensor, level: int) -> Tensor:
        """Return the logits (..., V) of one level's codes from hidden states (..., D). Only that level's rows are
        multiplied.
        """
        return capped(F.linear(hidden, self.vocabulary.level_rows(self.head_weight, level)), self.logit_cap)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., vocab_size) of every token from hidden states (..., D)."""
        return capped(F.linear(hidden, self.head_weight), self.logit_cap)

    @property
    def logit_cap(self) -> float:
        """Return the soft cap of the logits, 0 if there is none."""
        return 0.0

    @property
    def prompt_positions(self) -> Callable[[int], int]:
        """Return what counts the positions of a prompt of so many tokens: all of them, or its items. It keeps no matrices."""
        return int

    @abstractmethod
    def run_prompts(self, tokens_BT: Tensor, lengths_B: Tensor, options: RunnerOptions) -> TorchRunner:
        """Run checked prompts (B, T), padded on the right to lengths_B, by the torch modules."""

    def _options(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        vocabulary: AnyVocabulary,
        *,
        hidden: bool = False,
        other_tokens: bool = False,
    ) -> RunnerOptions:
        """Return the options of a search without a graph. hidden: return hidden states in the place of logits.

        other_tokens: as for `Transformer.start`.
        """
        weight, cap = self.head_weight, self.logit_cap
        others = OtherTokens(weight, vocabulary, cap) if other_tokens else None

        def head(hidden_D: Tensor, level: int) -> Tensor:
            if hidden:
                return hidden_D
            logits = capped(F.linear(hidden_D, vocabulary.level_rows(weight, level)), cap)
            return logits if others is None else others.beside(logits, hidden_D, level)

        is_padded = has_padding(lengths_B, tokens_BT.shape[1])
        attention = attention_on(weight)
        return RunnerOptions(head=head, attention=attention, num_levels=vocabulary.num_levels, is_padded=is_padded)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | PathLike[str],
        *,
        vocabulary: AnyVocabulary | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Read a model that leafbeam or transformers saved, in evaluation mode. Raises CheckpointError.

        vocabulary: needed for a checkpoint without leafbeam.json. dtype: cast to it; None keeps the files', the widest.
        A head in the files that differs from the embedding is used, even if config.json says that the two are tied.
        """
        if dtype is not None and not dtype.is_floating_point:
            raise ArgumentError(f"dtype must be one of torch's floating dtypes, not {dtype}")
        source = ModelSource.of(Path(directory))
        config, vocabulary = read_config(Path(directory), vocabulary, cls.config_type)
        try:
            model = cls(config, vocabulary, device="meta")  # pyright: ignore[reportCallIssue]
        except RuntimeError as error:
            raise CheckpointError(f"{directory} has a config.json of impossible sizes ({error}): copy it again") from error
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        tied = config.tie_word_embeddings
        check_memory(Path(directory), dtype=dtype, device=torch.device(device))
        names = cls.names_in(read_hf(Path(directory)), config)
        tensors = read_tensors(Path(directory), shapes, names, tied=tied, dtype=dtype, device=torch.device(device))
        if tensors.keys() > shapes.keys():  # as T5 1.1 is saved by transformers 5
            log.warning("%s: the head differs from the embedding that config.json ties it to, and is used", directory)
            config = replace(config, tie_word_embeddings=False)
            model = cls(config, vocabulary, device="meta")  # pyright: ignore[reportCallIssue]
        model.load_state_dict(tensors, assign=True)
        model.source = source
        return model.eval()

    @classmethod
    def names_in(cls, hf: Json, config: object) -> TensorNames:
        """Return how the files of a checkpoint hold the tensors. hf: its config.json."""
        del hf, config
        return cls.tensor_names

    def layer_matrices(self) -> list[Linear]:
        """Return the modules of the layers' matrices, experts' aside."""
        return [module for module in self.modules() if isinstance(module, Linear)]

    @property
    def rounded_to(self) -> Precision | None:
        """Return the precision of 8 bits that the layers' matrices are rounded to; None if they are not."""
        kinds = {type(module.rounded) for module in self.layer_matrices()}
        return next((precision for precision, kind in _ROUNDED.items() if kind in kinds), None)

    def check_precision(self, precision: Precision) -> None:
        """Raise ArgumentError unless `with_precision` can make a copy of this model here."""
        if precision == "float32":
            return
        if precision not in self.precisions:
            raise ArgumentError(
                f"precision={precision!r} needs a decoder, and this is an encoder-decoder: choose int8, fp8 or float32"
            )
        if self.rounded_to is not None:
            raise ArgumentError(f"precision={precision!r}: this model is in {self.rounded_to} already; load it again")
        if precision in _ROUNDED and (reason := _ROUNDED[precision].unavailable_reason(self.device)):
            raise ArgumentError(f"precision={precision!r}: {reason}")
        if precision == "fp8":
            self._check_fp8()
        elif self.device.type != "cpu" or self.head_weight.dtype != torch.float32:
            dtype = str(self.head_weight.dtype).removeprefix("torch.")
            raise ArgumentError(
                f"precision={precision!r} needs a model in float32 on a CPU, and this one is in {dtype} on {self.device}"
            )

    def _check_fp8(self) -> None:
        """Raise ArgumentError for layers that cannot be multiplied in float8."""
        if any(isinstance(module, Experts) for module in self.modules()):
            raise ArgumentError("precision='fp8': this model has experts, whose products have no float8; leave it out")
        for name, module in self.named_modules():
            if isinstance(module, Linear) and any(size % Fp8Matrix.multiple for size in module.weight.shape):
                outputs, inputs = module.weight.shape
                raise ArgumentError(
                    f"precision='fp8': {name} is {outputs:,} x {inputs:,}, and products of float8 need multiples of "
                    f"{Fp8Matrix.multiple}; leave it out"
                )

    @torch.no_grad()
    def with_precision(self, precision: Precision) -> Self:
        """Return a copy for decoding whose layers multiply their matrices in another precision; the head's stay as they are.

        bfloat16 (of a `Transformer` on a CPU): matrices, the rows that they multiply and the products are rounded to 8 bits of
        precision, and so are queries, keys and values where prompts attend to themselves; softmax, norms, sums and the beams'
        attention are in float32. A large model is several times as fast if the processor has such products (AMX, AVX-512 BF16),
        and slower elsewhere. The copy's matrices are packed (`Transformer.pack`).

        int8 (on a CPU): each output of a matrix, and each row, is rounded to integers from -127 to 127 with a scale of its own;
        integers are summed exactly, and all else is in float32. Matrices take a quarter of their memory, and large models are
        faster than in bfloat16. The processor must have AVX-512 VNNI.

        fp8 (on a GPU): the same with float8 numbers of 4 bits of precision up to 448, whose products are summed in float32 and
        rounded to bfloat16. Matrices take half of the memory of bfloat16. The GPU must have compute capability 8.9. It has not
        been measured on one.

        `Settings.precision` measures each. The copy costs two passes over the matrices; the rest is shared with this model.

        Raises:
            ArgumentError: If the model is not on such a device, or cannot have this precision.
        """
        self.check_precision(precision)
        if precision == "float32":
            return self
        other = deepcopy(self, {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())})
        other.store_rounded(_ROUNDED[precision])
        return other

    def store_rounded(self, kind: type[RoundedMatrix]) -> None:
        """Store the layers' matrices in 8 bits, in the place of the weights."""
        for module in self.layer_matrices():
            if module.weight.shape[0]:
                module.store(kind.of(onednn.unpack(module.weight)))
        for module in self.modules():
            if isinstance(module, Experts):
                module.store_int8()

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Write config.json and model.safetensors as transformers reads them (except experts), and leafbeam.json.

        Raises:
            ArgumentError: If the layers' matrices are rounded to 8 bits.
        """
        if self.rounded_to is not None:
            raise ArgumentError(f"this model's matrices are of {self.rounded_to}: save the model that it was made from")
        dtype = self.head_weight.dtype
        tensors = {name: weight.to(dtype) for name, weight in self.named_parameters()}
        write_checkpoint(Path(directory), self.config, self.vocabulary, tensors)
