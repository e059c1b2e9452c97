"""What a person sees: two consoles, progress, and the line that says what to do next."""

import shlex
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

__all__ = ["Bar", "command_line", "done", "next_step", "stderr", "stdout"]

PIPE_WIDTH = 120


def stdout() -> Console:
    """The console for answers; 120 columns wide where nobody looks (a file, a pipe)."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def stderr() -> Console:
    """The console for mistakes and progress, so that answers can be piped on."""
    return Console(stderr=True, highlight=False)


class Bar:
    """A bar for long work that is known as (what is being done, share of it that is done).

    Where nobody looks (a file, a pipe) there is no bar, but a line for each tenth of the work.
    """

    def __init__(self, console: Console, title: str) -> None:
        self.console = console
        self.title = title
        self._tenth = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=1.0, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, what: str, share: float, note: str = "") -> None:
        """Where the work stands."""
        self._progress.update(self._task, description=what, completed=share, note=note)
        if not self.console.is_terminal and int(10 * share) > self._tenth:
            self._tenth = int(10 * share)
            self.console.print(f"  {what}  {self._tenth * 10:3d} %  {note}".rstrip(), soft_wrap=True)


def command_line(*words: str | Path) -> str:
    """A command as one would type it."""
    return shlex.join(str(word) for word in words)


def done(console: Console, *, what: str, seconds: float) -> None:
    """What was made, and how long it took."""
    console.print(Text.assemble(("✓ ", "green"), what, (f"  ({seconds:,.1f} s)", "dim")), soft_wrap=True)


def next_step(console: Console, *words: str | Path) -> None:
    """The clear last line of a command: what to run next."""
    console.print(Text.assemble(("Next: ", "bold"), (command_line(*words), "cyan")), soft_wrap=True)
