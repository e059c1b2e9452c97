"""The plots of the documents, drawn from rows; each file says in its metadata which rows it was drawn from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.experiments import experiment, learning_table, serving_figure
from benchmarks.figures.selection import ResultRows
from benchmarks.rows import Row

__all__ = ["PLOTS", "Plot"]

_STEP = {"distribution": "uniform", "num_items": 1_000_000, "B": 2, "K": 70, "V": 2048, "L": 8}
_GREEN, _PALE, _GREY, _LIGHT = "#2f7d4f", "#7f9c8b", "#b0b7b3", "#d8dcd9"
_ANSWERS = (
    ("leafbeam", "leafbeam: the rule in the search", _GREEN),
    ("static_of_the_rule", "STATIC with an index for that rule", _PALE),
    ("post_filter_oversampled", "STATIC of all items, ten times the beams, filtered afterwards", _GREY),
    ("post_filter", "STATIC of all items, filtered afterwards", _LIGHT),
)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A file in docs/figures. rows: those it is drawn from. draw: them into a figure."""

    file: str
    rows: Callable[[ResultRows], list[Row]]
    draw: Callable[[list[Row]], Figure]

    def write(self, folder: Path, rows: ResultRows, redraw: bool = False) -> bool:
        """Draw the file if it shows other rows, or with `redraw`; returns whether it was drawn."""
        if not redraw and self.is_current(folder, rows):
            return False
        matplotlib.use("agg")
        folder.mkdir(parents=True, exist_ok=True)
        chosen = self.rows(rows)
        self.draw(chosen).savefig(folder / self.file, dpi=160, metadata={"Rows": _fingerprint(chosen)})
        return True

    def is_current(self, folder: Path, rows: ResultRows) -> bool:
        """Whether the file shows the rows that documents show."""
        path = folder / self.file
        if not path.exists():
            return False
        with Image.open(path) as image:
            return image.info.get("Rows") == _fingerprint(self.rows(rows))


def _fingerprint(rows: list[Row]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _rule_rows(rows: ResultRows) -> list[Row]:
    answers = rows.newest("post_filter", {"distribution": "uniform", "num_items": 1_000_000})
    static = rows.newest("reproduce", {**_STEP, "experiment": "static-figure-2", "quick": False})
    return [answers, static, rows.newest("jax", _STEP)]


def _draw_rules(rows: list[Row]) -> Figure:
    """Answers left under a rule, and the time of a round beside peers in the same framework."""
    answers, static, jax = rows
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    parts = figure.subplot_mosaic([["answers", "torch"], ["answers", "JAX"]], width_ratios=[1.15, 1], height_ratios=[1, 1])
    _draw_answers(parts["answers"], answers)
    in_torch = {
        "leafbeam": "leafbeam",
        "static_torch": "STATIC, compiled",
        "static_scatter": "the same with its mask",
        "unconstrained": "no constraint",
    }
    in_jax = {
        "leafbeam_whole_search": "leafbeam",
        "static_jax_whole_search": "STATIC",
        "leafbeam_whole_search_allowed": "leafbeam, legal codes alone",
        "static_jax_whole_search_allowed": "STATIC, likewise",
    }
    for name, row, names, what in (
        ("torch", static, in_torch, "one decoding round in torch, µs (p50; bars p20 to p80)"),
        ("JAX", jax, in_jax, "a round of a search compiled whole, in JAX, µs"),
    ):
        taken = row["measured"]["step_us"]
        bars = [(label, taken[method], _colour_of(method)) for method, label in names.items()]
        _draw_times(parts[name], bars, what)
    parts["torch"].sharex(parts["JAX"])
    at = static["parameters"]
    shape = f"{at['num_items']:,} items, {at['L']} levels of {at['V']:,} codes, {at['K']} beams a request, one CPU thread"
    figure.suptitle(shape, fontsize=9)
    return figure


def _colour_of(method: str) -> str:
    return _GREEN if method.startswith("leafbeam") else _GREY if method.startswith("static") else _LIGHT


def _draw_answers(axes: Axes, row: Row) -> None:
    shares = sorted(row["measured"]["answers"], key=float, reverse=True)
    asked, width = row["parameters"]["K"], 0.22
    for number, (method, label, colour) in enumerate(_ANSWERS):
        counts = [row["measured"]["answers"][share][method] for share in shares]
        places = [place + (number - 1.5) * width for place in range(len(shares))]
        axes.bar(places, counts, width=0.92 * width, color=colour, label=label)
        for place, count in zip(places, counts, strict=True):
            text = f"{count:.1f}" if count < 10 else f"{count:.0f}"
            axes.text(place, count + 1, text, ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(shares)), [f"{float(share):.1%}".replace(".0%", "%") for share in shares], fontsize=8)
    axes.set_ylim(0, 1.12 * asked)
    axes.set_xlabel("share of the items that the rule allows", fontsize=8)
    axes.set_title(f"answers that obey the rule, of {asked} asked for", fontsize=9, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=1)
    _tidy(axes)


