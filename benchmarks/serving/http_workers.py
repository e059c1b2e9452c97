"""One request over HTTP beside the same in process: a server of one process, and servers with HTTP workers.

    in process   `Engine.recommend`, and `Engine.submit` to a worker, one request after the other
    unloaded     one client with one connection, one request after the other
    loaded       Poisson arrivals, at a share of what the server of one process answers within the objective
    attacked     a quiet client, beside processes that flood the server at the lowest priority

All servers run at the same time, on the demo's model. Rounds of a few requests go to each in turn, so that noise of the machine
hits all alike.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from benchmarks.serving import load
from benchmarks.serving.hostile import CLIENTS, Attacker, QuietClient
from benchmarks.serving.hostile_client import post
from benchmarks.serving.load import Answered
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import Served, serving
from benchmarks.serving.serve import SLO_S, measure_capacity
from leafbeam.engine import Engine, Request, Settings
from leafbeam.model.cpu.threads import torch_threads

__all__ = ["runs"]

Call = Callable[[dict[str, Any]], object]
HTTP_WORKERS = 0, 1, 2
BEAMS = 20
_SHARES = 0.5, 0.9
_ATTACKS = "busy", "cancelled requests", "20,000 pipelined requests", "200 silent connections", "8,000 headers"


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of one request in process and over HTTP, then of servers under load."""
    rounds, size, seconds = (3, 10, 1.0) if quick else (60, 50, 4.0)
    options = ["--beams", str(BEAMS), "--threads", "1", "--slo-ms", f"{SLO_S * 1e3:g}", "--changes", "off"]
    run = LoadRun.demo(quick)
    engine = Engine(run.model, run.trie, settings=Settings(num_beams=BEAMS, threads=1))
    with ExitStack() as opened, torch_threads(1), engine:
        servers = {n: opened.enter_context(serving(run.path, *options, "--http-workers", str(n))) for n in HTTP_WORKERS}
        base = {"what": "unloaded", "K": BEAMS} | run.shape
        calls: dict[str, Call] = {
            "recommend": lambda body: engine.recommend(Request(**body)),
            "submit": lambda body: engine.submit(Request(**body)).result(),
        }
        calls |= {f"http, {n} workers": over_http(opened, server) for n, server in servers.items()}
        rng = np.random.default_rng(3)
        seconds_of = alternated(calls, run, rng, rounds, size)
        recommend = np.median(seconds_of["recommend"])
        for name, found in seconds_of.items():
            yield base | {"call": name}, _spread(found) | {"over_recommend": round(float(np.median(found) / recommend), 3)}
        capacity = measure_capacity(run, servers[0], rng, seconds)
        for share in _SHARES:
            answers: dict[int, list[Answered]] = defaultdict(list)
            repeats = 1 if quick else 6
            for _ in range(repeats):
                times = load.arrivals(rng, load.steady(share * capacity), seconds)
                planned = run.planned(rng, times)
                for n in HTTP_WORKERS:
                    answers[n] += servers[n].send(planned)
            parameters = {**base, "what": "loaded", "share_of_capacity": share, "capacity": round(capacity, 1)}
            for n in HTTP_WORKERS:
                yield parameters | {"http_workers": n}, load.summary(answers[n], seconds=repeats * seconds, slo_s=SLO_S)
        for attack in _ATTACKS[: 1 if quick else None]:
            for n, measured in attacked(servers, run.item_ids[:5].tolist(), attack, seconds):
                yield {**base, "what": "attacked", "attack": attack, "http_workers": n}, measured


def alternated(
    calls: dict[str, Call], run: LoadRun, rng: np.random.Generator, rounds: int, size: int
) -> dict[str, list[float]]:
    """Seconds of each call, in rounds of `size` requests to each in turn; the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        bodies = [{**one.body, "channel": "model"} for one in run.planned(rng, np.zeros(size))]
        for name, call in calls.items():
            for body in bodies:
                began = time.perf_counter()
                call(body)
                if turn:
                    seconds[name].append(time.perf_counter() - began)
    return seconds


def over_http(opened: ExitStack, server: Served) -> Call:
    """A server's answer to a body, over one connection."""
    client = opened.enter_context(closing(QuietClient(server.url, [])))
    return lambda body: client.ask(post(json.dumps(body).encode()))


def attacked(
    servers: dict[int, Served], history: list[Any], attack: str, seconds: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(HTTP workers, percentiles of a quiet client without and with processes that repeat the attack), of each server."""
    for n, server in servers.items():
        with ExitStack() as opened:
            client = opened.enter_context(closing(QuietClient(server.url, history)))
            attackers = [opened.enter_context(closing(Attacker(server.url))) for _ in range(CLIENTS)]
            alone = client.ask_for(seconds)
            for attacker in attackers:
                attacker.begin(attack, seconds)
            besieged = client.ask_for(seconds)
            sent = sum(attacker.count() for attacker in attackers)
        ratio = round(besieged["recommend"]["p99"] / alone["recommend"]["p99"], 2)
        yield n, {"attacks_per_s": round(sent / seconds, 1), "without": alone, "with": besieged, "p99_ratio": ratio}


def _spread(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(np.asarray(seconds) * 1e3, [50, 99])
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3), "p99_over_p50": round(float(p99 / p50), 2)}
