"""Tables of kept rows for a person: ours beside the paper's, the hardware of both by name, what was left out and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.static.methods import LABELS, gib
from benchmarks.static.paper import HARDWARE, Overheads

__all__ = ["PAPER_NAMES", "by_distribution", "machine", "show_left_out", "show_one", "show_sweep", "size_name", "where"]

Row = dict[str, Any]

# Which of the paper's methods each of ours is; the first of them is drawn as it.
PAPER_NAMES = {
    "static_jax": "static",
    "static_jax_scatter": "static",
    "static_torch": "static",
    "static_scatter": "static",
    "ppv_approximate": "ppv_approximate",
    "ppv_approximate_jax": "ppv_approximate",
    "ppv_exact": "ppv_exact",
    "ppv_exact_jax": "ppv_exact",
    "hash_bitmap": "hash_bitmap",
    "hash_bitmap_jax": "hash_bitmap",
    "cpu_trie": "cpu_trie",
}


def by_distribution(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each distribution, in order of size and codebook."""
    kinds = dict.fromkeys(row["parameters"]["distribution"] for row in rows)
    return {
        kind: sorted(
            (row for row in rows if row["parameters"]["distribution"] == kind),
            key=lambda row: (row["parameters"]["num_items"], row["parameters"]["V"]),
        )
        for kind in kinds
    }


def size_name(count: int) -> str:
    """10^5, 2 x 10^7, or the number."""
    power = len(str(count)) - 1
    lead, rest = divmod(count, 10**power)
    return str(count) if rest or power < 3 else f"10^{power}" if lead == 1 else f"{lead} x 10^{power}"


def machine(row: Row) -> str:
    """The machine and parameters of a row."""
    at, cpu = row["parameters"], row["machine"]["cpu"]
    on = f"one core of {cpu}" if at["device"] == "cpu" else f"{at['device']} and one core of {cpu}"
    return f"{on}, quick" if at["quick"] else on


def where(row: Row) -> str:
    """What it was measured on, and the serving shape."""
    at = row["parameters"]
    return f"{machine(row)}; {at['B']} requests x {at['K']} beams, {at['L']} levels"


def show_one(console: Console, row: Row, paper: Overheads | None, shares_of_inference: dict[str, float]) -> None:
    """One point, every method a line."""
    at, measured = row["parameters"], row["measured"]
    title = f"{at['distribution']}, {at['num_items']:,} items, V = {at['V']:,}  ·  {where(row)}"
    table = Table(title=title, title_justify="left", caption=f"paper: {HARDWARE}, overhead in ms", caption_justify="left")
    table.add_column("method")
    inference = {name: one["share_percent"] for name, one in measured.get("inference", {}).items() if "share_percent" in one}
    for name in (
        "step, µs (p20-p80)",
        "mean ± s.d.",
        "overhead, µs (p20-p80)",
        "x leafbeam",
        "trials",
        "index",
        *(f"% of a step of {name}" for name in inference),
        "paper: + ms",
        "paper: % of inference",
    ):
        table.add_column(name, justify="right")
    table.add_column("returned")
    table.add_column("form")
    base = measured["step_us"].get("leafbeam", {}).get("p50")
    for name, label in LABELS.items():
        if name in measured["step_us"]:
            step, over = measured["step_us"][name], measured["overhead_us"].get(name)
            theirs = None if paper is None else paper.get(PAPER_NAMES.get(name, ""))
            share = shares_of_inference.get(PAPER_NAMES.get(name, ""))
            table.add_row(
                label,
                spread_text(step),
                moments_text(step),
                "floor" if over is None else spread_text(over),
                f"{step['p50'] / base:,.1f}",
                str(measured["trials"][name]),
                gib(measured["nbytes"][name]) if measured["nbytes"][name] else "",
                *(f"{shares[name]:,.2f}" for shares in inference.values()),
                "" if theirs is None else f"{theirs[0]:g} ± {theirs[1]:g}",
                "" if share is None else f"{share:g}",
                returned(measured["shares"][name], name),
                form_of(measured, name),
                style="bold" if name.startswith("leafbeam") else "",
            )
        elif name in measured["left_out"]:
            table.add_row(label, *[""] * (8 + len(inference)), measured["left_out"][name])
    console.print(table)
    if "false_positive_rate" in measured:
        console.print(
            f"hash bitmap: {measured['false_positive_rate']:.3%} of the illegal codes that were tested were allowed "
            f"(its bits set: {measured.get('expected_rate', float('nan')):.3%}; the paper: 2.1 % in its setting)"
        )


