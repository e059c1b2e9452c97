"""Figure 4: the masking kernel alone as the branch factor grows from 2^1 to 2^18, |V| = B, 10^6 items (STATIC, Appendix D).

As in the paper's code: two beams at random nodes, one dense level, a slice of B whatever the node's children. leafbeam
enumerates the children that there are, so it has two lines: at such nodes, and at the root, whose children are all codes that
occur.

Shapes: R beams, B branch factor, V codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.drawing import finish, new_figure
from benchmarks.peers.static import StaticPeer
from benchmarks.rows import spread
from benchmarks.static import trials
from benchmarks.static.catalog import Catalog, Shape
from benchmarks.static.drawing import curve, plain, share_y
from benchmarks.static.experiment import Experiment, Row, Setting
from benchmarks.static.methods import reason_of
from benchmarks.static.report import by_distribution, machine, spread_text
from benchmarks.workloads import DISTRIBUTIONS
from leafbeam.index import Trie
from leafbeam.ops.constrain import request_filters
from leafbeam.ops.constrain.cpu import step as cpu
from leafbeam.ops.constrain.static.matrix import TransitionMatrix

__all__ = ["EXPERIMENT", "kernels", "ranges_of"]

R = 2
_LABELS = {
    "static_jax": "STATIC's kernel, JAX",
    "static_torch": "STATIC's kernel, torch",
    "static_compiled": "STATIC's kernel, torch.compile",
    "leafbeam_root": "leafbeam, at the root",
    "leafbeam_random": "leafbeam, at random nodes",
}
_DRAWN_AS = {
    "static_jax": "static_jax",
    "static_torch": "static_torch",
    "static_compiled": "static_scatter",
    "leafbeam_root": "leafbeam",
    "leafbeam_random": "leafbeam_packed",
}
_AT_ONCE = 10  # calls between two looks at the clock: the paper amortises as well

Kernel = Callable[[], tuple[NDArray[Any], NDArray[Any]]]  # (codes, log-probabilities) of the legal ones, beam by beam


def _shapes(quick: bool) -> list[Shape]:
    powers = (1, 3, 5, 7, 9, 11, 13, 15, 18) if quick else tuple(range(1, 19))
    items = 100_000 if quick else 1_000_000
    return [Shape(distribution=kind, num_items=items, num_codes=2**power) for kind in DISTRIBUTIONS for power in powers]


def _measure(shape: Shape, setting: Setting) -> dict[str, Any]:
    catalog = Catalog.make(shape)
    level, lo_R, hi_R = ranges_of(catalog.trie, np.random.default_rng([shape.seed, 2]))
    with trials.one_core():
        runs, left_out = kernels(catalog, level, lo_R, hi_R, setting)
        rng = np.random.default_rng(shape.seed)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():  # once more after parity, warm
            run()
        for _ in range(setting.num_trials):
            for name in rng.permutation(list(runs)).tolist():
                begin = time.perf_counter()
                for _ in range(_AT_ONCE):
                    runs[name]()
                seconds[name].append((time.perf_counter() - begin) / _AT_ONCE)
    return {
        "num_leaves": catalog.trie.num_leaves,
        "level": level,
        "children": (hi_R - lo_R).tolist(),
        "kernel_us": {name: spread(taken) for name, taken in seconds.items()},
        "trials": {name: len(taken) for name, taken in seconds.items()},
        "left_out": left_out,
    }


def _nothing(shape: Shape, reason: str) -> dict[str, Any]:
    return {"num_leaves": None, "kernel_us": {}, "trials": {}, "left_out": dict.fromkeys(_LABELS, reason)}


def ranges_of(trie: Trie, rng: np.random.Generator) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """R random nodes below the root and above the leaves, of one level: (level of their children, lo_R, hi_R)."""
    counts = np.array([level.num_nodes for level in trie.levels[:-1]], float)
    above = int(rng.choice(len(counts), p=counts / counts.sum()))
    ranges: list[tuple[int, int]] = []
    for leaf in rng.integers(0, trie.num_leaves, R):
        lo, hi = 0, trie.num_leaves
        for level, code in zip(trie.levels[: above + 1], trie.codes_at([int(leaf)])[0], strict=False):
            lo, hi = level.find(lo, hi, int(code))
        ranges.append((lo, hi))
    return above + 1, np.array([lo for lo, _ in ranges]), np.array([hi for _, hi in ranges])


def kernels(
    catalog: Catalog, level: int, lo_R: NDArray[np.int64], hi_R: NDArray[np.int64], setting: Setting
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """(methods by name, after their children were compared; left out, with the reason)."""
    branch = catalog.shape.num_codes
    trie = catalog.trie
    log_p_1RV = np.random.default_rng(0).standard_normal((1, R, branch), np.float32)
    runs: dict[str, Callable[[], Any]] = {}
    left_out: dict[str, str] = {}
    everything = np.full((1, 1, R), trie.num_leaves)
    at_nodes = _leafbeam(trie, level, lo_R[None, None], hi_R[None, None], log_p_1RV)
    at_root = _leafbeam(trie, 0, np.zeros_like(everything), everything, log_p_1RV)
    assert len(at_root()[0]) == R * trie.levels[0].num_nodes
    runs["leafbeam_root"], runs["leafbeam_random"] = at_root, at_nodes
    matrix = TransitionMatrix.of_sorted(catalog.sorted_codes(), trie.codebook_sizes, dense_levels=1)
    node_1R = (matrix.first_node[level] + _ordinals(trie, level, lo_R))[None]
    padding = np.full((branch, 2), branch - 1, np.int32)  # behind the last edge, for a slice of B
    matrix = replace(matrix, edges_E2=np.concatenate([matrix.edges_E2, padding]))
    expected = at_nodes()
    index = StaticPeer.of(matrix, setting.device)
    node, log_p = torch.from_numpy(node_1R).to(setting.device), torch.from_numpy(log_p_1RV).to(setting.device)

    def in_torch(transition: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            found = transition(node, log_p, branch)
            if node.is_cuda:
                torch.cuda.synchronize(node.device)
            return found

        return run

    def in_jax() -> Callable[[], Any]:
        from benchmarks.peers import jax_rounds
        from benchmarks.peers.static_jax import StaticJax

        return jax_rounds.jitted_transition(StaticJax.of(matrix), node_1R, log_p_1RV, branch)

    builders: dict[str, Callable[[], Callable[[], Any]]] = {"static_torch": lambda: in_torch(index.transition)}
    if setting.compiles:
        builders["static_compiled"] = lambda: in_torch(torch.compile(index.transition, dynamic=False))
    builders["static_jax"] = in_jax
    for name, build in builders.items():
        if name in setting.without:
            left_out[name] = setting.without[name]
            continue
        setting.announce(name)
        try:
            runs[name] = build()
            codes, _, found = (np.asarray(one.cpu() if isinstance(one, torch.Tensor) else one) for one in runs[name]())
        except Exception as error:
            runs.pop(name, None)
            left_out[name] = reason_of(error)
            continue
        _agree(codes, found, expected)
    return runs, left_out


def _leafbeam(trie: Trie, level: int, lo_1BK: NDArray[Any], hi_1BK: NDArray[Any], log_p_1RV: NDArray[np.float32]) -> Kernel:
    """Enumerate the children of the ranges and gather their log-probabilities."""
    arrays = cpu.bind(trie)
    filters = cpu.bind_filters(arrays, request_filters(trie, 1, None, None))

    def run() -> tuple[NDArray[Any], NDArray[Any]]:
        row_indptr, code_C, _, _ = cpu.children(arrays, level, lo_1BK, hi_1BK, filters)
        parts = [log_p_1RV[0, row, code_C[row_indptr[row] : row_indptr[row + 1]]] for row in range(R)]
        return code_C, np.concatenate(parts)

    return run


def _ordinals(trie: Trie, level: int, lo_R: NDArray[np.int64]) -> NDArray[np.int64]:
    """The position in its level of each node whose children stand at `level`."""
    above = trie.levels[level - 1]
    return lo_R if above.boundary is None else np.array([above.boundary.rank(int(lo)) for lo in lo_R])


def _agree(codes_1RF: NDArray[Any], log_p_1RF: NDArray[Any], expected: tuple[NDArray[Any], NDArray[Any]]) -> None:
    """The slots that are not masked are the children."""
    alive = log_p_1RF > -np.inf
    np.testing.assert_array_equal(codes_1RF[alive], expected[0])
    np.testing.assert_array_equal(log_p_1RF[alive], expected[1])


def _show(console: Console, rows: list[Row]) -> None:
    for kind, group in by_distribution(rows).items():
        title = f"{kind}: the masking kernel for {R} beams, µs, p50 (p20-p80)  ·  {machine(group[0])}"
        table = Table(title=title, title_justify="left")
        table.add_column("B = |V|", justify="right")
        for label in _LABELS.values():
            table.add_column(label, justify="right")
        for row in group:
            spreads = row["measured"]["kernel_us"]
            cells = [spread_text(spreads[name]) if name in spreads else "left out" for name in _LABELS]
            table.add_row(f"{row['parameters']['V']:,}", *cells)
        console.print(table)
        reasons = {reason for row in group for reason in row["measured"]["left_out"].values()}
        for reason in sorted(reasons):
            console.print(f"[yellow]left out[/]: {reason}")
    console.print(
        "The paper gives this figure as a plot alone: on its TPU v6e constant up to the bandwidth's limit, then linear in B. "
        "STATIC reads B slots for any node; leafbeam's cost follows the children that a node has."
    )


def _draw(rows: list[Row]) -> Figure:
    groups = by_distribution(rows)
    figure, panels = new_figure(len(groups), width=5.2)
    for axes, (kind, group) in zip(panels, groups.items(), strict=True):
        for name, label in _LABELS.items():
            points = [(row["parameters"]["V"], row["measured"]["kernel_us"].get(name)) for row in group]
            known = [(x, one) for x, one in points if one is not None]
            if known:
                curve(axes, [x for x, _ in known], [one for _, one in known], _DRAWN_AS[name], label)
        torch_us = [(row["parameters"]["V"], row["measured"]["kernel_us"].get("static_torch")) for row in group]
        line = [(x, one["p50"]) for x, one in torch_us if one is not None]
        if line:
            last_x, last = line[-1]
            xs = [x for x, _ in line if x >= 512]
            axes.plot(xs, [last * x / last_x for x in xs], color="#9aa19d", ls=":", lw=1.5, label="linear in B")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(plain))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("branch factor B = codes of a level")
        axes.set_ylabel("kernel, µs (p50; bars p20 to p80)")
        axes.set_title(f"{kind}, {group[0]['parameters']['num_items']:,} items", fontsize=10, loc="left")
        axes.grid(True, which="major", color="#e3e6e4", lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    share_y(panels)
    finish(figure, panels[0], f"STATIC, Figure 4: the masking kernel by the branch factor\nhere: {machine(rows[0])}", columns=3)
    return figure


EXPERIMENT = Experiment(
    name="static-figure-4",
    title="the masking kernel by the branch factor",
    shapes=_shapes,
    measure=_measure,
    show=_show,
    draw=_draw,
    methods=tuple(_LABELS),
    nothing=_nothing,
)
