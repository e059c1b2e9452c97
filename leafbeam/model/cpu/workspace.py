"""Buffers that successive searches of one worker reuse, and the activations of the rows that go through the layers together.

Shapes: X rows at most, D hidden, F inner values of a feed-forward block, Q = H x E values of all query heads, G key heads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import check_whole
from leafbeam.model.config import ModelConfig
from leafbeam.model.cpu.kernels import Activations
from leafbeam.model.cpu.rows import load_embeddings
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.ops import openmp

Array = NDArray[Any]
_MAX_CHUNKS, _MAX_VIEWS = 64, 1024  # kept by one workspace


class Workspace:
    """Named buffers for a search's keys, values, activations and logits, for `Transformer.start`.

    A buffer is allocated on first use and again only when a search needs it larger: after one search with the largest batch,
    prompt and number of beams, no further search allocates (`growths` stays constant). One search at a time: starting the next
    one invalidates the last and its logits, so each worker needs its own workspace.

    rows: tokens or beams that go through the layers together; bounds the activations. scores: attention scores computed
    together.

    >>> workspace = Workspace()
    >>> session = model.start(tokens_BT, lengths_B, workspace=workspace)   # doctest: +SKIP
    """

    def __init__(self, *, rows: int = 512, scores: int = 1 << 18) -> None:
        check_whole(rows=rows, scores=scores)
        self.rows, self.scores = rows, scores
        self.growths = 0
        self._flat: dict[str, Tensor] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self._views: dict[tuple[str, tuple[int, ...]], tuple[Tensor, Array]] = {}
        self._chunks: dict[int, Chunk] = {}
        self._heads: dict[int, tuple[AnyVocabulary, int, Tensor]] = {}

    def __repr__(self) -> str:
        return f"Workspace(rows={self.rows}, scores={self.scores}, nbytes={self.nbytes})"

    @property
    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return sum(flat.nbytes for flat in self._flat.values())

    def buffer(self, name: str, *shape: int, dtype: torch.dtype = torch.float32, keep: bool = False) -> tuple[Tensor, Array]:
        """Return the buffer of this name in this shape, not cleared, as tensor and array (`array_of`).

        keep: copy the old contents where it has to grow.
        """
        kept = self._views.get((name, shape))
        if kept is not None:
            return kept
        size = prod(shape)
        flat = self._flat.get(name)
        if flat is None or len(flat) < size:
            self._chunks.clear()  # they view what is released
            self.release(name)
            if not keep:  # before the new one is allocated
                flat = None
            grown = torch.empty(size, dtype=dtype)
            if flat is not None:
                grown[: len(flat)] = flat
            self._flat[name] = flat = grown
            self.growths += 1
        view = flat[:size].view(shape)
        if len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        kept = self._views[name, shape] = view, array_of(view)
        return kept

    def release(self, name: str) -> None:
        """Forget a buffer, whose memory is free once nothing views it."""
        self._flat.pop(name, None)
        for key in [key for key in self._views if key[0] == name]:
            del self._views[key]

    def table(self, name: str, min_rows: int, rows: Callable[[int], Tensor]) -> Array:
        """Return a table of at least min_rows rows, computed by `rows(count)`; if it is too short, at twice the length."""
        flat = self._flat.get(name)
        if flat is None or len(flat) < min_rows:
            self._flat[name] = flat = rows(max(min_rows, 2 * (0 if flat is None else len(flat)))).contiguous()
            self.growths += 1
        return flat.numpy()

    def chunk(self, config: ModelConfig, rows: int, products: torch.dtype = torch.float32) -> Chunk:
        """Return the activations of a number of rows, made once for each number.

        products: the dtype of the layers' products.
        """
        chunk = self._chunks.get(rows)
        if chunk is None or chunk.config is not config or chunk.products != products:
            chunk = Chunk(self, config, rows, products)
            if len(self._chunks) >= _MAX_CHUNKS:
                self._chunks.clear()
            self._chunks[rows] = chunk
        return chunk

    def level_head(self, head_VD: Tensor, vocabulary: AnyVocabulary, level: int) -> Tensor:
        """Return the head's rows of a level's codes, (D, V): a view of consecutive rows, else a copy."""
        if vocabulary.level_slice(level) is None:
            return self._gather_rows(f"head of level {level}", head_VD, vocabulary.level_tokens(level)).t()
        kept = self._heads.get(level)
        if kept is None or kept[0] is not vocabulary or kept[1] != head_VD.data_ptr():
            kept = self._heads[level] = vocabulary, head_VD.data_ptr(), vocabulary.level_rows(head_VD, level).t()
        return kept[2]

    def _gather_rows(self, name: str, matrix_VD: Tensor, rows: Array) -> Tensor:
        """Some rows of a matrix, copied again only when the matrix has changed."""
        stamp = matrix_VD.data_ptr(), 0 if matrix_VD.is_inference() else matrix_VD._version
        buffer, _ = self.buffer(name, len(rows), matrix_VD.shape[1])
        if matrix_VD.is_inference() or self._stamps.get(name) != stamp:
            torch.index_select(matrix_VD, 0, torch.from_numpy(rows), out=buffer)
            self._stamps[name] = stamp
        return buffer


class Chunk:
    """Workspace buffers for `rows` rows: as tensors cut to the rows (for products) and as whole arrays (for kernels)."""

    def __init__(self, space: Workspace, config: ModelConfig, rows: int, products: torch.dtype) -> None:
        self.space, self.config, self.rows, self.products = space, config, rows, products
        capacity = max(rows, space.rows)

        def buffer(name: str, width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Array]:
            name = name if dtype == torch.float32 else f"{name} in bfloat16"
            tensor, array = space.buffer(name, capacity, width, dtype=dtype)
            return tensor[:rows], array

        groups, size = config.num_key_value_heads, config.head_dim
        queries = config.num_attention_heads * size
        self.hidden, self.hidden_XD = buffer("hidden", config.hidden_size)
        self.output, self.output_XD = buffer("output", config.hidden_size)  # normed for the head
        self.rotated_query, rotated_XQ = buffer("rotated query", queries)
        self.weighted_values, weighted_XQ = buffer("weighted values", queries)
        self.prompt_query, prompt_XQ = buffer("rotated query", queries, products)  # of prompts, which have sums in float32
        # All hold (G, rows x R, E) at their front.
        self.rotated_query_flat, self.weighted_values_flat = rotated_XQ.reshape(-1), weighted_XQ.reshape(-1)
        self.prompt_query_flat = prompt_XQ.reshape(-1)
        # What the layers' matrices multiply, and pairs for what they give: tensor and array.
        self.normed, self.normed_XD = buffer("normed", config.hidden_size, products)
        self.query = buffer("query", queries, products)
        self.key = buffer("key", groups * size, products)
        self.value = buffer("value", groups * size, products)
        self.attention_output, self.attention_output_XQ = buffer("attention output", queries, products)
        self.gate = buffer("gate", config.intermediate_size, products)
        self.up = buffer("up", config.intermediate_size, products)
        self.top_GX = space.buffer("top", groups, capacity * config.group_size)[1]
        self.total_GX = space.buffer("total", groups, capacity * config.group_size)[1]
        self.threads = 1
        self.positions_X = space.buffer("positions", capacity, dtype=torch.int64)[1]
        given = self.query[1], self.key[1], self.value[1]
        attended = self.rotated_query_flat, self.weighted_values_flat, self.attention_output_XQ
        rest = self.gate[1], self.up[1], self.top_GX, self.total_GX, self.positions_X
        self.arrays = Activations(self.hidden_XD, self.normed_XD, *given, *attended, *rest)  # for fused kernels

    def load(self, embedding_VD: Array, tokens_N: Array, positions_N: Array) -> None:
        """Start with the embeddings of these tokens, on as many threads as torch has now."""
        self.threads = openmp.num_threads(self.rows * self.hidden_XD.shape[1])
        load_embeddings(embedding_VD, tokens_N, positions_N, self.hidden_XD, self.positions_X, self.threads)

    def first(self, rows: int) -> Chunk:
        """Return a chunk of the first rows, in the same buffers."""
        chunk = self.space.chunk(self.config, rows, self.products)
        chunk.threads = openmp.num_threads(chunk.hidden.numel())
        return chunk

    def select(self, rows: Array) -> Chunk:
        """Continue with these rows alone, their norms included."""
        chunk = self.first(len(rows))
        for whole, part in ((self.hidden_XD, chunk.hidden_XD), (self.normed_XD, chunk.normed_XD)):
            part[: len(rows)] = whole[rows]
        self.positions_X[: len(rows)] = self.positions_X[rows]
        return chunk


def array_of(tensor: Tensor) -> Array:
    """Return a view of a tensor; of bfloat16, which numpy lacks, its bits."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
