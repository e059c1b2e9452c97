"""The layers of a decoder on a CPU: `FusedLayers` runs all of them in one call, `TorchLayers` calls torch for each product.

Shapes: as in `model.cpu.runner`. X rows of a chunk at most, T tokens of all prompts, Z segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from leafbeam.model.cpu import fused_kernels as fused
from leafbeam.model.cpu import kernels, pointwise, rounded_attention
from leafbeam.model.cpu.products import Products, are_fused, transposed
from leafbeam.model.cpu.rounded_attention import RoundedPrompt
from leafbeam.model.cpu.workspace import Array, Chunk, Workspace
from leafbeam.model.decoder import FeedForward, Layer, LayerNorm, Linear
from leafbeam.model.experts import Experts
from leafbeam.ops import openmp
from leafbeam.ops.linear.rounded import Matrix

_MIN_PRODUCTS = 1 << 21  # of rows and weights: with fewer, one thread is as fast


class LayerParameters(NamedTuple):
    """A layer's matrices (V, D) and vectors, as `fused_kernels` orders them; those that it lacks have no rows.

    experts: in the place of the last three matrices.
    """

    matrices: list[Matrix]
    vectors: list[Tensor]
    experts: Experts | None


class HeadsOfLayers(NamedTuple):
    """The heads of most layers and of the local ones, and which those are; the activation of the feed-forward blocks."""

    heads: kernels.Heads
    local: kernels.Heads
    local_layers: Sequence[int]
    activation: int

    def of(self, layer: int) -> kernels.Heads:
        """Return the heads of a layer."""
        return self.local if layer in self.local_layers else self.heads


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
    heads: HeadsOfLayers,
    scores: tuple[Tensor, Array],
    space: Workspace,
    products: torch.dtype,
) -> Layers:
    """Return the layers by the products that suit their matrices.

    scores: a buffer with space for the scores of a row at least on each of torch's threads.
    """
    if all(layer.experts is None for layer in layers) and are_fused(layers[0].matrices, products):  # all have the same shapes
        return FusedLayers(layers, heads, scores[1], space)
    return TorchLayers(layers, heads, scores, Products(products, space))


class FusedLayers:
    """Every layer in one call (`fused_kernels`)."""

    def __init__(self, layers: Sequence[LayerParameters], heads: HeadsOfLayers, scores: Array, space: Workspace) -> None:
        self._parameters = layers  # which stay while their addresses are used
        matrices = [[weight for weight in layer.matrices if isinstance(weight, Tensor)] for layer in layers]  # which all are
        address_LW = np.array([[weight.data_ptr() for weight in row] for row in matrices])
        sizes = [vector.numel() for vector in layers[0].vectors]
        out, vectors_LW = space.buffer("vectors", len(layers), sum(sizes))
        if sum(sizes):
            torch.cat([vector for layer in layers for vector in layer.vectors], out=out.view(-1))
        begins_V = np.concatenate([[0], np.cumsum(sizes)])
        is_local_L = np.array([number in heads.local_layers for number in range(len(layers))], np.int64)
        self.weights = fused.Weights(address_LW, vectors_LW, begins_V, is_local_L, heads.local, heads.activation)
        self.heads, self.scores = heads.heads, scores
        self._num_weights = len(layers) * (sum(weight.numel() for weight in matrices[0]) + sum(sizes))

    def run_codes(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, codes: kernels.CodeRows) -> None:
        places = self.heads, prompts.array.reshape(-1), prompts.array.shape[3], segments_Z4, codes, self.scores
        fused.run_codes(self.weights, chunk.arrays, chunk.rows, *places, self.threads(chunk))

    def run_prompts(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, slot_N: Array, num_complete: int) -> Chunk:
        places = self.heads, prompts.array.reshape(-1), prompts.array.shape[3], segments_Z4, slot_N, num_complete, self.scores
        fused.run_prompts(self.weights, chunk.arrays, chunk.rows, *places, self.threads(chunk))
        return chunk.first(num_complete)

    def threads(self, chunk: Chunk) -> int:
        """Return the number of threads for a chunk."""
        return openmp.num_threads() if chunk.rows * self._num_weights >= _MIN_PRODUCTS else 1


class TorchLayers:
    """Each product is a call of torch, or of a kernel for large matrices, which may be packed, or of bfloat16."""

    def __init__(
        self, layers: Sequence[LayerParameters], heads: HeadsOfLayers, scores: tuple[Tensor, Array], products: Products
    ) -> None:
        self.weights = [LayerWeights.of(layer, heads.of(number)) for number, layer in enumerate(layers)]
        self._heads, self._activation, self._scores, self._products = heads.heads, heads.activation, scores, products

    def run_codes(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, codes: kernels.CodeRows) -> None:
        attend = self.codes_attention(chunk, prompts, segments_Z4, codes)
        width = self._heads.groups * self._heads.size
        for layer, weights in enumerate(self.weights):
            slots = kernels.KVSlots(codes.keys, codes.values, layer * width, self._heads.size)
            joined_NV = self.store_keys_values(weights, chunk, codes.slots_N, slots)
            self.rotate_queries(weights, chunk, joined_NV, chunk.rotated_query_flat)
            attend(layer)
            prompt = chunk.rotated_query_flat, chunk.weighted_values_flat, chunk.rows, weights.heads
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
            is_rounded = self._are_prompts_rounded
            out = chunk.prompt_query_flat if is_rounded else chunk.rotated_query_flat
            self.rotate_queries(weights, chunk, joined_NV, out)
            attend(layer)
            self.finish(weights, chunk)
        return chunk

    def codes_attention(
        self, chunk: Chunk, prompts: Prompts, segments_Z4: Array, codes: kernels.CodeRows
    ) -> Callable[[int], None]:
        """Return the attention to the prompts in a layer, from which `kernels.attend_codes` continues."""
        del codes
        tiles = self._tiles(chunk, segments_Z4, causal=False)
        return lambda layer: self._attend(layer, chunk, prompts, tiles, 0)

    @property
    def _are_prompts_rounded(self) -> bool:
        """Return whether prompts attend to themselves in bfloat16, which has no soft cap."""
        return self._products.dtype == torch.bfloat16 and not self._heads.cap

    def _prompt_attention(self, chunk: Chunk, prompts: Prompts, segments_Z4: Array) -> Callable[[int], None]:
        """Return the attention to the prompts in a layer: fused and in bfloat16 if products are, else in tiles."""
        if self._are_prompts_rounded:
            segments = segments_Z4.tolist()
            rounded = {
                window: [RoundedPrompt.of(chunk, slice(begin, end), token, window) for begin, end, token, _ in segments]
                for window in {weights.heads.window for weights in self.weights}
            }
            return lambda layer: rounded_attention.attend(
                rounded[self.weights[layer].heads.window], prompts.slots[layer], chunk
            )
        tiles = self._tiles(chunk, segments_Z4, causal=True)
        shares = chunk.weighted_values_flat, chunk.rows, self._heads, chunk.total_GX, chunk.attention_output_XQ

        def attend(layer: int) -> None:
            self._attend(layer, chunk, prompts, tiles, 1)
            kernels.divide_by_weights(*shares, chunk.threads)

        return attend

    def _normed(self, weight_D: Array, bias_D: Array, chunk: Chunk) -> Tensor:
        pointwise.norm(chunk.hidden_XD, chunk.rows, weight_D, bias_D, self._heads.eps, chunk.normed_XD, chunk.threads)
        return chunk.normed

    def _add_product(
        self, rows: tuple[Tensor, Array], weight: Matrix, bias_D: Array, output_norm_D: Array, chunk: Chunk
    ) -> None:
        """Add a product to the hidden states, with its bias and after its norm, where there are any."""
        if not len(bias_D) and not len(output_norm_D):
            self._products.add(rows[0], weight, chunk.hidden)
            return
        _, product_ND = self._products.of(rows[0], weight, (chunk.normed, chunk.normed_XD))
        places = self._heads.eps, chunk.hidden_XD, chunk.threads
        pointwise.add_normed(product_ND, chunk.rows, bias_D, output_norm_D, *places)

    def store_keys_values(self, weights: LayerWeights, chunk: Chunk, slot_N: Array, slots: kernels.KVSlots) -> Array | None:
        """Norm a chunk, compute its keys and values and write them to their slots.

        The queries are the first columns of what it returns, if their matrix is one with those of keys and values.
        """
        normed_ND = self._normed(weights.vectors[fused.ATTENTION_NORM], weights.vectors[fused.ATTENTION_NORM_BIAS], chunk)
        joined_NV, columns = None, (0, 0)
        if weights.key is None or weights.value is None:
            key_NV = value_NV = joined_NV = self._products.of(normed_ND, weights.query, chunk.query)[1]
            columns = chunk.query[1].shape[1], chunk.query[1].shape[1] + chunk.key[1].shape[1]
        else:
            key_NV = self._products.of(normed_ND, weights.key, chunk.key)[1]
            value_NV = self._products.of(normed_ND, weights.value, chunk.value)[1]
        rows = key_NV, value_NV, columns, chunk.rows, chunk.positions_X, slot_N
        vectors = weights.vectors[fused.KEY], weights.vectors[fused.VALUE], weights.vectors[fused.KEY_NORM]
        kernels.store_keys_values(*rows, slots, vectors, weights.heads, chunk.threads)
        return joined_NV

    def rotate_queries(self, weights: LayerWeights, chunk: Chunk, query_NV: Array | None, out: Array) -> None:
        """Write the rotated queries of a normed chunk, (G, rows x R, E) flat. query_NV: what `store_keys_values` returned."""
        if query_NV is None:
            query_NV = self._products.of(chunk.normed, weights.query, chunk.query)[1]
        rows = query_NV, chunk.rows, chunk.positions_X
        vectors = weights.vectors[fused.QUERY], weights.vectors[fused.QUERY_NORM]
        kernels.rotate_queries(*rows, *vectors, weights.heads, out, chunk.threads)

    def _tiles(self, chunk: Chunk, segments_Z4: Array, *, causal: bool) -> list[_Tile]:
        """Return tiles whose scores fit the buffer; where causal, with only the tokens that a tile's last row sees."""
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
        cap, window = self.weights[layer].heads.cap, self.weights[layer].heads.window
        keys_GTE, values_GTE = prompts.slots[layer].unbind()
        for tile in tiles:
            torch.bmm(tile.query, keys_GTE[:, tile.tokens].transpose(1, 2), out=tile.scores)
            _, num_queries, length = tile.scores.shape
            scores = kernels.ScoreTile(groups, num_queries, length, tile.visible, step, ratio, cap, window)
            outputs = chunk.top_GX, chunk.total_GX, tile.first
            kernels.softmax_weights(self._scores[1], scores, chunk.positions_X, bound, *outputs, chunk.threads)
            torch.bmm(tile.scores, values_GTE[:, tile.tokens], out=tile.weighted_values)

    def finish(self, weights: LayerWeights, chunk: Chunk) -> None:
        """Add the attention's output projection, then the feed-forward block, to the hidden states."""
        vectors, rows = weights.vectors, (chunk.attention_output, chunk.attention_output_XQ)
        self._add_product(rows, weights.out, vectors[fused.OUT], vectors[fused.ATTENTION_OUTPUT_NORM], chunk)
        normed_ND = self._normed(vectors[fused.FEED_FORWARD_NORM], vectors[fused.FEED_FORWARD_NORM_BIAS], chunk)
        output_norm_D = vectors[fused.FEED_FORWARD_OUTPUT_NORM]
        if weights.experts is not None:
            product_ND = weights.experts(normed_ND.float()).numpy()
            places = self._heads.eps, chunk.hidden_XD, chunk.threads
            pointwise.add_normed(product_ND, chunk.rows, vectors[fused.DOWN], output_norm_D, *places)
            return
        if weights.gate is None:
            inner = self._products.of(normed_ND, weights.up, chunk.gate)
            pointwise.add_bias(inner[1], chunk.rows, 0, vectors[fused.UP], chunk.threads)
            pointwise.activate(inner[1], chunk.rows, self._activation, chunk.threads)
        else:
            inner = self._products.of(normed_ND, weights.gate, chunk.gate)
            _, up_XF = self._products.of(normed_ND, weights.up, chunk.up)
            for product_XF, bias_F in ((inner[1], vectors[fused.GATE]), (up_XF, vectors[fused.UP])):
                if len(bias_F):
                    pointwise.add_bias(product_XF, chunk.rows, 0, bias_F, chunk.threads)
            pointwise.gate(inner[1], chunk.rows, up_XF, self._activation, chunk.threads)
        self._add_product(inner, weights.down, vectors[fused.DOWN], output_norm_D, chunk)


