"""A whole decode in fixed shapes: input buffers, one `run`, output buffers; the host reads no value in between.

A version, and the filters and boosts of a batch, are in memory that captured graphs go on reading when the contents change.

Shapes: S segments, B requests, T tokens of a prompt, K beams, V codes of a level, L levels, n requests of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.decode.boosts import root_boosts
from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import BatchBoosts, Trace, TrieConstraint, decode, raise_first_bad
from leafbeam.decode.model_calls import ModelCalls
from leafbeam.decode.results import root_ranges
from leafbeam.engine.batcher import BatchSize
from leafbeam.index import Filter, Version
from leafbeam.model.static_model import StaticModel
from leafbeam.ops.constrain import Beams, Boosts, Scoring
from leafbeam.ops.constrain.fixed_shape.capacity import bucket
from leafbeam.ops.packed_inputs import PackedInputs

if TYPE_CHECKING:  # needs Triton
    from leafbeam.ops.constrain.triton.step import FilterArrays, LevelArrays, VersionArrays

_MIN_DELTA = 1 << 13  # elements of each of a delta's arrays at least, so that it may grow from nothing
MAX_DENIED = 256  # of a request: space in every graph; a batch with more runs eagerly
Requests = Sequence[Filter]


class DeviceIndex:
    """The Triton backend's arrays of a version, with space up to the next power of two, for a delta of some thousand leaves.

    A delta does not fit where there was none, nor does a level whose layout has changed. options: of `triton.step.bind`.
    """

    def __init__(self, version: Version, device: torch.device | str, **options: int) -> None:
        self._ops = import_module("leafbeam.ops.constrain.triton.step")
        arrays: VersionArrays = self._ops.bind(version, device, **options)
        levels = (tuple(_with_space(level, s) for s, level in enumerate(pair)) for pair in arrays.levels)
        self._arrays = replace(arrays, levels=tuple(levels))

    @property
    def num_segments(self) -> int:
        return self._arrays.num_segments

    def prepare(self, version: Version) -> VersionArrays:
        """Return another version's arrays on the device, beside this one's. This takes as much space as the segments that
        are new; any thread may call it.
        """
        return self._ops.bind(version, like=self._arrays)

    def fits(self, prepared: VersionArrays) -> bool:
        """Return whether prepared arrays fit into the memory of the present ones."""
        present, other = _levels(self._arrays), _levels(prepared)
        return len(present) == len(other) and all(
            (old.layout, old.width) == (new.layout, new.width)
            and all(len(after) <= len(before) for before, after in zip(old.tensors, new.tensors, strict=True))
            for old, new in zip(present, other, strict=True)
        )

    def replace(self, prepared: VersionArrays) -> None:
        """Copy what changed over the present arrays: no search may be running."""
        for old, new in zip(_levels(self._arrays), _levels(prepared), strict=True):
            for before, after in zip(old.tensors, new.tensors, strict=True):
                if before is not after:
                    before[: len(after)].copy_(after)
        self._arrays = replace(prepared, levels=self._arrays.levels)

    def filter_shapes(self, batch: int) -> list[tuple[int, ...]]:
        """Return the shapes of the inputs that filters and boosts of this many requests need."""
        num_levels = len(self._arrays.levels)
        return self._ops.FilterArrays.shapes(self.num_segments, batch, batch * MAX_DENIED, num_levels)

    def filters(self, tensors: Sequence[Tensor], host: Sequence[NDArray[np.int64]]) -> DeviceFilters:
        """Return filters and boosts in the memory of inputs of these shapes."""
        return DeviceFilters(self._ops.FilterArrays.of(tensors, host, filtered=True))

    def stage(self, filters: DeviceFilters, requests: Requests, boosts: Boosts) -> bool:
        """Write a batch's filters and boosts to the inputs; False where these need more space than there is."""
        return self._ops.stage_filters(self._arrays, filters.arrays, requests, boosts)

    def launch(
        self, level: int, beams: Beams[Tensor], logits_BKV: Tensor, filters: DeviceFilters, *, num_beams: int, scoring: Scoring
    ) -> tuple[Beams[Tensor], Tensor]:
        """Call the backend's `launch`, and return (beams, bad)."""
        return self._ops.launch(self._arrays, level, beams, logits_BKV, filters.arrays, num_beams=num_beams, scoring=scoring)


@dataclass(frozen=True, eq=False)
class DeviceFilters:
    """The filters and boosts of a batch where a graph reads them. arrays: as the backend's `bind_filters` makes them."""

    arrays: FilterArrays


