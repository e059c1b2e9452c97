"""The constrained step on a GPU: two launches a round, no `[rows, V]` mask, nothing that waits for the host.

    bind          the trie's own arrays, copied to the device as they are (about 15 bytes an item)
    bind_filters  the bitmaps of a batch, as addresses; once for all rounds of a search
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

from leafbeam.errors import ArgumentError, counted
from leafbeam.index import Filter, Trie, Version
from leafbeam.index.level import Level
from leafbeam.ops.constrain.levels import LevelView
from leafbeam.ops.constrain.triton.kernels import NO_KEY, ChildLists, children_kernel, request_kernel, row_kernel
from leafbeam.ops.constrain.triton.ranges import Segment, form_of
from leafbeam.ops.constrain.triton.round import new_round
from leafbeam.ops.constrain.types import Beams, Scoring, waiting

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
    def of(cls, level: Level, device: torch.device) -> LevelArrays:
        view = LevelView.of(level, 0)
        tensors = LevelTensors._make(_on(array, device) for array in (view.codes, view.firsts, view.words, view.before))
        return cls(tensors=tensors, layout=view.layout, width=view.width)


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionArrays:
    """The levels of a version, each a LevelArrays for every segment, on one device."""

    levels: tuple[tuple[LevelArrays, ...], ...]
    sizes: tuple[int, ...]
    device: torch.device

    @property
    def num_segments(self) -> int:
        return len(self.levels[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """The filters of a batch on the device, and what the rounds of one search share; only one search at a time may use it.

    filtered: whether a request has a filter or denied items.
        min_key_B: int64, reset by every round. held: keeps the addressed memory.
    """

    segments: tuple[SegmentFilters, ...]
    filtered: bool
    min_key_B: Tensor
    held: list[Any]


def bind(index: Trie | Version, device: torch.device | str | None = None) -> VersionArrays:
    """Copy a version to a device: the first GPU, or this machine's memory under the interpreter (else ArgumentError)."""
    if device is None and not torch.cuda.is_available() and not triton.knobs.runtime.interpret:  # pyright: ignore[reportAttributeAccessIssue]
        raise ArgumentError(
            "backend 'triton' found no GPU: use backend='cpu', or set TRITON_INTERPRET=1 before Python starts to try it slowly"
        )
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    tries = [segment.trie for segment in Version.of(index).segments]
    levels = zip(*([LevelArrays.of(level, target) for level in trie.levels] for trie in tries), strict=True)
    return VersionArrays(levels=tuple(levels), sizes=tries[0].codebook_sizes, device=target)


def bind_filters(
    arrays: VersionArrays, filters: Sequence[Filter], *, batch_size: int | None = None, max_denied: int | None = None
) -> FilterArrays:
    """Copy a batch's bitmaps (each different one once) and denied leaves to the device. Cost: 1.5 bits a leaf and filter.

    batch_size: the number of requests, if there are more than filters. max_denied: the number of denied leaves of a batch and
    segment to leave space for, and for filters if this batch has none, so that `refill` can copy those of another batch to a
    captured graph; None leaves space for this batch only.
    """
    size, capacity, filtered = batch_size or len(filters), max_denied, True
    if capacity is None:
        parts = [part for request in filters for part in request.parts]
        capacity = size * max((len(part.denied_D) for part in parts), default=0)
        filtered = any(part.leaves is not None or len(part.denied_D) for part in parts)
    shapes = (size, size, size + 1, max(1, capacity))
    bound = FilterArrays(
        segments=tuple(
            SegmentFilters._make(torch.zeros(shape, dtype=torch.int64, device=arrays.device) for shape in shapes)
            for _ in range(arrays.num_segments)
        ),
        filtered=filtered,
        min_key_B=torch.full((size,), NO_KEY, dtype=torch.int64, device=arrays.device),
        held=[],
    )
    refill(bound, filters)
    return bound


def refill(bound: FilterArrays, filters: Sequence[Filter]) -> None:
    """Copy the filters of another batch to where a captured graph reads them; further requests of the graph get none.

    Raises ArgumentError if the space that `bind_filters` left is too small.
    """
    size, held = len(bound.min_key_B), []
    if len(filters) > size:
        raise ArgumentError(
            f"{counted(len(filters), 'request')} where the filters were bound for {size}: bind them for the larger batch"
        )
    for number, (words_B, before_B, denied_indptr, denied) in enumerate(bound.segments):
        parts = [request.parts[number] for request in filters]
        bitmaps = {id(part.leaves): part.leaves for part in parts if part.leaves is not None}
        copies = {
            key: (_on(bitmap.words_W, denied.device), _on(bitmap.before_W, denied.device)) for key, bitmap in bitmaps.items()
        }
        leaves = np.concatenate([np.empty(0, np.int64), *[part.denied_D for part in parts]])
        if len(leaves) > len(denied) or (not bound.filtered and (copies or len(leaves))):
            raise ArgumentError(
                f"{counted(len(leaves), 'denied leaf', 'denied leaves')} and {counted(len(copies), 'filter')} where "
                f"there is room for {len(denied)} and "
                f"{'any number' if bound.filtered else 'none'}: give bind_filters a larger max_denied"
            )
        nothing = [(None, None)] * (size - len(parts))
        addresses = [copies.get(id(part.leaves), (None, None)) for part in parts] + nothing
        words_B.copy_(torch.tensor([0 if words is None else words.data_ptr() for words, _ in addresses]))
        before_B.copy_(torch.tensor([0 if before is None else before.data_ptr() for _, before in addresses]))
        counts_B = [len(part.denied_D) for part in parts] + [0] * len(nothing)
        denied_indptr.copy_(torch.tensor([0, *np.cumsum(counts_B).tolist()]))
        denied[: len(leaves)].copy_(torch.from_numpy(leaves))
        held.append(copies)
    bound.held[:] = held


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
    (of several, any). Cost: one read of the logits for "full", a few reads for each child.
    Raises ArgumentError and LogitsError, before any launch.
    """
    size, num_segments = arrays.sizes[level], len(beams.lo)
    r = new_round(beams, logits_BKV, filters.min_key_B, size=size, num_beams=num_beams)
    segments, forms = _segments(arrays, level, filters)
    row_kernel[(r.batch_size * r.num_rows,)](
        segments,
        r,
        *forms,
        SEGMENTS=num_segments,
        FULL=scoring == "full",
        P=r.power,
        TILE=min(_TILE, max(_NARROW, triton.next_power_of_2(size))),
        NARROW=_NARROW,
        BLOCK=min(4096, max(128, triton.next_power_of_2(size))),
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


def _on(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return a copy on the device, or the array itself where that is this machine's memory and it may be shared."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
