"""Servers that follow one Kafka topic: what each adds to the answers of one, and their lag at 1,000 changes a second.

    answers   one server on the whole machine, then one, two and three servers that get a share of the time each, as small
              machines would (`throttle`). Requests go to them in turns, half as many again as they can answer in time
    lag       three servers on the whole machine while changes are written: alone, and beside requests. A change is visible once
              `/readyz` has a position behind it; it is asked every 20 ms

The servers are `leafbeam serve`, each with a copy of the run. Servers, client and broker (`changes_topic`) share the cores. The
broker answers a server that has read everything no earlier than fetch.wait.max.ms, which is 10 ms here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving import load
from benchmarks.serving.changes_topic import CHANGES_PER_S, PARTITIONS
from benchmarks.serving.load import Answered, Floats
from benchmarks.serving.load_run import BEAMS, LoadRun
from benchmarks.serving.load_server import Served, send, serving
from benchmarks.serving.serve import SLO_S, load_run, measure_capacity, warm
from benchmarks.serving.throttle import throttled
from leafbeam.errors import DataError
from leafbeam.extras import require
from leafbeam.model.cpu.threads import torch_threads

__all__ = ["Look", "measure_answers", "measure_lag", "replicas", "runs", "visible_after"]

REPLICAS = 3
SHARE = 0.4  # of the time, of a server that is throttled
_TOPIC = "shop.public.items"
_LOOK_S, _GIVE_UP_S = 0.02, 60.0
_OVERLOAD = 1.5
_BESIDE_PER_S = 15.0  # requests beside changes, of all servers together
_CALCULATED = 10  # machines
Row = tuple[dict[str, Any], dict[str, Any]]


def runs(quick: bool) -> Iterator[Row]:
    """(parameters, measured) of each part."""
    require("python -m benchmarks changes --part replicas", "confluent_kafka")
    with load_run(quick, None) as run, torch_threads(1), replicas(run) as (servers, topic):
        yield from measure_answers(run, servers, *((1.0, 1) if quick else (10.0, 2)))
        for requests_per_s in (0.0, _BESIDE_PER_S):
            yield measure_lag(run, servers, topic, seconds=3.0 if quick else 20.0, requests_per_s=requests_per_s)


@dataclass(kw_only=True)
class Topic:
    """The process of a topic. offsets: the number of changes in each partition."""

    child: subprocess.Popen[str]
    address: str
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(PARTITIONS, np.int64))

    def begin(self, seconds: float) -> None:
        """Write changes for so long."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{seconds}\n")
        self.child.stdin.flush()

    def end(self) -> list[Floats]:
        """Return the times at which the changes of each partition were written."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise DataError(f"the process of the topic has ended with {self.child.wait()}")
        written = [np.array(times) for times in json.loads(line)]
        self.offsets = self.offsets + [len(times) for times in written]
        return written


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The answer of a server's `/readyz` at a time. offsets: the position that it showed in each partition."""

    at: float
    offsets: list[int]
    lag_s: float | None


@contextmanager
def replicas(run: LoadRun, count: int = REPLICAS) -> Generator[tuple[list[Served], Topic]]:
    """Start a topic with some changes and servers that follow it, each on a copy of the run; all are ready on return."""
    known = [item.item() if isinstance(item, np.generic) else item for item in run.item_ids[:100]]
    arguments = [_TOPIC, json.dumps(known), json.dumps(run.trie.codebook_sizes)]
    words = [sys.executable, "-m", "benchmarks.serving.changes_topic", *arguments]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        child = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        stack.callback(child.kill)
        assert child.stdout is not None
        topic = Topic(child=child, address=child.stdout.readline().strip())
        topic.begin(0.4)  # so that there is a topic
        topic.end()
        config = folder / "serve.toml"
        properties = '["fetch.wait.max.ms=10"]'
        feed = f'[feed]\nkafka = "{_TOPIC}"\nservers = "{topic.address}"\nproperties = {properties}\n'
        config.write_text(f'changes = "off"\n\n{feed}', encoding="utf-8")
        options = ["--config", str(config), "--beams", str(BEAMS), "--threads", "1", "--slo-ms", f"{SLO_S * 1e3:g}"]
        servers: list[Served] = []
        for number in range(count):
            copied = folder / str(number)
            shutil.copytree(run.path, copied, ignore=shutil.ignore_patterns("live*"))
            servers.append(stack.enter_context(serving(copied, *options)))
        rng = np.random.default_rng(3)
        with _watched(servers) as looks:
            _wait_for(topic, looks)
        for server in servers:
            warm(run, server, rng)
        yield servers, topic