def _draw_times(axes: Axes, bars: list[tuple[str, dict[str, Any], str]], title: str) -> None:
    for place, (_, spread, colour) in enumerate(bars):
        error = [[spread["p50"] - spread["p20"]], [spread["p80"] - spread["p50"]]]
        axes.barh(place, spread["p50"], xerr=error, color=colour, error_kw={"lw": 1, "ecolor": "#555555"})
        axes.text(spread["p80"], place, f"  {spread['p50']:,.0f} µs", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9, loc="left")
    axes.margins(x=0.25)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


_HEADS = (
    ("block_level", "blocks of {block} codes with a legal one"),
    ("thread_level", "legal codes alone (gather)"),
    ("sliced", "copied slice of the weight"),
)


def _draw_head(rows: list[Row]) -> Figure:
    """How many times faster than all logits, by the share of codes that is legal."""
    at, points = rows[-1]["parameters"], rows[-1]["measured"]["points"]
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.subplots()
    for way, label in _HEADS:
        shares, ratios = zip(*((point["density"], point[f"dense_over_{way}"]) for point in points), strict=True)
        axes.loglog(shares, ratios, marker="o", ms=3, label=label.format(**at))
    axes.axhline(1, color=_GREY, lw=1)
    axes.set_xlabel("share of codes that is legal", fontsize=8)
    axes.set_ylabel("times faster than all logits", fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    axes.set_title(f"one row, {at['V']:,} codes of {at['D']:,} values, float32, one CPU thread", fontsize=9, loc="left")
    _tidy(axes)
    return figure


_PEERS = (  # what, way, label, marker, colour, and where its number stands, in points
    ("http", "vllm_beams", "vllm serve, no constraint, over leafbeam serve", "P", "#8a2f5b", (0, -10)),
    ("offline", "vllm_beams", "LLM.beam_search of vLLM, no constraint", "o", "#3b6ea5", (0, 5)),
    ("offline", "vllm_grammar_beams", "the same under a grammar of all items", "s", "#b5651d", (10, 3)),
    ("offline", "hf_generate", "generate of transformers, Python trie", "D", "#777777", (0, -10)),
)


def _draw_peers(rows: list[Row]) -> Figure:
    """How many times leafbeam's median each engine takes, by model, prompt, beams and requests."""
    sizes = ("prompt_tokens", "K", "B")
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        at = row["parameters"]
        key = at["model"] != "small", at["model"], *(at[size] for size in sizes)
        groups.setdefault(key, {})[at["what"]] = row
    cases = [groups[key] for key in sorted(groups)]
    figure = Figure(figsize=(8, 0.36 * len(cases) + 1.6), layout="constrained")
    axes = figure.subplots()
    for what, way, label, marker, colour, place_of_number in _PEERS:
        found = ((case[what]["measured"]["over_leafbeam"], place) for place, case in enumerate(cases) if what in case)
        ratios = [(over.get(way), place) for over, place in found]
        points = [(ratio, place) for ratio, place in ratios if isinstance(ratio, (int, float))]
        axes.scatter(*zip(*points, strict=True), marker=marker, color=colour, s=26, label=label, zorder=3)
        for ratio, place in points:
            number = f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"
            axes.annotate(
                number, (ratio, place), place_of_number, textcoords="offset points", ha="center", fontsize=6, color=colour
            )
    for place, case in enumerate(cases):
        over = {label: case[what]["measured"]["over_leafbeam"].get(way) for what, way, label, *_ in _PEERS if what in case}
        if all(isinstance(one, str) for one in over.values()):
            text = ", ".join(f"{label.split(',')[0]}: {status}" for label, status in over.items())
            axes.text(1.1, place, text, va="center", fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}x")
    axes.axvline(1, color=_GREEN, lw=2, label="leafbeam, exact, only items")
    parameters = [next(iter(case.values()))["parameters"] for case in cases]
    names = [f"{one['model']}: {one['prompt_tokens']:,} tokens, {one['K']} beams, {one['B']} at once" for one in parameters]
    axes.set_yticks(range(len(cases)), names, fontsize=8)
    axes.set_ylim(len(cases) - 0.4, -0.7)  # the smallest first
    axes.grid(axis="both", color=_LIGHT, lw=0.5)
    axes.margins(x=0.08)
    machines = sorted({f"{row['machine']['cpu']}, {row['machine']['cores']} cores" for row in rows})
    title = ["time of a batch over leafbeam's, same model, float32", *machines]
    axes.set_title("\n".join(title), fontsize=9, loc="left")
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=2)
    _tidy(axes)
    return figure


