"""`python -m pleach.bench NAME... [--json] [--quick]`: measure, print, append one row a run to results/.

Each name is a module of this package with `runs(quick)`, which yields (parameters, measured) of one row after the other.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from pleach.bench.rows import append_row
from pleach.bench.workloads import DISTRIBUTIONS

Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]


class Name(StrEnum):
    STEP = "step"
    INDEX = "index"
    FILTERS = "filters"
    FORCED = "forced"
    GPU = "gpu"


def main(
    names: Annotated[list[Name], typer.Argument(help="What to measure.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON row for each run and nothing else.")] = False,
    quick: Annotated[bool, typer.Option(help="A hundredth of the items; the rows are printed but not kept.")] = False,
) -> None:
    """Measure pleach against its named peers, side by side, on uniform and on Zipf-skewed catalogues."""
    console = Console(stderr=as_json)
    for name in names:
        if name is Name.GPU:
            from pleach.bench import gpu

            gpu.main(as_json)
            continue
        with console.status(str(name)):
            for parameters, measured in _runs(name, quick):
                row: dict[str, Any] = {"bench": name.value, "parameters": parameters, "measured": measured}
                if not quick:
                    row = append_row(name.value, parameters, measured)
                if as_json:
                    print(json.dumps(row), flush=True)
                else:
                    console.print(f"[bold]{name}[/] {parameters.get('distribution', '')}")
                    console.print_json(json.dumps(measured))


def _runs(name: Name, quick: bool) -> Runs:
    module = importlib.import_module(f"pleach.bench.{name}")
    sizes = {Name.INDEX: (10_000_000, 3), Name.STEP: (1_000_000, 200), Name.FILTERS: (1_000_000, 60)}
    if name not in sizes:
        yield from module.runs(quick)
        return
    num_items, repeats = sizes[name]
    for distribution in DISTRIBUTIONS:
        yield module.measure(distribution, num_items // (100 if quick else 1), repeats)


if __name__ == "__main__":
    typer.run(main)
