"""The constrained round on a GPU: parity of every level with the CPU and with float64, then its time.

Parity: fresh catalogs, logits, filters and deny lists, one and two segments, outputs poisoned. Time: whole searches of which
every round is captured by itself, rotating over several searches, beside log-softmax + top-k of the same shape without any
constraint, and beside STATIC's algorithm in torch.

Shapes: B requests, K beams, V codes, L levels, N items.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.gpu.timing import Measured, attempt, poisoned, times
from benchmarks.peers import peer, static
from benchmarks.workloads import DISTRIBUTIONS, random_codes, random_logits
from leafbeam.decode.results import root_ranges
from leafbeam.index import Filter, Segment, Trie, Version
from leafbeam.ops.constrain import Beams, Scoring, request_filters
from leafbeam.ops.constrain.cpu import step as cpu
from leafbeam.ops.constrain.static.matrix import TransitionMatrix
from leafbeam.ops.constrain.triton import step as triton

__all__ = ["REAL", "Sizes", "parity", "random_trie", "runs", "search_times", "states", "static_times", "sweeps"]

Requests = list[Filter]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One catalog and batch: N items, L levels of V codes, B requests, K beams."""

    items: int
    codes: int
    levels: int
    requests: int
    beams: int


REAL = Sizes(items=1_000_000, codes=2048, levels=8, requests=2, beams=70)