def _levels(arrays: VersionArrays) -> list[LevelArrays]:
    return [level for pair in arrays.levels for level in pair]


def _with_space(level: LevelArrays, segment: int) -> LevelArrays:
    """Return the level's arrays, in larger ones."""
    larger = level.tensors._make(
        tensor.new_zeros(bucket(len(tensor), _MIN_DELTA if segment else 1)) for tensor in level.tensors
    )
    for space, tensor in zip(larger, level.tensors, strict=True):
        space[: len(tensor)].copy_(tensor)
    return replace(level, tensors=larger)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """The sizes of a decode: at most `batch` requests, with prompts of at most `length` tokens, and the search."""

    batch: int
    length: int
    num_beams: int
    scoring: Scoring

    @property
    def padded_tokens(self) -> int:
        """Return the tokens of a prefill, which are the same for every batch."""
        return self.batch * self.length

    def holds(self, size: BatchSize, num_beams: int, scoring: Scoring, *, is_proof: bool) -> bool:
        """Return whether it can run a batch: with exactly these beams, or as the first pass of a proof with more."""
        enough = num_beams == self.num_beams or (is_proof and num_beams < self.num_beams)
        return size.requests <= self.batch and size.longest <= self.length and enough and scoring == self.scoring


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchInputs:
    """The inputs of a batch for a captured search.

    Args:
        version: The version of the index.
        tokens_BT: The prompts, padded on the right to lengths_B.
        requests: The filter of each request, less its denied items.
        boosts: The boost of each request; None if no request has one.
    """

    version: Version
    tokens_BT: NDArray[np.int64]
    lengths_B: NDArray[np.int64]
    requests: Requests
    boosts: Boosts = None

    def of_rows(self, rows_n: NDArray[np.int64]) -> BatchInputs:
        """Return the inputs of some requests."""
        lengths_n, rows = self.lengths_B[rows_n], rows_n.tolist()
        return BatchInputs(
            version=self.version,
            tokens_BT=self.tokens_BT[rows_n, : lengths_n.max()],
            lengths_B=lengths_n,
            requests=[self.requests[row] for row in rows],
            boosts=None if self.boosts is None else [self.boosts[row] for row in rows],
        )

    def roots(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return how many leaves of each segment a request starts from (S, B), and the largest boost of those (B,)."""
        hi_SB = root_ranges(self.version, self.requests)[1][:, :, 0]
        if self.boosts is None:
            return hi_SB, np.zeros(len(self.requests), np.float32)
        return hi_SB, root_boosts(self.version, self.boosts, hi_SB)[:, 0]


class StaticDecode:
    """A search from prompts to last beams, for one bucket, in buffers that never move, so that a CUDA graph can capture it.

        load(batch)   copies tokens, lengths, root ranges, filters and boosts into the input buffers, all at once
        run()         reads these and writes ranges, scores, counts and bad rows to the output buffers
        trace(n)      copies the output buffers to the host

    `run` synchronises with nothing and overwrites all that an earlier run left. A batch smaller than the bucket is filled up
    with requests that may reach nothing. Results are those of BeamSearch over a DecodeSession. end_code: of an index of
    sequences.

    Cost: all levels of all beams of the whole bucket, whatever the batch: nothing ends early.
    """

    def __init__(self, model: StaticModel, index: DeviceIndex, bucket: Bucket, *, end_code: int | None = None) -> None:
        self.bucket, self._model, self._index = bucket, model, index
        self.config = SearchConfig.fixed(model.codebook_sizes, end_code, bucket.num_beams, bucket.scoring)
        shape, device, whole = (bucket.batch, bucket.num_beams), model.device, torch.int64
        shapes = [(bucket.batch, bucket.length), (bucket.batch,), (bucket.batch,), (index.num_segments, bucket.batch)]
        self._packed = PackedInputs([*shapes, *index.filter_shapes(bucket.batch)], device)
        self.tokens_BT, self.lengths_B, self._roots_B, self.hi_SB, *filters = self._packed.tensors
        self._filters = index.filters(filters, self._packed.host[4:])
        self.lengths_B.fill_(1)
        self.scores_BK = torch.zeros(shape, device=device)
        self.ranges_2SBK = torch.zeros(2, index.num_segments, *shape, dtype=whole, device=device)
        self.num_valid_B = torch.zeros(bucket.batch, dtype=whole, device=device)
        self.bad_L = torch.zeros(self.config.num_rounds, dtype=whole, device=device)
        self.kept_LBK = torch.zeros(self.config.num_rounds - 1, *shape, device=device)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.tokens_BT, self.lengths_B, self._roots_B, self.hi_SB

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.scores_BK, self.ranges_2SBK, self.num_valid_B, self.bad_L, self.kept_LBK

    @property
    def nbytes(self) -> int:
        """Return the bytes of the buffers."""
        return self._packed.nbytes + sum(tensor.nbytes for tensor in self.outputs)

    @property
    def work_bytes(self) -> int:
        """Return about how many bytes `run` needs: keys and values, activations of the prefill, scores and logits of a
        round."""
        bucket = self.bucket
        logits = 2 * 4 * bucket.batch * bucket.num_beams * max(self.config.code_sizes)
        return self._model.work_bytes(bucket.batch, bucket.length, bucket.num_beams) + logits

    def load(self, inputs: BatchInputs) -> bool:
        """Copy a batch that the bucket holds to the input buffers; False where its filters need more space than there is."""
        if not self._index.stage(self._filters, inputs.requests, inputs.boosts):
            return False
        batch, longest = inputs.tokens_BT.shape
        hi_SB, roots_B = inputs.roots()
        tokens, lengths, roots, hi = self._packed.host[:4]
        tokens[:], lengths[:], roots[:], hi[:] = 0, 1, 0, 0  # a padding request has one token and may reach nothing
        tokens[:batch, :longest] = inputs.tokens_BT
        lengths[:batch] = inputs.lengths_B
        PackedInputs.as_float32(roots)[:batch] = roots_B
        hi[: len(hi_SB), :batch] = hi_SB
        self._packed.send()
        return True

    @torch.inference_mode()
    def run(self) -> None:
        """Compute the output buffers from the input buffers. This can be captured."""
        session = self._model.start(self.tokens_BT, self.lengths_B, self.bucket.num_beams)
        boosts = BatchBoosts(columns=(), root_B1=PackedInputs.as_float32(self._roots_B)[:, None])
        constraint = TrieConstraint(self.config, self.hi_SB, self._launch, boosts=boosts)
        trace = decode(constraint, ModelCalls(session.step_fn), watch=False)
        beams = trace.beams
        self.scores_BK.copy_(beams.scores)
        self.ranges_2SBK[0].copy_(beams.lo)
        self.ranges_2SBK[1].copy_(beams.hi)
        self.num_valid_B.copy_(beams.num_valid)
        self.bad_L.copy_(torch.stack(constraint.bad_T))
        for number, num_beams in enumerate(self.config.num_beams[:-1]):
            self.kept_LBK[number, :, :num_beams].copy_(trace.kept[number])

    def _launch(self, level: int, beams: Beams[Tensor], logits_BKV: Tensor, num_beams: int) -> tuple[Beams[Tensor], Tensor]:
        return self._index.launch(level, beams, logits_BKV, self._filters, num_beams=num_beams, scoring=self.config.scoring)

    def trace(self, batch: int, num_segments: int) -> Trace:
        """Return the search of the first `batch` requests; waits for the device. Raises LogitsError for NaN and +inf."""
        config = self.config
        raise_first_bad(_on_host(self.bad_L)[None], config.rows_of_rounds)
        lo_SBK, hi_SBK = _on_host(self.ranges_2SBK)[:, :num_segments, :batch]
        scores_BK, num_valid_B = _on_host(self.scores_BK)[:batch], _on_host(self.num_valid_B)[:batch]
        nothing_BK = np.zeros(scores_BK.shape, np.int64)
        kept_LBK = _on_host(self.kept_LBK)[:, :batch]
        kept = {number: kept_LBK[number, :, :num_beams] for number, num_beams in enumerate(config.num_beams[:-1])}
        of_rounds = {**kept, config.num_rounds - 1: scores_BK}
        return Trace(
            beams=Beams(scores=scores_BK, parent=nothing_BK, code=nothing_BK, lo=lo_SBK, hi=hi_SBK, num_valid=num_valid_B),
            rounds=[],
            calls=0,
            max_beams=None,
            kept=kept,
            bounds={number: scores[:, -1] for number, scores in of_rounds.items() if not config.keeps_all(number)},
        )


def _on_host(tensor: Tensor) -> NDArray[Any]:
    return tensor.to("cpu", copy=True).numpy()
