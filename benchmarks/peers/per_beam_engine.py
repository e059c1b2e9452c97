"""This engine with a copy of the prompt's keys and values for every beam, as engines without shared prompts keep them.

Everything else is leafbeam's: packed rows, workspace, constraint, head. The difference is the shared prompt alone. The copies
are a best case: each is one contiguous array (no page tables, no last blocks to fork), and a beam that changes its parent moves
nothing, because all copies of a request are equal (in xGR, section 5.1, PagedAttention loads all of them and copies the last
block of each).

Shapes: B requests, K beams, T tokens of a prompt, G key heads, R query heads of each, E values of a head.
"""

# pyright: basic, reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.cpu_session import start_with
from leafbeam.model.cpu import kernels
from leafbeam.model.cpu.layers import LayerParameters, Layers, Prompts, TorchLayers, even_parts
from leafbeam.model.cpu.products import Products
from leafbeam.model.cpu.runner import CpuRunner
from leafbeam.model.cpu.workspace import Chunk

__all__ = ["PerBeamRunner", "start"]


class PerBeamRunner(CpuRunner):
    """Prompts are run once for each request, then copied for each beam."""

    _copies: list[tuple[Tensor, Tensor]] | None = None

    def _make_layers(self, layers: Sequence[LayerParameters], scores: tuple[Tensor, NDArray[Any]]) -> Layers:
        return _PerBeamLayers(self, layers, self._heads, scores, Products(self._products, self._space))

    def restart(self) -> None:
        super().restart()
        self._copies = None

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        beams = tokens_BKC.shape[1]
        if self._copies is None or len(self._copies) != len(tokens_BKC) or self._copies[0][0].shape[1] != beams:
            self._copies = None
            self._copies = self._fork(len(tokens_BKC), beams)
            self.prompt.nbytes = sum(side.nbytes for copies in self._copies for side in copies)
        return super().extend(tokens_BKC, parents_BK, level)

    def _fork(self, requests: int, beams: int) -> list[tuple[Tensor, Tensor]]:
        """For each request keys and values (layers, K, G, T, E)."""
        copies: list[tuple[Tensor, Tensor]] = []
        for request in range(requests):
            slots = self.slots_of(request)
            layers, _, groups, tokens, size = slots.shape
            sides: list[Tensor] = []
            for side, name in enumerate(("keys", "values")):
                copy, _ = self._space.buffer(f"copied {name} of {request}", layers, beams, groups, tokens, size)
                sides.append(copy.copy_(slots[:, side, None].expand_as(copy)))
            copies.append((sides[0], sides[1]))
        return copies


class _PerBeamLayers(TorchLayers):
    """Each beam's attention reads the copies of its runner. Layers are never fused."""

    def __init__(self, runner: PerBeamRunner, *parts: Any) -> None:
        super().__init__(*parts)
        self._runner = runner

    def codes_attention(
        self, chunk: Chunk, prompts: Prompts, segments_Z4: NDArray[Any], codes: kernels.CodeRows
    ) -> Callable[[int], None]:
        """Rows of one request whose scores fit the buffer attend together, as leafbeam's own do."""
        copies, space, (flat, flat_array) = self._runner._copies, self._runner._space, self._scores
        assert copies is not None
        begins = self._runner._begins_B1.tolist()
        groups, ratio, size = self._heads.groups, self._heads.ratio, self._heads.size
        shape = groups, chunk.rows, ratio, size
        query_GNRE, weighted_GNRE = chunk.rotated_query.view(shape), chunk.weighted_values.view(shape)
        beams = copies[0][0].shape[1]

        def attend(layer: int, request: int, rows: slice) -> None:
            beam_N = torch.from_numpy(codes.beams_N[rows]) - request * beams
            low, high = int(beam_N[0]), int(beam_N[-1]) + 1
            key_NGTE, value_NGTE = (side[layer, low:high] for side in copies[request])
            num_rows, tokens = len(beam_N), key_NGTE.shape[2]
            if num_rows != high - low:  # codes of one beam read one copy
                key_NGTE, value_NGTE = key_NGTE[beam_N - low], value_NGTE[beam_N - low]
            # (G, rows, R, E) -> (rows x G, R, E): a product of its own for each beam and key head.
            query = query_GNRE[:, rows].transpose(0, 1).flatten(0, 1)
            scores = flat[: num_rows * groups * ratio * tokens].view(num_rows * groups, ratio, tokens)
            torch.bmm(query, key_NGTE.flatten(0, 1).transpose(1, 2), out=scores)
            top, top_array = space.buffer("copied top", num_rows * groups, ratio)
            total, total_array = space.buffer("copied total", num_rows * groups, ratio)
            tile = kernels.ScoreTile(num_rows * groups, ratio, tokens, tokens, 0, 1, 0.0, 0)
            totals = top_array, total_array, 0, chunk.threads
            kernels.softmax_weights(flat_array, tile, chunk.positions_X, self.weights[layer].bound, *totals)
            weighted = torch.bmm(scores, value_NGTE.flatten(0, 1)).view(num_rows, groups, ratio, size)
            weighted_GNRE[:, rows] = weighted.transpose(0, 1)
            columns = slice(rows.start * ratio, rows.stop * ratio)
            chunk.top_GX[:, columns] = top.view(num_rows, groups, ratio).transpose(0, 1).flatten(1).numpy()
            chunk.total_GX[:, columns] = total.view(num_rows, groups, ratio).transpose(0, 1).flatten(1).numpy()

        def attend_all(layer: int) -> None:
            for first, last, token, _ in segments_Z4.tolist():
                request = begins.index(token)
                most = max(1, len(flat) // (groups * ratio * copies[request][0].shape[3]))
                for low, high in even_parts(last - first, most):
                    attend(layer, request, slice(first + low, first + high))

        return attend_all


start = partial(start_with, PerBeamRunner)
