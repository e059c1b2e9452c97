"""`leafbeam` alone, which shows the runs here, and `leafbeam top`, which watches a server."""

import importlib.util
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from leafbeam import __version__, client
from leafbeam.cli.console import next_step, stdout
from leafbeam.cli.options import KEY, option
from leafbeam.cli.run import WRITERS, RunDirectory, Source, paths_of_runs
from leafbeam.errors import ArgumentError, DataError, LeafbeamError, ServerError, counted
from leafbeam.extras import require

if TYPE_CHECKING:
    from leafbeam.client.readings import Rates

_URL = "http://127.0.0.1:8000"
_MOST_RUNS = 5
_MAX_REFUSALS = 5
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
        if missing == "source" and runs[0].trie.exists():  # the index came from a table of codes
            missing = None if _has(runs[0], "model") else "model"
        command = WRITERS[missing] if missing else "recommend" if server else "serve"
        next_step(console, "leafbeam", command, "--run", runs[0].path, *(["--history", ""] if command == "recommend" else []))
    console.print("All commands: leafbeam --help", style="dim")


def runs_in(directory: Path) -> list[RunDirectory]:
    """Return the runs of a directory, the one that changed last first."""
    paths = sorted(paths_of_runs(directory), key=lambda path: (-path.stat().st_mtime_ns, path))
    return [RunDirectory(path) for path in paths]


def _has(run: RunDirectory, name: str) -> bool:
    path: Path = getattr(run, name)
    has_file = path.exists()
    if name != "source" or not has_file:
        return has_file
    try:
        return Source.load(path).path is not None  # an imported run may have no log
    except DataError:
        return True  # the next command names the mistake


def _mark(run: RunDirectory, name: str, label: str) -> Text:
    return Text(f"✓ {label}", style="green") if _has(run, name) else Text(f"· {label}", style="dim")


def _server() -> str | None:
    """Return what the server at the usual address says of itself; None if none answers."""
    if any(importlib.util.find_spec(name) is None for name in ("httpx", "msgspec")):
        return None
    try:
        with client.Client(_URL, key=os.environ.get(KEY), retries=client.Retries(deadline_s=1.0, attempts=1)) as server:
            readiness = server.get_readiness()
    except LeafbeamError:
        return None
    state = counted(readiness.num_items, "item") if readiness.ready else f"not ready: {readiness.reason}"
    return f"A server answers at {_URL} ({state})"


def top(
    url: Annotated[str, option("--url", "The server's address; its key is read from LEAFBEAM_KEY.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, option("--interval", "The number of seconds between two readings of /metrics.")] = 1.0,
    once: Annotated[bool, option("--once", "Print the figures of one interval, and stop.")] = False,
) -> None:
    """Watch a server: requests a second, latency, batches, refusals, the catalog's version and changes. Ctrl-C ends it."""
    require("`leafbeam top`", "httpx", "msgspec", "prometheus_client", extra="client")
    if not 0.05 <= interval <= 3600:
        raise ArgumentError(f"--interval {interval:g}: expected 0.05 to 3600 seconds")
    from leafbeam.client.readings import Rates, Reading

    def read() -> Reading:
        return Reading.parse(server.get_metrics(), time.monotonic())

    retries = client.Retries(deadline_s=max(5.0, interval), attempts=2)
    with client.Client(url, key=os.environ.get(KEY), retries=retries) as server:
        before = read()
        if once:
            time.sleep(interval)
            stdout().print(view(url, Rates.between(before, read())))
            return
        with Live(Text(f"{url}: reading ..."), console=stdout(), auto_refresh=False) as live, suppress(KeyboardInterrupt):
            while True:
                time.sleep(interval)
                try:
                    after = read()
                except (ServerError, DataError) as error:  # it may come back
                    live.update(Text(str(error), style="red"), refresh=True)
                    continue
                live.update(view(url, Rates.between(before, after)), refresh=True)
                before = after


def view(url: str, rates: "Rates") -> Group:
    """Return the rates as a table."""
    now = rates.now
    is_ready = now.value("ready") > 0
    table = Table(Column(style="dim"), Column(justify="right"), show_header=False, box=None, padding=(0, 2))
    rows = {
        "requests/s": f"{rates.requests_per_s:,.1f}",
        "p50": _milliseconds(rates.p50_s),
        "p99": _milliseconds(rates.p99_s),
        "batch size": "-" if rates.batch_size is None else f"{rates.batch_size:.1f}",
        "waiting / running": f"{now.value('queue_length'):,.0f} / {now.value('running_requests'):,.0f}",
        "failures/s": f"{rates.failures_per_s:,.1f}",
        "refusals/s": f"{sum(rates.refusals_per_s.values()):,.1f}",
    }
    ranked = sorted(rates.refusals_per_s.items(), key=lambda refusal: (-refusal[1], refusal[0]))
    rows |= {f"  {reason}": f"{rate:,.1f}" for reason, rate in ranked[:_MAX_REFUSALS]}
    rows |= {
        "items": f"{now.value('index_items'):,.0f}",
        "catalog version": now.index_version or "-",
        "changes/s": f"{rates.changes_per_s:,.1f}",
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    state = Text("ready", style="green") if is_ready else Text("not ready", style="bold red")
    return Group(Text.assemble((url, "bold"), "  ", state, (f"  over {rates.seconds:.1f} s", "dim")), table)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.1f} ms"
