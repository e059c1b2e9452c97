"""One layer's attention of a round as leafbeam's CPU engine computes it, beside peers on the same tensors.

Shapes: as `ops.attention.reference`; N = B x K rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model import ModelConfig
from leafbeam.model.cpu import kernels
from leafbeam.model.cpu.layers import HeadsOfLayers, LayerWeights, Prompts, TorchLayers
from leafbeam.model.cpu.products import Products
from leafbeam.model.cpu.workspace import Chunk, Workspace

__all__ = ["ServedAttention"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedAttention:
    """The engine's layers for products of torch, in a workspace, with the keys and values of one layer."""

    layers: TorchLayers
    chunk: Chunk
    codes: kernels.CodeRows
    prompts: Prompts
    segments_Z4: NDArray[np.int64]

    @classmethod
    def of(
        cls, query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor
    ) -> ServedAttention:
        """Lay keys and values out as the engine does. Queries are left where its rotation writes them, scaled."""
        requests, beams, codes, groups, size = key_BKSGE.shape
        heads, tokens, rows = query_BKHE.shape[2], value_BGTE.shape[2], requests * beams
        space = Workspace(rows=rows)
        config = ModelConfig(vocab_size=1, num_attention_heads=heads, num_key_value_heads=groups, head_dim=size)
        chunk = space.chunk(config, rows)
        queries_GNRE = query_BKHE.reshape(rows, groups, heads // groups, size).transpose(0, 1) * size**-0.5
        chunk.rotated_query.copy_(queries_GNRE.reshape(rows, -1))
        chunk.positions_X[:rows] = tokens + codes - 1
        ones = np.zeros((1, size // 2), np.float32)
        of_layer = kernels.Heads(groups, heads // groups, size, 1e-6, ones, ones, 1.0, 1.0, 0.0, 0)
        scores = space.buffer("scores", max(space.scores, heads * (tokens + kernels.TILE)))
        layers = TorchLayers([], HeadsOfLayers(of_layer, of_layer, (), 0), scores, Products(torch.float32, space))
        weights: Any = LayerWeights._make((*[None] * 7, [], None, of_layer, np.inf))  # only its heads and its bound are read
        layers.weights = [weights]
        prompts = (
            torch.stack((key_BGET.transpose(2, 3), value_BGTE))
            .permute(0, 2, 1, 3, 4)
            .reshape(1, 2, groups, -1, size)
            .contiguous()
        )
        slots_NS = np.arange(rows * codes).reshape(rows, codes) * groups * size
        flat = key_BKSGE.reshape(-1).numpy(), value_BKSGE.reshape(-1).numpy()
        of_rows = slots_NS[:, -1].copy(), slots_NS, np.arange(rows), np.full(rows, codes)
        segments_Z4 = np.array([(b * beams, (b + 1) * beams, b * tokens, tokens) for b in range(requests)])
        given = Prompts(prompts, prompts.numpy())
        return cls(layers=layers, chunk=chunk, codes=kernels.CodeRows(*flat, *of_rows), prompts=given, segments_Z4=segments_Z4)

    def attend(self) -> Tensor:
        """Return the attention of all beams over their prompts and codes, (N, H x E), as `TorchLayers.run_codes` does."""
        chunk, codes = self.chunk, self.codes
        self.layers.codes_attention(chunk, self.prompts, self.segments_Z4, codes)(0)
        prompt = chunk.rotated_query_flat, chunk.weighted_values_flat, chunk.rows, self.layers.weights[0].heads
        output = chunk.attention_output_XQ, chunk.threads
        kernels.attend_codes(*prompt, chunk.top_GX, chunk.total_GX, codes, 0, *output)
        return chunk.attention_output
