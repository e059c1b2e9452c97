"""Item changes over HTTP beside recommendations: what 1,000 changes a second do to the latency of 50 requests a second.

One `leafbeam serve` over a copy of the run, and requests of a second process with Poisson arrivals, as in `serve`: first
without changes, then beside them, then without again. A third process sends the changes: ten requests a second of 100 items
each, which are new ones with codes, others' prices, prices again, and the new ones' removal. Each is acknowledged before the
next is sent, so it is on disk. The processes share the cores of the machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import load
from benchmarks.serving.engines import shape_of
from benchmarks.serving.load import Answered
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import Served, serving
from benchmarks.serving.serve import SLO_S, load_run
from leafbeam.client import Client

__all__ = ["measure", "runs"]

REQUESTS_PER_S, BATCHES_PER_S, BATCH = 50.0, 10, 100


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of the one part."""
    with load_run(quick, None) as run:
        yield measure(run, 2.0 if quick else 30.0)


def measure(run: LoadRun, seconds: float, requests_per_s: float = REQUESTS_PER_S) -> tuple[dict[str, Any], dict[str, Any]]:
    """seconds: of each phase."""
    rng = np.random.default_rng(11)
    parameters = {"requests_per_s": requests_per_s, "changes_per_s": BATCHES_PER_S * BATCH, "batch": BATCH, "seconds": seconds}
    parameters |= {"data": run.path.name, "slo_ms": SLO_S * 1e3} | shape_of(run)

    def phase(server: Served) -> list[Answered]:
        times = load.arrivals(rng, load.steady(requests_per_s), seconds)
        return server.send(run.planned(rng, times))

    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "run"
        shutil.copytree(run.path, copied, ignore=shutil.ignore_patterns("live*"))
        with serving(copied, "--threads", "1", "--slo-ms", f"{SLO_S * 1e3:g}") as server:
            server.send(run.planned(rng, np.linspace(0, 1, 20)))
            _change(server.url, 4)
            before = phase(server)
            words = [sys.executable, "-m", "benchmarks.serving.changes", server.url, str(round(seconds * BATCHES_PER_S) + 10)]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == "begins\n"
                beside = phase(server)
                output = child.stdout.read()
            assert child.returncode == 0, "the process of changes failed"
            after = phase(server)
    quiet = load.summary(before + after, seconds=2 * seconds, slo_s=SLO_S)
    live = load.summary(beside, seconds=seconds, slo_s=SLO_S)
    return parameters, {
        "without": quiet,
        "beside": live,
        "p99_ratio": round(live["latency_ms"]["p99"] / quiet["latency_ms"]["p99"], 3),
        "changes": json.loads(output),
    }


def _change(url: str, batches: int) -> dict[str, Any]:
    """Send so many batches when they are due; what they took."""
    rng, new, seconds = np.random.default_rng(5), list[str](), list[float]()
    with Client(url) as client:
        sizes = client.get_catalog().codebook_sizes
        known = [item.item_id for item in client.find_items(limit=BATCH).items]
        began = time.perf_counter()
        for number in range(batches):
            time.sleep(max(0.0, began + number / BATCHES_PER_S - time.perf_counter()))
            start = time.perf_counter()
            if number % 4 == 0:
                new = [f"new-{number}-{row}" for row in range(BATCH)]
                codes = [[int(rng.integers(size)) for size in sizes] for _ in new]
                client.put_items({"item_id": item, "codes": row, "price": 5.0} for item, row in zip(new, codes, strict=True))
            elif number % 4 == 3:
                client.delete_items(new)
            else:
                client.patch_items({"item_id": item, "price": float(number)} for item in known)
            seconds.append(time.perf_counter() - start)
        took = time.perf_counter() - began
    return {
        "changes_per_s": round(batches * BATCH / max(took, batches / BATCHES_PER_S), 1),
        "acknowledged_ms": {name: round(float(np.percentile(seconds, q)) * 1e3, 2) for name, q in (("p50", 50), ("p99", 99))},
    }


if __name__ == "__main__":
    print("begins", flush=True)
    print(json.dumps(_change(sys.argv[1], int(sys.argv[2]))))
