"""Where the time of one request goes on a machine without other load; each way does what the one before it does, and more.

    model      the model's calls alone, with the codes that the search chose
    search     the model and the constraint: `BeamSearch.run`
    recommend  `Engine.recommend`: ids, rules, prompt, answer
    submit     `Engine.submit`, through admission, queue and a worker
    http       `POST /v1/recommend` of `leafbeam serve`, over one connection that stays open

The demo's model, catalog and beams, of which each is to bring an item, so that every way runs all beams. One history at a
time, one thread of matrix products. The ways take turns of a few requests each: with turns of one request, each way would find
the processor's caches full of the others' weights, and a server its own process asleep. The client writes bytes that were made
before and reads as many as the header says.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import serving
from leafbeam.decode import BeamSearch
from leafbeam.engine import Engine, Request, Settings
from leafbeam.errors import DataError
from leafbeam.model import Workspace
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.backend import to_numpy

__all__ = ["BEAMS", "measure", "recorded_calls", "runs"]

BEAMS = 20
_TURN = 20  # requests of one way, of which the first is not counted
Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]
Way = Callable[[int], Any]


class Call(NamedTuple):
    """A call of the model: its method, and what it was given."""

    method: Literal["step_fn", "suffix_fn"]
    codes: Any
    parents: Any


def runs(quick: bool) -> Runs:
    """One row: percentiles of each way, and what each adds to the one before."""
    yield measure(LoadRun.demo(quick), turns=2 if quick else 25)


def measure(run: LoadRun, turns: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a run; the first turn is not counted."""
    options = ["--beams", str(BEAMS), "--threads", "1"]
    engine = Engine(run.model, run.trie, settings=Settings(num_beams=BEAMS, threads=1))
    with torch_threads(1), engine, serving(run.path, *options) as server:
        users_n = np.random.default_rng(0).integers(0, len(run.histories), (turns + 1) * _TURN)
        histories = [run.histories[int(user)].tolist() for user in users_n]
        with _over_http(server.url, histories) as over_http:
            ways = _ways_in_process(run, engine, histories) | {"http": over_http}
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for first in range(0, len(histories), _TURN):
                for name, way in ways.items():
                    for number in range(first, first + _TURN):
                        began = time.perf_counter()
                        way(number)
                        seconds[name].append(time.perf_counter() - began)
    tokens = float(np.mean([len(one) for one in histories])) * run.trie.num_levels + 1
    parameters = {"what": "unloaded", "K": BEAMS, "prompt_tokens_mean": round(tokens, 1), "threads": 1}
    return parameters | run.shape, _summary(seconds)


def _summary(seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Milliseconds of each way; medians of what each way takes more than the one before."""
    turns = {name: np.array(taken).reshape(-1, _TURN)[1:, 1:].ravel() * 1e3 for name, taken in seconds.items()}
    p50, p99 = ({name: round(float(np.percentile(taken, at)), 3) for name, taken in turns.items()} for at in (50, 99))
    added = {name: round(float(np.median(turns[name] - turns[before])), 3) for before, name in pairwise(turns)}
    over = {
        "recommend_over_model": round(p50["recommend"] / p50["model"], 2),
        "http_over_recommend": round(p50["http"] / p50["recommend"], 2),
        "http_p99_over_p50": round(p99["http"] / p50["http"], 2),
    }
    return {"p50_ms": p50, "p99_ms": p99, "added_ms": added, "over": over, "repeats": len(turns["model"])}


def _ways_in_process(run: LoadRun, engine: Engine, histories: Sequence[list[Any]]) -> dict[str, Way]:
    vocabulary, workspace = run.model.vocabulary, Workspace()
    prompts = [[run.trie.codes_at(run.leaves_of(np.asarray(one)))] for one in histories]
    search = BeamSearch(run.trie, BEAMS)
    calls = [recorded_calls(run, search, one, workspace) for one in prompts]
    requests = [Request(history=tuple(one), num_items=BEAMS, channel="model") for one in histories]

    def start(number: int) -> Any:
        tokens_BT, lengths_B = vocabulary.prompts(prompts[number])
        return run.model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace=workspace)

    def model(number: int) -> None:
        session = start(number)
        for method, codes, parents in calls[number]:
            getattr(session, method)(codes, parents)

    def searched(number: int) -> Any:
        session = start(number)
        return search.run(session.step_fn, suffix_fn=session.suffix_fn)

    return {
        "model": model,
        "search": searched,
        "recommend": lambda number: engine.recommend(requests[number]),
        "submit": lambda number: engine.submit(requests[number]).result(),
    }


def recorded_calls(run: LoadRun, search: BeamSearch, prompts: Sequence[NDArray[np.int64]], workspace: Workspace) -> list[Call]:
    """The calls of the model in a search after these prompts."""
    tokens_BT, lengths_B = run.model.vocabulary.prompts(prompts)
    session = run.model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace=workspace)
    calls: list[Call] = []

    def recorded(method: Literal["step_fn", "suffix_fn"]) -> Callable[[Any, Any], Any]:
        def call(codes: Any, parents: Any) -> Any:
            calls.append(Call(method, *(None if one is None else to_numpy(one).copy() for one in (codes, parents))))
            return getattr(session, method)(codes, parents)

        return call

    search.run(recorded("step_fn"), batch_size=len(prompts), suffix_fn=recorded("suffix_fn"))
    return calls


@contextmanager
def _over_http(url: str, histories: Sequence[list[Any]]) -> Generator[Way]:
    place = urlsplit(url)
    wanted = {"num_items": BEAMS, "channel": "model"}
    requests = [_request(json.dumps({"history": one} | wanted).encode()) for one in histories]
    with socket.create_connection((place.hostname or "127.0.0.1", place.port or 80), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(number: int) -> bytes:
            connection.sendall(requests[number])
            return _answer(connection)

        yield ask


def _request(body: bytes) -> bytes:
    lines = ["POST /v1/recommend HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _answer(connection: socket.socket) -> bytes:
    """The body of the answer on a connection that stays open."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += _some(connection)
    if not head.startswith(b"HTTP/1.1 200"):
        raise DataError(f"the server answered {head[:15].decode()}: {body[:500].decode(errors='replace')}")
    return body


def _some(connection: socket.socket) -> bytes:
    if not (chunk := connection.recv(1 << 16)):
        raise DataError("the server closed the connection")
    return chunk