def runs(device: torch.device, bandwidth: float, seconds: float, sizes: Sizes = REAL) -> Measured:
    """Rows of parity, then of times; what no longer fits into `seconds` is left out and said so."""
    until = time.monotonic() + seconds
    for distribution in DISTRIBUTIONS:
        for segments in (1, 2):
            for scoring in ("full", "allowed"):
                parameters = {"what": "step parity", "distribution": distribution, "segments": segments, "scoring": scoring}
                yield attempt(parameters, partial(parity, device, distribution, segments, scoring, sizes))
    served = [
        ("uniform", sizes.items // 10, 2, sizes.beams),
        ("uniform", sizes.items, 2, sizes.beams),
        ("uniform", 20 * sizes.items, 2, sizes.beams),
        ("uniform", 20 * sizes.items, 64, 512),
        ("zipf", 20 * sizes.items, 2, sizes.beams),
        ("uniform", 100 * sizes.items, 2, sizes.beams),
    ]
    tries: dict[tuple[str, int], Trie] = {}
    for distribution, items, requests, beams in served:
        parameters = {"what": "step", "distribution": distribution, "num_items": items, "B": requests, "K": beams}
        parameters |= {"V": sizes.codes, "L": sizes.levels}
        left = until - time.monotonic()
        if left < items / 2e6:  # a second for each two million items: drawn, sorted, copied
            yield parameters, {"left_out": f"{left:.0f} s were left of {seconds:.0f}"}
            continue
        one = Sizes(items=items, codes=sizes.codes, levels=sizes.levels, requests=requests, beams=beams)
        yield attempt(parameters, partial(_served, device, distribution, one, bandwidth, tries))


def _served(
    device: torch.device, distribution: str, sizes: Sizes, bandwidth: float, tries: dict[tuple[str, int], Trie]
) -> dict[str, Any]:
    key = distribution, sizes.items
    if key not in tries:
        tries.clear()
        tries[key] = random_trie(distribution, sizes)
    return search_times(device, tries[key], sizes, bandwidth)


def random_trie(distribution: str, sizes: Sizes) -> Trie:
    """A fresh catalog."""
    rng = np.random.default_rng()
    codes = random_codes(rng, distribution, sizes.items, sizes.codes, sizes.levels)
    return Trie.build(codes, [sizes.codes] * sizes.levels)


def parity(device: torch.device, distribution: str, segments: int, scoring: Scoring, sizes: Sizes) -> dict[str, Any]:
    """Every round of a search of three requests, two filtered and two that deny items; raises where it differs.

    The answer has the CPU's beams (but for scores that are equal to rounding) and float64's scores.
    """
    rng = np.random.default_rng()
    base = random_trie(distribution, sizes)
    version = Version.of(base)
    if segments == 2:
        delta = random_trie(distribution, replace(sizes, items=max(2, sizes.items // 50)))
        live = base.filter(rng.random(base.num_items) < 0.95)
        version = Version(segments=(Segment(trie=base, live=live), Segment(trie=delta)))
    some = version.filter_of([_random_filter(rng, one.trie, 0.1) for one in version.segments])
    few = version.filter_of([_random_filter(rng, one.trie, 0.001) for one in version.segments])
    denied = [rng.integers(0, sizes.items, 40).tolist() for _ in range(2)]
    requests = request_filters(version, 3, [None, some, few], [denied[0], denied[1], None])
    on_cpu, on_gpu = cpu.bind(version), triton.bind(version, device)
    cpu_filters, gpu_filters = cpu.bind_filters(on_cpu, requests), triton.bind_filters(on_gpu, requests)
    lo, hi = root_ranges(version, requests)
    scores = np.zeros((3, 1), np.float32)
    worst, flipped, compared = 0.0, 0, 0
    for level in range(sizes.levels):
        logits = random_logits(rng, 3, lo.shape[2], sizes.codes)
        expected = cpu.step(
            on_cpu, level, Beams.start(lo, hi, scores), logits, cpu_filters, num_beams=sizes.beams, scoring=scoring
        )
        *ranges, drawn = [torch.from_numpy(one).to(device) for one in (lo, hi, scores, logits)]
        beams = Beams.start(*ranges)
        with poisoned():
            found = triton.step(on_gpu, level, beams, drawn, gpu_filters, num_beams=sizes.beams, scoring=scoring)
        ours = {name: getattr(found, name).cpu().numpy() for name in ("scores", "parent", "code", "lo", "hi", "num_valid")}
        assert np.array_equal(ours["num_valid"], expected.num_valid), f"level {level}: num_valid"
        np.testing.assert_allclose(ours["scores"], expected.scores, rtol=1e-5, atol=1e-4, err_msg=f"level {level}")
        same = (ours["parent"] == expected.parent) & (ours["code"] == expected.code)
        flipped, compared = flipped + int((~same).sum()), compared + same.size
        for name in ("lo", "hi"):
            assert np.array_equal(ours[name][:, same], getattr(expected, name)[:, same]), f"level {level}: {name}"
        if scoring == "full":
            worst = max(worst, _float64_error(ours, scores, logits))
        lo, hi, scores = expected.lo, expected.hi, expected.scores
    assert flipped <= 0.01 * compared, f"{flipped} of {compared} beams differ"
    return {"parity": "ok", "rounds": sizes.levels, "equal_scores_ordered_otherwise": flipped, "worst_error_float64": worst}


def _random_filter(rng: np.random.Generator, trie: Trie, share: float) -> Any:
    return trie.filter(rng.random(trie.num_items) < share)


def _float64_error(ours: dict[str, Any], scores: NDArray[np.float32], logits: NDArray[np.float32]) -> float:
    """The largest difference of a live beam's score from float64."""
    wide = logits.astype(np.float64)
    top = wide.max(-1)
    lse = top + np.log(np.exp(wide - top[..., None]).sum(-1))
    request = np.arange(len(scores))[:, None]
    exact = scores[request, ours["parent"]] + wide[request, ours["parent"], ours["code"]] - lse[request, ours["parent"]]
    live = np.isfinite(ours["scores"])
    return float(np.abs(ours["scores"][live] - exact[live]).max(initial=0.0))


def search_times(
    device: torch.device, trie: Trie, sizes: Sizes, bandwidth: float, copies: int = 4, *, beside_static: bool = True
) -> dict[str, Any]:
    """Microseconds of each round, and of the peers' rounds, over several searches with logits of their own."""
    requests = request_filters(trie, sizes.requests, None, None)
    arrays = triton.bind(trie, device)
    bound = triton.bind_filters(arrays, requests)
    half = triton.bind_filters(arrays, request_filters(trie, sizes.requests, trie.filter(_tenth(trie)), None))
    inputs = [states(device, trie, arrays, bound, requests, sizes) for _ in range(copies)]
    measured: dict[str, Any] = {"index_bytes_per_item": round(trie.bytes_per_item, 2)}
    by_level: dict[str, list[Any]] = {"leafbeam": [], "leafbeam_allowed": [], "leafbeam_filtered": [], "unconstrained": []}
    for level in range(sizes.levels):
        given = [state[level] for state in inputs]
        step = partial(triton.launch, arrays, level, num_beams=sizes.beams)
        ways: dict[str, Sequence[Any]] = {
            "leafbeam": [partial(step, *one, bound, scoring="full") for one in given],
            "leafbeam_allowed": [partial(step, *one, bound, scoring="allowed") for one in given],
            "leafbeam_filtered": [partial(step, *one, half, scoring="full") for one in given],
            "unconstrained": [partial(_unconstrained, one[0].scores, one[1], sizes.beams) for one in given],
        }
        for name, several in ways.items():
            by_level[name].append(times(several, device))
    for name, rounds in by_level.items():
        p50 = [one["p50"] for one in rounds]
        measured |= {f"{name}_us_by_level": p50, f"{name}_us": round(float(np.mean(p50)), 2)}
    measured["how"] = sorted({one["how"] for rounds in by_level.values() for one in rounds})
    read = 4 * sizes.requests * sizes.beams * sizes.codes  # the logits of a round after the first
    later = float(np.mean(measured["leafbeam_us_by_level"][1:]))
    measured["logits_bytes"] = read
    measured["share_of_copy_bandwidth"] = round(read / (later * 1e-6) / bandwidth, 4)
    measured["unconstrained_over_leafbeam"] = round(measured["unconstrained_us"] / measured["leafbeam_us"], 3)
    if beside_static and sizes.items <= 1_000_000 and sizes.levels >= 3:
        peers = static_times(device, trie, sizes, [[one[1] for one in state] for state in inputs])
        measured |= {name: value for name, value in peers.items() if not name.endswith("_scores")}
        measured["static_over_leafbeam"] = round(measured["static_us"] / measured["leafbeam_us"], 3)
    return measured


def _tenth(trie: Trie) -> NDArray[np.bool_]:
    return np.random.default_rng().random(trie.num_items) < 0.1


def states(
    device: torch.device, trie: Trie, arrays: Any, bound: Any, requests: Requests, sizes: Sizes
) -> list[tuple[Beams[Tensor], Tensor]]:
    """The inputs of each round of one search: beams and logits."""
    generator = torch.Generator(device).manual_seed(int(np.random.default_rng().integers(2**40)))
    lo, hi = (torch.from_numpy(one).to(device) for one in root_ranges(Version.of(trie), requests))
    beams = Beams.start(lo, hi, torch.zeros(sizes.requests, 1, device=device))
    rounds: list[tuple[Beams[Tensor], Tensor]] = []
    for level in range(sizes.levels):
        logits = torch.randn(sizes.requests, beams.lo.shape[2], sizes.codes, device=device, generator=generator)
        rounds.append((beams, logits))
        beams = triton.step(arrays, level, *rounds[-1], bound, num_beams=sizes.beams, scoring="full")
    return rounds


def _unconstrained(scores_BK: Tensor, logits_BKV: Tensor, num_beams: int) -> tuple[Tensor, Tensor]:
    total = scores_BK[:, :, None] + torch.log_softmax(logits_BKV, -1)
    return total.flatten(1).topk(min(num_beams, total[0].numel()), -1)


def static_times(
    device: torch.device, trie: Trie, sizes: Sizes, logits: list[list[Tensor]], *, compiled: bool = False
) -> dict[str, Any]:
    """STATIC's step in torch as it is, and with the [rows, V] mask of its Algorithm 2 written out.

    compiled: as it is, and through torch.compile instead of the mask.
    """
    codes_LM = np.ascontiguousarray(trie.codes_at(np.arange(trie.num_leaves)).T)
    matrix = TransitionMatrix.of_sorted(codes_LM, trie.codebook_sizes)
    measured: dict[str, Any] = {"static_bytes_per_item": round(matrix.nbytes / max(1, sizes.items), 2)}
    for name in ("static", "static_compiled" if compiled else "static_scatter"):
        index = static.StaticPeer.of(matrix, device, scatter=name == "static_scatter")
        kept = [peer.root(index, sizes.requests, device) for _ in logits]
        by_level: list[float] = []
        for level in range(sizes.levels):
            extend = peer.compiled_round() if name == "static_compiled" else peer.extend
            several = [partial(extend, index, beams, one[level], sizes.beams) for beams, one in zip(kept, logits, strict=True)]
            by_level.append(times(several, device)["p50"])
            kept = [run() for run in several]
        measured |= {f"{name}_us_by_level": by_level, f"{name}_us": round(float(np.mean(by_level)), 2)}
        measured[f"{name}_scores"] = kept[0].scores_BK
    return measured


def sweeps(device: torch.device, bandwidth: float, seconds: float, sizes: Sizes = REAL) -> Measured:
    """The round by the number of codes of a level, and by the number of requests."""
    until = time.monotonic() + seconds
    by_codes = [replace(sizes, codes=codes, levels=min(sizes.levels, 4)) for codes in (256, 1024, 4096, 16_384, 65_536)]
    by_requests = [replace(sizes, requests=requests) for requests in (1, 4, 16, 64, 256)]
    tries: dict[tuple[int, int], Trie] = {}
    for what, cases in (("step by codes", by_codes), ("step by requests", by_requests)):
        for one in cases if device.type == "cuda" else cases[:1]:
            parameters = {"what": what, "distribution": "uniform", "num_items": one.items, "B": one.requests, "K": one.beams}
            parameters |= {"V": one.codes, "L": one.levels}
            if time.monotonic() > until:
                yield parameters, {"left_out": f"after {seconds:.0f} s"}
                continue
            key = one.codes, one.levels
            if key not in tries:
                tries.clear()
                tries[key] = random_trie("uniform", one)
            yield attempt(parameters, partial(search_times, device, tries[key], one, bandwidth, copies=2, beside_static=False))
