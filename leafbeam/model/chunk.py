"""The activations of a few rows on their way through the layers.

Shapes: X rows at most, D hidden, F inner values of a feed-forward block, Q = H x E values of all query heads, G key heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model.config import ModelConfig
from leafbeam.model.workspace import Workspace

__all__ = ["Chunk"]

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Activations of so many rows: tensors cut to them for products, whole arrays (X rows) for loops."""

    rows: int
    hidden: Tensor
    normed: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    turned: Tensor
    sums: Tensor
    seen: Tensor
    gate: Tensor
    up: Tensor
    hidden_XD: Array
    normed_XD: Array
    query_XQ: Array
    key_XG: Array
    value_XG: Array
    turned_X: Array
    sums_X: Array
    seen_XQ: Array
    gate_XF: Array
    up_XF: Array
    top_GX: Array
    total_GX: Array
    positions_X: Array
    space: Workspace
    config: ModelConfig

    @classmethod
    def of(cls, space: Workspace, config: ModelConfig, rows: int) -> Chunk:
        heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        room = max(rows, space.rows)
        hidden, hidden_XD = space.take("hidden", room, config.hidden_size)
        normed, normed_XD = space.take("normed", room, config.hidden_size)
        query, query_XQ = space.take("query", room, heads * size)
        key, key_XG = space.take("key", room, groups * size)
        value, value_XG = space.take("value", room, groups * size)
        turned, turned_X = space.take("turned", room * heads * size)
        sums, sums_X = space.take("sums", room * heads * size)
        seen, seen_XQ = space.take("seen", room, heads * size)
        gate, gate_XF = space.take("gate", room, config.intermediate_size)
        up, up_XF = space.take("up", room, config.intermediate_size)
        return cls(
            rows=rows,
            hidden=hidden[:rows],
            normed=normed[:rows],
            query=query[:rows],
            key=key[:rows],
            value=value[:rows],
            turned=turned[: rows * heads * size],
            sums=sums[: rows * heads * size],
            seen=seen[:rows],
            gate=gate[:rows],
            up=up[:rows],
            hidden_XD=hidden_XD,
            normed_XD=normed_XD,
            query_XQ=query_XQ,
            key_XG=key_XG,
            value_XG=value_XG,
            turned_X=turned_X,
            sums_X=sums_X,
            seen_XQ=seen_XQ,
            gate_XF=gate_XF,
            up_XF=up_XF,
            top_GX=space.take("top", groups, room * config.group_size)[1],
            total_GX=space.take("total", groups, room * config.group_size)[1],
            positions_X=space.take("positions", room, dtype=torch.int64)[1],
            space=space,
            config=config,
        )

    def load(self, embedding_VD: Tensor, tokens_N: Array, positions_N: Array) -> None:
        self.positions_X[: self.rows] = positions_N
        torch.index_select(embedding_VD, 0, torch.from_numpy(tokens_N), out=self.hidden)

    def only(self, rows_N: Array) -> Chunk:
        """Go on with these rows alone, their norms included."""
        chunk = Chunk.of(self.space, self.config, len(rows_N))
        for whole, part in ((self.hidden_XD, chunk.hidden_XD), (self.normed_XD, chunk.normed_XD)):
            part[: len(rows_N)] = whole[rows_N]
        self.positions_X[: len(rows_N)] = self.positions_X[rows_N]
        return chunk
