"""The layers of Qwen3 on a CPU: `FusedLayers` runs all of them in one call, `TorchLayers` calls torch for each product.

Shapes: as in `model.cpu.runner`. X rows of a chunk at most, T tokens of all prompts, Z segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model.cpu import fused_kernels as fused
from leafbeam.model.cpu import kernels, rounded_attention
from leafbeam.model.cpu.products import Products, are_fused
from leafbeam.model.cpu.rounded_attention import RoundedPrompt
from leafbeam.model.cpu.workspace import Chunk, Workspace
from leafbeam.model.qwen3 import Layer
from leafbeam.ops import openmp

Array = NDArray[Any]
LayerParameters = list[Tensor]  # see `parameters_of`
_MIN_PRODUCTS = 1 << 21  # of rows and weights: with fewer, one thread is as fast


class Prompts(NamedTuple):
    """Keys and values of all prompts, (L, 2, G, T, E), as tensor and array."""

    slots: Tensor
    array: Array


class Layers(Protocol):
    """All layers, for the rows of a chunk: its hidden states become those after the last layer.

    segments_Z4: which rows belong to which prompt (`rows.segments_of`).
    """

    def run_codes(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, codes: kernels.CodeRows) -> None:
        """Run codes of beams, and write their keys and values to their slots."""
        ...

    def run_prompts(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, slot_N: Array, num_complete: int) -> Chunk:
        """Run tokens of prompts, and write their keys and values to slots that start at slot_N.

        num_complete: the first segments, which the chunk completes. The last layer runs the last row of each alone, the chunk
        that is returned; segments_Z4 becomes theirs.
        """
        ...


def choose_layers(
    layers: Sequence[LayerParameters],
    heads: kernels.Heads,
    scores: tuple[Tensor, Array],
    space: Workspace,
    products: torch.dtype,
) -> Layers:
    """Return the layers by the products that suit their matrices.

    scores: a buffer with space for the scores of a row at least on each of torch's threads.
    """
    if are_fused(layers[0][:7], products):  # all layers have the same shapes
        return FusedLayers(layers, heads, scores[1], space)
    return TorchLayers(layers, heads, scores, Products(products, space))


class FusedLayers:
    """Every layer in one call (`fused_kernels`)."""

    def __init__(self, layers: Sequence[LayerParameters], heads: kernels.Heads, scores: Array, space: Workspace) -> None:
        self._parameters = layers  # which stay while their addresses are used
        address_LW = np.array([[weight.data_ptr() for weight in layer[:7]] for layer in self._parameters])
        norms = [norm for layer in self._parameters for norm in layer[7:]]
        out, norms_LW = space.buffer("norms", len(layers), sum(norm.numel() for norm in layers[0][7:]))
        torch.cat(norms, out=out.view(-1))
        self.weights, self.heads, self.scores = fused.Weights(address_LW, norms_LW), heads, scores
        self._num_weights = len(layers) * sum(weight.numel() for weight in self._parameters[0])

    def run_codes(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, codes: kernels.CodeRows) -> None:
        places = self.heads, prompts.array.reshape(-1), prompts.array.shape[3], segments_Z4, codes, self.scores
        fused.run_codes(self.weights, chunk.arrays, chunk.rows, *places, self.threads(chunk))

    def run_prompts(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, slot_N: Array, num_complete: int) -> Chunk:
        places = self.heads, prompts.array.reshape(-1), prompts.array.shape[3], segments_Z4, slot_N, num_complete, self.scores
        fused.run_prompts(self.weights, chunk.arrays, chunk.rows, *places, self.threads(chunk))
        return chunk.first(num_complete)

    def threads(self, chunk: Chunk) -> int:
        """How many threads to run a chunk on."""
        return openmp.num_threads() if chunk.rows * self._num_weights >= _MIN_PRODUCTS else 1


class TorchLayers:
    """Each product is a call of torch, or of a kernel for large matrices, which may be packed, or of bfloat16."""

    def __init__(
        self, layers: Sequence[LayerParameters], heads: kernels.Heads, scores: tuple[Tensor, Array], products: Products
    ) -> None:
        self.weights = [LayerWeights.of(layer) for layer in layers]
        self._heads, self._scores, self._products = heads, scores, products

    def run_codes(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, codes: kernels.CodeRows) -> None:
        attend = self.codes_attention(chunk, prompts, segments_Z4, codes)
        width = self._heads.groups * self._heads.size
        for layer, weights in enumerate(self.weights):
            slots = kernels.KVSlots(codes.keys, codes.values, layer * width, self._heads.size)
            joined_NV = self.store_keys_values(weights, chunk, codes.slots_N, slots)
            self.rotate_queries(weights, chunk, joined_NV, chunk.rotated_query_flat)
            attend(layer)
            prompt = chunk.rotated_query_flat, chunk.weighted_values_flat, chunk.rows, self._heads
            output = chunk.attention_output_XQ, chunk.threads
            kernels.attend_codes(*prompt, chunk.top_GX, chunk.total_GX, codes, layer, *output)
            self.finish(weights, chunk)

    def run_prompts(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, slot_N: Array, num_complete: int) -> Chunk:
        attend = self._prompt_attention(chunk, prompts, segments_Z4)
        for layer, weights in enumerate(self.weights):
            keys, values = prompts.array[layer].reshape(2, -1)
            slots = kernels.KVSlots(keys, values, 0, prompts.array.shape[3] * self._heads.size)
            joined_NV = self.store_keys_values(weights, chunk, slot_N, slots)
            if layer == len(self.weights) - 1:
                if not num_complete:
                    break
                chunk, joined_NV = chunk.select(segments_Z4[:num_complete, 1] - 1), None
                segments_Z4[:num_complete, :2] = np.arange(num_complete)[:, None] + (0, 1)
                attend = self._prompt_attention(chunk, prompts, segments_Z4[:num_complete])
            self.rotate_queries(weights, chunk, joined_NV, chunk.prompt_query_flat)
            attend(layer)
            self.finish(weights, chunk)
        return chunk

    def codes_attention(
        self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, codes: kernels.CodeRows
    ) -> Callable[[int], None]:
        """What attends to the prompts in a layer, as `kernels.attend_codes` goes on from."""
        del codes
        tiles = self._tiles(chunk, segments_Z4, causal=False)
        return lambda layer: self._attend(layer, chunk, prompts, tiles, 0)

    def _prompt_attention(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array) -> Callable[[int], None]:
        """What attends to the prompts in a layer: fused and in bfloat16 if products are, else in tiles."""
        if self._products.dtype == torch.bfloat16:
            rounded = [RoundedPrompt.of(chunk, slice(begin, end), token) for begin, end, token, _ in segments_Z4.tolist()]
            return lambda layer: rounded_attention.attend(rounded, prompts.slots[layer], chunk)
        tiles = self._tiles(chunk, segments_Z4, causal=True)
        shares = chunk.weighted_values_flat, chunk.rows, self._heads, chunk.total_GX, chunk.attention_output_XQ

        def attend(layer: int) -> None:
            self._attend(layer, chunk, prompts, tiles, 1)
            kernels.divide_by_weights(*shares, chunk.threads)

        return attend

    def _normed(self, weight_D: Array, chunk: Chunk) -> Tensor:
        kernels.rms_norm(chunk.hidden_XD, chunk.rows, weight_D, self._heads.eps, chunk.normed_XD, chunk.threads)
        return chunk.normed

    def store_keys_values(self, weights: LayerWeights, chunk: Chunk, slot_N: Array, slots: kernels.KVSlots) -> Array | None:
        """Norm a chunk, compute its keys and values and write them to their slots.

        The queries are the first columns of what it returns, if their matrix is one with those of keys and values.
        """
        normed_ND, joined_NV, columns = self._normed(weights.attention_norm, chunk), None, (0, 0)
        if weights.key is None or weights.value is None:
            key_NV = value_NV = joined_NV = self._products.of(normed_ND, weights.query, chunk.query)[1]
            columns = chunk.query[1].shape[1], chunk.query[1].shape[1] + chunk.key[1].shape[1]
        else:
            key_NV = self._products.of(normed_ND, weights.key, chunk.key)[1]
            value_NV = self._products.of(normed_ND, weights.value, chunk.value)[1]
        rows = key_NV, value_NV, columns, chunk.rows, chunk.positions_X, slot_N
        kernels.store_keys_values(*rows, slots, weights.key_norm, self._heads, chunk.threads)
        return joined_NV

    def rotate_queries(self, weights: LayerWeights, chunk: Chunk, query_NV: Array | None, out: Array) -> None:
        """Write the rotated queries of a normed chunk, (G, rows x R, E) flat. query_NV: what `store_keys_values` returned."""
        if query_NV is None:
            query_NV = self._products.of(chunk.normed, weights.query, chunk.query)[1]
        rows = query_NV, chunk.rows, chunk.positions_X
        kernels.rotate_queries(*rows, weights.query_norm, self._heads, out, chunk.threads)

    def _tiles(self, chunk: Chunk, segments_Z4: Array, *, causal: bool) -> list[_Tile]:
        """Tiles whose scores fit the buffer; where causal, with only the tokens that a tile's last row sees."""
        groups, ratio, size = self._heads.groups, self._heads.ratio, self._heads.size
        shape = groups, chunk.rows * ratio, size
        query_GME, weighted_GME = chunk.rotated_query.view(shape), chunk.weighted_values.view(shape)
        tiles: list[_Tile] = []
        for first, last, token, length in segments_Z4.tolist():
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
                tiles.append(_Tile(*buffers, slice(token, token + length), visible, queries.start))
        return tiles

    def _attend(self, layer: int, chunk: Chunk, prompts: Prompts, tiles: Sequence[_Tile], step: int) -> None:
        """Attention of the tiles to their prompts, not yet divided by the weights. step: 1 if causal, else 0."""
        groups, ratio, bound = self._heads.groups, self._heads.ratio, self.weights[layer].bound
        keys_GTE, values_GTE = prompts.slots[layer].unbind()
        for tile in tiles:
            torch.bmm(tile.query, keys_GTE[:, tile.tokens].transpose(1, 2), out=tile.scores)
            _, num_queries, length = tile.scores.shape
            scores = kernels.ScoreTile(groups, num_queries, length, tile.visible, step, ratio)
            outputs = chunk.top_GX, chunk.total_GX, tile.first
            kernels.softmax_weights(self._scores[1], scores, bound, *outputs, chunk.threads)
            torch.bmm(tile.scores, values_GTE[:, tile.tokens], out=tile.weighted_values)

    def finish(self, weights: LayerWeights, chunk: Chunk) -> None:
        """Add the attention's output projection, then the feed-forward block, to the hidden states."""
        self._products.add(chunk.attention_output, weights.out, chunk.hidden)
        normed_ND = self._normed(weights.feed_forward_norm, chunk)
        gate_NF, gate_XF = self._products.of(normed_ND, weights.gate, chunk.gate)
        _, up_XF = self._products.of(normed_ND, weights.up, chunk.up)
        kernels.silu_gate(gate_XF, chunk.rows, up_XF, chunk.threads)
        self._products.add(gate_NF, weights.down, chunk.hidden)


