"""STATIC's decoding step (Algorithms 1 and 2, Appendix E) in torch, on any device: `BeamSearch(index, backend="static")`.

    while depth < d: a mask over the codes is read by prefix              (`dense_lookup`)
    then:            a slice of the level's largest branch factor is read from each node's first edge, whatever its number of
                     children (`transition`, Algorithm 2), and projected onto the codes of the level (`project`)
    both:            log-softmax, mask, top-k over all codes of all beams, the next node of each selected beam

A beam is a node inside the step; `launch` and `step` take and return leaf ranges, as every backend does.

Shapes: B requests, K beams (P before the step), R = B x P rows, V codes, F the largest branch factor of the level.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from leafbeam.errors import ArgumentError, counted
from leafbeam.index import Filter, Trie, Version
from leafbeam.index.level import code_dtype
from leafbeam.ops.constrain.fixed_shape.step import add_log_probs, first_bad_row, is_bad, launcher, padded_beams
from leafbeam.ops.constrain.namespaces import NEG_INF, Array, ArrayNamespace
from leafbeam.ops.constrain.namespaces.torch import TorchNamespace
from leafbeam.ops.constrain.static.matrix import TransitionMatrix, prefix_numbers
from leafbeam.ops.constrain.types import Beams, Boosts, Scoring, num_columns, waiting


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelTables:
    """The arrays that the step reads at one level; None for parts that the level does not have.

    All levels share edges_E2 and indptr_S1.

    Args:
        mask_PH: The mask of a dense level.
        node_of_P: The nodes after the last dense level.
        edges_E2: The edges, at a sparse level.
        indptr_S1: Where the edges of each node begin, at a sparse level.
        leaves_in, leaves_out: The first leaf of each node before and after the level.
        prefixes_in, prefixes_out: The prefixes of these nodes, if nodes are prefixes.
        first_in, first_out: The first node, if they are not.
    """

    mask_PH: Any
    node_of_P: Array | None
    edges_E2: Any
    indptr_S1: Any
    leaves_in: Array | None
    prefixes_in: Array | None
    leaves_out: Array | None
    prefixes_out: Array | None
    size: int
    max_branch: int
    first_in: int
    first_out: int


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticArrays:
    """A transition matrix on a device: `levels[t]` for level t.

    Args:
        nbytes: The bytes of STATIC's own arrays.
        mapping_nbytes: The bytes of the arrays that turn nodes into leaf ranges and back.
    """

    levels: tuple[LevelTables, ...]
    nbytes: int
    mapping_nbytes: int
    device: object
    xp: ArrayNamespace

    def __repr__(self) -> str:
        return f"StaticArrays({counted(len(self.levels), 'level')}, {self.nbytes:,} + {counted(self.mapping_nbytes, 'byte')})"


class Transitions(NamedTuple):
    """The slice of each row: codes, next nodes (int32 as stored), and which slots belong to the node."""

    code_RF: Array
    next_RF: Array
    legal_RF: Array


def bind(index: Trie | Version, device: object = None, *, dense_levels: int = 2) -> StaticArrays:
    """Build STATIC's matrix of an index and copy it to a device (None: the CPU).

    dense_levels: d, the levels with a mask over all prefixes; V^d bits and 4 V^d bytes. Cost: a few passes over the codes.
    Raises ArgumentError for a version with a delta segment or deleted items, and where the dense levels need 2^31 entries.
    """
    version = Version.of(index)
    segment, *deltas = version.segments
    if deltas or segment.live is not None:
        raise ArgumentError(
            "the index has a delta segment or deleted items: backend 'static' takes one trie without them; compact the index, "
            "or use another backend"
        )
    xp = TorchNamespace()
    trie, device = segment.trie, xp.device(device)
    codes_LM = np.stack([level.codes_at(np.arange(trie.num_leaves)).astype(code_dtype(level.size)) for level in trie.levels])
    matrix = TransitionMatrix.of_sorted(codes_LM, version.codebook_sizes, dense_levels)
    leaves: list[Array | None] = [None] * (trie.num_levels + 1)  # by depth
    prefixes: list[Array | None] = [None] * (trie.num_levels + 1)
    for depth, level in enumerate(trie.levels[:-1], 1):
        firsts_n = np.arange(trie.num_leaves) if level.boundary is None else level.boundary.positions()
        firsts_n = firsts_n if trie.num_leaves else np.zeros(1, np.int64)
        leaves[depth] = xp.asarray(np.append(firsts_n, trie.num_leaves).astype(np.int32), device)
        if depth < matrix.dense_levels:
            is_empty = trie.num_leaves == 0
            numbers_n = np.zeros(1, np.int32) if is_empty else prefix_numbers(codes_LM, firsts_n, matrix.codebook_sizes[:depth])
            prefixes[depth] = xp.asarray(numbers_n, device)
    return StaticArrays(
        levels=level_tables(xp, matrix, device, leaves, prefixes),
        nbytes=matrix.nbytes,
        mapping_nbytes=sum(array.nbytes for array in [*leaves, *prefixes] if array is not None),
        device=device,
        xp=xp,
    )


def level_tables(
    xp: ArrayNamespace,
    matrix: TransitionMatrix,
    device: object,
    leaves: Sequence[Array | None] = (),
    prefixes: Sequence[Array | None] = (),
) -> tuple[LevelTables, ...]:
    """Copy a matrix to a device. leaves, prefixes: of each depth, for `run`; the other functions do without them."""
    d, none = matrix.dense_levels, [None] * len(matrix.first_node)
    leaves, prefixes = leaves or none, prefixes or none
    edges, indptr, node_of_P = (
        None if array is None else xp.asarray(array, device) for array in (matrix.edges_E2, matrix.indptr_S1, matrix.node_of_P)
    )
    return tuple(
        LevelTables(
            mask_PH=xp.asarray(matrix.masks[level], device) if level < d else None,
            node_of_P=node_of_P if level == d - 1 else None,
            edges_E2=None if level < d else edges,
            indptr_S1=None if level < d else indptr,
            leaves_in=leaves[level],
            prefixes_in=prefixes[level],
            leaves_out=leaves[level + 1],
            prefixes_out=prefixes[level + 1],
            size=size,
            max_branch=matrix.max_branches[level],
            first_in=matrix.first_node[level],
            first_out=matrix.first_node[level + 1],
        )
        for level, size in enumerate(matrix.codebook_sizes)
    )


def bind_filters(arrays: StaticArrays, filters: Sequence[Filter], boosts: Boosts = None) -> None:
    """Check that no request is filtered or boosted, because STATIC has neither. Raises ArgumentError for one that is."""
    if boosts is not None:
        raise ArgumentError("backend 'static' cannot add boosts: use another backend")
    for number, item_filter in enumerate(filters):
        (part,) = item_filter.parts
        if part.leaves is not None or len(part.denied_D):
            raise ArgumentError(
                f"request {number} has a filter or denied items: backend 'static' cannot filter per request; build an index of "
                f"the allowed items, or use another backend"
            )


def dense_lookup(xp: ArrayNamespace, tables: LevelTables, node_R: Array) -> Array:
    """Return the legal codes of each row at a dense level, bool (R, V)."""
    return xp.unpack_bits(xp.at(tables.mask_PH, node_R))[:, : tables.size]


def transition(xp: ArrayNamespace, tables: LevelTables, node_R: Array, width: int | None = None) -> Transitions:
    """Run phases 1 to 3 of Algorithm 2: read a slice of F edges (or `width`) from the first edge of each node."""
    lane_F = xp.arange(width or tables.max_branch, node_R)
    begin_R = xp.take(tables.indptr_S1, node_R)
    count_R = xp.take(tables.indptr_S1, node_R + 1) - begin_R
    edges_RF2 = xp.at(tables.edges_E2, begin_R[:, None] + lane_F)
    return Transitions(xp.number(edges_RF2[:, :, 0]), edges_RF2[:, :, 1], lane_F < count_R[:, None])


def project(xp: ArrayNamespace, moves: Transitions, values_RF: Array, size: int) -> Array:
    """Run phase 4 of Algorithm 2, as in Appendix E: return (R, V) with the values of the legal slots at their codes, -inf
    elsewhere.
    """
    width = moves.code_RF.shape[1]
    column_RF = xp.where(moves.legal_RF, moves.code_RF, size + xp.arange(width, moves.code_RF))  # others: dropped columns
    return xp.scatter(column_RF, values_RF, size + width, NEG_INF)[:, :size]


def next_nodes(
    xp: ArrayNamespace, tables: LevelTables, node_R: Array, moves: Transitions | None, row_BK: Array, code_BK: Array
) -> Array:
    """Return the node that each selected (row, code) leads to. moves: the result of `transition` at a sparse level."""
    if moves is None:
        prefix_BK = xp.take(node_R, row_BK) * tables.size + code_BK
        return prefix_BK if tables.node_of_P is None else xp.take(tables.node_of_P, prefix_BK)
    match_BKF = xp.at(moves.legal_RF, row_BK) & (xp.at(moves.code_RF, row_BK) == code_BK[:, :, None])
    lane_BK = xp.max(xp.where(match_BKF, xp.arange(match_BKF.shape[2], row_BK), 0), 2)
    return xp.take(moves.next_RF, row_BK, lane_BK)


def run(
    xp: ArrayNamespace,
    tables: LevelTables,
    filters: None,
    beams: Beams[Array],
    logits_BPV: Array,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Array], Array]:
    """Run Algorithm 1 between leaf ranges; returns the beams and the result of `first_bad_row`.

    A row of NaN or +inf is treated as dead. "allowed" normalises over the legal codes, which the paper does not.
    """
    batch_size, num_parents = beams.scores.shape
    is_live_R = (beams.hi > beams.lo).reshape(-1)
    base_R1 = xp.where(is_live_R, beams.scores.reshape(-1), NEG_INF)[:, None]
    node_R = tables.first_in  # of the root: the first node, or prefix 0
    if tables.leaves_in is not None:
        number_R = xp.where(is_live_R, xp.search_sorted(tables.leaves_in, beams.lo.reshape(-1)), 0)
        node_R = tables.first_in + number_R if tables.prefixes_in is None else xp.take(tables.prefixes_in, number_R)
    node_R = xp.where(is_live_R, node_R, 0)

    row_RV = xp.float32(logits_BPV.reshape(-1, num_columns(tables.size, scoring)))
    logits_RV, is_live_R1, moves = row_RV[:, : tables.size], base_R1 > NEG_INF, None
    if tables.mask_PH is not None:
        legal = dense_lookup(xp, tables, node_R) & is_live_R1
        legal_values = masked_RV = xp.where(legal, logits_RV, NEG_INF)
    else:
        moves = transition(xp, tables, node_R)
        legal = moves.legal_RF & is_live_R1
        legal_values = xp.where(legal, xp.take_along(logits_RV, xp.where(legal, moves.code_RF, 0)), NEG_INF)
        masked_RV = project(xp, moves, legal_values, tables.size)
    lse_R = xp.log_sum_exp(legal_values if scoring == "allowed" else row_RV)
    scores_BN = add_log_probs(xp, base_R1, masked_RV, lse_R[:, None], is_live_R1).reshape(batch_size, -1)

    best_BK, position_BK = xp.top_k(scores_BN, min(num_beams, scores_BN.shape[1]))
    live_BK = best_BK > NEG_INF
    parent_BK, code_BK = position_BK // tables.size, position_BK % tables.size
    row_BK = parent_BK + (xp.arange(batch_size, node_R) * num_parents)[:, None]
    node_BK = xp.where(live_BK, next_nodes(xp, tables, node_R, moves, row_BK, code_BK), 0)
    prefixes = tables.prefixes_out
    number_BK = node_BK - tables.first_out if prefixes is None else xp.search_sorted(prefixes, node_BK)
    lo_BK, hi_BK = number_BK, number_BK + 1  # at the last level a node is a leaf
    if tables.leaves_out is not None:
        number_BK = xp.where(live_BK, number_BK, 0)
        lo_BK, hi_BK = xp.take(tables.leaves_out, number_BK), xp.take(tables.leaves_out, number_BK + 1)
    best = padded_beams(xp, num_beams, best_BK, parent_BK, code_BK, lo_BK[None], hi_BK[None])
    return best, first_bad_row(xp, is_bad(lse_R) & legal.any(1))


launch = launcher(run)
step = waiting(launch)
