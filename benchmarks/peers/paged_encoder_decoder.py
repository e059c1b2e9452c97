"""The encoder-decoder with PagedAttention in its cross-attention: each beam reads the pages of its encoded prompt for itself.

    one copy of the prompt's keys and values, in pages; a block table for each beam; pages are read once for each beam

The encoder, the experts, the decoder's own few codes, the head and the constraint are leafbeam's.

Shapes: B requests, T tokens of a prompt, K beams, C new codes of each beam, N = K x C, R rows (B x N), H heads, E values of a
head, P tokens of a page, X pages.
"""

# pyright: basic, reportPrivateUsage=false
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.block_tables import BlockTables
from benchmarks.peers.paged_engine import PAGE
from benchmarks.peers.paged_kernels import paged_kernels
from leafbeam.model import DecodeSession, EncoderDecoder
from leafbeam.model.encoder_decoder import EncoderDecoderRunner
from leafbeam.model.session import checked_lengths
from leafbeam.model.torch_runner import RunnerOptions

__all__ = ["PagedEncoderDecoderRunner", "start"]


class PagedEncoderDecoderRunner(EncoderDecoderRunner):
    """Cross-attention through block tables; float32 on a CPU."""

    def __init__(self, model: EncoderDecoder, tokens_BT: Tensor, lengths_B: Tensor, options: RunnerOptions) -> None:
        super().__init__(model, tokens_BT, lengths_B, options)
        config = model.config
        self._heads, self._size = config.num_heads, config.d_kv
        self._paged = paged_kernels(self._heads, 1, self._size, PAGE)
        self._lengths_B = lengths_B.numpy()
        self._tables = BlockTables(self._lengths_B, PAGE, 0)
        request_N = np.repeat(np.arange(len(lengths_B)), self._lengths_B)
        begins_B = np.cumsum(self._lengths_B) - self._lengths_B
        rows = self._tables.table_RT[request_N], np.arange(len(request_N)) - begins_B[request_N]
        width = self._heads * self._size
        self._pages: list[tuple[np.ndarray, np.ndarray]] = []
        for keys_BHET, values_BHTE in zip(self.prompt.keys, self.prompt.values, strict=True):
            # Tokens without padding, (tokens, H, E): key head h of token n begins at n x width + h x E.
            sides = [
                torch.cat([side_BTHE[request, :length] for request, length in enumerate(self._lengths_B)]).contiguous()
                for side_BTHE in (keys_BHET.permute(0, 3, 1, 2), values_BHTE.transpose(1, 2))
            ]
            pages = tuple(np.zeros(self._tables.capacity * PAGE * width, np.float32) for _ in sides)
            source = [side.numpy().reshape(-1) for side in sides]
            self._paged.write(*source, np.arange(len(request_N)) * width, self._size, *rows, *pages)
            self._pages.append((pages[0], pages[1]))
        self.prompt.keys, self.prompt.values = [], []  # there is one copy: in the pages

    def _attend_prompt(self, layer: int, query_BNHE: Tensor) -> Tensor:
        requests, new, heads, size = query_BNHE.shape
        rows = requests * new
        table_RT = np.repeat(self._tables.table_RT, new, axis=0)
        visible_R = np.repeat(self._lengths_B, new)
        query_HRE = query_BNHE.reshape(rows, heads, size).transpose(0, 1).contiguous()
        scores_HY = np.empty((heads, table_RT.shape[1] * PAGE), np.float32)
        out_RQ = torch.empty(rows, heads * size)
        keys, values = self._pages[layer]
        state = query_HRE.numpy().reshape(-1), rows, table_RT, visible_R, keys, values, np.float32(np.inf)
        self._paged.attend(*state, scores_HY, out_RQ.numpy())
        return out_RQ.view_as(query_BNHE)


@torch.inference_mode()
def start(model: EncoderDecoder, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> DecodeSession:
    """As `EncoderDecoder.start`, float32 on a CPU, with this runner."""
    lengths_B = checked_lengths(tokens_BT, lengths_B, model.config, model.vocabulary.num_levels)
    options = model._options(tokens_BT, lengths_B, model.vocabulary)
    runner = PagedEncoderDecoderRunner(model, tokens_BT, lengths_B, options)
    return DecodeSession(runner, model.vocabulary, lengths_B)
