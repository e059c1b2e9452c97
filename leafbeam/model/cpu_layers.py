"""The layers of Qwen3 on a CPU: `TorchLayers` calls torch for each product, `FusedLayers` a kernel for each part of a layer.

Shapes: as in `cpu_runner`. X rows of a chunk at most, T tokens of all prompts, Z segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model import cpu_kernels as kernels
from leafbeam.model import fused_kernels as fused
from leafbeam.model import rounded_attention
from leafbeam.model.products import Products
from leafbeam.model.qwen3 import Layer, Qwen3, RMSNorm
from leafbeam.model.rounded_attention import RoundedPrompt
from leafbeam.model.workspace import Chunk, Workspace
from leafbeam.ops.linear import blas
from leafbeam.ops.linear.cpu import MIN_MEASURED_WEIGHTS

Array = NDArray[Any]


class Segment(NamedTuple):
    """Rows begin to end of a chunk that belong to one request."""

    request: int
    begin: int
    end: int


class Prompts(NamedTuple):
    """Keys and values of all prompts, (L, 2, G, T, E), as tensor and array, and where each begins; the last one's end."""

    slots: Tensor
    array: Array
    begins_B1: Sequence[int]


class Tile(NamedTuple):
    """Rows of a chunk that attend to one prompt together.

    row: the first one's index in the chunk. tokens: of the prompt, in the slots. visible: how many of them the first row sees.
    """

    request: int
    row: int
    query: Tensor
    weighted_values: Tensor
    scores: Tensor
    tokens: slice
    visible: int


class Layers(Protocol):
    """Each part of a layer, for the rows of a chunk; activations go from part to part in the chunk."""

    bounds: list[np.float32]  # of each layer's scores (`score_bound`)

    def store_keys_values(self, layer: int, chunk: Chunk, slot_N: Array, slots: kernels.KVSlots) -> None:
        """Norm a chunk, compute its keys and values and write them to their slots."""
        ...

    def rotate_queries(self, layer: int, chunk: Chunk, out: Array) -> None:
        """Write the rotated queries of a normed chunk, (G, rows x R, E) flat."""
        ...

    def attention(self, chunk: Chunk, prompts: Prompts, segments: Sequence[Segment], *, causal: bool) -> Callable[[int], None]:
        """What attends to the prompts in a layer: of prompts themselves if causal; else without the codes, and not divided by
        the weights.
        """
        ...

    def finish(self, layer: int, chunk: Chunk) -> None:
        """Add the attention's output projection, then the feed-forward block, to the hidden states."""
        ...


