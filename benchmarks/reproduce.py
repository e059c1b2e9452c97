"""Commands that measure what the tables and figures of the papers show, beside the papers' own numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from matplotlib.figure import Figure
from rich.console import Console

from leafbeam.cli.console import done, stderr, stdout
from leafbeam.errors import ArgumentError, DataError

__all__ = ["add_commands"]

_STATIC = {
    "static-table-1": "STATIC, Table 1: a decoding step by every method, 2 x 10^7 items.",
    "static-figure-2": "STATIC, Figure 2: the same as the items grow from 10^5 to 10^8.",
    "static-figure-3": "STATIC, Figure 3: the same as the codebook grows from 256 to 32,768.",
    "static-figure-4": "STATIC, Figure 4: the masking kernel as the branch factor grows.",
    "static-memory": "STATIC, Appendix B: bytes of the index.",
}
_LEARNING = {
    "static-table-3": "STATIC, Table 3: recommending the newest items.",
    "tiger-table-1": "TIGER, Table 1: every user's last item, all items ranked.",
    "exactness": "Answers of an exact search under a rule that other ways lose, and answers that are no item.",
}
_XGR = {
    "xgr-figure-3": "xGR, Figure 3: kernels of attention as the beams grow.",
    "xgr-figure-4": "xGR, Figure 4: memory of keys and values as the beams grow.",
    "xgr-figure-5": "xGR, Figure 5: answers of an unconstrained search that are no item.",
    "xgr-figure-13": "xGR, Figure 13: latency as the request rate grows, over HTTP.",
    "xgr-histories": "xGR, Figure 13 on real histories: leafbeam serve beside vLLM's server.",
    "xgr-figure-14": "xGR, Figure 14: the same for OneRec, an encoder-decoder with experts.",
    "xgr-figure-15": "xGR, Figure 15: peak memory as the beams grow.",
    "xgr-figure-16": "xGR, Figure 16: peak memory as the prompts grow.",
    "xgr-figure-17": "xGR, Figure 17: attention of one layer of a decode step.",
    "xgr-figure-18": "xGR, Figure 18: what each part of the scheduling is worth.",
    "xgr-figure-19": "xGR, Figure 19: latency as beams and model grow.",
    "xgr-sorting": "xGR, Section 6.2: the best codes of a round by sorting, heaps, an early end and a threshold.",
}
_DATES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%SZ"]


class Distribution(StrEnum):
    """How the codes of a catalog are drawn."""

    UNIFORM = "uniform"
    ZIPF = "zipf"


class Sids(StrEnum):
    """Semantic IDs of STATIC's Table 3."""

    RQVAE = "rqvae"
    KMEANS = "kmeans"
    LEAFBEAM = "leafbeam"


class TeacherName(StrEnum):
    """What a model over Semantic IDs learns from beside the training interactions."""

    NONE = "none"
    MEMORY = "memory"
    TEXT = "text"


AsJson = Annotated[bool, typer.Option("--json", help="Print the rows as JSON and keep them (quick ones are not kept).")]
Quick = Annotated[bool, typer.Option("--quick", help="Small catalogs and few trials: about two minutes, 4 GiB.")]
Out = Annotated[Path | None, typer.Option("--out", help="Directory for the plot, NAME.png.")]
Redraw = Annotated[bool, typer.Option("--redraw", help="Measure nothing: show and draw the rows kept last.")]


def add_commands(app: typer.Typer) -> None:
    """Register every table and figure under its name."""
    for names, family in ((_STATIC, _static), (_LEARNING, _learning), (_XGR, _serving)):
        for name, text in names.items():
            app.command(name, help=text, rich_help_panel="papers")(family(name))
    app.command("reproduce", rich_help_panel="papers")(_reproduce)


