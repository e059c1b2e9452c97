"""`python -m pleach.bench step index filters [--json] [--quick]`: measure, print, append one row a run to results/."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from pleach.bench import filters, index, step
from pleach.bench.rows import append_row
from pleach.bench.workloads import DISTRIBUTIONS


class Name(StrEnum):
    STEP = "step"
    INDEX = "index"
    FILTERS = "filters"
    GPU = "gpu"


def main(
    names: Annotated[list[Name], typer.Argument(help="What to measure.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON row for each run and nothing else.")] = False,
    quick: Annotated[bool, typer.Option(help="A hundredth of the items; the rows are printed but not kept.")] = False,
) -> None:
    """Measure pleach against its named peers, side by side, on uniform and on Zipf-skewed catalogues."""
    console = Console(stderr=as_json)
    scale = 100 if quick else 1
    for name in names:
        if name is Name.GPU:
            from pleach.bench import gpu

            gpu.main(as_json)
            continue
        for distribution in DISTRIBUTIONS:
            with console.status(f"{name}: {distribution}"):
                if name is Name.INDEX:
                    parameters, measured = index.measure(distribution, 10_000_000 // scale, repeats=3)
                elif name is Name.STEP:
                    parameters, measured = step.measure(distribution, 1_000_000 // scale, repeats=200)
                else:
                    parameters, measured = filters.measure(distribution, 1_000_000 // scale, repeats=60)
            row: dict[str, Any] = {"bench": name.value, "parameters": parameters, "measured": measured}
            if not quick:
                row = append_row(name.value, parameters, measured)
            if as_json:
                print(json.dumps(row), flush=True)
            else:
                console.print(f"[bold]{name}[/] {distribution}")
                console.print_json(json.dumps(measured))


if __name__ == "__main__":
    typer.run(main)
