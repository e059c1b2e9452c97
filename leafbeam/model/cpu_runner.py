"""Running Qwen3's layers on a CPU: packed rows, in chunks, in reused memory.

    prompts   the tokens of all prompts, without padding; their keys and values are kept once per request
    codes     rows of B x K beams; their keys and values stay where they were written, and a table of ancestors finds them;
              beams that continue alike, as dead ones do, are one row
    texts     rows of B x K texts, each with as many new tokens as it has; slots as for codes

A chunk of rows goes through all layers before the next, so that activations do not grow with the prompt or the beams and stay
in the caches. Attention has two stages under one softmax (xGR, section 5.2): all queries of a chunk against the prompt, as
matrix products, then each beam's few codes, in a loop.

Shapes: B requests, N tokens of all prompts, K beams, U rows of beams that differ, C new codes of each beam, V codes of a
level, D hidden, G key heads, R query heads of each, M = rows x R queries of a key head, E values of a head, S codes of a
beam, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model import cpu_kernels as kernels
from leafbeam.model.config import ModelConfig
from leafbeam.model.cpu_layers import LayerParameters, Layers, Prompts, Segment, cpu_layers, even_parts, parameters_of
from leafbeam.model.prompt_store import CachedPrompt, PromptStore
from leafbeam.model.qwen3 import Layer, Qwen3, Rotary
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.workspace import Chunk, Workspace

Array = NDArray[Any]


class _CodeSlots(NamedTuple):
    """Where the beams' codes stand in flat keys and values.

    first_LS: the element at which each code starts, in every layer. stride: elements from one layer to the next. width:
    elements of one beam's code.
    """

    first_LS: Array
    stride: int
    width: int
    keys: Array
    values: Array


class _Codes(NamedTuple):
    """Codes to run, a beam's adjacent and in order: their tokens, their beams (of all requests), their levels."""

    token_N: Array
    beam_N: Array
    level_N: Array

    def part(self, begin: int, end: int) -> _Codes:
        return _Codes._make(array[begin:end] for array in self)


class _CacheSize:
    nbytes = 0  # of keys and values, which the workspace holds


