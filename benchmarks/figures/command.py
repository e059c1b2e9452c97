"""`python -m benchmarks figures`: write the numbers and plots of the documents, or say which are stale."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.figures.definition import DEFINITIONS, Definitions
from benchmarks.figures.document import Problem, differences, filled, stray_numbers
from benchmarks.figures.markdown import render
from benchmarks.figures.plots import PLOTS
from benchmarks.figures.selection import ResultRows
from leafbeam.cli.console import stderr, stdout

__all__ = ["ROOT", "add_command", "documents", "stale", "stray", "write"]

ROOT = Path(__file__).parents[2]


def add_command(app: typer.Typer) -> None:
    """Register `figures`."""

    @app.command("figures", help="Write the numbers of the README and docs from kept rows.", rich_help_panel="documents")
    def _figures(  # pyright: ignore[reportUnusedFunction]
        check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 if anything is stale.")] = False,
        redraw: Annotated[bool, typer.Option("--redraw", help="Draw every plot anew, stale or not.")] = False,
    ) -> None:
        rows = ResultRows.read()
        if not check:
            for path in write(rows, redraw=redraw):
                stdout().print(str(path.relative_to(ROOT)))
            if rows.refused:
                stderr().print(f"{len(rows.refused)} rows are refused and {len(rows.rows)} are not: see benchmarks/rows.py")
        found = [*stale(rows), *stray()]
        for problem in found:
            stderr().print(str(problem), soft_wrap=True)
        if found:
            raise typer.Exit(1)


def documents(root: Path = ROOT) -> list[Path]:
    """Every document that may hold figures."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def write(rows: ResultRows, root: Path = ROOT, *, redraw: bool = False) -> list[Path]:
    """Write every figure and plot; returns the files that changed."""
    definitions = Definitions.read()
    old = {path: path.read_text(encoding="utf-8") for path in documents(root)}
    new = {path: filled(text, partial(render, definitions, rows=rows)) for path, text in old.items()}
    changed = [path for path, text in new.items() if text != old[path]]
    for path in changed:
        path.write_text(new[path], encoding="utf-8")
    return changed + [root / "docs/figures" / plot.file for plot in PLOTS if plot.write(root / "docs/figures", rows, redraw)]


def stale(rows: ResultRows, root: Path = ROOT) -> list[Problem]:
    """Figures of documents that differ from their rows, declared ones that no document shows, and plots of other rows."""
    definitions = Definitions.read()
    found: list[Problem] = []
    shown: set[str] = set()
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        found += differences(str(path.relative_to(root)), text, partial(render, definitions, rows=rows))
        shown |= {name for name in definitions.figures if f"<!-- figure: {name} -->" in text}
    for name in definitions.figures:
        if name not in shown:
            found.append(Problem(file=DEFINITIONS.name, line=1, message=f"no document shows the figure {name!r}"))
    for plot in PLOTS:
        if not plot.is_current(root / "docs/figures", rows):
            message = "shows other rows than the newest (`make figures`)"
            found.append(Problem(file=f"docs/figures/{plot.file}", line=1, message=message))
    return found


def stray(root: Path = ROOT) -> list[Problem]:
    """Numbers of the README and of docs/results that come from no row and are no setting."""
    settings = Definitions.read().settings
    found: list[Problem] = []
    for path in documents(root):
        file = str(path.relative_to(root))
        if file == "README.md" or file.startswith("docs/results/"):
            found += stray_numbers(file, path.read_text(encoding="utf-8"), settings.get(file, ()), settings.get("*", ()))
    return found
