"""STATIC's memory model (Appendix B) beside measured bytes: U_max, its arrays, leafbeam plain and packed, the entropy bound."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.drawing import finish, new_figure
from benchmarks.peers.static_matrix import matrix_nbytes
from benchmarks.static.catalog import Catalog, Shape
from benchmarks.static.drawing import log_axes
from benchmarks.static.experiment import Experiment, Row, Setting
from benchmarks.static.paper import BYTES_PER_MILLION, USED_SHARE
from benchmarks.static.report import by_distribution, size_name
from benchmarks.workloads import DISTRIBUTIONS
from leafbeam.index.memory_estimate import MemoryEstimate
from leafbeam.ops.constrain.static.matrix import TransitionMatrix

__all__ = ["EXPERIMENT"]

_FULL = (100_000, 1_000_000, 10_000_000, 20_000_000, 100_000_000)
_QUICK = (100_000, 1_000_000)
_COLUMNS = {
    "U_max": "U_max",
    "static": "STATIC, arrays",
    "leafbeam": "leafbeam",
    "leafbeam_packed": "leafbeam, packed",
    "entropy": "entropy bound",
}
_LOOKS = {
    "U_max": ("#d9822b", "--", "s"),
    "static": ("#b5541c", "-", "D"),
    "leafbeam": ("#1f7a4a", "-", "o"),
    "leafbeam_packed": ("#66b88a", "-", "o"),
    "entropy": ("#8a8f8c", ":", "."),
}


def _shapes(quick: bool) -> list[Shape]:
    return [Shape(distribution=kind, num_items=size) for kind in DISTRIBUTIONS for size in (_QUICK if quick else _FULL)]


def _measure(shape: Shape, setting: Setting) -> dict[str, Any]:
    """Bytes of each. computed: those that were reckoned from node counts because the arrays do not fit, never built."""
    catalog = Catalog.make(shape)
    plan = MemoryEstimate.of(catalog.trie)
    nodes_L = catalog.nodes_L
    nbytes = {
        "U_max": plan.static.upper_bound,
        "leafbeam": catalog.trie.nbytes,
        "leafbeam_packed": catalog.trie.packed().nbytes,
        "entropy": round(plan.entropy_bits / 8),
    }
    computed: list[str] = []
    codes_LM = catalog.sorted_codes()
    held = codes_LM.nbytes + catalog.trie.nbytes + catalog.trie.items.nbytes
    static = matrix_nbytes(nodes_L, shape.codebook_sizes)
    if held + static <= setting.memory:
        nbytes["static"] = TransitionMatrix.of_sorted(codes_LM, shape.codebook_sizes).nbytes
    else:  # the same arrays, reckoned: 8 bytes an edge, 4 a row pointer, 33 bits a pair of codes
        nbytes["static"] = static
        computed.append("static")
    return {"num_leaves": catalog.trie.num_leaves, "nbytes": nbytes, "computed": computed, "left_out": {}}


def _nothing(shape: Shape, reason: str) -> dict[str, Any]:
    """What is known of a catalog that is not built."""
    uniform = MemoryEstimate.uniform(shape.num_items, shape.codebook_sizes)
    nbytes = {"U_max": uniform.static.upper_bound}
    if shape.distribution == "uniform":  # the planner knows what to expect of uniform codes, of no others
        nbytes |= {"leafbeam": uniform.nbytes, "entropy": round(uniform.entropy_bits / 8)}
    left_out = {name: reason for name in _COLUMNS if name not in nbytes}
    computed = [name for name in ("leafbeam", "entropy") if name in nbytes]
    return {"num_leaves": None, "nbytes": nbytes, "computed": computed, "left_out": left_out}


def _show(console: Console, rows: list[Row]) -> None:
    for kind, group in by_distribution(rows).items():
        first = group[0]["parameters"]
        title = f"{kind}: bytes an item, V = {first['V']:,}, L = {first['L']}, d = 2, K1 = 12, K2 = 4"
        table = Table(title=title, title_justify="left")
        table.add_column("items", justify="right")
        for label in _COLUMNS.values():
            table.add_column(label, justify="right")
        table.add_column("STATIC / U_max", justify="right")
        table.add_column("STATIC / leafbeam packed", justify="right")
        for row in group:
            measured, items = row["measured"], row["parameters"]["num_items"]
            nbytes = measured["nbytes"]
            cells = [_cell(nbytes, measured["computed"], name, items) for name in _COLUMNS]
            shares = [
                f"{nbytes['static'] / nbytes['U_max']:.0%}" if "static" in nbytes else "",
                f"{nbytes['static'] / nbytes['leafbeam_packed']:.1f} x"
                if {"static", "leafbeam_packed"} <= nbytes.keys()
                else "",
            ]
            table.add_row(size_name(items), *cells, *shares)
        console.print(table)
        for reason in sorted({reason for row in group for reason in row["measured"]["left_out"].values()}):
            console.print(f"[yellow]left out[/]: {reason}")
    console.print("* computed from node counts, not built")
    console.print(
        f"The paper: {BYTES_PER_MILLION / 1e6:.0f} MB for each million items as a rule of thumb, 1.46 GB at 2 x 10^7 items "
        f"(U_max), at most {USED_SHARE:.0%} of U_max used in practice (Appendix B)."
    )


def _cell(nbytes: dict[str, int], computed: list[str], name: str, items: int) -> str:
    if name not in nbytes:
        return "left out"
    return f"{nbytes[name] / items:,.2f}{'*' if name in computed else ''}"


def _draw(rows: list[Row]) -> Figure:
    groups = by_distribution(rows)
    figure, panels = new_figure(len(groups), width=4.8, height=4.2)
    for axes, (kind, group) in zip(panels, groups.items(), strict=True):
        for name, label in _COLUMNS.items():
            points = [(row["parameters"]["num_items"], row["measured"]["nbytes"].get(name)) for row in group]
            known = [(items, nbytes / items) for items, nbytes in points if nbytes is not None]
            colour, line, marker = _LOOKS[name]
            axes.plot(*zip(*known, strict=True), color=colour, ls=line, marker=marker, ms=5, lw=1.5, label=label)
        log_axes(axes, [row["parameters"]["num_items"] for row in group], "items")
        axes.set_ylabel("bytes an item")
        axes.set_title(kind, fontsize=10, loc="left")
    at = rows[0]["parameters"]
    finish(figure, panels[0], f"STATIC, Appendix B: the index's bytes an item (V = {at['V']:,}, L = {at['L']})", columns=5)
    return figure


EXPERIMENT = Experiment(
    name="static-memory",
    title="bytes of the index",
    shapes=_shapes,
    measure=_measure,
    show=_show,
    draw=_draw,
    methods=tuple(_COLUMNS),
    nothing=_nothing,
    timed=False,
)