def show_sweep(
    console: Console,
    rows: list[Row],
    paper: dict[int, Overheads],
    column: Callable[[Row], tuple[int, str]],
) -> None:
    """A table of steps and one of overheads for each distribution; a column for each point: (the paper's key, its name)."""
    for kind, group in by_distribution(rows).items():
        keys = [column(row) for row in group]
        steps = Table(title=f"{kind}: one step, µs, p50 (p20-p80)  ·  {where(group[0])}", title_justify="left")
        title = f"{kind}: overhead of a step over unconstrained, µs, p50  ·  in brackets the paper's mean on {HARDWARE}"
        overheads = Table(title=title, title_justify="left")
        for table in (steps, overheads):
            table.add_column("method")
            for _, name in keys:
                table.add_column(name, justify="right")
        for method, label in LABELS.items():
            style = "bold" if method.startswith("leafbeam") else ""
            if any(method in row["measured"]["step_us"] or method in row["measured"]["left_out"] for row in group):
                steps.add_row(label, *(_step_cell(row, method) for row in group), style=style)
            if not method.startswith("unconstrained") and any(method in row["measured"]["overhead_us"] for row in group):
                cells = [_overhead_cell(row, method, paper.get(key, {})) for row, (key, _) in zip(group, keys, strict=True)]
                overheads.add_row(label, *cells, style=style)
        console.print(steps)
        console.print(overheads)
        show_left_out(console, group, [name for _, name in keys])


def show_left_out(console: Console, rows: list[Row], names: Sequence[str]) -> None:
    """Every method that a point does without, with the reason; equal reasons of a point in one line."""
    for row, at in zip(rows, names, strict=True):
        reasons: dict[str, list[str]] = {}
        for method, reason in row["measured"]["left_out"].items():
            reasons.setdefault(reason, []).append(str(LABELS.get(method, method)))
        for reason, methods in reasons.items():
            who = "every method" if len(methods) > 6 else "; ".join(methods)
            console.print(f"[yellow]{at}[/]: {who}: {reason}")


def spread_text(spread: dict[str, float]) -> str:
    """p50 (p20-p80)."""
    return f"{spread['p50']:,.0f} ({spread['p20']:,.0f} to {spread['p80']:,.0f})"


def moments_text(spread: dict[str, float]) -> str:
    """Mean ± standard deviation; "" in rows of before."""
    return f"{spread['mean']:,.0f} ± {spread['sd']:,.0f}" if "mean" in spread else ""


def returned(shares: dict[str, float], name: str) -> str:
    """Whether a method is exact, in words."""
    if shares["found"] > 0.97 and not shares["invalid"]:
        return "exact"
    return f"{shares['found']:.0%} of the exact SIDs; {shares['invalid']:.0%} in no item"


def form_of(measured: dict[str, Any], name: str) -> str:
    """The dtype and the form that a method was measured in; "" in rows of before."""
    form = measured.get("forms", {}).get(name)
    return ", ".join(part for part in (form["form"], form["dtype"]) if part) if form else ""


def _step_cell(row: Row, method: str) -> str:
    spread = row["measured"]["step_us"].get(method)
    return "left out" if spread is None else spread_text(spread)


def _overhead_cell(row: Row, method: str, paper: Overheads) -> str:
    spread = row["measured"]["overhead_us"].get(method)
    theirs = paper.get(PAPER_NAMES.get(method, ""))
    mine = "" if spread is None else f"{spread['p50']:+,.0f}"
    return f"{mine} [{1000 * theirs[0]:,.0f}]" if theirs is not None else mine
