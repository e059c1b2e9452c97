"""`leafbeam top`: a running server, live in the terminal."""

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from leafbeam import client
from leafbeam.cli.console import stdout
from leafbeam.cli.options import KEY, option
from leafbeam.errors import ArgumentError, DataError, ServerError
from leafbeam.extras import require

if TYPE_CHECKING:
    from leafbeam.client.readings import Rates

_MAX_REFUSALS = 5


def top(
    url: Annotated[str, option("--url", "The server's address; its key is read from LEAFBEAM_KEY.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, option("--interval", "The number of seconds between two readings of /metrics.")] = 1.0,
    once: Annotated[bool, option("--once", "Print the figures of one interval, and end.")] = False,
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
    ranked = sorted(rates.refusals_per_s.items(), key=lambda one: (-one[1], one[0]))
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
