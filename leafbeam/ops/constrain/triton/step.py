"""The constrained step on a GPU: two launches a round, no `[rows, V]` mask, nothing that waits for the host.

    bind          the trie's own arrays, copied to the device as they are (about 15 bytes an item)
    bind_filters  the filters and boosts of a batch, as addresses of what stays on the device; once for all rounds of a search
    launch        the two kernels of `triton.kernels`; can be captured in a graph
    step          launch, and look whether a row held NaN or +inf

Without a GPU it runs under Triton's interpreter (TRITON_INTERPRET=1 before the first import), which is how it is tested.

Shapes: S segments, B requests, R rows of a request (its beams), V codes, L levels, K beams kept, D denied leaves, C children,
P the power of two that holds K.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.index import Filter, ItemColumn, Trie, Version
from leafbeam.index.level import Level
from leafbeam.ops.constrain.filter_cache import MAX_FILTER_BYTES, FilterCache
from leafbeam.ops.constrain.levels import LEAVES, LevelView
from leafbeam.ops.constrain.triton.filters import BitmapMemory, Copy, MaximaMemory, to_device
from leafbeam.ops.constrain.triton.kernels import NO_KEY, ChildLists, children_kernel, request_kernel, row_kernel
from leafbeam.ops.constrain.triton.ranges import Segment, SegmentBoosts, form_of
from leafbeam.ops.constrain.triton.round import new_round
from leafbeam.ops.constrain.types import Beams, Boosts, Scoring, num_columns, waiting
from leafbeam.ops.packed_inputs import PackedInputs

_TILE = 512  # children looked at together
_NARROW = 64  # the same where all of them may stay: deep ranges have few


class LevelTensors(NamedTuple):
    """The arrays of a `LevelView` on the device."""

    codes: Tensor
    firsts: Tensor
    words: Tensor
    before: Tensor


class SegmentFilters(NamedTuple):
    """The filters of a batch in one segment, int64 tensors.

    Args:
        words_B, before_B: The address of each request's bitmap, 0 if it has none.
        denied_indptr: Where the denied leaves of each request begin.
        denied: These leaves, ascending.
    """

    words_B: Tensor
    before_B: Tensor
    denied_indptr: Tensor
    denied: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelArrays:
    """A level of one segment on the device, with its layout and the width of its codes as in `LevelView`."""

    tensors: LevelTensors
    layout: int
    width: int

    @classmethod
    def of(cls, level: Level, device: torch.device, copy: Copy) -> LevelArrays:
        view = LevelView.of(level, 0)
        tensors = LevelTensors._make(copy(array, device) for array in (view.codes, view.firsts, view.words, view.before))
        return cls(tensors=tensors, layout=view.layout, width=view.width)


class SegmentBitmaps(NamedTuple):
    """The bitmaps of filters of one segment that are on the device, and the maxima of boosts."""

    memory: BitmapMemory
    cache: FilterCache
    maxima: MaximaMemory
    boosts: FilterCache


class BatchBoosts(NamedTuple):
    """The boosts of a batch, on the device or on the host.

    Args:
        weight_B: float32, what the numbers of each request are multiplied with, 0 for one without a boost.
        tables_LSB: int64, for the root and then each level the addresses of each request's numbers in each segment.
    """

    weight_B: Any
    tables_LSB: Any

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> BatchBoosts | None:
        """Return the boosts in the memory of inputs; None if there are no such inputs."""
        return cls(PackedInputs.as_float32(inputs[0]), inputs[1]) if inputs else None


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionArrays:
    """The levels of a version, each a LevelArrays for every segment, on one device, and the filters that are there.

    Args:
        copy: Copies arrays to the device.
    """

    levels: tuple[tuple[LevelArrays, ...], ...]
    tries: tuple[Trie, ...]
    bitmaps: tuple[SegmentBitmaps, ...]
    device: torch.device
    copy: Copy

    @property
    def num_segments(self) -> int:
        return len(self.tries)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.tries[0].codebook_sizes


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """The filters of a batch on the device, and what the rounds of one search share; only one search at a time may use it.

    Args:
        segments: The addresses of bitmaps and the denied leaves.
        host: The same for each segment on the host, to be written before they are sent.
        filtered: Whether any of it is looked at.
        min_key_B: int64, reset by every round.
        held: Keeps the bitmaps and maxima to which the addresses point.
        boosts, host_boosts: The boosts of the batch, on the device and on the host, if there is space for them.
    """

    segments: tuple[SegmentFilters, ...]
    host: tuple[tuple[NDArray[np.int64], ...], ...]
    filtered: bool
    min_key_B: Tensor
    held: list[Sequence[Tensor] | None]
    boosts: BatchBoosts | None = None
    host_boosts: BatchBoosts | None = None

    @classmethod
    def shapes(cls, num_segments: int, batch_size: int, max_denied: int, num_levels: int = 0) -> list[tuple[int, ...]]:
        """Return the shapes of the inputs, for so many denied leaves of a batch and segment.

        num_levels: of the index, if there is to be space for boosts.
        """
        boosts = [(batch_size,), (1 + num_levels, num_segments, batch_size)] if num_levels else []
        return [*[(batch_size,), (batch_size,), (batch_size + 1,), (max(1, max_denied),)] * num_segments, *boosts]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], host: Sequence[NDArray[np.int64]], *, filtered: bool) -> FilterArrays:
        """Return filters in the memory of inputs of these shapes."""
        num_segments = len(tensors) // 4
        parts = [slice(4 * s, 4 * s + 4) for s in range(num_segments)]
        return cls(
            boosts=BatchBoosts.of(tensors[4 * num_segments :]),
            host_boosts=BatchBoosts.of(host[4 * num_segments :]),
            segments=tuple(SegmentFilters._make(tensors[part]) for part in parts),
            host=tuple(tuple(host[part]) for part in parts),
            filtered=filtered,
            min_key_B=torch.full(tensors[0].shape, NO_KEY, dtype=torch.int64, device=tensors[0].device),
            held=[],
        )


def bind(
    index: Trie | Version,
    device: torch.device | str | None = None,
    *,
    like: VersionArrays | None = None,
    max_filter_bytes: int = MAX_FILTER_BYTES,
    copy: Copy = to_device,
) -> VersionArrays:
    """Copy a version to a device: the first GPU, or this machine's memory under the interpreter (else ArgumentError).

    Args:
        like: Another version, whose device and settings are used. The segments of both stay where they are, with the filters
            that are on the device.
        max_filter_bytes: The bytes of a segment's bitmaps, and of its boosts, beyond which those used longest ago are dropped.
        copy: Copies an array to the device.
    """
    if like is None and device is None and not torch.cuda.is_available() and not triton.knobs.runtime.interpret:  # pyright: ignore[reportAttributeAccessIssue]
        raise ArgumentError(
            "backend 'triton' found no GPU: use backend='cpu', or set TRITON_INTERPRET=1 before Python starts to try it slowly"
        )
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")) if like is None else like.device
    copy = copy if like is None else like.copy
    known: dict[int, tuple[tuple[LevelArrays, ...], SegmentBitmaps]] = {}
    if like is not None:
        columns = zip(*like.levels, strict=True)
        known = {id(trie): kept for trie, *kept in zip(like.tries, columns, like.bitmaps, strict=True)}  # pyright: ignore[reportAssignmentType]
        max_filter_bytes = like.bitmaps[0].cache.max_bytes
    tries = tuple(segment.trie for segment in Version.of(index).segments)
    segments = [known.get(id(trie)) or _on_device(trie, target, max_filter_bytes, copy) for trie in tries]
    levels, bitmaps = zip(*segments, strict=True)
    return VersionArrays(levels=tuple(zip(*levels, strict=True)), tries=tries, bitmaps=bitmaps, device=target, copy=copy)


def _on_device(
    trie: Trie, device: torch.device, max_filter_bytes: int, copy: Copy
) -> tuple[tuple[LevelArrays, ...], SegmentBitmaps]:
    """Copy a segment, whose filters will follow."""
    memory = BitmapMemory(trie.num_leaves, device, copy)
    maxima = MaximaMemory(4 * (1 + sum(level.num_codes for level in trie.levels)), device, copy)
    caches = [FilterCache(rows, max_bytes=max_filter_bytes) for rows in (memory, maxima)]
    bitmaps = SegmentBitmaps(memory, caches[0], maxima, caches[1])
    return tuple(LevelArrays.of(level, device, copy) for level in trie.levels), bitmaps


def bind_filters(arrays: VersionArrays, filters: Sequence[Filter], boosts: Boosts = None) -> FilterArrays:
    """Bring a batch's filters and boosts to the device: new ones once, and the addresses and denied leaves."""
    parts = [part for request in filters for part in request.parts]
    capacity = len(filters) * max((len(part.denied_D) for part in parts), default=0)
    filtered = any(part.leaves is not None or len(part.denied_D) for part in parts)
    num_levels = 0 if boosts is None else len(arrays.levels)
    inputs = PackedInputs(FilterArrays.shapes(arrays.num_segments, len(filters), capacity, num_levels), arrays.device)
    bound = FilterArrays.of(inputs.tensors, inputs.host, filtered=filtered)
    stage_filters(arrays, bound, filters, boosts)
    inputs.send()
    return bound


