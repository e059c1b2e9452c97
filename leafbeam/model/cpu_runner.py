"""Running the layers for a search on a CPU, in float32: packed rows, a few at a time, in memory that is reused.

    prompts   tokens of all prompts one behind the other, no padding; their keys and values stay, once for each request
    codes     rows of B x K beams; their keys and values stand where they were written, and a table says which beam owns which

Rows go through all layers a chunk at a time, so that what a layer needs in between does not grow with the prompt or the beams
and stays in the processor's caches. Attention is xGR's in two stages (section 5.2): all queries of a chunk against the prompt
in matrix products, then each beam's few codes in a loop, both under one softmax.

Shapes: B requests, N tokens of all prompts, K beams, C codes of each beam that come at once, V codes of a level, D hidden,
G key heads, R query heads of each, M = rows x R queries of a key head, E values of a head, S codes that a beam has taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model import cpu_kernels as loops
from leafbeam.model.chunk import Chunk
from leafbeam.model.config import ModelConfig
from leafbeam.model.prompt_store import CachedPrompt, PromptStore
from leafbeam.model.qwen3 import Layer, Qwen3, RMSNorm, Rotary
from leafbeam.model.vocabulary import AnyVocabulary, Vocabulary
from leafbeam.model.workspace import Workspace

__all__ = ["CpuRunner", "Tile", "score_bound"]

_Segment = tuple[int, int, int]  # a request, and its rows of a chunk: from, to
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Weights:
    """One layer's matrices, transposed for products from the left, and its norms."""

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    before: Array
    after: Array
    query_norm: Array
    key_norm: Array
    bound: np.float32

    @classmethod
    def of(cls, layer: Layer) -> _Weights:
        attention, mlp = layer.self_attn, layer.mlp
        matrices = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        norms = layer.input_layernorm, layer.post_attention_layernorm, attention.q_norm, attention.k_norm
        query, key, value, out, gate, up, down = (
            matrix.weight.detach().t() for matrix in (*matrices, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )
        before, after, query_norm, key_norm = (_array(norm) for norm in norms)
        bound = score_bound(query_norm, key_norm)
        return cls(query, key, value, out, gate, up, down, before, after, query_norm, key_norm, bound)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Codes:
    """Where the codes of beams stand: element of the first place of each new code, of each code in each layer (layers, S);
    elements from one layer to the next, and of one place; keys, values."""

    new: Array
    first_LS: Array
    stride: int
    width: int
    keys: Array
    values: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """Rows of a chunk that see tokens of one prompt together.

    place: of the first row among the rows of all chunks. seen: tokens that it sees. first: its first query in the chunk.
    """

    request: int
    place: int
    query: Tensor
    sums: Tensor
    scores: Tensor
    tokens: slice
    seen: int
    first: int


class _Slots:
    """What a search holds, in bytes."""

    def __init__(self) -> None:
        self.nbytes = 0


class CpuRunner:
    """See `Runner`. workspace: None for memory of its own. store: None to read every prompt from its first token.
    beams: as many as there will be, so that room for their codes is made once; 0 where that is not known.

    Logits stand in the workspace that was given, until the next call; without one they are the caller's.
    """

    def __init__(
        self,
        body: Qwen3,
        head_weight: Tensor,
        vocabulary: AnyVocabulary,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        workspace: Workspace | None = None,
        store: PromptStore | None = None,
        beams: int = 0,
    ) -> None:
        self._config: ModelConfig = body.config
        self._embedding = body.embed_tokens.weight.detach()
        self._layers = [_Weights.of(cast(Layer, layer)) for layer in body.layers]
        self._norm = _array(body.norm)
        self._head_weight, self._vocabulary = head_weight.detach(), vocabulary
        self._space, self._lent = workspace or Workspace(), workspace is not None
        self.prompt, self.beams = _Slots(), _Slots()
        self._begins_B1 = np.concatenate([[0], np.cumsum(lengths_B.numpy())])
        self._lengths_B = np.diff(self._begins_B1)
        self._places = beams * len(lengths_B)
        self._prepare()
        rows = [tokens_T[:length] for tokens_T, length in zip(tokens_BT.numpy(), self._lengths_B, strict=True)]
        kept = [None if store is None else store.find(tokens_T) for tokens_T in rows]
        self._run_prompts(tokens_BT.numpy(), kept)
        if store is not None:
            for request, tokens_T in enumerate(rows):
                store.keep(tokens_T, self.slots_of(request), kept[request])
        self.restart()

    def slots_of(self, request: int) -> Tensor:
        """Keys and values of one prompt, (layers, 2, G, T, E), where they stand; the next search writes over them."""
        return self._slots[:, :, :, self._begins_B1[request] : self._begins_B1[request + 1]]

    def restart(self) -> None:
        self._first_S: list[int] = []
        self._strides_S: list[int] = []
        self._width, self._turn = 1, 0
        self._owners_BS: Array = np.empty((0, 0), np.int64)
        self.beams.nbytes = 0

    def root_logits(self) -> Tensor:
        (logits_BV,) = self._answers(len(self._last_BD), 0, 1)
        return torch.mm(self._last_BD, self._head_rows(0).t(), out=logits_BV)

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        requests, beams, num_codes = tokens_BKC.shape
        config = self._config
        held = self._hold(requests * beams, num_codes, level)
        owners_BS = self._follow(parents_BK.numpy(), num_codes, level)
        answers = self._answers(requests * beams, level + 1, num_codes)
        heads = [self._head_rows(level + 1 + step).t() for step in range(num_codes)]
        sizes = self._vocabulary.codebook_sizes[level + 1 : level + 1 + num_codes]
        tokens_N = tokens_BKC.numpy().reshape(-1)
        for first_beam, last_beam in _even_parts(requests * beams, max(1, self._space.rows // num_codes)):
            begin, end = first_beam * num_codes, last_beam * num_codes
            beam_N, step_N = np.divmod(np.arange(begin, end), num_codes)
            chunk = Chunk.of(self._space, config, end - begin)
            chunk.load(self._embedding, tokens_N[begin:end], self._lengths_B[beam_N // beams] + level + step_N)
            slot_N, seen_N = held.new[step_N] + beam_N * held.width, level + 1 + step_N
            tiles = self._tiles(chunk, list(_segments(begin, end, beams * num_codes)), begin=begin, causal=False)
            for layer, weights in enumerate(self._layers):
                self._project(weights, chunk)
                loops.turn_beams(
                    chunk.key_XG,
                    chunk.value_XG,
                    chunk.rows,
                    chunk.positions_X,
                    slot_N,
                    layer * held.stride,
                    weights.key_norm,
                    config.rms_norm_eps,
                    *self._rotary,
                    held.keys,
                    held.values,
                )
                self._ask(weights, chunk)
                self._attend(layer, chunk, tiles, 0)
                loops.merge_codes(
                    chunk.turned_X,
                    chunk.sums_X,
                    chunk.rows,
                    config.group_size,
                    config.head_dim,
                    chunk.top_GX,
                    chunk.total_GX,
                    held.keys,
                    held.values,
                    held.first_LS[layer],
                    owners_BS,
                    beam_N,
                    seen_N,
                    chunk.seen_XQ,
                )
                self._finish_layer(weights, chunk)
            normed_ND = self._normalized(self._norm, chunk)
            for step in range(num_codes):
                torch.mm(normed_ND[step::num_codes], heads[step], out=answers[step][first_beam:last_beam])
        return [answer.view(requests, beams, size) for answer, size in zip(answers, sizes, strict=True)]

    def _run_prompts(self, tokens_BT: Array, kept: Sequence[CachedPrompt | None]) -> None:
        """Every token that is not known already, chunk by chunk; of the last layer only what somebody will look at."""
        config, requests = self._config, len(self._begins_B1) - 1
        shape = config.num_hidden_layers, 2, config.num_key_value_heads, int(self._begins_B1[-1]), config.head_dim
        self._slots, slots = self._space.take("prompts", *shape)
        self._sides = [(keys.transpose(1, 2), values) for keys, values in (one.unbind(0) for one in self._slots.unbind(0))]
        self.prompt.nbytes = self._slots.nbytes
        self._last_BD, _ = self._space.take("last", requests, config.hidden_size)
        known_B = np.array([0 if one is None else one.num_tokens for one in kept], np.int64)
        for request, one in enumerate(kept):
            if one is not None:
                self.slots_of(request)[:, :, :, : one.num_tokens].copy_(one.slots[:, :, :, : one.num_tokens])
        counts_B = self._lengths_B - known_B
        request_N = np.repeat(np.arange(requests), counts_B)
        first_B1 = np.concatenate([[0], np.cumsum(counts_B)])
        position_N = np.arange(first_B1[-1]) - first_B1[request_N] + known_B[request_N]
        slot_N = position_N + self._begins_B1[request_N]
        token_N = tokens_BT[request_N, position_N]
        for begin, end in _even_parts(len(token_N), self._space.rows):
            chunk = Chunk.of(self._space, config, end - begin)
            chunk.load(self._embedding, token_N[begin:end], position_N[begin:end])
            here = range(int(request_N[begin]), int(request_N[end - 1]) + 1)
            bounds = [(max(begin, int(first_B1[one])), min(end, int(first_B1[one + 1]))) for one in here]
            tiles = self._tiles(
                chunk, [(one, low - begin, high - begin) for one, (low, high) in zip(here, bounds, strict=True)], causal=True
            )
            ends = [one for one in here if first_B1[one + 1] <= end]
            for layer, weights in enumerate(self._layers):
                self._project(weights, chunk)
                loops.turn_prompts(
                    chunk.key_XG,
                    chunk.value_XG,
                    chunk.rows,
                    chunk.positions_X,
                    slot_N[begin:end],
                    weights.key_norm,
                    config.rms_norm_eps,
                    *self._rotary,
                    slots[layer, 0],
                    slots[layer, 1],
                )
                if layer == len(self._layers) - 1:
                    if not ends:
                        break
                    chunk = chunk.only(np.array([int(first_B1[one + 1]) - 1 - begin for one in ends]))
                    tiles = self._tiles(chunk, [(one, row, row + 1) for row, one in enumerate(ends)], causal=True)
                self._ask(weights, chunk)
                self._attend(layer, chunk, tiles, 1)
                loops.divide(chunk.sums_X, chunk.rows, config.group_size, config.head_dim, chunk.total_GX, chunk.seen_XQ)
                self._finish_layer(weights, chunk)
            if ends:
                self._last_BD[ends[0] : ends[-1] + 1].copy_(self._normalized(self._norm, chunk))

    def _project(self, weights: _Weights, chunk: Chunk) -> None:
        """Keys and values of a chunk, and what its queries are made of."""
        normed_ND = self._normalized(weights.before, chunk)
        torch.mm(normed_ND, weights.key, out=chunk.key)
        torch.mm(normed_ND, weights.value, out=chunk.value)

    def _prepare(self) -> None:
        """Scores of at least a row against the longest prompt, and the rotations of every position that may come."""
        config = self._config
        longest = int(np.diff(self._begins_B1).max(initial=0))
        self._scores = self._space.take("scores", max(self._space.scores, config.num_attention_heads * (longest + 64)))
        needed = min(longest + 64, config.max_position_embeddings)
        table = self._space.computed("rotary", needed, lambda count: _rotations(config, count))
        self._rotary = table[:, : config.head_dim // 2], table[:, config.head_dim // 2 :]

    def _normalized(self, weight_D: Array, chunk: Chunk) -> Tensor:
        loops.normalize(chunk.hidden_XD, chunk.rows, weight_D, self._config.rms_norm_eps, chunk.normed_XD)
        return chunk.normed

    def _ask(self, weights: _Weights, chunk: Chunk) -> None:
        """Queries of a chunk, (G, rows x R, E)."""
        config = self._config
        torch.mm(chunk.normed, weights.query, out=chunk.query)
        loops.turn_queries(
            chunk.query_XQ,
            chunk.rows,
            chunk.positions_X,
            weights.query_norm,
            config.rms_norm_eps,
            *self._rotary,
            config.num_key_value_heads,
            chunk.turned_X,
        )

    def _tiles(self, chunk: Chunk, segments: Sequence[_Segment], *, begin: int = 0, causal: bool) -> list[Tile]:
        """The rows of a chunk in parts that see one prompt and whose scores fit; where causal, only what a part can see."""
        config = self._config
        heads, groups, ratio = config.num_attention_heads, config.num_key_value_heads, config.group_size
        query_GME, sums_GME = (flat.view(groups, chunk.rows * ratio, config.head_dim) for flat in (chunk.turned, chunk.sums))
        tiles: list[Tile] = []
        for request, first, last in segments:
            token, whole = int(self._begins_B1[request]), int(self._lengths_B[request])
            most = max(1, self._space.scores // (heads * whole))
            for low, high in _even_parts(last - first, min(most, 64) if causal else most):
                place = slice((first + low) * ratio, (first + high) * ratio)
                position = int(chunk.positions_X[first + low]) if causal else 0
                length = position + high - low if causal else whole
                num_queries = (high - low) * ratio
                tiles.append(
                    Tile(
                        request=request,
                        place=begin + first + low,
                        query=query_GME[:, place],
                        sums=sums_GME[:, place],
                        scores=self._scores[0][: groups * num_queries * length].view(groups, num_queries, length),
                        tokens=slice(token, token + length),
                        seen=position + 1 if causal else length,
                        first=place.start,
                    )
                )
        return tiles

    def _attend(self, layer: int, chunk: Chunk, tiles: Sequence[Tile], step: int) -> None:
        """Rows against their prompts: sums of values, largest scores, sums of weights. step: 1 where each row sees one more."""
        config, scores = self._config, self._scores[1]
        groups, ratio, bound = config.num_key_value_heads, config.group_size, self._layers[layer].bound
        keys_GEN, values_GNE = self._sides[layer]
        for tile in tiles:
            torch.bmm(tile.query, keys_GEN[:, :, tile.tokens], out=tile.scores)
            _, num_queries, length = tile.scores.shape
            loops.exponentials(
                scores, groups, num_queries, length, tile.seen, step, ratio, bound, chunk.top_GX, chunk.total_GX, tile.first
            )
            torch.bmm(tile.scores, values_GNE[:, tile.tokens], out=tile.sums)

    def _finish_layer(self, weights: _Weights, chunk: Chunk) -> None:
        """From what heads have seen to the layer's answer, added to what came in."""
        chunk.hidden.addmm_(chunk.seen, weights.out)
        normed_ND = self._normalized(weights.after, chunk)
        torch.mm(normed_ND, weights.gate, out=chunk.gate)
        torch.mm(normed_ND, weights.up, out=chunk.up)
        loops.gate(chunk.gate_XF, chunk.rows, chunk.up_XF)
        chunk.hidden.addmm_(chunk.gate, weights.down)

    def _hold(self, places: int, num_codes: int, level: int) -> _Codes:
        """Room for the next codes of so many beams, behind those of the levels before."""
        config = self._config
        width = config.num_key_value_heads * config.head_dim
        stride = places * width
        del self._first_S[level:], self._strides_S[level:]
        begin = self._first_S[-1] + config.num_hidden_layers * self._strides_S[-1] if self._first_S else 0
        for _ in range(num_codes):
            self._first_S.append(begin)
            self._strides_S.append(stride)
            begin += config.num_hidden_layers * stride
        self.beams.nbytes = 2 * 4 * begin
        # What all rounds will need if they are as wide, or as was said: grown once, not once a round.
        rounds = self._vocabulary.num_levels - 1
        known = rounds * config.num_hidden_layers * self._places * width
        room = max(begin + (rounds - len(self._first_S)) * config.num_hidden_layers * stride, known)
        first_S, layers_L1 = np.array(self._first_S), np.arange(config.num_hidden_layers)[:, None]
        return _Codes(
            new=first_S[level:],
            first_LS=first_S + layers_L1 * np.array(self._strides_S),
            stride=stride,
            width=width,
            keys=self._space.take("code keys", room, keep=True)[1],
            values=self._space.take("code values", room, keep=True)[1],
        )

    def _follow(self, parents_BK: Array, num_codes: int, level: int) -> Array:
        """The table of who owns which code, after the beams have found new parents."""
        self._turn = 1 - self._turn
        _, after_BS = self._space.take(f"owners {self._turn}", parents_BK.size, self._vocabulary.num_levels, dtype=torch.int64)
        before_BS = self._owners_BS if level else after_BS
        loops.extend_owners(before_BS, self._width, np.ascontiguousarray(parents_BK), level, num_codes, after_BS)
        self._owners_BS, self._width = after_BS, parents_BK.shape[1]
        return after_BS

    def _head_rows(self, level: int) -> Tensor:
        """The (V, D) rows of the head that a level has."""
        if isinstance(self._vocabulary, Vocabulary):
            return self._vocabulary.level_rows(self._head_weight, level)
        return self._space.gathered(f"head of level {level}", self._head_weight, self._vocabulary.level_tokens(level))

    def _answers(self, rows: int, first: int, count: int) -> list[Tensor]:
        """Room for the logits of `count` levels: the workspace's, if the caller has given one to be written over."""
        sizes = self._vocabulary.codebook_sizes[first : first + count]
        if not self._lent:
            return [torch.empty(rows, size) for size in sizes]
        flat, _ = self._space.take("logits", rows * sum(sizes))
        return [part.view(rows, -1) for part in flat.split([rows * size for size in sizes])]


def score_bound(query_norm_E: Array, key_norm_E: Array) -> np.float32:
    """How large a score of a head can be, either way; infinity where that says too little to be of use.

    A normed vector of E values has length sqrt(E) at most, times its norm's largest weight, and turning it to its position
    keeps that: so no product of two, scaled by E^-0.5, leaves +-bound (Cauchy-Schwarz). Exponentials relative to the bound
    are at least exp(-2 x bound), which times a value has to be a normal float32.
    """
    bound = np.sqrt(np.float32(query_norm_E.size)) * np.abs(query_norm_E).max() * np.abs(key_norm_E).max()
    return np.float32(bound * 1.0001 if bound <= 30.0 else np.inf)


def _array(norm: RMSNorm) -> Array:
    return norm.weight.detach().numpy()


def _rotations(config: ModelConfig, count: int) -> Tensor:
    """Cosine and sine of the first positions, side by side (count, E)."""
    rotary = Rotary(config, torch.arange(count), torch.float32)
    half = config.head_dim // 2
    return torch.cat((rotary.cos[:, 0, :half], rotary.sin[:, 0, half:]), 1)


def _even_parts(total: int, most: int) -> Iterator[tuple[int, int]]:
    """Bounds of as few parts of at most `most` as there have to be, of one size but for the last."""
    if total:
        size = ceil(total / ceil(total / most))
        yield from ((begin, min(begin + size, total)) for begin in range(0, total, size))


def _segments(begin: int, end: int, rows_of_request: int) -> Iterator[_Segment]:
    """The requests that rows begin..end belong to, each with its rows counted from `begin`."""
    for request in range(begin // rows_of_request, ceil(end / rows_of_request)):
        yield request, max(0, request * rows_of_request - begin), min(end, (request + 1) * rows_of_request) - begin
