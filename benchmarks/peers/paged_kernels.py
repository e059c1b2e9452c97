"""PagedAttention on a CPU in numba, compiled for one shape of heads: pages of P tokens, keys transposed within a page.

A page holds keys (G, E, P) and values (G, P, E) of P consecutive tokens, in a flat array of pages for each layer. So scores of
a page are loops over its tokens and weighted values loops over E, both of constant length and vectorised.

Shapes: N rows, T tokens of a table, G key heads, R query heads of each, E values of a head, P tokens of a page, X pages.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from leafbeam.jit import njit
from leafbeam.model.cpu import fused_kernels as fused
from leafbeam.model.cpu.pointwise import exp
from leafbeam.ops.openmp import fork

__all__ = ["PagedKernels", "copy_pages", "paged_kernels"]

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
_UNROLL = 8  # values of a head that one pass over a page's tokens adds


class PagedKernels(NamedTuple):
    """write: tokens into pages. attend: rows to the pages of their tables. run: all layers of a chunk in one call."""

    write: Callable[..., None]
    attend: Callable[..., None]
    run: Callable[..., None]


@njit(cache=True, **_OPTIONS)
def copy_pages(pages_XY, copies_C2):
    """pages[to] = pages[from] for each copy, in order"""
    for c in range(len(copies_C2)):
        for y in range(pages_XY.shape[1]):
            pages_XY[copies_C2[c, 1], y] = pages_XY[copies_C2[c, 0], y]


@cache
def paged_kernels(groups: int, ratio: int, size: int, page: int) -> PagedKernels:
    """The kernels for these heads; compiled once a process (seconds). size has to be a multiple of 8."""
    G, R, E, P, U = groups, ratio, size, page, _UNROLL

    @njit(no_cpython_wrapper=False, **_OPTIONS)
    def write(source_keys, source_values, slots_N, group_stride, tables_NT, positions_N, keys, values):
        """token n of `source`, key head g at slot[n] + g * group_stride -> its page and place there"""
        write_of(0, len(slots_N), source_keys, source_values, slots_N, group_stride, tables_NT, positions_N, keys, values)

    @njit(no_cpython_wrapper=False, **_OPTIONS)
    def write_of(begin, end, source_keys, source_values, slots_N, group_stride, tables_NT, positions_N, keys, values):
        for n in range(begin, end):
            x, p = tables_NT[n, positions_N[n] // P], positions_N[n] % P
            for g in range(G):
                at, to = slots_N[n] + g * group_stride, (x * G + g) * E * P
                for e in range(E):
                    keys[to + e * P + p] = source_keys[at + e]
                    values[to + p * E + e] = source_values[at + e]

    @njit(no_cpython_wrapper=False, **_OPTIONS)
    def page_scores(query, keys, scores, first, stride):
        """scores[r, first + p] = query[r] . keys[:, p]"""
        for r in range(R):
            row = scores[r * stride + first : r * stride + first + P]
            for p in range(P):
                row[p] = np.float32(0.0)
            for block in range(E // U):
                for p in range(P):
                    total = row[p]
                    for u in range(U):
                        e = block * U + u
                        total += query[r * E + e] * keys[e * P + p]
                    row[p] = total

    @njit(no_cpython_wrapper=False, **_OPTIONS)
    def page_values(weights, first, stride, values, out):
        """out[r] += weights[r, first : first + P] @ values"""
        for r in range(R):
            row = weights[r * stride + first : r * stride + first + P]
            for e in range(E):
                total = out[r * E + e]
                for p in range(P):
                    total += row[p] * values[p * E + e]
                out[r * E + e] = total

    @njit(no_cpython_wrapper=False, **_OPTIONS)
    def attend(query, rows, tables_NT, visible_N, keys, values, bound, scores_GY, out_NQ):
        """for each row, key head and page of the row's table: scores; softmax over the visible tokens; weighted values

        query: (G, rows x R, E), flat. bound: as `softmax_weights`. scores_GY: room for R rows of whole pages, a key head each.
        """
        attend_of(0, rows, query, rows, tables_NT, visible_N, keys, values, bound, scores_GY, out_NQ)

    @njit(no_cpython_wrapper=False, **_OPTIONS)
    def attend_of(begin, end, query, rows, tables_NT, visible_N, keys, values, bound, scores_GY, out_NQ):
        lowest = np.float32(-87.0)
        bounded = bound < np.float32(np.inf)
        for n in range(begin, end):
            count = visible_N[n]
            pages, full = (count + P - 1) // P, count // P
            stride = pages * P
            for j in range(pages):
                for g in range(G):
                    at, to = (g * rows + n) * R * E, (tables_NT[n, j] * G + g) * E * P
                    page_scores(query[at : at + R * E], keys[to : to + E * P], scores_GY[g], j * P, stride)
            for g in range(G):
                for r in range(R):
                    row = scores_GY[g, r * stride : r * stride + count]
                    top = bound
                    if not bounded:
                        top = row[0]
                        for t in range(count):
                            top = row[t] if row[t] > top else top
                    total = np.float32(0.0)
                    for t in range(count):
                        x = row[t] - top
                        x = lowest if x < lowest else x
                        x = exp(x)
                        row[t] = x
                        total += x
                    share = np.float32(1.0) / total
                    for t in range(count):
                        row[t] *= share
            for i in range(G * R * E):
                out_NQ[n, i] = np.float32(0.0)
            for j in range(full):
                for g in range(G):
                    to = (tables_NT[n, j] * G + g) * E * P
                    out = out_NQ[n, g * R * E : (g + 1) * R * E]
                    page_values(scores_GY[g], j * P, stride, values[to : to + E * P], out)
            for g in range(G):  # the tokens of the last page; what lies behind them is not cleared
                for r in range(R):
                    for p in range(count - full * P):
                        weight = scores_GY[g, r * stride + full * P + p]
                        at = ((tables_NT[n, full] * G + g) * P + p) * E
                        for e in range(E):
                            out_NQ[n, (g * R + r) * E + e] += weight * values[at + e]

    @njit(no_cpython_wrapper=False, **_OPTIONS)
    def run(weights, a, rows, heads, pages, new, slots_N, tables_NT, visible_N, beams_N, scores_HGY, threads):
        """All layers of a chunk's codes, as `fused_kernels.run_codes`, with pages in place of prompts and slots

        pages: for each layer, keys and values, flat. new: KVSlots of the codes before they are written. scores_HGY: for each
        thread, as `attend` needs them.
        """
        arguments = weights, a, rows, heads, pages, new, slots_N, tables_NT, visible_N, beams_N, scores_HGY, threads
        fork(run_of, threads, rows, arguments)

    @njit(no_cpython_wrapper=False, **_OPTIONS)
    def run_of(begin, end, weights, a, rows, heads, pages, new, slots_N, tables_NT, visible_N, beams_N, scores_HGY, threads):
        part, _ = fused.part_of(begin, rows, threads, threads)
        begin, end = fused.beam_boundary(begin, beams_N), fused.beam_boundary(end, beams_N)
        for layer in range(len(pages)):
            keys, values = pages[layer]
            fused.store_keys_values(begin, end, weights, layer, a, slots_N, new, heads)
            write_of(begin, end, new.keys, new.values, slots_N, E, tables_NT, a.positions_X, keys, values)
            fused.rotate_queries(begin, end, rows, weights, layer, a, heads)
            bound = fused.bound_of(weights, layer, heads)
            places = tables_NT, visible_N, keys, values, bound, scores_HGY[part], a.attended_XQ
            attend_of(begin, end, a.rotated, rows, *places)
            fused.finish(begin, end, weights, layer, a, heads)

    return PagedKernels(write, attend, run)
