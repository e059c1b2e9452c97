"""Causal attention of prompts in bfloat16, with sums and softmax in float32: torch's fused kernel, a request at a time.

Shapes: N rows of one request, T tokens that they attend to, G key heads, R query heads of each, E values of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from leafbeam.model.cpu.workspace import Chunk


class RoundedPrompt(NamedTuple):
    """The rows of a chunk that belong to one request.

    query: (G, R, N, E), scaled. output: as large. tokens: what the last row sees, in the slots of all prompts. mask: (N, T),
    added to the scores; None where row n sees tokens 0 to n (is_causal), or one row sees all.
    """

    query: Tensor
    output: Tensor
    tokens: slice
    mask: Tensor | None
    is_causal: bool

    @classmethod
    def of(cls, chunk: Chunk, rows: slice, first_token: int, window: int = 0) -> RoundedPrompt:
        """rows: of the chunk, adjacent in their prompt, which begins at `first_token` of the slots.

        window: how many tokens a row sees, itself included; 0: all before it.
        """
        config, num_rows = chunk.config, rows.stop - rows.start
        groups, ratio, size = config.num_key_value_heads, config.group_size, config.head_dim
        query = chunk.prompt_query.view(groups, chunk.rows, ratio, size)[:, rows].transpose(1, 2)
        output = chunk.attention_output.view(chunk.rows, groups, ratio, size)[rows].permute(1, 2, 0, 3)
        visible = int(chunk.positions_X[rows.start]) + 1  # by the first row
        length, mask = visible - 1 + num_rows, None
        is_local = 0 < window < length
        if is_local or 1 < num_rows < length:
            mask = torch.full((num_rows, length), -torch.inf, dtype=query.dtype).triu_(visible)
        if is_local and mask is not None:
            mask += torch.full_like(mask, -torch.inf).tril_(visible - 1 - window)
        return cls(query, output, slice(first_token, first_token + length), mask, not is_local and num_rows == length > 1)


def attend(prompts: Sequence[RoundedPrompt], slots: Tensor, chunk: Chunk) -> None:
    """Write each prompt's output. slots: keys and values (2, G, all tokens, E) of a layer, float32, which are rounded first."""
    for query, output, tokens, mask, is_causal in prompts:
        slots_GTE = slots[:, :, tokens]
        rounded, _ = chunk.space.buffer("slots in bfloat16", *slots_GTE.shape, dtype=query.dtype)
        keys, values = rounded.copy_(slots_GTE)[:, :, None].expand(-1, -1, query.shape[1], -1, -1).unbind()
        attended = functional.scaled_dot_product_attention(query, keys, values, mask, is_causal=is_causal, scale=1.0)
        output.copy_(attended)
