"""The decoder-only model: layers of any architecture of `ModelConfig`, and a head of which any level is a slice.

Shapes: B requests, T tokens of each, K beams, C new codes of each beam, N = K x C, V codes of a level, D hidden;
P items of a prompt, M codes of a branch, R rows of a prompt and its branches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Self, cast, get_args

import torch
from torch import Tensor, nn

from leafbeam.errors import ArgumentError
from leafbeam.json_reader import Json
from leafbeam.model.architectures import architecture_of
from leafbeam.model.base import SidModel
from leafbeam.model.config import ModelConfig
from leafbeam.model.cpu.layers import parameters_of
from leafbeam.model.cpu.products import ProductTuning, tune_products
from leafbeam.model.cpu.runner import CpuOptions, CpuRunner
from leafbeam.model.cpu.workspace import Workspace
from leafbeam.model.decoder import Decoder, Dropout, Layer, Linear, causal, causal_attention, make_dropout
from leafbeam.model.item_history import ItemPositions
from leafbeam.model.prompt_store import PromptStore
from leafbeam.model.session import DecodeSession, Runner, check_prompts, checked_lengths
from leafbeam.model.text_session import TextRunner, TextSession
from leafbeam.model.torch_runner import DecoderRunner, RunnerOptions
from leafbeam.model.vocabulary import AnyVocabulary, TextTokens
from leafbeam.model.weights import TensorNames
from leafbeam.ops.linear import onednn
from leafbeam.ops.linear.int8 import Int8Matrix
from leafbeam.ops.linear.rounded import RoundedMatrix
from leafbeam.precision import Precision

log = logging.getLogger("leafbeam.model")


class Transformer(SidModel[ModelConfig]):
    """A decoder-only transformer over Semantic IDs, of the architecture and the sizes of its config.

    Args:
        config: The sizes. Its vocab_size may exceed vocabulary.size, because large models pad their embedding.
        vocabulary: The tokens.
        generator: The source of the initial weights, never torch's global state; None is a generator that is seeded with 0.
        device: The device of the weights.

    Raises:
        ArgumentError: If vocab_size is smaller than vocabulary.size.

    Examples:
        >>> from leafbeam.model import Vocabulary
        >>> vocabulary = Vocabulary(codebook_sizes=(256, 256, 256, 8))
        >>> model = Transformer(ModelConfig(vocab_size=vocabulary.size), vocabulary)
        >>> tokens_BT, lengths_B = vocabulary.prompts([[[17, 4, 99, 0], [3, 250, 12, 1]]])
        >>> hidden_BTD = model(torch.from_numpy(tokens_BT))
        >>> model.head(hidden_BTD[:, -1], level=0).shape
        torch.Size([1, 256])
    """

    config_type = ModelConfig
    tensor_names = TensorNames(embedding="model.embed_tokens.weight")
    precisions = get_args(Precision)

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: AnyVocabulary,
        generator: torch.Generator | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(config, vocabulary)
        self._products = torch.float32  # what `CpuRunner` multiplies the layers' matrices in
        self._num_packed = 0
        self.model = Decoder(config)
        self._items = ItemPositions.of(vocabulary) if config.item_history else None
        self._finish(generator, device)

    @classmethod
    def names_in(cls, hf: Json, config: object) -> TensorNames:
        architecture, fields = architecture_of(hf), vars(config)
        return replace(
            cls.tensor_names,
            stored=lambda name, tensor: architecture.tensors(name, tensor, fields),
            offset=architecture.norm_offset,
        )

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.embed_tokens

    def _initial_deviation(self, name: str) -> float:
        return self.config.initializer_range

    def forward(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor | None = None,
        *,
        dropout: torch.Generator | None = None,
        branches_BPM: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states (B, T, D) under causal attention, after the final norm.

        Args:
            tokens_BT: The tokens, padded on the right.
            lengths_B: The length of each row; the hidden states of the padding after it are zeros. None: no row is padded.
            dropout: The generator that a model in training mode with config.dropout > 0 needs.
            branches_BPM: For training, the tokens of another item in the place of each of the last P items of the prompt, all
                but the last of each. Each sees the tokens before that item and those of its own item; nothing sees them. The
                hidden states after them are appended: (B, T + P x M, D). No row may be padded.

        Raises:
            ArgumentError: If dropout needs a generator, or `pack` has been called.
        """
        if self._num_packed:
            raise ArgumentError("this model's matrices are packed, for decoding: read it with load_model to call it itself")
        check_prompts(tokens_BT, lengths_B, self.config)
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        drop = make_dropout(self.config.dropout if self.training else 0.0, dropout)
        if branches_BPM is not None:
            return self._forward_branches(tokens_BT, branches_BPM, drop)
        vectors_BTD = self.model.embed(tokens_BT)
        if self._items is None:
            hidden_BTD = self.model(vectors_BTD, positions_T, causal_attention(self.config), drop)
        else:
            hidden_BTD, _ = self._items.run(self.model, vectors_BTD, drop)
        if lengths_B is None:
            return hidden_BTD
        return hidden_BTD.masked_fill((positions_T >= lengths_B.to(tokens_BT.device)[:, None])[..., None], 0)

    def _forward_branches(self, tokens_BT: Tensor, branches_BPM: Tensor, drop: Dropout) -> Tensor:
        num_tokens = tokens_BT.shape[1]
        vectors_BRD = self.model.embed(torch.cat((tokens_BT, branches_BPM.flatten(1)), 1))  # one gradient of the matrix
        if self._items is not None:
            vectors_BTD, branches_BXD = vectors_BRD.tensor_split((num_tokens,), 1)
            branches_BPMD = branches_BXD.unflatten(1, branches_BPM.shape[1:])
            return torch.cat(self._items.run(self.model, vectors_BTD, drop, branches_BPMD), 1)
        if self.config.local_layers or self.config.attention_cap:
            raise ArgumentError("a model with windows or a cap of attention reads no branches: train it with teacher_weight=0")
        position_R, visible_RR = _branch_rows(num_tokens, branches_BPM)
        return self.model(vectors_BRD, position_R, partial(causal, visible_TT=visible_RR), drop)

    @property
    def takes_workspace(self) -> bool:
        """Return whether `start` takes a workspace and a store: on a CPU in float32."""
        return self.head_weight.device.type == "cpu" and self.head_weight.dtype == torch.float32

    @torch.no_grad()
    def store_bfloat16(self) -> Transformer:
        """Keep the layers' matrices as bfloat16 if all of their values are bfloat16 numbers, for decoding on a CPU; return the
        model.

        Checkpoints that were trained in bfloat16 have such values, also once they are read as float32. The computation stays in
        float32, so results differ by the order of sums alone. Passes of up to 256 rows read half the bytes: one text is twice
        as fast. This costs one pass over the weights, and is not for training.
        """
        for module in self.layer_matrices():
            weight = module.weight
            if weight.is_mkldnn:
                continue  # packed
            if not torch.equal(weight[:1].bfloat16().to(weight.dtype), weight[:1]):
                continue  # without a pass over all of it
            stored = weight.bfloat16()
            if torch.equal(stored.to(weight.dtype), weight):
                module.weight = nn.Parameter(stored, requires_grad=False)
        return self

    @torch.no_grad()
    def with_precision(self, precision: Precision) -> Self:
        if precision != "bfloat16":
            return super().with_precision(precision)
        self.check_precision(precision)
        other = self._unpacked()
        for module in other.layer_matrices():
            module.weight = nn.Parameter(module.weight.bfloat16(), requires_grad=False)
        other._products = torch.bfloat16
        return other.pack()

    def store_rounded(self, kind: type[RoundedMatrix]) -> None:
        """Store the layers' matrices in 8 bits, in the place of the weights; of int8, those of queries, keys and values become
        one, which `CpuRunner` multiplies at once.
        """
        for inputs in self._attention_inputs() if kind is Int8Matrix else ():
            inputs[0].store(kind.of(torch.cat([onednn.unpack(module.weight) for module in inputs])))
            for module in inputs[1:]:
                module.clear()
        super().store_rounded(kind)
        self._num_packed = sum(module.rounded is not None for module in self.layer_matrices())

    @torch.no_grad()
    def pack(self) -> Self:
        """Keep the layers' matrices in oneDNN's layout where products are faster with it, for decoding on a CPU; return the
        model.

        The matrices of queries, keys and values become one, which takes the place of the queries'. Rounds of 4 to 64 beams gain
        most; results differ by the order of sums alone. Large matrices are packed if they have the dtype of their products, so
        none of `store_bfloat16`; `leafbeam.ops.linear.onednn` measures each shape with torch's number of threads. This costs
        one pass over the weights, in place, and 0.3 s for a shape that is new to the process. It is not for training, nor for
        calls of the model itself.
        """
        if not self.takes_workspace:
            return self
        before = self._num_packed
        for inputs in self._attention_inputs():
            if any(module.weight.is_mkldnn or module.weight.dtype != self._products for module in inputs):
                continue
            joined = torch.cat([module.weight for module in inputs])
            if self._is_faster_packed(joined):
                for module in inputs[1:]:
                    module.weight = nn.Parameter(joined.new_empty(0, joined.shape[1]), requires_grad=False)
                self._pack(inputs[0], joined)
        for module in self.layer_matrices():
            if self._is_faster_packed(module.weight):
                self._pack(module, module.weight)
        if self._num_packed > before:
            log.info("%d matrices of the layers are packed for products on this processor", self._num_packed)
        return self

    def tune_products(self) -> ProductTuning | None:
        """Return how the layers' matrices are multiplied with torch's number of threads, measuring what is new.

        None except on a CPU in float32, where torch's modules run.
        """
        if not self.takes_workspace:
            return None
        layers = [parameters_of(cast(Layer, layer)).matrices for layer in self.model.layers]
        return tune_products(layers, self._products)

    def _is_faster_packed(self, weight: Tensor) -> bool:
        is_plain = not weight.is_mkldnn and weight.dtype == self._products
        return is_plain and len(weight) > 0 and onednn.is_faster(weight, torch.get_num_threads())

    def _pack(self, module: nn.Linear, weight: Tensor) -> None:
        module.weight = nn.Parameter(onednn.pack(weight), requires_grad=False)
        self._num_packed += 1

    def _unpacked(self) -> Self:
        """Return a copy with plain matrices that shares the others with this model."""
        other = deepcopy(self, {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())})
        for module in other.layer_matrices():
            module.weight = nn.Parameter(onednn.unpack(module.weight), requires_grad=False)
        for inputs in other._attention_inputs():
            if len(inputs[0].weight) > inputs[0].out_features:
                parts = inputs[0].weight.split([module.out_features for module in inputs])
                for module, weight in zip(inputs, parts, strict=True):
                    module.weight = nn.Parameter(weight, requires_grad=False)
        other._num_packed = 0
        return other

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        super(Transformer, self._unpacked() if self._num_packed and self.rounded_to is None else self).save_pretrained(
            directory
        )

    def _attention_inputs(self) -> list[tuple[Linear, Linear, Linear]]:
        """Return the modules of each layer's queries, keys and values."""
        attentions = [cast(Layer, layer).self_attn for layer in self.model.layers]
        return [(attention.q_proj, attention.k_proj, attention.v_proj) for attention in attentions]

    @property
    def logit_cap(self) -> float:
        return self.config.logit_cap

    def level_heads(self) -> list[Tensor]:
        """Return for each level the head's rows of its codes (V, D), without gradients, as `BeamSearch.run` takes them as
        `head`.

        They are views if a level's tokens are consecutive, otherwise copies.

        Raises:
            ArgumentError: If the logits have a soft cap, which such a search does not know.
        """
        if self.logit_cap:
            raise ArgumentError(f"the logits of this model have a soft cap of {self.logit_cap}: search without head=")
        weight = self.head_weight.detach()
        return [self.vocabulary.level_rows(weight, level) for level in range(self.vocabulary.num_levels)]

    @torch.inference_mode()
    def start(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor | None = None,
        *,
        workspace: Workspace | None = None,
        store: PromptStore | None = None,
        beams: int = 0,
        vocabulary: AnyVocabulary | None = None,
        hidden: bool = False,
        other_tokens: bool = False,
    ) -> DecodeSession:
        """Prefill prompts and open a decoding session, without gradients.

        This costs one pass over the tokens. On a CPU in float32 it runs packed rows (`CpuRunner`), elsewhere the torch modules.

        Args:
            tokens_BT: The prompts (B, T), int64, padded on the right.
            lengths_B: The length of each prompt; None: no prompt is padded.
            workspace: Buffers to reuse; a session is void once they serve another. They need a CPU and float32.
            store: Prefixes of prompts that are not computed again. It needs a CPU and float32.
            beams: The expected number of beams, to allocate memory for their codes once.
            vocabulary: The tokens to decode, such as `TextTokens`; None takes the model's SIDs.
            hidden: If true, the session returns hidden states (..., D) in place of logits, for a search that multiplies the
                head itself.
            other_tokens: If true, the logits have one more column for all tokens that are not codes of the level, as a search
                with scoring "vocabulary" reads them. Every pass then multiplies the whole head.

        Raises:
            ArgumentError: If a prompt leaves no positions for a whole SID, or an argument needs another device or contradicts
                another.
        """
        if hidden and other_tokens:
            raise ArgumentError("hidden and other_tokens are true: hidden states have no column of other tokens; choose one")
        if vocabulary is not None:
            self._check_reads_texts()
        vocabulary = vocabulary or self.vocabulary
        lengths_B = checked_lengths(tokens_BT, lengths_B, self.config, vocabulary.num_levels)
        if self._items is not None:
            self._items.check(lengths_B)
        weight = self.head_weight
        if self.takes_workspace:
            head = None if hidden else weight
            on_cpu = CpuOptions(
                workspace=workspace, store=store, beams=beams, products=self._products, other_tokens=other_tokens
            )
            vectors_BND = None
            if self._items is not None:
                vectors_BND, counts_B = self._items.vectors(self.model.embed(tokens_BT)), self._items.count(lengths_B)
                tokens_BT, lengths_B = self._items.grouped(tokens_BT), counts_B
            runner: Runner = CpuRunner(self.model, head, vocabulary, tokens_BT, lengths_B, on_cpu, vectors_BND)
        elif workspace is not None or store is not None:
            raise ArgumentError(
                f"workspace and store need a model in float32 on a CPU; this model is {weight.dtype} on {weight.device}: "
                "leave them out"
            )
        else:
            options = self._options(tokens_BT, lengths_B, vocabulary, hidden=hidden, other_tokens=other_tokens)
            runner = self.run_prompts(tokens_BT, lengths_B, options)
        return DecodeSession(runner, vocabulary, lengths_B)

    @property
    def prompt_positions(self) -> Callable[[int], int]:
        return int if self._items is None else self._items.count

    def run_prompts(self, tokens_BT: Tensor, lengths_B: Tensor, options: RunnerOptions) -> DecoderRunner:
        """Prefill prompts with the torch modules; arguments are not checked."""
        vectors_BTD = self.model.embed(tokens_BT)
        if self._items is not None:
            vectors_BTD, lengths_B = self._items.vectors(vectors_BTD), self._items.count(lengths_B)
        return DecoderRunner(self.model, vectors_BTD, lengths_B, options)

    def _check_reads_texts(self) -> None:
        if self._items is not None:
            raise ArgumentError("this model reads one vector an item, so it writes no texts: use one without item_history")

    @torch.inference_mode()
    def start_texts(
        self, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, num_texts: int = 1, max_tokens: int = 256
    ) -> TextSession:
        """Prefill prompts as `start` does, for texts that grow independently of each other. This costs one pass over the
        tokens.

        Args:
            tokens_BT: As for `start`.
            lengths_B: As for `start`.
            num_texts: The number of texts after each prompt.
            max_tokens: The largest number of tokens of a text.

        Raises:
            ArgumentError: If a prompt leaves no positions, or the model reads items alone.
        """
        self._check_reads_texts()
        vocabulary = TextTokens(size=self.config.vocab_size, num_tokens=max_tokens + 1)  # the last is never run
        lengths_B = checked_lengths(tokens_BT, lengths_B, self.config, vocabulary.num_levels)
        if self.takes_workspace:
            on_cpu = CpuOptions(beams=num_texts, products=self._products)
            runner: TextRunner = CpuRunner(self.model, None, vocabulary, tokens_BT, lengths_B, on_cpu)
        else:
            runner = self.run_prompts(tokens_BT, lengths_B, self._options(tokens_BT, lengths_B, vocabulary, hidden=True))
        return TextSession(runner, len(lengths_B), num_texts, self.config.vocab_size, max_tokens)


def _branch_rows(num_tokens: int, branches_BPM: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the rows of prompts and of branches, and which rows each one sees (R, R)."""
    device, (num_items, num_codes) = branches_BPM.device, branches_BPM.shape[1:]
    row_T, code_M, item_P = (torch.arange(count, device=device) for count in (num_tokens, num_codes, num_items))
    # The prompt ends before the last token of its last item.
    start_P = num_tokens - num_codes - (num_codes + 1) * item_P.flip(0)
    position_R = torch.cat((row_T, (start_P[:, None] + code_M).flatten()))
    start_R = torch.cat((row_T + 1, start_P.repeat_interleave(num_codes)))
    item_R = torch.cat((torch.full_like(row_T, -1), item_P.repeat_interleave(num_codes)))
    is_before_RR = (item_R < 0) & (position_R < start_R[:, None])
    is_own_RR = (item_R >= 0) & (item_R == item_R[:, None]) & (position_R <= position_R[:, None])
    return position_R, is_before_RR | is_own_RR