def measure_answers(run: LoadRun, servers: Sequence[Served], seconds: float, turns: int) -> Iterator[Row]:
    """Rows of one whole machine, and of one, two, ... servers with a share of it. seconds: of each turn of each of these."""
    rng = np.random.default_rng(13)
    capacity = measure_capacity(run, servers[0], rng, 3.0 if turns > 1 else 1.0)
    cases = [(1.0, 1), *((SHARE, count) for count in range(1, len(servers) + 1))]
    answers: dict[tuple[float, int], list[Answered]] = {case: [] for case in cases}
    cpu_s: dict[tuple[float, int], float] = dict.fromkeys(cases, 0.0)
    for _ in range(turns):
        for share, count in cases:
            used, rate = servers[:count], _OVERLOAD * share * count * capacity
            with throttled([server.pid for server in used], share):
                send(used, run.planned(rng, np.linspace(0, 1.5, 20 * count)))  # the times of batches are others now
                before = sum(server.cpu_seconds for server in used)
                answers[share, count] += send(used, run.planned(rng, load.arrivals(rng, load.steady(rate), seconds)))
                cpu_s[share, count] += sum(server.cpu_seconds for server in used) - before
    found = {case: load.summary(answers[case], seconds=seconds * turns, slo_s=SLO_S) for case in cases}
    one = found[SHARE, 1]["goodput_per_s"]
    gains = {case: found[case]["goodput_per_s"] / max(one, 1e-9) for case in cases}
    kept = min(1.0, *(gains[SHARE, count] / count for count in range(1, len(servers) + 1)))
    for share, count in cases:
        measured = found[share, count] | {"cores_of_server": round(cpu_s[share, count] / (seconds * turns * count), 3)}
        if share < 1:
            measured["over_one"] = round(gains[share, count], 3)
        else:
            calculated = measured["goodput_per_s"] * _CALCULATED * kept
            measured["calculated"] = {"replicas": _CALCULATED, "kept": round(kept, 3), "goodput_per_s": round(calculated, 1)}
        yield _parameters(run, "answers", count, seconds * turns) | {"share": share}, measured


def measure_lag(run: LoadRun, servers: Sequence[Served], topic: Topic, *, seconds: float, requests_per_s: float) -> Row:
    """The row of changes that are written for so long, beside so many requests of all servers together."""
    rng, first = np.random.default_rng(17), topic.offsets
    times = load.arrivals(rng, load.steady(requests_per_s), seconds)
    with _watched(servers) as looks:
        topic.begin(seconds)
        answers = send(servers, run.planned(rng, times)) if len(times) else []
        written = topic.end()
        _wait_for(topic, looks)
    lags = np.concatenate([visible_after(of_server, first, written) for of_server in looks])
    told = [look.lag_s for of_server in looks for look in of_server if look.lag_s is not None and look.at < written[0][-1]]
    parameters = _parameters(run, "lag", len(servers), seconds)
    parameters |= {"changes_per_s": CHANGES_PER_S, "requests_per_s": requests_per_s}
    measured: dict[str, Any] = {"changes": sum(map(len, written)), "lag_ms": _spread(lags), "told_lag_ms": _spread(told)}
    if answers:
        measured["requests"] = load.summary(answers, seconds=seconds, slo_s=SLO_S)
    return parameters, measured


def visible_after(looks: Sequence[Look], first: NDArray[np.int64], written: Sequence[Floats]) -> Floats:
    """Return the seconds from the writing of each change to the first look at which a server had made it.

    Args:
        looks: The looks at one server, in order; the last one shows all changes.
        first: The offset of the first change of each partition.
        written: When the changes of each partition were written.
    """
    at_n = np.array([look.at for look in looks])
    offsets_nP = np.array([look.offsets for look in looks])
    after = [
        at_n[np.searchsorted(offsets_nP[:, partition], first[partition] + np.arange(len(times)), side="right")] - times
        for partition, times in enumerate(written)
    ]
    return np.concatenate(after)


@contextmanager
def _watched(servers: Sequence[Served]) -> Generator[list[list[Look]]]:
    """Ask each server again and again how far it is; yields what each said, which grows until the block ends."""
    looks: list[list[Look]] = [[] for _ in servers]
    ends = threading.Event()
    threads = [
        threading.Thread(target=_watch, args=(server.url, of_server, ends), daemon=True)
        for server, of_server in zip(servers, looks, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield looks
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def _watch(url: str, looks: list[Look], ends: threading.Event) -> None:
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "127.0.0.1", place.port, timeout=_GIVE_UP_S)
    while not ends.wait(_LOOK_S):
        connection.request("GET", "/readyz")
        feed: Mapping[str, Any] = json.loads(connection.getresponse().read())["feed"]
        offsets = [feed["position"].get(str(partition), 0) for partition in range(PARTITIONS)]
        looks.append(Look(at=time.time(), offsets=offsets, lag_s=feed["lag_s"]))
    connection.close()


def _wait_for(topic: Topic, looks: Sequence[Sequence[Look]]) -> None:
    """Wait until each server has made all changes. Raises DataError after a minute without that."""
    give_up = time.monotonic() + _GIVE_UP_S
    while not all(of_server and of_server[-1].offsets == topic.offsets.tolist() for of_server in looks):
        if time.monotonic() > give_up:
            shown = [of_server[-1].offsets if of_server else None for of_server in looks]
            raise DataError(f"the servers are at {shown} a minute after the topic's end at {topic.offsets.tolist()}")
        time.sleep(_LOOK_S)


def _spread(seconds: Sequence[float] | Floats) -> dict[str, float]:
    p50, p99, largest = np.percentile(np.asarray(seconds) * 1e3, [50, 99, 100])
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1), "max": round(float(largest), 1)}


def _parameters(run: LoadRun, what: str, count: int, seconds: float) -> dict[str, Any]:
    base = {"what": what, "replicas": count, "seconds": seconds, "data": run.path.name, "K": BEAMS, "slo_ms": SLO_S * 1e3}
    return base | run.shape
