"""`leafbeam` without a command: the runs here, the server, and the next step."""

import importlib.util
import os
from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from leafbeam import __version__, client
from leafbeam.cli.console import next_step, stdout
from leafbeam.cli.options import KEY
from leafbeam.cli.run import WRITERS, RunDirectory, paths_of_runs
from leafbeam.errors import LeafbeamError, counted

_URL = "http://127.0.0.1:8000"
_MOST_RUNS = 5
_STEPS = {"source": "log", "sids": "Semantic IDs", "model": "model", "trie": "index"}


def show_status() -> None:
    """Print the runs of the directory `runs` with what each has, whether a server answers, and the next command."""
    console, runs = stdout(), runs_in(Path("runs"))
    console.print(f"leafbeam {__version__}: generative retrieval that can only return items you may show")
    if not runs:
        console.print("There is no run in runs/ yet. Begin with your own log, or see a synthetic shop first:")
        next_step(console, "leafbeam", "init")
        next_step(console, "leafbeam", "demo")
    else:
        table = Table(Column(style="cyan"), *(Column() for _ in _STEPS), show_header=False, box=None, padding=(0, 2, 0, 0))
        for run in runs[:_MOST_RUNS]:
            table.add_row(str(run.path), *(_mark(run, name, label) for name, label in _STEPS.items()))
        console.print(table)
        if len(runs) > _MOST_RUNS:
            console.print(f"and {len(runs) - _MOST_RUNS:,} older", style="dim")
        server = _server()
        console.print(server or f"No server answers at {_URL}", style="dim")
        missing = next((name for name in _STEPS if not _has(runs[0], name)), None)
        command = WRITERS[missing] if missing else "recommend" if server else "serve"
        next_step(console, "leafbeam", command, "--run", runs[0].path)
    console.print("All commands: leafbeam --help", style="dim")


def runs_in(directory: Path) -> list[RunDirectory]:
    """Return the runs of a directory, the one that changed last first."""
    paths = sorted(paths_of_runs(directory), key=lambda path: (-path.stat().st_mtime_ns, path))
    return [RunDirectory(path) for path in paths]


def _has(run: RunDirectory, name: str) -> bool:
    path: Path = getattr(run, name)
    return path.exists() or (name == "source" and run.trie.exists())  # an index may come from a table of codes


def _mark(run: RunDirectory, name: str, label: str) -> Text:
    return Text(f"✓ {label}", style="green") if _has(run, name) else Text(f"· {label}", style="dim")


def _server() -> str | None:
    """Return what the server at the usual address says of itself; None if none answers."""
    if any(importlib.util.find_spec(name) is None for name in ("httpx", "msgspec")):
        return None

    try:
        with client.Client(_URL, key=os.environ.get(KEY), retries=client.Retries(deadline_s=1.0, attempts=1)) as server:
            found = server.get_readiness()
    except LeafbeamError:
        return None
    state = counted(found.num_items, "item") if found.ready else f"not ready: {found.reason}"
    return f"A server answers at {_URL} ({state})"
