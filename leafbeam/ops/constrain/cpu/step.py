"""The constrained step on a CPU: numba, one thread, no `[rows, V]` mask.

Shapes: S segments, B requests, K beams, V codes, L levels, W words, D denied leaves, C children of a row.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import LogitsError
from leafbeam.index import Filter, Trie, Version
from leafbeam.index.filters import ItemSet
from leafbeam.ops.constrain.cpu.boosts import BatchBoosts
from leafbeam.ops.constrain.cpu.children import FilterAddresses
from leafbeam.ops.constrain.cpu.kernels import children_of_rows, step_of_rows
from leafbeam.ops.constrain.cpu.logsumexp import CHUNK
from leafbeam.ops.constrain.cpu.topk import Scratch, candidate_buffers
from leafbeam.ops.constrain.levels import LevelView
from leafbeam.ops.constrain.types import Beams, Boosts, HostBeams, Scoring


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionArrays:
    """The levels of a version: for each level the fields of a `LevelView` of base and delta.

    If a version has only one segment, that segment stands for both.
    """

    levels: tuple[tuple[tuple[object, ...], tuple[object, ...]], ...]
    sizes: tuple[int, ...]
    num_leaves_S: tuple[int, ...]
    tries: tuple[Trie, ...]
    scratch: Scratch = field(default_factory=Scratch, repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """The filters of a batch as addresses, so that one compiled loop serves any number of different filters.

    Args:
        pair: The fields of `FilterAddresses` for base and delta.
        held: The filters, which keep the addressed memory alive.
        boosts: The boosts of the batch, if there are any.
    """

    pair: tuple[tuple[NDArray[np.int64], ...], tuple[NDArray[np.int64], ...]]
    held: tuple[Filter, ...]
    boosts: BatchBoosts | None = None


def bind(index: Trie | Version) -> VersionArrays:
    """View a version's arrays; nothing is copied."""
    tries = tuple(segment.trie for segment in Version.of(index).segments)
    views = [[tuple(LevelView.of(level, trie.num_leaves)) for level in trie.levels] for trie in tries]
    return VersionArrays(
        levels=tuple(zip(views[0], views[-1], strict=True)),
        sizes=tries[0].codebook_sizes,
        num_leaves_S=tuple(trie.num_leaves for trie in tries),
        tries=tries,
    )


def bind_filters(arrays: VersionArrays, filters: Sequence[Filter], boosts: Boosts = None) -> FilterArrays:
    """Collect the addresses of a batch's filters and boosts, once for all rounds of a search."""
    bound = [_addresses([request.parts[s] for request in filters], size) for s, size in enumerate(arrays.num_leaves_S)]
    found = None if boosts is None else BatchBoosts.of(boosts, arrays.tries)
    return FilterArrays(pair=(bound[0], bound[-1]), held=tuple(filters), boosts=found)


def _addresses(parts: Sequence[ItemSet], num_leaves: int) -> tuple[NDArray[np.int64], ...]:
    words_B, before_B = np.zeros(len(parts), np.int64), np.zeros(len(parts), np.int64)
    for request, part in enumerate(parts):
        if part.leaves is not None:
            assert part.leaves.size == num_leaves
            words_B[request] = part.leaves.words_W.ctypes.data
            before_B[request] = part.leaves.before_W.ctypes.data
    denied_indptr = np.array([*accumulate((len(part.denied_D) for part in parts), initial=0)], np.int64)
    denied = np.concatenate([part.denied_D for part in parts], dtype=np.int64)
    return tuple(FilterAddresses(words_B=words_B, before_B=before_B, denied_indptr=denied_indptr, denied=denied))


def children(
    arrays: VersionArrays, level: int, lo_SBK: NDArray[np.int64], hi_SBK: NDArray[np.int64], filters: FilterArrays
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """List the legal children of every beam. The result equals that of `leafbeam.ops.constrain.reference.children`.

    Cost: a few reads a child; memory for min(range, codebook) children a row and segment at most.
    """
    num_segments, batch_size, num_rows = lo_SBK.shape
    max_children = int(np.minimum(hi_SBK - lo_SBK, arrays.sizes[level]).sum())
    row_indptr = np.zeros(batch_size * num_rows + 1, np.int64)
    code_C, lo_SC, hi_SC = (
        np.empty(max_children, np.int64),
        np.zeros((num_segments, max_children), np.int64),
        np.zeros((num_segments, max_children), np.int64),
    )
    space = _children_space(arrays, level)
    lo_SBK, hi_SBK = np.ascontiguousarray(lo_SBK), np.ascontiguousarray(hi_SBK)
    count = children_of_rows(arrays.levels[level], lo_SBK, hi_SBK, filters.pair, space, row_indptr, code_C, lo_SC, hi_SC)
    return row_indptr, code_C[:count], lo_SC[:, :count], hi_SC[:, :count]


def step(
    arrays: VersionArrays,
    level: int,
    beams: Beams[NDArray[np.generic]],
    logits_BKV: NDArray[np.float32],
    filters: FilterArrays,
    *,
    num_beams: int,
    scoring: Scoring,
) -> HostBeams:
    """Run one round of constrained beam search. The result equals that of `leafbeam.ops.constrain.reference.step`.

    Cost: one read of the logits unless the scoring is "allowed", plus a few reads for each child that beats the worst beam kept
    so far. A row whose beam score is already below that threshold is not read at all.
    Raises LogitsError where a row that was read holds NaN or +inf.
    """
    num_segments, batch_size, num_rows = beams.lo.shape
    shape = (batch_size, num_beams)
    scores = np.empty(shape, np.float32)
    parent_code = np.zeros((2, *shape), np.int64)
    ranges = np.zeros((2, num_segments, *shape), np.int64)
    num_valid_B = np.zeros(batch_size, np.int64)
    space = _children_space(arrays, level)
    floats = arrays.scratch.array("floats", (2, max(space.shape[2], logits_BKV.shape[2] // CHUNK + 1)), np.float32)
    boosts = filters.boosts
    if boosts is not None:
        boosts = boosts.at(level, boosts.bounds(arrays.levels, level - 1, beams.lo, beams.hi))
    bad = step_of_rows(
        arrays.levels[level],
        beams.lo,
        beams.hi,
        beams.scores,
        logits_BKV,
        filters.pair,
        boosts,
        scoring != "allowed",
        candidate_buffers(num_beams),
        space,
        floats,
        (parent_code, ranges, scores, num_valid_B),
    )
    if bad >= 0:
        request, beam = divmod(bad, num_rows)
        raise LogitsError.not_finite(request, beam, f"at level {level}")
    (parent, code), (lo, hi) = parent_code, ranges
    return Beams(scores=scores, parent=parent, code=code, lo=lo, hi=hi, num_valid=num_valid_B)


def _children_space(arrays: VersionArrays, level: int) -> NDArray[np.int64]:
    """Return memory for codes and indices: of a row's children, of the base's children or of places, and of the delta's.

    A scan writes each code whose logit is large enough, also illegal ones and the column of other tokens.
    """
    num_lists = 2 if len(arrays.num_leaves_S) == 1 else 3
    shape = num_lists, 2, arrays.sizes[level] + 1
    return arrays.scratch.array("children", shape, np.int64)
