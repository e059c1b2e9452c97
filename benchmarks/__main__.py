"""`python -m benchmarks NAME... [--json] [--quick]`: measure, print, append one row a run to results/.

Each name is a module of this package with `runs(quick)`, which yields (parameters, measured) of one row after the other.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.micro import filters, index
from benchmarks.rows import append_row
from benchmarks.serving import scale
from benchmarks.workloads import DISTRIBUTIONS

_LARGE = 20_000_000  # more items than the peers have memory for
Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]


class Name(StrEnum):
    STEP = "step"
    ATTENTION = "attention"
    AUTOMATON = "automaton"
    INDEX = "index"
    LANGUAGE = "language"
    JAX = "jax"
    FILTERS = "filters"
    FORCED = "forced"
    HEAD = "head"
    HF = "hf"
    SOAK = "soak"
    UPDATES = "updates"
    GPU = "gpu"
    SERVE = "serve"
    MEMORY = "memory"
    TOKENISER = "tokeniser"


def main(
    names: Annotated[list[Name], typer.Argument(help="What to measure.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON row for each run and nothing else.")] = False,
    quick: Annotated[bool, typer.Option(help="A hundredth of the items; the rows are printed but not kept.")] = False,
    seconds: Annotated[
        float, typer.Option(help="For updates: how long changes are sustained beside searches. For soak: in all.")
    ] = 60.0,
    num_items: Annotated[
        int | None,
        typer.Option(help="For index, step and filters: so many items; index and step above 2 x 10^7: in chunks, no peer."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="For serve and tokeniser: a directory of interactions; made up else.")
    ] = None,
    memory_limit: Annotated[
        int, typer.Option(help="For index and step in chunks: bytes that rows may take until they are sorted.")
    ] = 4 << 30,
) -> None:
    """Measure leafbeam against its named peers, side by side, on uniform and on Zipf-skewed catalogs."""
    console = Console(stderr=as_json)
    for name in names:
        if name is Name.GPU:
            from benchmarks.gpu import gpu

            gpu.main(as_json)
            continue
        with console.status(str(name)):
            for parameters, measured in _runs(name, quick, num_items, memory_limit, seconds, data):
                row: dict[str, Any] = {"bench": name.value, "parameters": parameters, "measured": measured}
                if not quick:
                    row = append_row(name.value, parameters, measured)
                if as_json:
                    print(json.dumps(row), flush=True)
                else:
                    console.print(f"[bold]{name}[/] {parameters.get('distribution', '')}")
                    console.print_json(json.dumps(measured))


def _runs(name: Name, quick: bool, num_items: int | None, memory_limit: int, seconds: float, data: Path | None) -> Runs:
    folder = "serving" if name in (Name.SERVE, Name.MEMORY, Name.SOAK) else "micro"
    module = importlib.import_module(f"benchmarks.{folder}.{name}")
    if name in (Name.SERVE, Name.TOKENISER):
        yield from module.runs(quick, data)
        return
    sizes = {Name.INDEX: (10_000_000, 3), Name.STEP: (1_000_000, 200), Name.FILTERS: (1_000_000, 60)}
    if name in (Name.UPDATES, Name.SOAK):
        yield from module.runs(quick, seconds)
        return
    if name not in sizes:
        yield from module.runs(quick)
        return
    usual, repeats = sizes[name]
    wanted = usual if num_items is None else num_items
    size, is_large = wanted // (100 if quick else 1), wanted > _LARGE
    for distribution in DISTRIBUTIONS:
        if name is Name.INDEX and is_large:
            yield index.measure_chunks(distribution, size, memory_limit)
        elif name is Name.STEP and is_large:
            yield scale.measure(distribution, size, repeats, 1_000 if quick else scale.SMALL, memory_limit)
        else:
            yield module.measure(distribution, size, repeats)
    if name is Name.FILTERS:
        size = (10_000_000 if num_items is None else num_items) // (100 if quick else 1)
        for distribution in DISTRIBUTIONS:
            yield filters.measure_rules(distribution, size, repeats // 3)


if __name__ == "__main__":
    typer.run(main)
