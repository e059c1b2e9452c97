"""This engine with PagedAttention (Kwon et al., 2023) in place of the prompt that all beams read together.

    one copy of each prompt's pages; a block table for each beam; pages are read once for each beam that refers to them
    the page that a beam writes next is copied where other beams refer to it; tables follow the parents

Everything else is leafbeam's: prefill, packed rows, matrix products, workspace, constraint, head. A prompt is written to its
pages when it is complete.

Shapes: B requests, K beams, C new codes of each beam, N rows, X pages, T pages of a table.
"""

# pyright: basic, reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.block_tables import BlockTables
from benchmarks.peers.cpu_session import start_with
from benchmarks.peers.paged_kernels import copy_pages, paged_kernels
from leafbeam.model.cpu import kernels
from leafbeam.model.cpu.layers import FusedLayers, TorchLayers
from leafbeam.model.cpu.runner import CpuRunner
from leafbeam.model.cpu.workspace import Chunk
from leafbeam.model.prompt_store import CachedPrompt

__all__ = ["PAGE", "PagedRunner", "start"]

Array = NDArray[Any]
PAGE = 16  # tokens, as vLLM's blocks on a GPU; of a larger one, more is copied for nothing


class PagedRunner(CpuRunner):
    """Prompts are prefilled once for each request; beams read and write through block tables."""

    def _run_prompts(self, tokens_BT: Array, cached: Sequence[CachedPrompt | None]) -> None:
        super()._run_prompts(tokens_BT, cached)
        config = self._config
        self._tables = BlockTables(self._lengths_B, PAGE, self._vocabulary.num_levels - 1)
        self._paged = paged_kernels(config.num_key_value_heads, config.group_size, config.head_dim, PAGE)
        self._width = config.num_key_value_heads * PAGE * config.head_dim  # keys of a page in one layer
        request_N = np.repeat(np.arange(len(self._lengths_B)), self._lengths_B)
        token_N = np.arange(len(request_N))
        where = token_N * config.head_dim, len(token_N) * config.head_dim
        rows = self._tables.table_RT[request_N], token_N - self._begins_B1[request_N]
        for layer, pages in enumerate(self._pages()):
            keys, values = self._slots[layer].numpy().reshape(2, -1)
            self._paged.write(keys, values, *where, *rows, *(side.reshape(-1) for side in pages))
        self._space.release("prompts")  # there is one copy of the prompt: in its pages
        del self._slots, self._prompts
        self.prompt.nbytes = self._tables.num_prompt_pages * self._page_bytes

    @property
    def _page_bytes(self) -> int:
        return self._config.num_hidden_layers * 2 * self._width * 4

    def restart(self) -> None:
        super().restart()
        self._tables.restart()

    def _pages(self) -> list[tuple[Array, Array]]:
        """Keys and values of each layer's pages (X, G x E x P)."""
        shape = self._tables.capacity, self._width

        def pages(side: str, layer: int) -> Array:
            return self._space.buffer(f"{side} pages of layer {layer}", *shape, keep=True)[1]

        return [(pages("key", layer), pages("value", layer)) for layer in range(self._config.num_hidden_layers)]

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int, *, keep: bool = True) -> list[Tensor]:
        assert keep, "pages of beams are written for good"
        requests, beams, num_codes = tokens_BKC.shape
        config, tables = self._config, self._tables
        copies_C2 = tables.extend(parents_BK.numpy(), num_codes)
        pages = self._pages()
        for layer in pages:
            for side in layer:
                copy_pages(side, copies_C2)
        self.beams.nbytes = (tables.peak - tables.num_prompt_pages) * self._page_bytes
        outputs = self._output_buffers(requests * beams, level + 1, num_codes)
        tokens_N = tokens_BKC.numpy().reshape(-1)
        row_scores = config.num_key_value_heads, config.group_size * tables.table_RT.shape[1] * PAGE
        _, scores_HGY = self._space.buffer("paged scores", torch.get_num_threads(), *row_scores)
        # Keys and values of a chunk's new tokens, before they are written to their pages.
        new_width, step = config.num_key_value_heads * config.head_dim, max(1, self._space.rows // num_codes)
        _, new = self._space.buffer("new keys and values", 2, step * num_codes * new_width)
        slots = kernels.KVSlots(new[0], new[1], 0, config.head_dim)
        for first_beam in range(0, requests * beams, step):
            last_beam = min(first_beam + step, requests * beams)
            begin, end = first_beam * num_codes, last_beam * num_codes
            beam_N, code_N = np.divmod(np.arange(begin, end), num_codes)
            position_N = self._lengths_B[beam_N // beams] + level + code_N
            table_NT, slot_N = tables.table_RT[beam_N], np.arange(end - begin) * new_width
            chunk = Chunk(self._space, config, end - begin, torch.float32)
            chunk.load(self._embedding, tokens_N[begin:end], position_N)
            layers, places = self._layers, (table_NT, position_N + 1)
            if isinstance(layers, FusedLayers):
                flat = tuple((key_pages.reshape(-1), value_pages.reshape(-1)) for key_pages, value_pages in pages)
                rows = layers.weights, chunk.arrays, chunk.rows, self._heads.heads, flat, slots, slot_N
                self._paged.run(*rows, *places, beam_N, scores_HGY, layers.threads(chunk))
            else:
                assert isinstance(layers, TorchLayers)
                for weights, (key_pages, value_pages) in zip(layers.weights, pages, strict=True):
                    keys, values = key_pages.reshape(-1), value_pages.reshape(-1)
                    joined_NV = layers.store_keys_values(weights, chunk, slot_N, slots)
                    self._paged.write(*new, slot_N, config.head_dim, table_NT, position_N, keys, values)
                    layers.rotate_queries(weights, chunk, joined_NV, chunk.rotated_query_flat)
                    rows = chunk.rotated_query_flat, chunk.rows, *places
                    self._paged.attend(*rows, keys, values, weights.bound, scores_HGY[0], chunk.attention_output_XQ)
                    layers.finish(weights, chunk)
            normed_ND = self._outputs(chunk)
            for code in range(num_codes):
                self._multiply_head(normed_ND[code::num_codes], level + 1 + code, outputs[code][first_beam:last_beam])
        return [output.unflatten(0, (requests, beams)) for output in outputs]


start = partial(start_with, PagedRunner)
