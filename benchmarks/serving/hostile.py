"""What hostile clients cost a server and its quiet client, attack by attack, over real HTTP.

Of each attack: the longest time that a callback held the event loop and by how much the server's peak of resident memory grew
while one hostile client made it a few times; and p50 and p99 of a quiet client, which asks for recommendations and /healthz in
turns, without and with four processes that repeat the attack as fast as they can, at the lowest priority. They still take time
of the server's cores, so "busy" stands first: four such processes that work without sending anything.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from benchmarks.resident import resident_bytes
from benchmarks.serving.hostile_client import ATTACKS, HEALTH, post
from benchmarks.serving.load_server import Served, serving_timed
from benchmarks.serving.serve import load_run

__all__ = ["Attacker", "QuietClient", "runs"]

CLIENTS, ONE_BY_ONE = 4, 9


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each attack."""
    with load_run(True, None) as run, tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "longest"
        longest = np.memmap(record, np.float64, "w+", shape=(1,))
        with serving_timed(run.path, record) as server:
            attackers = [Attacker(server.url) for _ in range(CLIENTS)]
            try:
                quiet = QuietClient(server.url, run.item_ids[:5].tolist())
                quiet.ask_for(1.0)
                for attack in list(ATTACKS)[: 2 if quick else None]:
                    measured = _measure(server, longest, quiet, attackers, attack, 0.5 if quick else 4.0)
                    yield {"attack": attack, "clients": CLIENTS}, measured
            finally:
                for attacker in attackers:
                    attacker.close()


def _measure(
    server: Served, longest: NDArray[np.float64], quiet: QuietClient, attackers: list[Attacker], attack: str, seconds: float
) -> dict[str, Any]:
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak begins anew
    resident, longest[0] = resident_bytes(server.pid)[0], 0.0
    for _ in range(ONE_BY_ONE):
        attackers[0].begin(attack, 0)
        attackers[0].count()
    held, growth = float(longest[0]), resident_bytes(server.pid)[1] - resident
    alone = quiet.ask_for(seconds)
    for attacker in attackers:
        attacker.begin(attack, seconds)
    besieged = quiet.ask_for(seconds)
    sent = sum(attacker.count() for attacker in attackers)
    return {
        "loop_held_ms": round(held * 1e3, 2),
        "resident_growth_mb": round(growth / 1e6, 2),
        "attacks_per_s": round(sent / seconds, 1),
        "quiet_ms": {"without": alone, "with": besieged},
        "p99_ratio": {name: round(besieged[name]["p99"] / alone[name]["p99"], 2) for name in alone},
    }


class QuietClient:
    """A client with one connection that waits for each answer."""

    def __init__(self, url: str, history: list[Any]) -> None:
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname or "", place.port or 80), timeout=60)
        self._file = self._socket.makefile("rb")
        self._recommend = post(json.dumps({"history": history, "num_items": 5}).encode())

    def ask_for(self, seconds: float) -> dict[str, dict[str, float]]:
        """p50 and p99 in ms of /healthz and of recommendations, asked in turns for so long, and how many were refused."""
        waits: dict[str, list[float]] = {"healthz": [], "recommend": []}
        refused = dict.fromkeys(waits, 0)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, request in (("healthz", HEALTH), ("recommend", self._recommend)):
                took = self.ask(request)
                if took is None:
                    refused[name] += 1
                else:
                    waits[name].append(took)
            time.sleep(0.002)
        return {
            name: {f"p{percent}": round(float(np.percentile(values, percent)) * 1e3, 2) for percent in (50, 99)}
            | {"refused": refused[name]}
            for name, values in waits.items()
        }

    def ask(self, request: bytes) -> float | None:
        """Seconds until a request is answered with 200; None: refused with 429, to try again later."""
        began = time.perf_counter()
        self._socket.sendall(request)
        status, length = self._file.readline().split()[1], 0
        assert status in (b"200", b"429"), status
        while (line := self._file.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self._file.read(length)
        return time.perf_counter() - began if status == b"200" else None

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Attacker:
    """A process that makes attacks, at the lowest priority: on a machine of its own it would take no core from the server."""

    def __init__(self, url: str) -> None:
        words = ["nice", "-n", "19", sys.executable, "-m", "benchmarks.serving.hostile_client", url]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def begin(self, attack: str, seconds: float) -> None:
        """Repeat it for so many seconds; once with 0."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{seconds} {attack}\n")

    def count(self) -> int:
        """Wait for the end; how many attacks were made."""
        assert self._child.stdout is not None
        return int(self._child.stdout.readline())

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
