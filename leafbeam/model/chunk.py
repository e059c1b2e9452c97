"""The activations of the rows that go through the layers together.

Shapes: X rows at most, D hidden, F inner values of a feed-forward block, Q = H x E values of all query heads, G key heads.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model.config import ModelConfig
from leafbeam.model.workspace import Workspace

__all__ = ["Chunk"]

Array = NDArray[Any]


class Chunk:
    """Workspace buffers for `rows` rows: as tensors cut to the rows (for products) and as whole arrays (for kernels)."""

    def __init__(self, space: Workspace, config: ModelConfig, rows: int) -> None:
        self.space, self.config, self.rows = space, config, rows
        capacity = max(rows, space.rows)

        def buffer(name: str, width: int) -> tuple[Tensor, Array]:
            tensor, array = space.buffer(name, capacity, width)
            return tensor[:rows], array

        groups, size = config.num_key_value_heads, config.head_dim
        queries = config.num_attention_heads * size
        self.hidden, self.hidden_XD = buffer("hidden", config.hidden_size)
        self.normed, self.normed_XD = buffer("normed", config.hidden_size)
        self.query, self.query_XQ = buffer("query", queries)
        self.key, self.key_XG = buffer("key", groups * size)
        self.value, self.value_XG = buffer("value", groups * size)
        self.rotated_query, rotated_XQ = buffer("rotated query", queries)
        self.weighted_values, weighted_XQ = buffer("weighted values", queries)
        # Both hold (G, rows x R, E) at their front.
        self.rotated_query_flat, self.weighted_values_flat = rotated_XQ.reshape(-1), weighted_XQ.reshape(-1)
        self.attention_output, self.attention_output_XQ = buffer("attention output", queries)
        self.gate, self.gate_XF = buffer("gate", config.intermediate_size)
        self.up, self.up_XF = buffer("up", config.intermediate_size)
        self.top_GX = space.buffer("top", groups, capacity * config.group_size)[1]
        self.total_GX = space.buffer("total", groups, capacity * config.group_size)[1]
        self.positions_X = space.buffer("positions", capacity, dtype=torch.int64)[1]

    def load(self, embedding_VD: Tensor, tokens_N: Array, positions_N: Array) -> None:
        """Start with the embeddings of these tokens."""
        self.positions_X[: self.rows] = positions_N
        torch.index_select(embedding_VD, 0, torch.from_numpy(tokens_N), out=self.hidden)

    def select(self, rows_N: Array) -> Chunk:
        """Continue with these rows alone, their norms included."""
        chunk = Chunk(self.space, self.config, len(rows_N))
        for whole, part in ((self.hidden_XD, chunk.hidden_XD), (self.normed_XD, chunk.normed_XD)):
            part[: len(rows_N)] = whole[rows_N]
        self.positions_X[: len(rows_N)] = self.positions_X[rows_N]
        return chunk