def _reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Parts, or their first words; all if absent.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="A data set, or a directory with several.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Skip what takes longer than is left of these.")] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", formats=_DATES, help="Leave out what was measured from then on (UTC).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the commands and the minutes that each takes.")] = False,
) -> None:
    """Measure everything in full and keep the rows: each command in a process of its own, the most valuable first."""
    from benchmarks.learning import data_sets
    from benchmarks.plan import chosen, measured_since, parts_of, run_parts

    console = stdout()
    every = parts_of(() if data is None else data_sets(data))
    unknown = sorted(name for name in names or () if not chosen(every, [name]))
    if data is None and (learning := [name for name in unknown if name.split(" ")[0] in _LEARNING]):
        raise ArgumentError(f"{', '.join(learning)} learns from data: expected --data DIR")
    if unknown:
        known = ", ".join(sorted({part.words[0] for part in every} | set(_LEARNING)))
        raise ArgumentError(f"{', '.join(unknown)}: expected the first words of a part, as --dry-run lists them: {known}")
    done_before = measured_since(since) if since else frozenset[str]()
    parts = [part for part in chosen(every, names or ()) if part.name not in done_before]
    if dry_run:
        for part in parts:
            console.print(f"{part.minutes:4.0f} min  {part.name}")
        console.print(f"{sum(part.minutes for part in parts) / 60:4.1f} h    in all")
        return
    failed = [
        one.part.name
        for one in run_parts(parts, lambda text: console.print(text, highlight=False), minutes)
        if one.status == "failed"
    ]
    if failed:
        raise DataError(f"failed: {', '.join(failed)}; the others have their rows")


def _static(name: str) -> Any:
    def command(
        quick: Quick = False,
        out: Out = None,
        device: Annotated[str, typer.Option("--device", help="Where the torch peers run: cpu, cuda, cuda:1.")] = "cpu",
        trials: Annotated[int | None, typer.Option("--trials", help="Trials of each method; 100, with --quick 10.")] = None,
        memory: Annotated[float | None, typer.Option("--memory", help="GiB to stay within; 4/5 of what is free, or 4.")] = None,
        distribution: Annotated[
            Distribution | None, typer.Option("--distribution", help="One of the two; both if absent.")
        ] = None,
        as_json: AsJson = False,
        redraw: Redraw = False,
    ) -> None:
        from benchmarks.experiments import experiment
        from benchmarks.static.experiment import kept_rows
        from benchmarks.static.setting import Setting

        check_device(device)
        console, began = _console(as_json), time.perf_counter()
        chosen = experiment(name)
        if redraw:
            rows = _kept(name, kept_rows(name, quick), quick)
        else:
            setting = Setting.of(quick=quick, device=device, memory_gib=memory, num_trials=trials)
            kinds = [each.value for each in Distribution] if distribution is None else [distribution.value]
            rows = chosen.run(setting, kinds, console, keep=as_json)
            for row in rows if as_json else ():
                print(json.dumps(row), flush=True)
        _show(name, console, chosen.show, chosen.draw, rows, out, began)

    return command