def _by_size(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then everything else by its text."""
    return (False, value, "") if isinstance(value, (int, float)) else (True, 0, str(value))


def _newest_points(bench: str, where: dict[str, Any], keys: tuple[str, ...]) -> Callable[[ResultRows], list[Row]]:
    """The newest row of each point of a figure; a point is told by these parameters."""

    def choose(rows: ResultRows) -> list[Row]:
        points = {tuple(row["parameters"].get(key) for key in keys): row for row in rows.matching(bench, where)}
        return [points[point] for point in sorted(points, key=lambda point: [_by_size(value) for value in point])]

    return choose


def _peer_rows(rows: ResultRows) -> list[Row]:
    keys = "model", "prompt_tokens", "K", "B"
    chosen = (_newest_points("production", {"what": what, "dtype": "float32"}, keys)(rows) for what in ("offline", "http"))
    return [row for some in chosen for row in some]


def _static(name: str) -> Plot:
    """Of full rows, or of quick ones until there are any."""
    points = {
        quick: _newest_points("reproduce", {"experiment": name, "quick": quick}, ("distribution", "num_items", "V"))
        for quick in (False, True)
    }

    def draw(rows: list[Row]) -> Figure:
        return experiment(name).draw(rows)

    return Plot(file=f"{name}.png", rows=lambda rows: points[False](rows) or points[True](rows), draw=draw)


def _learning(name: str, where: dict[str, Any]) -> Plot:
    def draw(rows: list[Row]) -> Figure:
        table = learning_table(name)
        assert table is not None
        return table.draw(rows)

    rows = _newest_points(name.replace("-", "_"), {"quick": False, **where}, ("data", "share", "seed", "sids"))
    return Plot(file=f"{name}.png", rows=rows, draw=draw)


def _serving(name: str, *keys: str) -> Plot:
    def draw(rows: list[Row]) -> Figure:
        figure = serving_figure(name)
        assert figure is not None
        return figure.draw(rows)

    rows = _newest_points("reproduce_xgr", {"experiment": name, "quick": False}, keys)
    return Plot(file=f"{name}.png", rows=rows, draw=draw)


def _draw_proofs(rows: list[Row]) -> Figure:
    from benchmarks.serving.bound import draw  # loads torch

    return draw(rows)


def _draw_reranking(rows: list[Row]) -> Figure:
    from benchmarks.serving.objectives import draw  # loads torch

    return draw(rows)


PLOTS = (
    Plot(file="rules.png", rows=_rule_rows, draw=_draw_rules),
    Plot(file="head.png", rows=_newest_points("head", {"what": "curve"}, ("distribution",)), draw=_draw_head),
    Plot(
        file="peers.png",
        rows=_peer_rows,
        draw=_draw_peers,
    ),
    Plot(file="search.png", rows=_newest_points("bound", {"what": "widths"}, ("share",)), draw=_draw_proofs),
    Plot(
        file="reranking.png",
        rows=_newest_points("objectives", {"what": "re-ranking"}, ("weights", "num_items")),
        draw=_draw_reranking,
    ),
    _static("static-table-1"),
    _static("static-figure-2"),
    _static("static-figure-3"),
    _static("static-figure-4"),
    _static("static-memory"),
    _learning("tiger-table-1", {"budget": "12 epochs", "teacher": "memory", "fit_on": "train"}),
    _learning("static-table-3", {"budget": "1 epochs", "sids": "rqvae", "teacher": "text", "part": "test"}),
    _learning("exactness", {"data": "amazon_beauty", "seed": 0}),
    _serving("xgr-figure-3", "beams"),
    _serving("xgr-figure-4", "beams"),
    _serving("xgr-figure-13", "prompt_tokens", "beams", "what", "system", "rate"),
    _serving("xgr-figure-14", "prompt_tokens", "beams", "what", "system", "rate"),
    _serving("xgr-figure-15"),
    _serving("xgr-figure-16"),
    _serving("xgr-figure-17", "requests", "tokens", "beams"),
    _serving("xgr-figure-18", "variant", "rate"),
    _serving("xgr-figure-19", "layers", "hidden", "beams", "system"),
    _serving("xgr-sorting", "logits", "beams"),
)