def stage_filters(arrays: VersionArrays, bound: FilterArrays, filters: Sequence[Filter], boosts: Boosts = None) -> bool:
    """Write a batch's filters and boosts where they can be sent to a captured graph; further requests of the graph get none.

    False if the batch denies more leaves than there is space for. What the device does not have is copied there.
    """
    size = len(bound.min_key_B)
    denied_S = [[part.denied_D for part in parts] for parts in zip(*(request.parts for request in filters), strict=True)]
    if len(filters) > size or any(
        sum(map(len, denied_B)) > len(staged[3]) for denied_B, staged in zip(denied_S, bound.host, strict=False)
    ):
        return False
    held: list[Sequence[Tensor] | None] = []
    for number, (words_B, before_B, denied_indptr, denied) in enumerate(bound.host):
        parts, (memory, cache, *_) = [request.parts[number] for request in filters], arrays.bitmaps[number]
        words_B[:], before_B[:], denied_indptr[:] = 0, 0, 0
        with cache.rows_of([part.leaves for part in parts]) as rows:
            bitmaps = [memory[row] for row in rows.tolist()]
        for row, (part, bitmap) in enumerate(zip(parts, bitmaps, strict=True)):
            if bitmap is not None:
                words_B[row], before_B[row] = bitmap.words.data_ptr(), bitmap.before.data_ptr()
            denied_indptr[row + 1] = len(part.denied_D)
        np.cumsum(denied_indptr, out=denied_indptr)
        leaves = np.concatenate([part.denied_D for part in parts]) if parts else denied[:0]
        denied[: len(leaves)] = leaves
        held += bitmaps
    if bound.host_boosts is not None:
        held += _stage_boosts(arrays, bound.host_boosts, boosts or ())
    bound.held[:] = held
    return True