def _learning(name: str) -> Any:
    def command(
        data: Annotated[Path | None, typer.Option("--data", help="A data set, or a directory with several.")] = None,
        more_shares: Annotated[list[float] | None, typer.Argument(hidden=True)] = None,
        share: Annotated[
            list[float] | None, typer.Option("--share", help="Shares of the items that are cold. [dim]0.02 0.05[/dim]")
        ] = None,
        quick: Quick = False,
        out: Out = None,
        seeds: Annotated[int, typer.Option("--seeds", help="Runs, of seeds 0, 1, ...")] = 1,
        first_seed: Annotated[int, typer.Option("--first-seed", help="The first of these seeds.")] = 0,
        minutes: Annotated[float | None, typer.Option("--minutes", help="Minutes of training for each model.")] = None,
        epochs: Annotated[float | None, typer.Option("--epochs", help="The same in passes over the data.")] = None,
        fit_on: Annotated[
            Literal["train", "train+valid"], typer.Option("--fit-on", help="Parts of the log that Table 1 trains on.")
        ] = "train",
        part: Annotated[
            Literal["valid", "test"], typer.Option("--part", help="Whose new items Table 3 recommends; valid chooses settings.")
        ] = "test",
        sids: Annotated[
            list[Sids] | None, typer.Option("--sids", help="Semantic IDs of Table 3. [dim]rqvae kmeans[/dim]")
        ] = None,
        teacher: Annotated[
            list[TeacherName] | None,
            typer.Option("--teacher", help="What a model learns from beside clicks. [dim]memory; Table 3: none text[/dim]"),
        ] = None,
        note: Annotated[str, typer.Option("--note", help="A remark for the rows: a shared machine, say.")] = "",
        as_json: AsJson = False,
        redraw: Redraw = False,
    ) -> None:
        from benchmarks.experiments import learning_table
        from benchmarks.learning import LearningRun, data_sets, kept_learning_rows
        from benchmarks.rows import keep_row

        console, began = _console(as_json), time.perf_counter()
        table = learning_table(name)
        assert table is not None
        if redraw:
            rows = _kept(name, kept_learning_rows(table, quick), quick)
        else:
            if data is None:
                raise ArgumentError(f"{name} learns from data: expected --data DIR, one data set or a directory with several")
            shares = (*(share or ()), *(more_shares or ())) or (0.02, 0.05)
            run = LearningRun(
                data=data_sets(data),
                quick=quick,
                seeds=seeds,
                first_seed=first_seed,
                shares=shares,
                minutes=minutes,
                epochs=epochs,
                fit_on=fit_on,
                part=part,
                sids=tuple(one.value for one in sids or ()),
                teachers=tuple(one.value for one in teacher or ()),
                note=note,
            )

            def keep(row: dict[str, Any]) -> None:
                if as_json:
                    print(json.dumps(row), flush=True)
                    if not quick:
                        keep_row(table.results, row)

            rows = table.rows(run, console, keep)
        _show(name, console, table.show, table.draw, rows, out, began)

    return command


def _serving(name: str) -> Any:
    def command(
        data: Annotated[
            Path | None, typer.Option("--data", help="A directory of interactions; a synthetic shop if absent.")
        ] = None,
        quick: Quick = False,
        out: Out = None,
        as_json: AsJson = False,
        redraw: Redraw = False,
    ) -> None:
        from benchmarks.experiments import serving_figure
        from benchmarks.rows import keep_row
        from benchmarks.xgr.serving_figure import RESULTS_NAME, RunOptions, kept_serving_rows

        console, began = _console(as_json), time.perf_counter()
        figure = serving_figure(name)
        assert figure is not None
        if redraw:
            rows = _kept(name, kept_serving_rows(name, quick), quick)
        else:

            def keep(row: dict[str, Any]) -> None:
                if as_json:
                    print(json.dumps(row), flush=True)
                    if not quick:
                        keep_row(RESULTS_NAME, row)

            rows = figure.run(RunOptions(quick=quick, data=data), console, keep)
        _show(name, console, figure.show, figure.draw, rows, out, began)

    return command


def _console(as_json: bool) -> Console:
    return stderr() if as_json else stdout()


def _kept(name: str, rows: list[dict[str, Any]], quick: bool) -> list[dict[str, Any]]:
    if not rows:
        raise DataError(f"no rows of {name} are kept{' with --quick' if quick else ''}: measure them with --json first")
    return rows


def _show(
    name: str,
    console: Console,
    show: Callable[[Console, list[dict[str, Any]]], None],
    draw: Callable[[list[dict[str, Any]]], Figure],
    rows: list[dict[str, Any]],
    out: Path | None,
    began: float,
) -> None:
    """Print the table of the rows; with `out`, draw them into NAME.png there."""
    # At least wide enough for a row of figures.
    wide = Console(stderr=console.stderr, highlight=False, width=max(console.width, 170), soft_wrap=True)
    show(wide, rows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{name}.png"
        draw(rows).savefig(path, dpi=160)
        done(console, str(path), since=began)


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