class _Weights(NamedTuple):
    """One layer's matrices and norms. Matrices are packed, or transposed for products from the left; arrays for kernels."""

    query: Any
    key: Any
    value: Any
    out: Any
    gate: Any
    up: Any
    down: Any
    attention_norm: Array
    feed_forward_norm: Array
    query_norm: Array
    key_norm: Array

    @classmethod
    def of(cls, layer: Layer, matrix: Callable[[Tensor], Any]) -> _Weights:
        attention, mlp = layer.self_attn, layer.mlp
        linears = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        matrices = [matrix(one.weight.detach()) for one in (*linears, mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
        norms = layer.input_layernorm, layer.post_attention_layernorm, attention.q_norm, attention.k_norm
        return cls._make((*matrices, *(array_of_norm(norm) for norm in norms)))


def cpu_layers(
    body: Qwen3, space: Workspace, heads: kernels.Heads, scores: tuple[Tensor, Array], products: torch.dtype
) -> Layers:
    """The layers by kernels where all matrices are small and plain, else by torch. scores: a buffer."""
    layers = [cast(Layer, layer) for layer in body.layers]
    matrices = layers[0].self_attn.q_proj, layers[0].mlp.gate_proj  # the largest two; layers are alike
    small = all(one.weight.numel() < MIN_MEASURED_WEIGHTS and one.weight.dtype == torch.float32 for one in matrices)
    if small and products == torch.float32 and blas.is_available() and not any(one.weight.is_mkldnn for one in matrices):
        return FusedLayers(layers, heads, scores)
    return TorchLayers(layers, heads, scores, Products(products, space))


class FusedLayers:
    """Each part of a layer is one kernel, with its products."""

    def __init__(self, layers: Sequence[Layer], heads: kernels.Heads, scores: tuple[Tensor, Array]) -> None:
        self._weights = [_Weights.of(layer, Tensor.numpy) for layer in layers]
        self._heads, self._scores = heads, scores[1]
        self.bounds = [score_bound(one.query_norm, one.key_norm) for one in self._weights]

    def store_keys_values(self, layer: int, chunk: Chunk, slot_N: Array, slots: kernels.KVSlots) -> None:
        rows = chunk.arrays, chunk.rows, slot_N
        fused.project_keys_values(self._weights[layer], *rows, slots, self._heads, chunk.threads)

    def rotate_queries(self, layer: int, chunk: Chunk, out: Array) -> None:
        fused.project_queries(self._weights[layer], chunk.arrays, chunk.rows, self._heads, out, chunk.threads)

    def attention(self, chunk: Chunk, prompts: Prompts, segments: Sequence[Segment], *, causal: bool) -> Callable[[int], None]:
        begins_B1, num_tokens = prompts.begins_B1, prompts.slots.shape[3]
        segments_Z4 = np.array(
            [(begin, end, begins_B1[one], begins_B1[one + 1] - begins_B1[one]) for one, begin, end in segments], np.int64
        )
        places = num_tokens, segments_Z4, int(causal), self._scores

        def attend(layer: int) -> None:
            slots = prompts.array[layer].reshape(-1)
            fused.attend_prompts(chunk.arrays, chunk.rows, slots, *places, self.bounds[layer], self._heads, chunk.threads)

        return attend

    def finish(self, layer: int, chunk: Chunk) -> None:
        fused.finish(self._weights[layer], chunk.arrays, chunk.rows, self._heads, chunk.threads)


class TorchLayers:
    """Each product is a call of torch, or of a kernel for large matrices; they may be packed, or of bfloat16."""

    def __init__(self, layers: Sequence[Layer], heads: kernels.Heads, scores: tuple[Tensor, Array], products: Products) -> None:
        self._weights = [_Weights.of(layer, lambda weight: weight if weight.is_mkldnn else weight.t()) for layer in layers]
        self._heads, self._scores, self._products = heads, scores, products
        self.bounds = [score_bound(one.query_norm, one.key_norm) for one in self._weights]

    def store_keys_values(self, layer: int, chunk: Chunk, slot_N: Array, slots: kernels.KVSlots) -> None:
        weights = self._weights[layer]
        normed_ND = self._normed(weights.attention_norm, chunk)
        _, key_XG = self._products.of(normed_ND, weights.key, chunk.key)
        _, value_XG = self._products.of(normed_ND, weights.value, chunk.value)
        rows = key_XG, value_XG, chunk.rows, chunk.positions_X, slot_N
        kernels.store_keys_values(*rows, slots, weights.key_norm, self._heads, chunk.threads)

    def rotate_queries(self, layer: int, chunk: Chunk, out: Array) -> None:
        weights = self._weights[layer]
        _, query_XQ = self._products.of(chunk.normed, weights.query, chunk.query)
        rows = query_XQ, chunk.rows, chunk.positions_X
        kernels.rotate_queries(*rows, weights.query_norm, self._heads, out, chunk.threads)

    def attention(self, chunk: Chunk, prompts: Prompts, segments: Sequence[Segment], *, causal: bool) -> Callable[[int], None]:
        """Fused and in bfloat16 for prompts themselves if products are, else in tiles."""
        if causal and self._products.dtype == torch.bfloat16:
            rounded = [RoundedPrompt.of(chunk, slice(begin, end), prompts.begins_B1[one]) for one, begin, end in segments]
            return lambda layer: rounded_attention.attend(rounded, prompts.slots[layer], chunk)
        tiles = self._tiles(chunk, prompts, segments, causal=causal)
        shares = chunk.weighted_values_flat, chunk.rows, self._heads, chunk.total_GX, chunk.attention_output_XQ

        def attend(layer: int) -> None:
            self._attend(layer, chunk, prompts, tiles, int(causal))
            if causal:
                kernels.divide_by_weights(*shares, chunk.threads)

        return attend

    def finish(self, layer: int, chunk: Chunk) -> None:
        weights = self._weights[layer]
        self._products.add(chunk.attention_output, weights.out, chunk.hidden)
        normed_ND = self._normed(weights.feed_forward_norm, chunk)
        gate_NF, gate_XF = self._products.of(normed_ND, weights.gate, chunk.gate)
        _, up_XF = self._products.of(normed_ND, weights.up, chunk.up)
        kernels.silu_gate(gate_XF, chunk.rows, up_XF, chunk.threads)
        self._products.add(gate_NF, weights.down, chunk.hidden)

    def _normed(self, weight_D: Array, chunk: Chunk) -> Tensor:
        kernels.rms_norm(chunk.hidden_XD, chunk.rows, weight_D, self._heads.eps, chunk.normed_XD, chunk.threads)
        return chunk.normed

    def _tiles(self, chunk: Chunk, prompts: Prompts, segments: Sequence[Segment], *, causal: bool) -> list[Tile]:
        """Tiles whose scores fit the buffer; where causal, with only the tokens that a tile's last row sees."""
        groups, ratio, size = self._heads.groups, self._heads.ratio, self._heads.size
        shape = groups, chunk.rows * ratio, size
        query_GME, weighted_GME = chunk.rotated_query.view(shape), chunk.weighted_values.view(shape)
        tiles: list[Tile] = []
        for request, first, last in segments:
            token, length = prompts.begins_B1[request], prompts.begins_B1[request + 1] - prompts.begins_B1[request]
            max_rows = max(1, len(self._scores[1]) // (groups * ratio * length))
            visible = length
            for low, high in even_parts(last - first, min(max_rows, kernels.TILE) if causal else max_rows):
                row, num_rows = first + low, high - low
                if causal:
                    visible = int(chunk.positions_X[row]) + 1
                    length = visible - 1 + num_rows
                queries = slice(row * ratio, (row + num_rows) * ratio)
                shape = groups, num_rows * ratio, length
                buffers = query_GME[:, queries], weighted_GME[:, queries], self._scores[0][: prod(shape)].view(shape)
                tiles.append(Tile(request, row, *buffers, slice(token, token + length), visible))
        return tiles

    def _attend(self, layer: int, chunk: Chunk, prompts: Prompts, tiles: Sequence[Tile], step: int) -> None:
        """Attention of the tiles to their prompts, not yet divided by the weights. step: 1 if causal, else 0."""
        groups, ratio, bound = self._heads.groups, self._heads.ratio, self.bounds[layer]
        keys_GTE, values_GTE = prompts.slots[layer].unbind()
        for tile in tiles:
            torch.bmm(tile.query, keys_GTE[:, tile.tokens].transpose(1, 2), out=tile.scores)
            _, num_queries, length = tile.scores.shape
            outputs = chunk.top_GX, chunk.total_GX, tile.row * ratio
            kernels.softmax_weights(
                self._scores[1], groups, num_queries, length, tile.visible, step, ratio, bound, *outputs, chunk.threads
            )
            torch.bmm(tile.scores, values_GTE[:, tile.tokens], out=tile.weighted_values)


def score_bound(query_norm_E: Array, key_norm_E: Array) -> np.float32:
    """A bound on the absolute attention scores of a layer; infinity where it is too large to be of use.

    A normed vector of E values is at most sqrt(E) x the norm's largest weight long, and rotation keeps its length: so no score,
    scaled by E^-0.5, exceeds the bound (Cauchy-Schwarz). exp(-2 x bound) has to be a normal float32, with room for values.
    """
    bound = np.sqrt(np.float32(query_norm_E.size)) * np.abs(query_norm_E).max() * np.abs(key_norm_E).max()
    return np.float32(bound * 1.0001 if bound <= 30.0 else np.inf)


def array_of_norm(norm: RMSNorm) -> Array:
    """A norm's weights."""
    return norm.weight.detach().numpy()


def even_parts(total: int, max_size: int) -> Iterator[tuple[int, int]]:
    """Bounds of the fewest parts of at most max_size, of equal size but for the last."""
    if total:
        size = ceil(total / ceil(total / max_size))
        yield from ((begin, min(begin + size, total)) for begin in range(0, total, size))
