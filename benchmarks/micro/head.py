"""Logits of legal codes alone against all, on a head of 131,072 codes x 3,072 (float32, 1.6 GB), one thread.

rows   1, 16 and 140 rows, 0.1 % to 10 % legal: each way of `ops.head`, dense and sliced peers beside it
curve  one row, 0.01 % to 100 % legal: Figures 6 and 7 of the CUDA study log. Block-level filter: blocks of 32 codes that hold
       a legal one; thread-level filter: single codes, which on a CPU is the gather
choice the dispatcher with this machine's calibrated costs against always-dense
trie   whole searches over tries (`trie_head`)

csr_logits is the kernel of "gather" alone. Legal sets are drawn anew for each call (together larger than the caches) unless it
says `again`. Parity comes before speed.
Shapes: R rows, V codes, D hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.head_costs import measure_cpu
from benchmarks.micro import trie_head
from benchmarks.peers import dense_head
from benchmarks.rows import spread
from leafbeam.ops.head import HeadCosts, HeadPath, LegalCodes, cpu
from leafbeam.ops.head.kernels import csr_logits

__all__ = ["draw_legal_codes", "runs"]

V, D = 131_072, 3072
WAYS: tuple[HeadPath, ...] = ("gather", "tokens")
_SECONDS = 1.0
_MOST_SLICED = 200_000  # legal codes: more take minutes to copy
_FRESH_BYTES = 1 << 27  # of the weights that fresh sets read together: four times a large cache

Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]
HostLegalCodes = LegalCodes[NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bench:
    """A head's weight, hidden states and legal sets to try it with."""

    weight_VD: NDArray[np.float32]
    rng: np.random.Generator
    most_sets: int
    _dense: dict[int, tuple[NDArray[np.float32], NDArray[np.float32], float]] = field(default_factory=dict)

    def hidden(self, rows: int) -> NDArray[np.float32]:
        return self.rng.standard_normal((rows, self.weight_VD.shape[1]), np.float32)

    def dense(self, rows: int) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
        """(hidden states, all their logits, milliseconds of the dense peer): once for each number of rows."""
        if rows not in self._dense:
            hidden_RD, some = self.hidden(rows), self.sets("uniform", rows, 0.001)[:3]
            logits_RV = hidden_RD @ self.weight_VD.T
            self._dense[rows] = hidden_RD, logits_RV, _times(partial(_dense, hidden_RD, self.weight_VD), some)["p50"]
        return self._dense[rows]

    def sets(self, distribution: str, rows: int, density: float) -> list[HostLegalCodes]:
        num_codes, hidden = self.weight_VD.shape
        each = max(1, round(num_codes * density))
        count = min(self.most_sets, max(3, _FRESH_BYTES // (4 * rows * each * hidden)))
        return [draw_legal_codes(self.rng, distribution, rows, num_codes, each) for _ in range(count)]


def runs(quick: bool) -> Runs:
    """(parameters, measured) of one row after the other. Needs 2 GB of memory."""
    num_codes, hidden = (4096, 256) if quick else (V, D)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            rng = np.random.default_rng(0)
            weight_VD = np.empty((num_codes, hidden), np.float32)
            rng.standard_normal(dtype=np.float32, out=weight_VD)
            weight_VD *= np.float32(hidden**-0.5)
            bench = _Bench(weight_VD=weight_VD, rng=rng, most_sets=2 if quick else 40)
            costs = measure_cpu(weight_VD)
            for distribution in ("uniform", "zipf", "clustered"):
                yield _rows(bench, distribution, costs)
            yield _curve(bench)
            yield _choice(bench, costs, quick)
            del bench, weight_VD  # 1.6 GB
            yield from trie_head.runs(quick)
    finally:
        torch.set_num_threads(threads)


def draw_legal_codes(rng: np.random.Generator, distribution: str, rows: int, num_codes: int, each: int) -> HostLegalCodes:
    """So many different legal codes for each row: uniform; Zipf (rows share what is popular); or in runs of 256 codes."""
    order = np.random.default_rng(1).permutation(num_codes)
    legal: list[NDArray[np.int64]] = []
    for _ in range(rows):
        if distribution == "clustered":
            starts = rng.choice(max(1, num_codes // 256), max(1, -(-each // 256)), replace=False) * 256
            codes = np.concatenate([start + np.arange(256) for start in starts])[:each]
        elif distribution == "zipf":
            # The largest of (log weight + Gumbel noise): drawing without replacement, each with its weight.
            keys = rng.gumbel(size=num_codes) - np.log(np.arange(1, num_codes + 1))
            codes = order[np.argpartition(-keys, each - 1)[:each]]
        else:
            codes = rng.choice(num_codes, each, replace=False)
        legal.append(np.sort(codes))
    return LegalCodes.of(np.cumsum([0, *map(len, legal)]), np.concatenate(legal))


def _rows(bench: _Bench, distribution: str, costs: HeadCosts) -> tuple[dict[str, Any], dict[str, Any]]:
    num_codes, hidden = bench.weight_VD.shape
    cells: list[dict[str, Any]] = []
    for rows, density in ((1, 0.001), (1, 0.01), (16, 0.001), (16, 0.01), (140, 0.001), (140, 0.01), (140, 0.1)):
        hidden_RD, logits_RV, dense_ms = bench.dense(rows)
        sets = bench.sets(distribution, rows, density)
        expected = logits_RV[np.repeat(np.arange(rows), np.diff(sets[0].indptr_R1)), sets[0].code_C]
        ways: dict[str, Callable[[HostLegalCodes], Any]] = {
            path: partial(_ours, hidden_RD, bench.weight_VD, path=path) for path in WAYS
        } | {"csr_logits": partial(_kernel, hidden_RD, bench.weight_VD)}
        if sets[0].count <= _MOST_SLICED:
            ways["sliced"] = partial(_sliced, hidden_RD, bench.weight_VD)
        for name, run in ways.items():
            np.testing.assert_allclose(run(sets[0]), expected, rtol=1e-3, atol=1e-4, err_msg=name)
        times = {name: _times(run, sets) for name, run in ways.items()}
        chosen = cpu.head(hidden_RD, bench.weight_VD, sets[0], "allowed", costs=costs).path
        again = _times(ways["csr_logits"], [sets[0]] * 10)["p50"]
        cells.append(
            {
                "rows": rows,
                "density": density,
                "dense_ms": dense_ms,
                "ms": times,
                "csr_logits_again_ms": again,
                "dense_over": {name: round(dense_ms / one["p50"], 1) for name, one in times.items()},
                "dense_over_csr_logits_again": round(dense_ms / again, 1),
                "chosen": chosen,
            }
        )
    parameters = {"what": "rows", "distribution": distribution, "V": num_codes, "D": hidden, "dtype": "float32", "threads": 1}
    return parameters, {"cells": cells, "costs_ns": asdict(costs)}


def _curve(bench: _Bench) -> tuple[dict[str, Any], dict[str, Any]]:
    num_codes, hidden = bench.weight_VD.shape
    hidden_RD = bench.hidden(1)
    blocks = partial(_blocks, hidden_RD, bench.weight_VD)
    gather = partial(_ours, hidden_RD, bench.weight_VD, path="gather")
    dense_ms = _times(partial(_dense, hidden_RD, bench.weight_VD), bench.sets("uniform", 1, 0.01)[:3])["p50"]
    points: list[dict[str, Any]] = []
    for density in (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        sets = bench.sets("uniform", 1, density)
        point: dict[str, Any] = {"density": density, "expected_active_blocks": round(1 - (1 - density) ** 32, 4)}
        ways = {"block_level": blocks, "thread_level": gather, "sliced": partial(_sliced, hidden_RD, bench.weight_VD)}
        for name, run in ways.items():
            milliseconds = _times(run, sets)["p50"]
            point |= {f"{name}_ms": milliseconds, f"dense_over_{name}": round(dense_ms / milliseconds, 2)}
        points.append(point)
    parameters = {"what": "curve", "distribution": "uniform", "V": num_codes, "D": hidden, "rows": 1, "block": 32, "threads": 1}
    return parameters, {"dense_ms": dense_ms, "points": points}


def _choice(bench: _Bench, costs: HeadCosts, quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dispatcher and always-dense interleaved, on a quarter of the head."""
    weight_VD = bench.weight_VD[: len(bench.weight_VD) // 4]
    bench = _Bench(weight_VD=weight_VD, rng=bench.rng, most_sets=2 if quick else 7)
    cells: list[dict[str, Any]] = []
    for rows in (1, 4, 16, 64):
        for density in (0.001, 0.01, 0.03, 0.1, 0.3, 1.0):
            for distribution in ("uniform", "clustered"):
                hidden_RD, sets = bench.hidden(rows), bench.sets(distribution, rows, density)
                auto: list[float] = []
                dense: list[float] = []
                paths: set[str] = set()
                for legal_codes in sets:
                    begin = time.perf_counter()
                    paths.add(cpu.head(hidden_RD, weight_VD, legal_codes, "allowed", costs=costs).path)
                    middle = time.perf_counter()
                    cpu.head(hidden_RD, weight_VD, legal_codes, "allowed", path="dense")
                    auto.append(middle - begin)
                    dense.append(time.perf_counter() - middle)
                ratio = float(np.median(auto) / np.median(dense))
                cells.append(
                    {
                        "rows": rows,
                        "density": density,
                        "legal": distribution,
                        "paths": sorted(paths),
                        "over_dense": round(ratio, 4),
                        "dense_ms": round(float(np.median(dense)) * 1e3, 3),
                    }
                )
    worst = max(cell["over_dense"] for cell in cells)
    parameters = {
        "what": "choice",
        "distribution": "uniform and clustered",
        "V": len(weight_VD),
        "D": weight_VD.shape[1],
        "threads": 1,
    }
    return parameters, {"worst_over_dense": worst, "cells": cells, "costs_ns": asdict(costs)}


def _ours(
    hidden_RD: NDArray[np.float32], weight_VD: NDArray[np.float32], legal_codes: HostLegalCodes, **how: Any
) -> NDArray[np.float32]:
    return cpu.head(hidden_RD, weight_VD, legal_codes, "allowed", **how).logit_C


def _kernel(hidden_RD: NDArray[np.float32], weight_VD: NDArray[np.float32], legal_codes: HostLegalCodes) -> NDArray[np.float32]:
    """The kernel of "gather" alone, without the log-sum-exps and checks of the verb."""
    logit_C = np.empty(legal_codes.count, np.float32)
    csr_logits(hidden_RD, weight_VD, legal_codes.indptr_R1, legal_codes.code_C, logit_C)
    return logit_C


def _dense(hidden_RD: NDArray[np.float32], weight_VD: NDArray[np.float32], legal_codes: HostLegalCodes) -> NDArray[np.float32]:
    row_C = torch.from_numpy(np.repeat(np.arange(len(hidden_RD)), np.diff(legal_codes.indptr_R1)))
    hidden, weight = torch.from_numpy(hidden_RD), torch.from_numpy(weight_VD)
    return dense_head.dense(hidden, weight, row_C, torch.from_numpy(legal_codes.code_C)).numpy()


def _sliced(hidden_RD: NDArray[np.float32], weight_VD: NDArray[np.float32], legal_codes: HostLegalCodes) -> NDArray[np.float32]:
    hidden, weight = torch.from_numpy(hidden_RD), torch.from_numpy(weight_VD)
    return dense_head.sliced(
        hidden, weight, torch.from_numpy(legal_codes.indptr_R1), torch.from_numpy(legal_codes.code_C)
    ).numpy()


def _blocks(hidden_RD: NDArray[np.float32], weight_VD: NDArray[np.float32], legal_codes: HostLegalCodes) -> NDArray[np.float32]:
    hidden, weight = torch.from_numpy(hidden_RD), torch.from_numpy(weight_VD)
    return dense_head.blocks(hidden, weight, torch.from_numpy(legal_codes.code_C), 32).numpy()


def _times(run: Callable[[HostLegalCodes], Any], sets: Sequence[HostLegalCodes]) -> dict[str, float]:
    """Milliseconds of one run on each set, after one that does not count; slow ways on a few sets, very slow ones on one."""
    begin = time.perf_counter()
    run(sets[-1])
    least = 1 if time.perf_counter() - begin > _SECONDS else 3
    seconds: list[float] = []
    for legal_codes in sets:
        if len(seconds) >= least and sum(seconds) > _SECONDS:
            break
        begin = time.perf_counter()
        run(legal_codes)
        seconds.append(time.perf_counter() - begin)
    return {name: round(value / 1e3, 4) for name, value in spread(seconds).items()}
