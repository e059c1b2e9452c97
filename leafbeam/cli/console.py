"""Output of commands: two consoles, progress, and the last line, which names the next command."""

import shlex
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from leafbeam import tables

PIPE_WIDTH = 120


def stdout() -> Console:
    """Return the console for answers, which is 120 columns wide if it is a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def stderr() -> Console:
    """Return the console for errors and progress, so that answers can be piped."""
    return Console(stderr=True, highlight=False)


class Bar:
    """A progress bar on stderr, or in a notebook that has ipywidgets; elsewhere a line for each tenth of the work.

    `show` may be passed as the `progress` of `fit_sids`.
    """

    def __init__(self, title: str) -> None:
        self.console = stderr()
        # In a notebook rich draws with ipywidgets.
        self._is_drawn = self.console.is_terminal or (self.console.is_jupyter and find_spec("ipywidgets") is not None)
        self._tenth = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self._is_drawn,
        )
        self._task = self._progress.add_task(title, total=1.0, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, title: str, share: float, note: str = "") -> None:
        """Show the current work and the share of it that is done (0 to 1)."""
        self._progress.update(self._task, description=title, completed=share, note=note)
        if not self._is_drawn and int(10 * share) > self._tenth:
            self._tenth = int(10 * share)
            self.console.print(f"  {title}  {self._tenth * 10:3d} %  {note}".rstrip(), soft_wrap=True)


@contextmanager
def working(title: str) -> Generator[None]:
    """Say on stderr what takes a while: beside a spinner on a terminal, elsewhere in a line."""
    console = stderr()
    if console.is_terminal:
        with console.status(title):
            yield
    else:
        console.print(f"  {title}", soft_wrap=True)
        yield


def done(console: Console, result: str, *, since: float) -> None:
    """Print what was made and the seconds it took. since: `time.perf_counter()` at the start of the work."""
    seconds = time.perf_counter() - since
    console.print(Text.assemble(("✓ ", "green"), result, (f"  ({seconds:,.1f} s)", "dim")), soft_wrap=True)


def show_types(console: Console, table: Any) -> None:
    """Print the columns of an Arrow table with the types that were read, and how many values are missing."""
    empty = {name: table[name].null_count for name in table.column_names}
    console.print(
        f"Read as: {tables.describe(dict(zip(table.column_names, table.schema.types, strict=True)), empty)}",
        style="dim",
        soft_wrap=True,
        markup=False,
    )


def next_step(console: Console, *words: str | Path) -> None:
    """Print the command to run next, quoted for a shell."""
    command = shlex.join(str(word) for word in words)
    console.print(Text.assemble(("Next: ", "bold"), (command, "cyan")), soft_wrap=True)
