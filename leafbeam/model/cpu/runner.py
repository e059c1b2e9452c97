"""Running a decoder's layers on a CPU: packed rows, in chunks, in reused memory.

    prompts   the tokens of all prompts, without padding; their keys and values are kept once per request
    codes     rows of B x K beams; the keys and values of each stay in the slot where they were written, and a table of
              ancestors finds them; beams that continue alike, as dead ones do, are one row
    texts     rows of B x K texts, each with as many new tokens as it has; token s of a text has a slot of its own

A chunk of rows goes through all layers before the next, so that activations do not grow with the prompt or the beams and stay
in the caches. Attention has two stages under one softmax (xGR, section 5.2): all queries of a chunk against the prompt, as
matrix products, then each beam's few codes, in a loop.

Shapes: B requests, N tokens of all prompts, K beams, U rows of beams that differ, C new codes of each beam, V codes of a
level, D hidden, G key heads, R query heads of each, M = rows x R queries of a key head, E values of a head, S codes of a
beam, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from leafbeam.model.config import ModelConfig
from leafbeam.model.cpu import kernels, pointwise
from leafbeam.model.cpu.layers import HeadsOfLayers, LayerParameters, Layers, Prompts, choose_layers, even_parts, parameters_of
from leafbeam.model.cpu.rows import Rows, lay_out_codes, lay_out_prompts, segments_of
from leafbeam.model.cpu.workspace import Array, Chunk, Workspace
from leafbeam.model.decoder import Decoder, Layer, LayerNorm
from leafbeam.model.other_tokens import OtherTokens
from leafbeam.model.prompt_store import CachedPrompt, PromptStore
from leafbeam.model.vocabulary import AnyVocabulary

_ACTIVATIONS = {"silu": pointwise.SILU, "gelu": pointwise.GELU, "gelu_tanh": pointwise.GELU_TANH, "relu": pointwise.RELU}


class _CacheSize:
    nbytes = 0  # of keys and values, which the workspace holds


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuOptions:
    """The settings of a `CpuRunner`.

    Args:
        workspace: The buffers to use; None for buffers of its own. In a workspace logits stay valid until the next call,
            without one for good.
        store: The prompts whose keys and values are known; None to run every prompt from its first token.
        beams: The expected number of beams, for which the codes' slots are allocated once; 0 if unknown.
        products: float32, or bfloat16 to round rows, matrices and their products to it; the matrices are of bfloat16 then.
        other_tokens: Whether logits have one more column, of all tokens that are not codes of the level.
    """

    workspace: Workspace | None = None
    store: PromptStore | None = None
    beams: int = 0
    products: torch.dtype = torch.float32
    other_tokens: bool = False


class CpuRunner:
    """The `Runner` of float32 models on a CPU. head_weight: None returns hidden states (rows of D) in the place of logits.

    vectors_BTD: those of the prompts; None: their tokens' embeddings. The store then knows position t of a prompt by all of
    tokens_BT[b, t], which may be several.
    """

    def __init__(
        self,
        body: Decoder,
        head_weight: Tensor | None,
        vocabulary: AnyVocabulary,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        options: CpuOptions,
        vectors_BTD: Tensor | None = None,
    ) -> None:
        self._config: ModelConfig = body.config
        self._vectors_ND = None if vectors_BTD is None else vectors_BTD.flatten(0, 1).numpy()
        self._embedding = body.embed_tokens.weight.detach().numpy()
        norm, positions = body.norm, body.embed_positions
        self._norm = norm.weight.detach().numpy()
        self._norm_bias = norm.bias.detach().numpy() if isinstance(norm, LayerNorm) else self._norm[:0]
        self._positions = None if positions is None else positions.weight.detach()
        self._head_weight = None if head_weight is None else head_weight.detach()
        self._others = None
        if options.other_tokens and head_weight is not None:
            self._others = OtherTokens(head_weight, vocabulary, body.config.logit_cap)
        self._vocabulary = vocabulary
        self._space, self._shared = options.workspace or Workspace(), options.workspace is not None
        self._products = options.products
        self.prompt, self.beams = _CacheSize(), _CacheSize()
        self._lengths_B = lengths_B.numpy()
        self._begins_B1 = np.zeros(len(lengths_B) + 1, np.int64)
        np.cumsum(self._lengths_B, out=self._begins_B1[1:])
        self._expected_beams = options.beams * len(lengths_B)
        config, longest = self._config, int(self._lengths_B.max(initial=0))
        # Scores of at least one row against the longest prompt on each thread, and the rotations of every position.
        row_scores = config.num_attention_heads * (longest + kernels.TILE)
        scores = self._space.buffer("scores", max(self._space.scores, torch.get_num_threads() * row_scores))
        positions = min(longest + max(64, vocabulary.num_levels), config.max_position_embeddings)
        width = config.num_key_value_heads * config.head_dim
        self._slot_size = config.num_hidden_layers * width  # elements of the keys of a code in all layers, and of its values
        heads, local = (self._heads_of(body, positions, is_local=is_local) for is_local in (False, True))
        activation = _ACTIVATIONS[config.hidden_act]
        self._heads = HeadsOfLayers(heads, local, config.local_layers, activation)
        self._layers = self._make_layers([parameters_of(cast(Layer, layer)) for layer in body.layers], scores)
        array_BT = np.ascontiguousarray(tokens_BT.numpy(), np.int64)
        if options.store is None:
            self._run_prompts(array_BT, [None] * len(lengths_B))
        else:
            self._run_new_tokens(array_BT, options.store)
        self.restart()

    def _heads_of(self, body: Decoder, positions: int, *, is_local: bool) -> kernels.Heads:
        """Return the heads of the layers that are local, or of the others, with rotations of so many positions."""
        config, half = self._config, self._config.head_dim // 2

        def rotations(count: int) -> Tensor:
            """Cosine and sine of the first positions, side by side (count, E)."""
            if not config.is_rotary:
                return torch.cat((torch.ones(count, half), torch.zeros(count, half)), 1)
            rotary = body.rotary(torch.arange(count), torch.float32, is_local=is_local)
            return torch.cat((rotary.cos[:, 0, :half], rotary.sin[:, 0, half:]), 1)

        has_own = is_local and bool(config.local_frequencies)
        table = self._space.table("local rotary" if has_own else "rotary", positions, rotations)
        scale = max(1.0, config.local_scale if has_own else config.rope_scale)
        window = config.sliding_window if is_local else 0
        groups, ratio, eps = config.num_key_value_heads, config.group_size, config.rms_norm_eps
        places = config.head_dim, eps, table[:, :half], table[:, half:]
        return kernels.Heads(groups, ratio, *places, config.query_scale, scale, config.attention_cap, window)

    def _load(self, chunk: Chunk, rows: Rows, vectors_ND: Array | None = None) -> None:
        """Start a chunk with the embeddings of its tokens, and of their positions if those are learned.

        vectors_ND: those of the tokens, in the place of embeddings.
        """
        chunk.load(self._embedding if vectors_ND is None else vectors_ND, rows.tokens_N, rows.positions_N)
        if vectors_ND is None and self._config.embedding_scale != 1:
            chunk.hidden.mul_(self._config.embedding_scale)
        if self._positions is not None:
            chunk.hidden.add_(self._positions[torch.from_numpy(chunk.positions_X[: chunk.rows])])

    def _run_new_tokens(self, tokens_BT: Array, store: PromptStore) -> None:
        """Run what the store does not hold of the prompts, then store them."""
        rows = [tokens_T[:length] for tokens_T, length in zip(tokens_BT, self._lengths_B, strict=True)]
        cached = [store.find(tokens_T) for tokens_T in rows]
        self._run_prompts(tokens_BT, cached)
        for request, tokens_T in enumerate(rows):
            store.put(tokens_T, self.slots_of(request), cached[request])

    def _make_layers(self, layers: Sequence[LayerParameters], scores: tuple[Tensor, Array]) -> Layers:
        return choose_layers(layers, self._heads, scores, self._space, self._products)

    def slots_of(self, request: int) -> Tensor:
        """Return a view of one prompt's keys and values, (L, 2, G, T, E); the workspace's next search overwrites it."""
        return self._slots[:, :, :, self._begins_B1[request] : self._begins_B1[request + 1]]

    def restart(self) -> None:
        self._num_slots = 0  # of codes
        self._levels: list[tuple[Array, int]] = []  # of the codes run: the table of ancestors, and the beams of each request
        self.beams.nbytes = 0

    def root_logits(self) -> Tensor:
        (logits_BV,) = self._output_buffers(len(self._last_BD), 0, 1)
        self._multiply_head(self._last_BD, 0, logits_BV)
        return logits_BV

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        """See `Runner`. Beams of a request that equal its last one run once: dead beams, which are last and all alike."""
        requests, beams, num_codes = tokens_BKC.shape
        num_beams = requests * beams
        num_slots = self._num_slots + num_beams * num_codes
        # For all levels at this number of beams, or the expected one, so that the buffers grow once.
        num_steps = self._vocabulary.num_levels - 1
        planned = num_slots + (num_steps - level - num_codes) * num_beams, num_steps * self._expected_beams
        slots = self._code_slots(num_slots, max(planned))
        rows, first_B1 = self._rows(num_beams * num_codes)
        _, run_R = self._space.buffer("run beams", num_beams, dtype=torch.int64)
        name = f"ancestors {level}" if level == len(self._levels) else "more ancestors"
        _, after_RS = self._space.buffer(name, num_beams, self._vocabulary.num_levels, dtype=torch.int64)
        given = np.ascontiguousarray(tokens_BKC.numpy()), np.ascontiguousarray(parents_BK.numpy()), level, self._begins_B1
        before = self._levels[level - 1] if level else (after_RS, 1)
        free = self._num_slots * self._slot_size, self._slot_size
        num_run = lay_out_codes(*given, *before, *free, after_RS, run_R, first_B1, rows)
        self._num_slots = num_slots
        if level == len(self._levels):
            self._levels += [(after_RS, beams)] * num_codes
        else:
            self._levels[level] = _with_more(*self._levels[level], after_RS, beams)
        outputs = self._output_buffers(num_run, level + 1, num_codes)
        for first_row, last_row in even_parts(num_run, max(1, self._space.rows // num_codes)):
            normed_ND = self._run_codes(rows, first_row * num_codes, last_row * num_codes, first_B1, slots, after_RS)
            for code in range(num_codes):
                self._multiply_head(normed_ND[code::num_codes], level + 1 + code, outputs[code][first_row:last_row])
        if num_run < num_beams:
            outputs = [self._repeated(output, torch.from_numpy(run_R), code) for code, output in enumerate(outputs)]
        return [output.view(requests, beams, output.shape[1]) for output in outputs]

    def append(self, tokens: Sequence[Sequence[int]], levels: Sequence[int]) -> Tensor:
        """See `TextRunner`. Rows of all texts run together, as many as each has tokens."""
        count_R, requests = np.array([len(row) for row in tokens]), len(self._lengths_B)
        row_R, end_R = np.arange(len(tokens)), np.cumsum(count_R)
        level_N = np.arange(end_R[-1]) - np.repeat(end_R - count_R - np.asarray(levels), count_R)
        token_N = np.fromiter((token for row in tokens for token in row), np.int64, end_R[-1])
        needed = int(level_N.max(initial=-1)) + 1
        assert needed < self._vocabulary.num_levels  # the room there is
        num_levels = self._vocabulary.num_levels
        slots = self._code_slots(needed * len(tokens), (num_levels - 1) * len(tokens))
        own_RS = (np.arange(num_levels) * len(tokens) + row_R[:, None]) * self._slot_size
        text_N, length_R = np.repeat(row_R, count_R), np.repeat(self._lengths_B, len(tokens) // requests)
        rows = Rows(token_N, length_R[text_N] + level_N, own_RS[text_N, level_N], text_N, level_N + 1)
        first_B1 = np.concatenate([[0], end_R.reshape(requests, -1)[:, -1]])
        hidden_RD = torch.zeros(len(tokens), self._config.hidden_size)
        for begin, end in even_parts(len(token_N), self._space.rows):
            normed_ND = self._run_codes(rows, begin, end, first_B1, slots, own_RS)
            done_R = np.flatnonzero((count_R > 0) & (begin < end_R) & (end_R <= end))
            hidden_RD[done_R] = normed_ND[end_R[done_R] - 1 - begin]
        return hidden_RD

    def _rows(self, count: int) -> tuple[Rows, Array]:
        """Return the rows to write, in the workspace, and the first one of each request."""
        _, array_5N = self._space.buffer("rows", 5, count, dtype=torch.int64)
        return Rows(*array_5N), self._space.buffer("first rows", len(self._begins_B1), dtype=torch.int64)[1]

    def _segments(self, first_B1: Array, begin: int, end: int) -> Array:
        _, segments_B4 = self._space.buffer("segments", len(self._lengths_B), 4, dtype=torch.int64)
        return segments_B4[: segments_of(first_B1, begin, end, self._begins_B1, segments_B4)]

    def _run_codes(
        self, rows: Rows, begin: int, end: int, first_B1: Array, slots: tuple[Array, Array], ancestors_RS: Array
    ) -> Tensor:
        """Return the normed hidden states of rows begin to end, whose keys and values go to their slots.

        first_B1: each request's first row.
        """
        part = rows.part(begin, end)
        chunk = self._space.chunk(self._config, end - begin, self._products)
        self._load(chunk, part)
        codes = kernels.CodeRows(*slots, part.slots_N, ancestors_RS, part.beams_N, part.visible_N)
        self._layers.run_codes(chunk, self._prompts, self._segments(first_B1, begin, end), codes)
        return self._outputs(chunk)

    def _run_prompts(self, tokens_BT: Array, cached: Sequence[CachedPrompt | None]) -> None:
        """Run every token that is not cached, chunk by chunk; the last layer for each prompt's last token alone."""
        config, requests = self._config, len(self._lengths_B)
        num_tokens, groups, size = int(self._begins_B1[-1]), config.num_key_value_heads, config.head_dim
        self._slots, slots = self._space.buffer("prompts", config.num_hidden_layers, 2, groups, num_tokens, size)
        self._prompts = Prompts(self._slots, slots)
        self.prompt.nbytes = self._slots.nbytes
        self._last_BD, _ = self._space.buffer("last", requests, config.hidden_size)
        known_B = np.array([0 if prompt is None else prompt.num_tokens for prompt in cached], np.int64)
        for request, prompt in enumerate(cached):
            if prompt is not None:
                self.slots_of(request)[:, :, :, : prompt.num_tokens].copy_(prompt.slots[:, :, :, : prompt.num_tokens])
        rows, first_B1 = self._rows(num_tokens)
        if self._vectors_ND is not None:
            tokens_BT = np.arange(len(self._vectors_ND)).reshape(requests, -1)
        lay_out_prompts(tokens_BT, known_B, self._begins_B1, size, first_B1, rows)
        done = 0
        for begin, end in even_parts(int(first_B1[-1]), self._space.rows):
            part = rows.part(begin, end)
            chunk = self._space.chunk(config, end - begin, self._products)
            self._load(chunk, part, self._vectors_ND)
            before, done = done, int(np.searchsorted(first_B1[1:], end, side="right"))
            segments_Z4 = self._segments(first_B1, begin, end)
            chunk = self._layers.run_prompts(chunk, self._prompts, segments_Z4, part.slots_N, done - before)
            if done > before:
                self._last_BD[before:done].copy_(self._outputs(chunk))

    def _outputs(self, chunk: Chunk) -> Tensor:
        """Return the hidden states for the head."""
        norm = self._norm, self._norm_bias, self._config.rms_norm_eps
        pointwise.norm(chunk.hidden_XD, chunk.rows, *norm, chunk.output_XD, chunk.threads)
        return chunk.output

    def _code_slots(self, num_slots: int, planned: int = 0) -> tuple[Array, Array]:
        """Return flat keys and values with space for num_slots, or for those that are planned if these are more."""
        self.beams.nbytes = 2 * 4 * num_slots * self._slot_size
        capacity = max(num_slots, planned) * self._slot_size
        keys, values = (self._space.buffer(f"code {name}", capacity, keep=True)[1] for name in ("keys", "values"))
        return keys, values

    def _multiply_head(self, hidden_ND: Tensor, level: int, out: Tensor) -> None:
        """Write the logits of a level, or the hidden states."""
        if self._head_weight is None:
            out.copy_(hidden_ND)
            return
        logits_NV, other_N1 = out.tensor_split([self._vocabulary.codebook_sizes[level]], 1)
        torch.mm(hidden_ND, self._space.level_head(self._head_weight, self._vocabulary, level), out=logits_NV)
        if self._config.logit_cap:
            logits_NV.div_(self._config.logit_cap).tanh_().mul_(self._config.logit_cap)
        if self._others is not None:
            other_N1.copy_(self._others.logit(hidden_ND, level))

    def _repeated(self, output_UV: Tensor, row_N: Tensor, code: int) -> Tensor:
        """Row row_N[n] for each beam n, in the workspace if the caller passed one in."""
        if not self._shared:
            return output_UV[row_N]
        output_NV, _ = self._space.buffer(f"logits {code} of all beams", len(row_N), output_UV.shape[1])
        return torch.index_select(output_UV, 0, row_N, out=output_NV)

    def _output_buffers(self, rows: int, first: int, count: int) -> list[Tensor]:
        """Return buffers for the logits (or hidden states) of `count` levels, in the workspace if the caller passed one in."""
        sizes = [size + (self._others is not None) for size in self._vocabulary.codebook_sizes[first : first + count]]
        if self._head_weight is None:
            sizes = [self._config.hidden_size] * count
        if not self._shared:
            return [torch.empty(rows, size) for size in sizes]
        return [self._space.buffer(f"logits {code}", rows, size)[0] for code, size in enumerate(sizes)]


def _with_more(table_RS: Array, beams: int, more_RS: Array, more: int) -> tuple[Array, int]:
    """Return a table of ancestors with more beams behind those of each request, and how many these are together."""
    requests = len(more_RS) // more
    both_BKS = [rows_RS.reshape(requests, -1, rows_RS.shape[1]) for rows_RS in (table_RS, more_RS)]
    return np.concatenate(both_BKS, 1).reshape(-1, more_RS.shape[1]), beams + more
