"""`python -m benchmarks NAME`: measure one thing beside its peers, print it, and keep one JSON row a run in results/."""

from __future__ import annotations

import signal
import sys
from typing import Any

import typer

from benchmarks import measure, reproduce
from benchmarks.figures.command import add_command
from benchmarks.machine import adopt_orphans, begin, end_children
from leafbeam.cli.app import Commands

__all__ = ["app"]

app = typer.Typer(
    name="benchmarks",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Measure leafbeam beside its named peers, in one run, on uniform and on Zipf-skewed catalogs.",
)
measure.add_commands(app)
reproduce.add_commands(app)
add_command(app)


def _exit(*_: Any) -> None:
    """Leave as after ^C in a terminal: so do the children, and `with` blocks end peers and remove files."""
    end_children()
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit)
    adopt_orphans()
    begin()
    app(prog_name="python -m benchmarks")
