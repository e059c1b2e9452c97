"""The tables of docs/engineering-log/kernels.md and its figure, from the rows: `python -m benchmarks.micro.kernel_report`.

A table stands between `<!-- rows NAME -->` and `<!-- end -->` and is written anew from the last row of each set of parameters.
Where there are no rows it says which command makes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.rows import RESULTS

__all__ = ["draw_curves", "fill", "latest"]

Row = dict[str, Any]
_DOCS = Path(__file__).parents[2] / "docs"


def latest(name: str, folder: Path = RESULTS) -> list[Row]:
    """The last row of each set of parameters, in the order in which these first came."""
    file = folder / f"{name}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return list({json.dumps(row["parameters"], sort_keys=True): row for row in rows}.values())


def fill(text: str, folder: Path = RESULTS) -> str:
    """The document with every table written anew."""

    def table(match: re.Match[str]) -> str:
        name = match[1]
        lines = _TABLES[name](folder) or [f"Not measured yet: `python -m benchmarks {name.split('-')[0]} --json`."]
        return f"<!-- rows {name} -->\n{chr(10).join(lines)}\n<!-- end -->"

    return re.sub(r"<!-- rows ([a-z-]+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def draw_curves(path: Path, folder: Path = RESULTS) -> bool:
    """Figures 6 and 7 of the study log, on a CPU: how many times faster than dense, by the share of codes that is legal."""
    rows = [row for row in latest("head", folder) if row["parameters"]["what"] == "curve"]
    if not rows:
        return False
    matplotlib.use("agg")
    measured, parameters = rows[-1]["measured"], rows[-1]["parameters"]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _curve(left, measured["points"], "block_level", f"block level: blocks of {parameters['block']} codes")
    _curve(right, measured["points"], "thread_level", "column level: legal codes alone (gather)")
    _curve(right, measured["points"], "sliced", "copied slice of the weight")
    for axes in (left, right):
        axes.axhline(1, color="#b0b7b3", lw=1)
        axes.set_xlabel("share of codes that is legal", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    left.set_ylabel("times faster than dense", fontsize=8)
    figure.suptitle(f"one row, {parameters['V']:,} codes of {parameters['D']:,} values, float32, one CPU thread", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return True


def _curve(axes: Axes, points: list[Row], way: str, label: str) -> None:
    axes.loglog([one["density"] for one in points], [one[f"dense_over_{way}"] for one in points], marker="o", ms=3, label=label)


def _from(row: Row) -> str:
    machine = row["machine"]
    return f"{row['time'][:10]}, commit {row['commit']}, {machine['cpu']}, {machine['cores']} cores, load {machine['load']}."


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}x" if value >= 100 else f"{value:,.1f}x" if value >= 10 else f"{value:,.2f}x"


def _head(folder: Path) -> list[str]:
    rows = [row for row in latest("head", folder) if row["parameters"]["what"] == "rows"]
    lines = ["| legal codes | rows | share | dense ms | csr_logits | gather | tokens | blocks | copied slice | chosen |"]
    lines += ["| --- |" + " ---: |" * 8 + " --- |"]
    for row in rows:
        for cell in row["measured"]["cells"]:
            over = [_times(cell["dense_over"].get(way)) for way in ("csr_logits", "gather", "tokens", "blocks", "sliced")]
            about = [row["parameters"]["distribution"], cell["rows"], f"{cell['density']:.1%}", f"{cell['dense_ms']:,.1f}"]
            lines.append(_line([*about, *over, cell["chosen"]]))
    return [*lines, "", _from(rows[-1])] if rows else []


def _choice(folder: Path) -> list[str]:
    rows = [row for row in latest("head", folder) if row["parameters"]["what"] == "choice"]
    if not rows:
        return []
    cells, costs = rows[-1]["measured"]["cells"], rows[-1]["measured"]["costs_ns"]
    taken = {path: sum(cell["paths"] == [path] for cell in cells) for path in ("gather", "tokens", "blocks", "dense")}
    worst = max(cells, key=lambda cell: cell["over_dense"])
    dense = ", ".join(f"{cost:.2f} at {number}" for number, cost in costs["dense"])
    return [
        f"Of {len(cells)} combinations of rows, shares and shapes the dispatcher took "
        + ", ".join(f"{path} in {count}" for path, count in taken.items())
        + f"; the worst took {worst['over_dense']:.2f} of dense's time ({worst['rows']} rows, {worst['density']:.1%} legal, "
        f"{worst['legal']}). Costs measured, in nanoseconds a weight: dense {dense} rows; gather {costs['gather']:.2f}; "
        f"tokens {costs['token']:.2f} and {costs['shared']:.2f} for each further row.",
        "",
        _from(rows[-1]),
    ]


def _automaton(folder: Path) -> list[str]:
    rows = latest("automaton", folder)
    lines = ["| language | states | leafbeam ms | outlines-core ms | ratio | xgrammar ms (compile alone) | bytes |"]
    lines += ["| --- |" + " ---: |" * 6]
    for row in rows:
        one, ms = row["measured"], row["measured"]["build_ms"]
        times = [f"{ms[peer]['p50']:,.1f}" if peer in ms else "" for peer in ("leafbeam", "outlines-core", "xgrammar")]
        ratio = _times(one["outlines_core_over_leafbeam"])
        lines.append(
            _line([row["parameters"]["language"], f"{one['states']:,}", *times[:2], ratio, times[2], f"{one['nbytes']:,}"])
        )
    return [*lines, "", _from(rows[-1])] if rows else []


def _forced(folder: Path) -> list[str]:
    rows = [row for row in latest("forced", folder) if "layers" in row["parameters"] and "what" not in row["parameters"]]
    lines = ["| catalog | layers | requests | scoring | passes | forced | ms | forced | faster |", "| --- |" + " ---: |" * 8]
    for row in rows:
        about, one = row["parameters"], row["measured"]
        for scoring in ("full", "allowed"):
            ways = [f"{scoring}, {way}" for way in ("rounds", "forced")]
            lines.append(
                _line(
                    [about["distribution"], about["layers"], about["B"], scoring]
                    + [one["passes"][way] for way in ways]
                    + [f"{one['decode_ms'][way]['p50']:.1f}" for way in ways]
                    + [_times(one["rounds_over_forced"][scoring])]
                )
            )
    return [*lines, "", _from(rows[-1])] if rows else []


def _leaves(folder: Path) -> list[str]:
    rows = [row for row in latest("forced", folder) if row["parameters"].get("what") == "leaves left"]
    lines = ["| catalog | at most | passes, alone | batch of 4 | whole batch | codes read |", "| --- |" + " ---: |" * 5]
    for row in rows:
        for most, one in row["measured"]["at_most"].items():
            passes = [one[key] for key in ("passes_alone", "passes_batch_of_4", "passes_batch", "codes_read")]
            lines.append(_line([row["parameters"]["distribution"], most, *passes]))
    return [*lines, "", _from(rows[-1])] if rows else []


def _attention(folder: Path) -> list[str]:
    rows = [row for row in latest("attention", folder) if row["parameters"]["what"] == "one layer"]
    lines = ["| requests | beams | prompt | shared µs | a copy for each beam | tree mask | bytes shared | bytes per beam |"]
    lines += ["|" + " ---: |" * 8]
    for row in rows:
        about, one = row["parameters"], row["measured"]
        over = [_times(one[f"{way}_over_shared"]) for way in ("per_beam", "tree")]
        sizes = [f"{one['bytes'][way]:,}" for way in ("shared", "per_beam")]
        shared = f"{one['us']['shared']['p50']:,.0f}"
        lines.append(_line([about["requests"], about["beams"], about["tokens"], shared, *over, *sizes]))
    return [*lines, "", _from(rows[-1])] if rows else []


def _gpu(folder: Path) -> list[str]:
    rows = latest("gpu", folder)
    lines = ["| what | result |", "| --- | --- |"]
    for row in rows:
        about = ", ".join(f"{key} {value}" for key, value in row["parameters"].items() if key != "what")
        short = {key: value for key, value in row["measured"].items() if not isinstance(value, list | dict)}
        lines.append(_line([f"{row['parameters']['what']} ({about})", json.dumps(short)]))
    return [*lines, "", _from(rows[-1])] if rows else ["Not measured: no GPU was at hand. `make gpu` measures."]


def _language(folder: Path) -> list[str]:
    rows = latest("language", folder)
    lines = ["| language | states | legal tokens alone, ms a round | all logits | all logits and a mask |"]
    lines += ["| --- |" + " ---: |" * 4]
    for row in rows:
        one = row["measured"]
        over = [_times(one["over_legal"][way]) for way in ("all", "mask")]
        lines.append(
            _line([row["parameters"]["language"], f"{one['states']:,}", f"{one['round_ms']['legal']['p50']:,.2f}", *over])
        )
    return [*lines, "", _from(rows[-1])] if rows else []


def _line(cells: list[Any]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


_TABLES: dict[str, Callable[[Path], list[str]]] = {
    "head": _head,
    "head-choice": _choice,
    "automaton": _automaton,
    "forced": _forced,
    "forced-leaves": _leaves,
    "attention": _attention,
    "language": _language,
    "gpu": _gpu,
}


if __name__ == "__main__":
    document = _DOCS / "engineering-log" / "kernels.md"
    document.write_text(fill(document.read_text()))
    draw_curves(_DOCS / "figures" / "head.png")