def _stage_boosts(arrays: VersionArrays, host: BatchBoosts, boosts: Sequence[ItemColumn | None]) -> list[tuple[Tensor, ...]]:
    """Write the weights of a batch and the addresses of its maxima; return the maxima."""
    host.weight_B[:], host.tables_LSB[:] = 0, 0
    host.weight_B[: len(boosts)] = [0 if column is None else column.weight for column in boosts]
    maxima = [None if column is None else column.bounds(arrays.tries) for column in boosts]
    held: list[tuple[Tensor, ...]] = []
    for s, segment in enumerate(arrays.bitmaps):
        with segment.boosts.rows_of([None if parts is None else parts[s] for parts in maxima]) as rows:
            tables = [segment.maxima[row] for row in rows.tolist()]
        for request, tensors in enumerate(tables):
            if tensors:
                host.tables_LSB[:, s, request] = [tensor.data_ptr() for tensor in tensors]
        held += tables
    return held


def launch(
    arrays: VersionArrays,
    level: int,
    beams: Beams[Tensor],
    logits_BKV: Tensor,
    filters: FilterArrays,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Tensor], Tensor]:
    """Return (beams, bad): a round that does not wait for the device; can be captured. See
    `leafbeam.ops.constrain.reference.step`.

    Takes tensors on the device (numpy arrays are copied there): int64, float32; logits may be half precision. A row of NaN or
    +inf is left out of the search; one whose beam score is too low is not read. bad: int64, 0, or the number + 1 of such a row
    (of several, any). Cost: one read of the logits unless the scoring is "allowed", a few reads for each child.
    Raises ArgumentError and LogitsError, before any launch.
    """
    size, num_segments = num_columns(arrays.sizes[level], scoring), len(beams.lo)
    r = new_round(beams, logits_BKV, filters.min_key_B, size=size, num_beams=num_beams)
    segments, forms = _segments(arrays, level, filters)
    boosts, before = _segment_boosts(arrays, level, filters)
    row_kernel[(r.batch_size * r.num_rows,)](
        segments,
        r,
        boosts,
        None if filters.boosts is None else filters.boosts.weight_B,
        *forms,
        SEGMENTS=num_segments,
        FULL=scoring != "allowed",
        P=r.power,
        TILE=min(_TILE, max(_NARROW, triton.next_power_of_2(size))),
        NARROW=_NARROW,
        BLOCK=min(4096, max(128, triton.next_power_of_2(size))),
        BOOSTED=boosts is not None,
        BEFORE_0=before[0],
        BEFORE_1=before[1],
        num_warps=4,
    )
    request_kernel[(r.batch_size,)](
        segments,
        r,
        *forms,
        SEGMENTS=num_segments,
        P=r.power,
        ROWS=r.rows,
        ENTRIES=min(r.power, 2 * _TILE // r.rows),
        CHUNK=16,
        num_warps=8,
    )
    return r.beams, r.bad


step = waiting(launch)


def children(
    arrays: VersionArrays,
    level: int,
    lo_SBK: Tensor | NDArray[np.int64],
    hi_SBK: Tensor | NDArray[np.int64],
    filters: FilterArrays,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """List the legal children of every beam. The result equals that of `leafbeam.ops.constrain.reference.children`.

    Cost: each child is read twice (to count and to write), and the host waits once for the number of children.
    """
    lo_SBK, hi_SBK = (torch.as_tensor(array, device=arrays.device).contiguous() for array in (lo_SBK, hi_SBK))
    num_segments, batch_size, num_rows = lo_SBK.shape
    segments, forms = _segments(arrays, level, filters)
    row_indptr = torch.zeros(batch_size * num_rows + 1, dtype=torch.int64, device=arrays.device)
    code_C = row_indptr.new_empty(0)
    ranges = row_indptr.new_empty(2, num_segments, 0)
    for write in (False, True):
        lists = ChildLists(
            lo_SR=lo_SBK,
            hi_SR=hi_SBK,
            row_indptr=row_indptr,
            code_C=code_C,
            lo_SC=ranges[0],
            hi_SC=ranges[1],
            rows=batch_size * num_rows,
            num_rows=num_rows,
            total=len(code_C),
        )
        children_kernel[(batch_size * num_rows,)](
            segments,
            lists,
            FORM_0=forms[0],
            FORM_1=forms[1],
            SEGMENTS=num_segments,
            WRITE=write,
            TILE=min(_TILE, max(_NARROW, triton.next_power_of_2(arrays.sizes[level]))),
        )
        if not write:
            row_indptr = row_indptr.cumsum(0)
            code_C = row_indptr.new_empty(int(row_indptr[-1]))
            ranges = row_indptr.new_empty(2, num_segments, len(code_C))
    row_C = torch.repeat_interleave(row_indptr.diff())
    order = (row_C * arrays.sizes[level] + code_C).argsort()  # the delta's own children stand behind the base's
    return row_indptr, code_C[order], ranges[0][:, order], ranges[1][:, order]


def _segments(arrays: VersionArrays, level: int, filters: FilterArrays) -> tuple[tuple[Segment, ...], tuple[int, int]]:
    """Return what the kernels read of each segment, and the forms for which they are compiled; one segment stands for both."""
    levels = arrays.levels[level]
    segments = tuple(
        Segment(
            **part.tensors._asdict(),
            filter_words_B=bound.words_B,
            filter_before_B=bound.before_B,
            denied_indptr=bound.denied_indptr,
            denied=bound.denied,
        )
        for part, bound in zip(levels, filters.segments, strict=True)
    )
    forms = [form_of(part.layout, part.width, filters.filtered) for part in levels]
    return segments, (forms[0], forms[-1])


def _segment_boosts(
    arrays: VersionArrays, level: int, filters: FilterArrays
) -> tuple[tuple[SegmentBoosts, ...] | None, tuple[int, int]]:
    """Return what `row_kernel` reads of the boosts in each segment, and the forms of the level before."""
    if filters.boosts is None:
        return None, (LEAVES, LEAVES)
    parts = arrays.levels[max(0, level - 1)]
    forms = [part.layout if level else LEAVES for part in parts]
    segments = tuple(
        SegmentBoosts(
            values_B=filters.boosts.tables_LSB[level + 1, s],
            bounds_B=filters.boosts.tables_LSB[level, s],
            words=part.tensors.words,
            before=part.tensors.before,
        )
        for s, part in enumerate(parts)
    )
    return segments, (forms[0], forms[-1])