class LayerWeights(NamedTuple):
    """One layer's matrices, of any dtype, transposed for products from the left or packed, its vectors and a bound.

    key, value: None where they are part of the query's (`Transformer.pack`). gate: None where there is none. vectors: biases
    and norms in the order of `fused_kernels`. heads: of this layer.
    """

    query: Matrix
    key: Matrix | None
    value: Matrix | None
    out: Matrix
    gate: Matrix | None
    up: Matrix
    down: Matrix
    vectors: list[Array]
    experts: Experts | None
    heads: kernels.Heads
    bound: float

    @classmethod
    def of(cls, layer: LayerParameters, heads: kernels.Heads) -> LayerWeights:
        matrices = [transposed(weight) for weight in layer.matrices]
        vectors = [vector.numpy() for vector in layer.vectors]
        norms = vectors[fused.QUERY_NORM], vectors[fused.KEY_NORM]
        bound = kernels.score_bound(*norms, heads.scale * heads.rotation**2, heads.cap)
        return cls._make((*matrices, vectors, layer.experts, heads, bound))


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
    """Return a layer's parameters, in the order of `fused_kernels`."""
    attention, mlp, empty = layer.self_attn, layer.mlp, torch.empty(0)
    modules: list[Linear | None] = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    modules += [mlp.gate_proj, mlp.up_proj, mlp.down_proj] if isinstance(mlp, FeedForward) else [None] * 3
    before = layer.input_layernorm, layer.post_attention_layernorm
    norms = (*before, attention.q_norm, attention.k_norm, layer.attention_output_norm, layer.feed_forward_output_norm)
    vectors: list[Tensor | None] = [None if module is None else module.bias for module in modules]
    vectors += [None if norm is None else norm.weight for norm in norms]
    vectors += [norm.bias if isinstance(norm, LayerNorm) else None for norm in before]
    return LayerParameters(
        [empty.view(0, 0) if module is None else module.matrix for module in modules],
        [empty if vector is None else vector.detach() for vector in vectors],
        mlp if isinstance(mlp, Experts) else None,
    )


def even_parts(total: int, max_size: int) -> Iterator[tuple[int, int]]:
    """Return the bounds of the fewest parts of at most max_size, of equal size but for the last."""
    if total:
        size = ceil(total / ceil(total / max_size))
        yield from ((begin, min(begin + size, total)) for begin in range(0, total, size))
