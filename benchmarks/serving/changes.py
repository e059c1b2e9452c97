"""Item changes over HTTP beside recommendations: what 1,000 changes a second do to the latency of 50 requests a second.

One `leafbeam serve` over a copy of the demo's run, and requests of a second process with Poisson arrivals, as in `serve`:
without changes and beside them, in turns, so that noise of the machine hits both alike. A third process sends the changes: ten
requests a second of 100 items each, which are new ones with codes, others' prices, prices again, and the new ones' removal.
Each is acknowledged before the next is sent, so it is on disk. The processes share the cores of the machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import load
from benchmarks.serving.changes_client import BATCH, BATCHES_PER_S, send_batches
from benchmarks.serving.load import Answered
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import Served, serving
from benchmarks.serving.serve import SLO_S

__all__ = ["measure", "runs"]

REQUESTS_PER_S, BEAMS = 50.0, 20


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of the one part."""
    run = LoadRun.demo(quick)
    yield measure(run, seconds=2.0, turns=1) if quick else measure(run, seconds=20.0, turns=4)


def measure(
    run: LoadRun, *, seconds: float, turns: int, requests_per_s: float = REQUESTS_PER_S
) -> tuple[dict[str, Any], dict[str, Any]]:
    """seconds: of each turn without changes, and of each beside them."""
    rng = np.random.default_rng(11)
    without, beside, sent = list[Answered](), list[Answered](), list[dict[str, Any]]()

    def answered(server: Served) -> list[Answered]:
        times = load.arrivals(rng, load.steady(requests_per_s), seconds)
        return server.send(run.planned(rng, times))

    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "run"
        shutil.copytree(run.path, copied, ignore=shutil.ignore_patterns("live*"))
        with serving(copied, "--beams", str(BEAMS), "--threads", "1", "--slo-ms", f"{SLO_S * 1e3:g}") as server:
            for batches in (1, 4):  # the server answers with new items, and without them again, before it is timed
                due = iter(range(batches))
                send_batches(server.url, lambda seconds, due=due: next(due, None) is None)
                server.send(run.planned(rng, np.linspace(0, 1, 20)))
            for _ in range(turns):
                without += answered(server)
                with _changing(server.url, sent):
                    beside += answered(server)
    quiet, live = (load.summary(answers, seconds=turns * seconds, slo_s=SLO_S) for answers in (without, beside))
    ratio = {name: round(live["latency_ms"][name] / quiet["latency_ms"][name], 3) for name in ("p50", "p90", "p99")}
    parameters = {"requests_per_s": requests_per_s, "changes_per_s": BATCHES_PER_S * BATCH, "batch": BATCH, "K": BEAMS}
    return parameters | {"seconds": turns * seconds, "data": run.path.name} | run.shape, {
        "without": quiet,
        "beside": live | {"changes": _summary(sent)},
        "ratio": {"latency_ms": ratio},
    }


@contextmanager
def _changing(url: str, sent: list[dict[str, Any]]) -> Generator[None]:
    """While open, a process sends batches; what became of them is added to `sent`."""
    words = [sys.executable, "-m", "benchmarks.serving.changes_client", url]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        yield
        output, _ = child.communicate()  # closes its input, which ends it
    assert child.returncode == 0, "the process of changes failed"
    sent.append(json.loads(output))


def _summary(sent: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Changes acknowledged a second, and milliseconds from the sending of a batch to its acknowledgement."""
    milliseconds = [1e3 * one for turn in sent for one in turn["acknowledged_s"]]
    took_s = sum(max(turn["took_s"], len(turn["acknowledged_s"]) / BATCHES_PER_S) for turn in sent)
    p50, p99 = np.percentile(milliseconds, [50, 99])
    return {
        "sent": BATCH * len(milliseconds),
        "acknowledged_per_s": round(BATCH * len(milliseconds) / took_s, 1),
        "acknowledged_ms": {"p50": round(float(p50), 2), "p99": round(float(p99), 2)},
    }