class LayerWeights(NamedTuple):
    """One layer's matrices, in float32 or bfloat16, transposed for products from the left or packed, its norms and a bound.

    key, value: None where they are part of the query's (`Transformer.pack`).
    """

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    attention_norm: Array
    feed_forward_norm: Array
    query_norm: Array
    key_norm: Array
    bound: float

    @classmethod
    def of(cls, weights: LayerParameters) -> LayerWeights:
        matrices = [weight if weight.is_mkldnn else weight.t() if len(weight) else None for weight in weights[:7]]
        norms = [weight.numpy() for weight in weights[7:]]
        return cls._make((*matrices, *norms, kernels.score_bound(*norms[2:])))


class _Tile(NamedTuple):
    """Rows of a chunk that attend to one prompt together.

    tokens: of the prompt, in the slots. visible: how many of them the first row sees. first: the first query's index in the
    chunk.
    """

    query: Tensor
    weighted_values: Tensor
    scores: Tensor
    tokens: slice
    visible: int
    first: int


def parameters_of(layer: Layer) -> LayerParameters:
    """A layer's seven matrices (V, D) and four norms, as `fused_kernels` orders them."""
    attention, mlp = layer.self_attn, layer.mlp
    matrices = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj
    norms = layer.input_layernorm, layer.post_attention_layernorm, attention.q_norm, attention.k_norm
    return [*(module.weight for module in matrices), *(norm.weight.detach() for norm in norms)]


def even_parts(total: int, max_size: int) -> Iterator[tuple[int, int]]:
    """Bounds of the fewest parts of at most max_size, of equal size but for the last."""
    if total:
        size = ceil(total / ceil(total / max_size))
        yield from ((begin, min(begin + size, total)) for begin in range(0, total, size))
