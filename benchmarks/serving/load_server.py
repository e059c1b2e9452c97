"""`leafbeam serve` in a process of its own, load sent to it from a second one, and what both say afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.resident import resident_bytes
from benchmarks.serving.load import Answered, Planned
from leafbeam.errors import DataError

__all__ = ["Addressed", "Served", "send", "serving", "serving_timed", "serving_with"]

_WORKER = re.compile(r"HTTP worker (\d+) is process (\d+)")
_ADDRESS = re.compile(r"http://[^\s;]+:\d+")
_READY_S, _STOP_S = 180.0, 40.0


@dataclass(frozen=True, kw_only=True)
class Addressed:
    """A server at a URL, ours or a peer's."""

    url: str

    def send(self, planned: Sequence[Planned]) -> list[Answered]:
        """Send from a second process, and wait until everything has been answered or given up."""
        return send([self], planned)


@dataclass(frozen=True, kw_only=True)
class Served(Addressed):
    """A running server of ours. log: the file of its output."""

    pid: int
    log: Path

    def metrics(self) -> str:
        """What Prometheus would read."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as reply:
            return reply.read().decode()

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all threads, so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    @property
    def loop_seconds(self) -> float:
        """CPU time of the thread that runs the event loop, so far."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    @property
    def resident_bytes(self) -> tuple[int, int]:
        """Memory of the server: now, and at its peak."""
        return resident_bytes(self.pid)

    @property
    def http_workers(self) -> dict[int, int]:
        """The process of each HTTP worker, by the worker's number; one that was killed until another is started."""
        found = _WORKER.findall(self.log.read_text(errors="replace"))
        return {int(number): int(process) for number, process in found}


def send(servers: Sequence[Addressed], planned: Sequence[Planned]) -> list[Answered]:
    """Send to servers in turns from a second process, and wait until everything has been answered or given up."""
    with tempfile.TemporaryDirectory() as folder:
        plan, answers = Path(folder) / "plan.jsonl", Path(folder) / "answers.jsonl"
        plan.write_text("".join(json.dumps(asdict(one)) + "\n" for one in planned), encoding="utf-8")
        words = [sys.executable, "-m", "benchmarks.serving.load_client", str(plan), str(answers)]
        subprocess.run([*words, *(server.url for server in servers)], check=True, env=_environment())
        return [Answered(**json.loads(line)) for line in answers.read_text(encoding="utf-8").splitlines()]


@contextmanager
def serving(run: Path, *options: str, threads: int = 1) -> Generator[Served]:
    """Start `leafbeam serve --run RUN OPTIONS...` on a free port, with so many threads at most; stop it after.

    Raises DataError, with the end of its log, where it does not come up.
    """
    with _running("leafbeam", "serve", "--run", str(run), "--port", "0", *options, threads=threads) as served:
        yield served


@contextmanager
def serving_with(run: Path, settings: dict[str, Any], rules: dict[str, str], system: str = "") -> Generator[Served]:
    """The same with any engine settings, ablation switches included, or as a system to compare (`settings_server`)."""
    words = (str(run), json.dumps(settings), json.dumps(rules), system)
    with _running("benchmarks.serving.settings_server", *words) as served:
        yield served


@contextmanager
def serving_timed(run: Path, record: Path) -> Generator[Served]:
    """The same with the longest callback of its event loop in `record` (`loop_time`)."""
    with _running("benchmarks.serving.loop_time", str(run), str(record)) as served:
        yield served


@contextmanager
def _running(module: str, *options: str, threads: int = 1) -> Generator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        words = [sys.executable, "-m", module, *options]
        environment = _environment() | {"OMP_NUM_THREADS": str(threads)}
        with log.open("wb") as output, subprocess.Popen(words, stdout=output, stderr=output, env=environment) as child:
            try:
                yield Served(url=_address(child, log), pid=child.pid, log=log)
            finally:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    child.kill()


def _address(child: subprocess.Popen[bytes], log: Path) -> str:
    give_up = time.monotonic() + _READY_S
    while time.monotonic() < give_up:
        if found := _ADDRESS.search(log.read_text(errors="replace")):
            return found[0]
        if child.poll() is not None:
            break
        time.sleep(0.05)
    raise DataError(f"the server did not come up: {log.read_text(errors='replace')[-2000:]}")


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "250"}
