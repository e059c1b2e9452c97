"""`leafbeam reproduce`: the papers' tables and figures on this machine."""

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from leafbeam.cli.console import done, stderr, stdout
from leafbeam.errors import ArgumentError, DataError, MissingExtraError

__all__ = ["reproduce"]

LEARNING = "static-table-3 and tiger-table-1"


class Name(StrEnum):
    """What the papers show."""

    TABLE_1 = "static-table-1"
    TABLE_3 = "static-table-3"
    FIGURE_2 = "static-figure-2"
    FIGURE_3 = "static-figure-3"
    FIGURE_4 = "static-figure-4"
    MEMORY = "static-memory"
    TIGER_1 = "tiger-table-1"
    XGR_13 = "xgr-figure-13"
    XGR_15 = "xgr-figure-15"
    XGR_16 = "xgr-figure-16"
    XGR_17 = "xgr-figure-17"
    XGR_18 = "xgr-figure-18"
    XGR_19 = "xgr-figure-19"


class Distribution(StrEnum):
    """How the codes of a catalog are drawn."""

    UNIFORM = "uniform"
    ZIPF = "zipf"


def reproduce(
    name: Annotated[Name, typer.Argument(help="Which table or figure.", show_default=False)],
    more_shares: Annotated[list[float] | None, typer.Argument(hidden=True)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small catalogs and few trials: about two minutes, 4 GiB.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Directory for the plot, NAME.png.")] = None,
    device: Annotated[str, typer.Option("--device", help="Where the torch peers run: cpu, cuda, cuda:1.")] = "cpu",
    trials: Annotated[int | None, typer.Option("--trials", help="Trials of each method; 100, with --quick 10.")] = None,
    memory: Annotated[float | None, typer.Option("--memory", help="GiB to stay within; 4/5 of what is free, or 4.")] = None,
    distribution: Annotated[Distribution | None, typer.Option("--distribution", help="One of the two; both else.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON, and keep them.")] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="Tables about learning: a data set, or a directory with several.")
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option("--share", help="static-table-3: of the items that are cold. [dim]0.02 0.05[/dim]")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Tables about learning: runs, of seeds 0, 1, ...")] = 1,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Tables about learning: of training a model.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="The same in passes over the data.")] = None,
    note: Annotated[str, typer.Option("--note", help="A remark for the rows: a shared machine, say.")] = "",
    redraw: Annotated[bool, typer.Option("--redraw", help="Measure nothing: show and draw the rows kept last.")] = False,
) -> None:
    """Measure what a table or figure of a paper shows, beside the paper's own numbers."""
    console = stderr() if as_json else stdout()
    if name in (Name.TABLE_3, Name.TIGER_1):
        _learning(
            name,
            console,
            data=data,
            shares=(*(share or ()), *(more_shares or ())),
            quick=quick,
            seeds=seeds,
            minutes=minutes,
            epochs=epochs,
            note=note,
            as_json=as_json,
            redraw=redraw,
            out=out,
        )
        return
    if name.value.startswith("xgr-"):
        _serving(name, console, data=data, quick=quick, as_json=as_json, redraw=redraw, out=out)
        return
    if data is not None or share or more_shares:
        raise ArgumentError(f"{name.value} measures catalogs that it draws itself: --data and --share are for {LEARNING}")
    try:
        from benchmarks.papers.experiment import Setting, kept_rows
        from benchmarks.papers.experiments import experiment
    except ImportError as error:
        raise MissingExtraError(f"leafbeam reproduce needs {error.name}: pip install 'leafbeam[bench]'") from error
    check_device(device)
    chosen = experiment(name.value)
    began = time.perf_counter()
    if redraw:
        rows = kept_rows(name.value, quick)
        if not rows:
            raise DataError(
                f"no rows of {name.value} are kept{' with --quick' if quick else ''}: measure them with --json first"
            )
    else:
        setting = Setting.of(quick=quick, device=device, memory_gib=memory, num_trials=trials)
        kinds = [one.value for one in Distribution] if distribution is None else [distribution.value]
        rows = chosen.run(setting, kinds, console, keep=as_json)
    if as_json and not redraw:
        for row in rows:
            print(json.dumps(row), flush=True)
    chosen.show(wide(console), rows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{name.value}.png"
        chosen.draw(rows).savefig(path, dpi=160)
        done(console, what=f"{path}", seconds=time.perf_counter() - began)


def _learning(
    name: Name,
    console: Console,
    *,
    data: Path | None,
    shares: tuple[float, ...],
    quick: bool,
    seeds: int,
    minutes: float | None,
    epochs: float | None,
    note: str,
    as_json: bool,
    redraw: bool,
    out: Path | None,
) -> None:
    """A table about learning: from data sets, a row for each run."""
    began = time.perf_counter()
    try:
        from benchmarks.papers.experiments import learning_table
        from benchmarks.papers.learning import LearningRun, data_sets, kept_learning_rows

        table = learning_table(name.value)
    except ImportError as error:
        raise MissingExtraError(
            f"leafbeam reproduce {name.value} needs {error.name}: pip install 'leafbeam[train,bench]'"
        ) from error
    from benchmarks.rows import keep_row

    assert table is not None
    if redraw:
        rows = kept_learning_rows(table, quick)
        if not rows:
            raise DataError(
                f"no rows of {name.value} are kept{' with --quick' if quick else ''}: measure them with --json first"
            )
    else:
        if data is None:
            raise ArgumentError(f"{name.value} learns from data: --data DIR, one data set or a directory with several")
        run = LearningRun(
            data=data_sets(data),
            quick=quick,
            seeds=seeds,
            shares=shares or (0.02, 0.05),
            minutes=minutes,
            epochs=epochs,
            note=note,
        )

        def keep(row: dict[str, object]) -> None:
            if as_json:
                print(json.dumps(row), flush=True)
                if not quick:
                    keep_row(table.results, row)

        rows = table.rows(run, console, keep)
    table.show(wide(console), rows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{name.value}.png"
        table.draw(rows).savefig(path, dpi=160)
        done(console, what=f"{path}", seconds=time.perf_counter() - began)


def _serving(
    name: Name, console: Console, *, data: Path | None, quick: bool, as_json: bool, redraw: bool, out: Path | None
) -> None:
    """A figure of the xGR paper: the engine, its peers and the server; `data` or the made shop."""
    began = time.perf_counter()
    try:
        from benchmarks.papers.experiments import serving_figure
        from benchmarks.papers.xgr import RESULTS_NAME, Asked, kept_serving_rows

        figure = serving_figure(name.value)
    except ImportError as error:
        raise MissingExtraError(
            f"leafbeam reproduce {name.value} needs {error.name}: pip install 'leafbeam[train,serve,bench]'"
        ) from error
    from benchmarks.rows import keep_row

    assert figure is not None
    rows = kept_serving_rows(name.value, quick) if redraw else figure.run(Asked(quick=quick, data=data), console)
    if not rows:
        raise DataError(f"no rows of {name.value} are kept{' with --quick' if quick else ''}: measure them with --json first")
    for row in rows if as_json and not redraw else ():
        print(json.dumps(row), flush=True)
        if not quick:
            keep_row(RESULTS_NAME, row)
    figure.show(wide(console), rows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{name.value}.png"
        figure.draw(rows).savefig(path, dpi=160)
        done(console, what=f"{path}", seconds=time.perf_counter() - began)


def wide(console: Console) -> Console:
    """The same console, at least wide enough for a row of figures."""
    return Console(stderr=console.stderr, highlight=False, width=max(console.width, 170), soft_wrap=True)


def check_device(device: str) -> None:
    """Raise ArgumentError for a device that torch does not know or that is not here."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ArgumentError(f"--device is {device!r}: expected cpu, or cuda for the first GPU") from error
    if kind not in ("cpu", "cuda"):
        raise ArgumentError(f"--device is {device!r}: expected cpu, or cuda for the first GPU")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device is cuda, but torch finds no GPU here: leave it out to measure on the CPU")


if __name__ == "__main__":
    typer.run(reproduce)