class CpuRunner:
    """The `Runner` of float32 models on a CPU. head_weight: None returns hidden states (rows of D) in the place of logits.

    workspace: None for buffers of its own. store: None to run every prompt from its first token. beams: the expected number,
    to allocate the codes' slots once; 0 if unknown. products: float32, or bfloat16 to round rows, matrices and their products
    to it; the matrices are of bfloat16 then. Logits stay valid until the next call in a workspace that was passed in, without
    one for good.
    """

    def __init__(
        self,
        body: Qwen3,
        head_weight: Tensor | None,
        vocabulary: AnyVocabulary,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        workspace: Workspace | None = None,
        store: PromptStore | None = None,
        beams: int = 0,
        products: torch.dtype = torch.float32,
    ) -> None:
        self._config: ModelConfig = body.config
        self._embedding = body.embed_tokens.weight.detach()
        self._norm = body.norm.weight.detach().numpy()
        self._head_weight = None if head_weight is None else head_weight.detach()
        self._vocabulary = vocabulary
        self._space, self._shared = workspace or Workspace(), workspace is not None
        self._products = products
        self.prompt, self.beams = _CacheSize(), _CacheSize()
        self._begins_B1 = np.concatenate([[0], np.cumsum(lengths_B.numpy())])
        self._lengths_B = np.diff(self._begins_B1)
        self._expected_beams = beams * len(lengths_B)
        config, longest = self._config, int(self._lengths_B.max(initial=0))
        # Scores of at least one row against the longest prompt on each thread, and the rotations of every position.
        row_scores = config.num_attention_heads * (longest + kernels.TILE)
        scores = self._space.buffer("scores", max(self._space.scores, torch.get_num_threads() * row_scores))
        positions = min(longest + max(64, vocabulary.num_levels), config.max_position_embeddings)
        half = config.head_dim // 2
        table = self._space.table("rotary", positions, partial(_rotations, config))
        groups, ratio, eps = config.num_key_value_heads, config.group_size, config.rms_norm_eps
        self._heads = kernels.Heads(groups, ratio, config.head_dim, eps, table[:, :half], table[:, half:])
        self._layers = self._make_layers([parameters_of(cast(Layer, layer)) for layer in body.layers], scores)
        rows = [tokens_T[:length] for tokens_T, length in zip(tokens_BT.numpy(), self._lengths_B, strict=True)]
        cached = [None if store is None else store.find(tokens_T) for tokens_T in rows]
        self._run_prompts(tokens_BT.numpy(), cached)
        if store is not None:
            for request, tokens_T in enumerate(rows):
                store.put(tokens_T, self.slots_of(request), cached[request])
        self.restart()

    def _make_layers(self, layers: Sequence[LayerParameters], scores: tuple[Tensor, Array]) -> Layers:
        return cpu_layers(layers, self._heads, scores, self._space, self._products)

    def slots_of(self, request: int) -> Tensor:
        """A view of one prompt's keys and values, (L, 2, G, T, E); the workspace's next search overwrites it."""
        return self._slots[:, :, :, self._begins_B1[request] : self._begins_B1[request + 1]]

    def restart(self) -> None:
        self._first_S: list[int] = []
        self._strides_S: list[int] = []
        self._num_beams, self._parity = 1, 0
        self._ancestors_BS: Array = np.empty((0, 0), np.int64)
        self.beams.nbytes = 0

    def root_logits(self) -> Tensor:
        (logits_BV,) = self._output_buffers(len(self._last_BD), 0, 1)
        self._multiply_head(self._last_BD, 0, logits_BV)
        return logits_BV

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int, *, keep: bool = True) -> list[Tensor]:
        """See `Runner`. Beams of a request that equal its last one run once: dead beams, which are last and all alike."""
        requests, beams, num_codes = tokens_BKC.shape
        repeats_BK = _repeats(tokens_BKC.numpy(), parents_BK.numpy())
        beam_U, first_B1 = np.flatnonzero(~repeats_BK), np.concatenate([[0], np.cumsum((~repeats_BK).sum(1))]) * num_codes
        slots = self._code_slots(requests * beams, num_codes, level)
        ancestors_BS = self._extend_ancestors(parents_BK.numpy(), repeats_BK, num_codes, level, keep=keep)
        outputs = self._output_buffers(len(beam_U), level + 1, num_codes)
        tokens_N = tokens_BKC.numpy().reshape(-1, num_codes)[beam_U].reshape(-1)
        codes = _Codes(tokens_N, np.repeat(beam_U, num_codes), level + np.tile(np.arange(num_codes), len(beam_U)))
        for first_row, last_row in even_parts(len(beam_U), max(1, self._space.rows // num_codes)):
            normed_ND = self._run_codes(codes, first_row * num_codes, last_row * num_codes, first_B1, slots, ancestors_BS)
            for code in range(num_codes):
                self._multiply_head(normed_ND[code::num_codes], level + 1 + code, outputs[code][first_row:last_row])
        if len(beam_U) < requests * beams:
            position_BK = np.cumsum(~repeats_BK).reshape(requests, beams) - 1
            row_N = torch.from_numpy(np.where(repeats_BK, position_BK[:, -1:], position_BK).reshape(-1))
            outputs = [self._repeated(output, row_N, code) for code, output in enumerate(outputs)]
        return [output.unflatten(0, (requests, beams)) for output in outputs]

    def append(self, tokens: Sequence[Sequence[int]], levels: Sequence[int]) -> Tensor:
        """See `TextRunner`. Rows of all texts run together, as many as each has tokens."""
        count_R, requests = np.array([len(row) for row in tokens]), len(self._lengths_B)
        row_R, end_R = np.arange(len(tokens)), np.cumsum(count_R)
        level_N = np.arange(end_R[-1]) - np.repeat(end_R - count_R - np.asarray(levels), count_R)
        token_N = np.fromiter((token for row in tokens for token in row), np.int64, end_R[-1])
        codes = _Codes(token_N, np.repeat(row_R, count_R), level_N)
        needed = int(level_N.max(initial=-1)) + 1
        assert needed < self._vocabulary.num_levels  # the room there is
        missing = max(0, needed - len(self._first_S))
        slots = self._code_slots(len(tokens), missing, len(self._first_S))
        _, own_RS = self._space.buffer("own slots", len(tokens), self._vocabulary.num_levels, dtype=torch.int64)
        own_RS[:] = row_R[:, None]
        first_B1 = np.concatenate([[0], end_R.reshape(requests, -1)[:, -1]])
        hidden_RD = torch.zeros(len(tokens), self._config.hidden_size)
        for begin, end in even_parts(len(token_N), self._space.rows):
            normed_ND = self._run_codes(codes, begin, end, first_B1, slots, own_RS)
            done_R = np.flatnonzero((count_R > 0) & (begin < end_R) & (end_R <= end))
            hidden_RD[done_R] = normed_ND[end_R[done_R] - 1 - begin]
        return hidden_RD

    def _run_codes(
        self, codes: _Codes, begin: int, end: int, first_B1: Array, slots: _CodeSlots, ancestors_BS: Array
    ) -> Tensor:
        """The normed hidden states of codes begin to end, whose keys and values go to their slots. first_B1: each request's."""
        config, (token_N, beam_N, level_N) = self._config, codes.part(begin, end)
        request_N = np.searchsorted(first_B1, np.arange(begin, end), side="right") - 1
        chunk = self._space.chunk(config, end - begin, self._products)
        chunk.load(self._embedding, token_N, self._lengths_B[request_N] + level_N)
        slot_N, visible_N = slots.first_LS[0, level_N] + beam_N * slots.width, level_N + 1
        places = slots.keys, slots.values, slots.stride, slots.first_LS, slot_N, ancestors_BS, beam_N, visible_N
        self._layers.run_codes(chunk, self._prompts, _segments(first_B1, begin, end), kernels.CodeRows(*places))
        return self._outputs(chunk)

    def _run_prompts(self, tokens_BT: Array, cached: Sequence[CachedPrompt | None]) -> None:
        """Run every token that is not cached, chunk by chunk; the last layer for each prompt's last token alone."""
        config, requests = self._config, len(self._begins_B1) - 1
        num_tokens, groups, size = int(self._begins_B1[-1]), config.num_key_value_heads, config.head_dim
        self._slots, slots = self._space.buffer("prompts", config.num_hidden_layers, 2, groups, num_tokens, size)
        self._prompts = Prompts(self._slots, slots, self._begins_B1.tolist())
        self.prompt.nbytes = self._slots.nbytes
        self._last_BD, _ = self._space.buffer("last", requests, config.hidden_size)
        known_B = np.array([0 if prompt is None else prompt.num_tokens for prompt in cached], np.int64)
        for request, prompt in enumerate(cached):
            if prompt is not None:
                self.slots_of(request)[:, :, :, : prompt.num_tokens].copy_(prompt.slots[:, :, :, : prompt.num_tokens])
        counts_B = self._lengths_B - known_B
        request_N = np.repeat(np.arange(requests), counts_B)
        first_B1 = np.concatenate([[0], np.cumsum(counts_B)])
        position_N = np.arange(first_B1[-1]) - first_B1[request_N] + known_B[request_N]
        slot_N = (position_N + self._begins_B1[request_N]) * size
        token_N = tokens_BT[request_N, position_N]
        for begin, end in even_parts(len(token_N), self._space.rows):
            chunk = self._space.chunk(config, end - begin, self._products)
            chunk.load(self._embedding, token_N[begin:end], position_N[begin:end])
            segments = _segments(first_B1, begin, end)
            complete = [one for one in segments if first_B1[one.request + 1] <= end]
            last = [Segment(request, stop - 1, stop) for request, _, stop in complete]
            chunk = self._layers.run_prompts(chunk, self._prompts, segments, slot_N[begin:end], last)
            if last:
                self._last_BD[last[0].request : last[-1].request + 1].copy_(self._outputs(chunk))

    def _outputs(self, chunk: Chunk) -> Tensor:
        """The hidden states for the head."""
        kernels.rms_norm(chunk.hidden_XD, chunk.rows, self._norm, self._config.rms_norm_eps, chunk.output_XD, chunk.threads)
        return chunk.output

    def _code_slots(self, rows: int, num_codes: int, level: int) -> _CodeSlots:
        """Slots for the next codes of B x K beams, after those of the levels before."""
        layers, width = self._config.num_hidden_layers, self._config.num_key_value_heads * self._config.head_dim
        stride = rows * width
        del self._first_S[level:], self._strides_S[level:]
        begin = self._first_S[-1] + layers * self._strides_S[-1] if self._first_S else 0
        for _ in range(num_codes):
            self._first_S.append(begin)
            self._strides_S.append(stride)
            begin += layers * stride
        self.beams.nbytes = 2 * 4 * begin
        # Allocate for all levels at this number of beams, or the expected one, so that the buffer grows once.
        num_steps = self._vocabulary.num_levels - 1
        expected = num_steps * layers * self._expected_beams * width
        capacity = max(begin + (num_steps - len(self._first_S)) * layers * stride, expected)
        first_S, layers_L1 = np.array(self._first_S), np.arange(layers)[:, None]
        keys, values = (self._space.buffer(f"code {name}", capacity, keep=True)[1] for name in ("keys", "values"))
        return _CodeSlots(first_S + layers_L1 * np.array(self._strides_S), stride, width, keys, values)

    def _extend_ancestors(self, parents_BK: Array, repeats_BK: Array, num_codes: int, level: int, *, keep: bool) -> Array:
        """The table of ancestors after the beams' new parents, in the other of two buffers; repeats share one's new codes."""
        parity = 1 - self._parity
        shape = parents_BK.size, self._vocabulary.num_levels
        _, after_BS = self._space.buffer(f"ancestors {parity}", *shape, dtype=torch.int64)
        before_BS = self._ancestors_BS if level else after_BS
        kernels.extend_ancestors(before_BS, self._num_beams, np.ascontiguousarray(parents_BK), level, num_codes, after_BS)
        if repeats_BK.any():
            last = (np.nonzero(repeats_BK)[0] + 1) * parents_BK.shape[1] - 1
            after_BS[np.flatnonzero(repeats_BK), level : level + num_codes] = last[:, None]
        if keep:
            self._ancestors_BS, self._num_beams, self._parity = after_BS, parents_BK.shape[1], parity
        return after_BS

    def _multiply_head(self, hidden_ND: Tensor, level: int, out: Tensor) -> None:
        """The logits of a level, whose rows of the head are a view or a copy in the workspace; or the hidden states."""
        if self._head_weight is None:
            out.copy_(hidden_ND)
        elif self._vocabulary.level_slice(level) is not None:
            torch.mm(hidden_ND, self._vocabulary.level_rows(self._head_weight, level).t(), out=out)
        else:
            tokens = self._vocabulary.level_tokens(level)
            torch.mm(hidden_ND, self._space.gather_rows(f"head of level {level}", self._head_weight, tokens).t(), out=out)

    def _repeated(self, output_UV: Tensor, row_N: Tensor, code: int) -> Tensor:
        """Row row_N[n] for each beam n, in the workspace if the caller passed one in."""
        if not self._shared:
            return output_UV[row_N]
        output_NV, _ = self._space.buffer(f"logits {code} of all beams", len(row_N), output_UV.shape[1])
        return torch.index_select(output_UV, 0, row_N, out=output_NV)

    def _output_buffers(self, rows: int, first: int, count: int) -> list[Tensor]:
        """Buffers for the logits (or hidden states) of `count` levels, in the workspace if the caller passed one in."""
        sizes = self._vocabulary.codebook_sizes[first : first + count]
        if self._head_weight is None:
            sizes = (self._config.hidden_size,) * count
        if not self._shared:
            return [torch.empty(rows, size) for size in sizes]
        flat, _ = self._space.buffer("logits", rows * sum(sizes))
        return [part.view(rows, -1) for part in flat.split([rows * size for size in sizes])]


def _repeats(tokens_BKC: Array, parents_BK: Array) -> Array:
    """Which beams continue the same parent by the same codes as the last beam of their request, but for that one."""
    repeats_BK = (tokens_BKC == tokens_BKC[:, -1:]).all(2) & (parents_BK == parents_BK[:, -1:])
    repeats_BK[:, -1:] = False
    return repeats_BK


def _rotations(config: ModelConfig, count: int) -> Tensor:
    """Cosine and sine of the first positions, side by side (count, E)."""
    rotary = Rotary(config, torch.arange(count), torch.float32)
    half = config.head_dim // 2
    return torch.cat((rotary.cos[:, 0, :half], rotary.sin[:, 0, half:]), 1)


def _segments(first_B1: Array, begin: int, end: int) -> list[Segment]:
    """The requests that rows begin to end belong to, with their rows counted from `begin`. first_B1: where each one starts."""
    first, last = (np.searchsorted(first_B1, (begin, end - 1), side="right") - 1).tolist()
    bounds = (first_B1[first : last + 2].clip(begin, end) - begin).tolist()
    return [Segment(request, *rows) for request, rows in enumerate(pairwise(bounds), start=first)]
