"""`leafbeam serve` beside vLLM's HTTP server, in turns: all requests of a batch at once, until the last answer.

Connections stay open between requests, as those of a service to its model do. vLLM's server takes beams without a constraint,
and constraints without beams: samples from the tokens of items, or under a grammar of the items.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.peers.failure import PeerFailure
from benchmarks.peers.vllm_cpu import VllmSettings, grammar_of, vllm_server
from benchmarks.serving.fastest import fastest_of, grouped
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import serving
from benchmarks.serving.turns import (
    THREADS,
    Answers,
    Case,
    Prompts,
    Runs,
    Way,
    items_of,
    parameters_of,
    ratios_of,
    timed_case,
    tokens_of,
)

__all__ = ["LIMIT_S", "Client", "over_http"]

LIMIT_S = 600.0
_PAUSE_S = 1.5  # before a server's turn: vLLM's worker waits in a busy loop for a second


class Client:
    """Sends requests at once, each on an open connection of its own. Raises PeerFailure."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._connections: list[HTTPConnection] = []
        self._pool = ThreadPoolExecutor(64)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON answer of one request."""
        return self._answer(self._opened(1)[0], path=path)

    def post(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The JSON answers of requests sent at once."""
        texts = [json.dumps(body).encode() for body in bodies]
        return list(self._pool.map(partial(self._answer, path=path), self._opened(len(bodies)), texts))

    def _opened(self, number: int) -> list[HTTPConnection]:
        self._connections += [HTTPConnection(self._host, timeout=LIMIT_S) for _ in range(number - len(self._connections))]
        return self._connections[:number]

    def _answer(self, connection: HTTPConnection, body: bytes | None = None, *, path: str) -> Any:
        is_open = connection.sock is not None
        try:
            connection.request("GET" if body is None else "POST", path, body, {"content-type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
        except TimeoutError:
            connection.close()
            raise PeerFailure("timed out", f"no answer within {LIMIT_S:g} s") from None
        except (OSError, HTTPException) as error:
            connection.close()
            if is_open:  # a server may close a connection that waits for long
                return self._answer(connection, body, path=path)
            raise PeerFailure("failed", f"{type(error).__name__}: {error}"[:500]) from None
        if reply.status != 200:
            raise PeerFailure("failed", f"HTTP {reply.status}: {text[:500].decode(errors='replace')}")
        return json.loads(text)


def over_http(
    name: str,
    run: LoadRun,
    cases: Sequence[Case],
    settings: Sequence[VllmSettings],
    repeats: int,
    max_tokens: int,
    environment: Path,
) -> Runs:
    """A row for each case of the model of this name; vLLM with the settings that answer it fastest over HTTP."""
    version: dict[str, str] = {}
    items = items_of(run)
    ways: dict[str, dict[str, Any]] = {
        "vllm_beams": {"use_beam_search": True, "temperature": 0},
        "vllm_allowed_tokens": {"allowed_token_ids": np.unique(items).tolist()},
        "vllm_grammar": {"structured_outputs": {"grammar": grammar_of(items)}},
    }

    @contextmanager
    def opened(one: VllmSettings) -> Generator[Callable[[Case], dict[str, Way]]]:
        server = vllm_server(run.path / "model", settings=one, max_tokens=max_tokens, environment=environment)
        with server as url, Client(url) as client:
            version["vllm"] = client.get("/version")["version"]
            # The salt keeps a way from prompts that another one computed.
            yield lambda case: {
                name: partial(_vllm, run, client, case, options | {"cache_salt": name}) for name, options in ways.items()
            }

    @contextmanager
    def beams_alone(one: VllmSettings) -> Generator[Callable[[Case], Way]]:
        with opened(one) as ways_of:
            yield lambda case: ways_of(case)["vllm_beams"]

    fastest = fastest_of(run, cases, settings, beams_alone)
    for one, some in grouped(fastest).items():
        slow: dict[str, list[Case]] = {}
        with ExitStack() as servers:
            try:
                ways_of = servers.enter_context(opened(one))
            except PeerFailure as failure:
                ways_of = partial(_failing, failure, ways)
            for case in some:
                with _leafbeam(run, case) as ours:
                    engines = timed_case(run, case, {"leafbeam": ours} | ways_of(case), repeats, slow, pause_s=_PAUSE_S)
                named = parameters_of(run, case) | {"what": "http", "model": name}
                yield named, ratios_of(engines) | version | fastest[case].row()


def _failing(failure: PeerFailure, names: Iterable[str], _case: Case) -> dict[str, Way]:
    """vLLM's ways where its server did not come up."""

    def fail(_prompts: Prompts) -> Answers:
        raise failure

    return dict.fromkeys(names, fail)


@contextmanager
def _leafbeam(run: LoadRun, case: Case) -> Generator[Way]:
    options = "--beams", str(case.beams), "--slo-ms", "600000", "--set", f"engine.watchdog_s={LIMIT_S}"
    with serving(run.path, *options, threads=THREADS) as served, Client(served.url) as client:
        yield partial(_recommend, run, client, case)


def _recommend(run: LoadRun, client: Client, case: Case, prompts: Prompts) -> list[list[list[int]]]:
    items = run.trie.items
    rows = [items.order_N[[items.ordinals_of_leaf(leaf)[0] for leaf in leaves.tolist()]] for leaves in prompts]
    histories = [items.ids_of(each).tolist() for each in rows]
    common = {"num_items": case.beams, "num_beams": case.beams, "keep_history": True}
    common |= {"scoring": "allowed", "channel": "model"}
    answers = client.post("/v1/recommend", [common | {"history": history} for history in histories])
    found = [run.leaves_of(np.asarray(answer["item_ids"])) for answer in answers]
    return [run.model.vocabulary.tokens(run.trie.codes_at(leaves)).tolist() for leaves in found]


def _vllm(run: LoadRun, client: Client, case: Case, options: Mapping[str, Any], prompts: Prompts) -> list[list[list[int]]]:
    common = {"model": "model", "n": case.beams, "ignore_eos": True, "max_tokens": run.trie.num_levels, **options}
    answers = client.post("/v1/completions", [common | {"prompt": tokens} for tokens in tokens_of(run, prompts)])
    texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
    return [[[int(word) for word in text.strip("<>").split("><")] for text in one] for one in texts]
