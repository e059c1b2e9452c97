"""`leafbeam serve` beside vLLM's HTTP server, each alone: all requests of a batch at once, until the last answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.failure import PeerFailure
from benchmarks.peers.vllm_cpu import VllmSettings, vllm_server
from benchmarks.serving.fastest import fastest_of, grouped
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import serving
from benchmarks.serving.turns import THREADS, Case, Prompts, Runs, Way, parameters_of, ratios_of, timed_case, tokens_of

__all__ = ["LIMIT_S", "over_http"]

LIMIT_S = 600.0


def over_http(
    run: LoadRun, cases: Sequence[Case], settings: Sequence[VllmSettings], repeats: int, max_tokens: int, environment: Path
) -> Runs:
    """A row for each case of the small model; vLLM with the settings that answer it fastest over HTTP."""
    mine: dict[Case, dict[str, Any]] = {}
    version: dict[str, str] = {}
    for num_beams in dict.fromkeys(case.beams for case in cases):
        options = "--beams", str(num_beams), "--slo-ms", "600000"
        with serving(run.path, *options, threads=THREADS) as served:
            ours = partial(_leafbeam, run, f"{served.url}/v1/recommend")
            chosen = [case for case in cases if case.beams == num_beams]
            mine |= {case: timed_case(run, case, {"leafbeam": partial(ours, case)}, repeats, {}) for case in chosen}

    @contextmanager
    def opened(one: VllmSettings) -> Generator[Callable[[Case], Way]]:
        with vllm_server(run.path / "model", settings=one, max_tokens=max_tokens, environment=environment) as url:
            version["vllm"] = _answer(url.replace("/v1/completions", "/version"))["version"]
            yield lambda case: partial(_vllm, run, url, case)

    fastest = fastest_of(run, cases, settings, opened)
    for one, some in grouped(fastest).items():
        slow: dict[str, list[Case]] = {}
        left = list(some)
        try:
            with opened(one) as way_of:
                for case in some:
                    theirs = timed_case(run, case, {"vllm_beams": way_of(case)}, repeats, slow)
                    left.remove(case)
                    yield _named(run, case), ratios_of(mine[case] | theirs) | version | fastest[case].row
        except PeerFailure as failure:
            for case in left:
                yield _named(run, case), ratios_of(mine[case] | {"vllm_beams": failure.row}) | version | fastest[case].row


def _named(run: LoadRun, case: Case) -> dict[str, Any]:
    return parameters_of(run, case) | {"what": "http", "model": "small"}


def _leafbeam(run: LoadRun, url: str, case: Case, prompts: Prompts) -> list[list[list[int]]]:
    items = run.trie.items
    rows = [items.order_N[[items.ordinals_of_leaf(leaf)[0] for leaf in leaves.tolist()]] for leaves in prompts]
    histories = [items.ids_of(each).tolist() for each in rows]
    common = {"num_items": case.beams, "num_beams": case.beams, "keep_history": True}
    common |= {"scoring": "allowed", "channel": "model"}
    answers = _posted(url, [common | {"history": history} for history in histories])
    found = [run.leaves_of(np.asarray(answer["item_ids"])) for answer in answers]
    return [run.model.vocabulary.tokens(run.trie.codes_at(leaves)).tolist() for leaves in found]


def _vllm(run: LoadRun, url: str, case: Case, prompts: Prompts) -> list[list[list[int]]]:
    common = {"model": "model", "n": case.beams, "use_beam_search": True, "temperature": 0, "ignore_eos": True}
    common |= {"max_tokens": run.trie.num_levels}
    answers = _posted(url, [common | {"prompt": tokens} for tokens in tokens_of(run, prompts)])
    texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
    return [[[int(word) for word in text.strip("<>").split("><")] for text in one] for one in texts]


def _posted(url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The JSON answers of requests sent at once."""

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(partial(_answer, url), bodies))


def _answer(url: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON answer of one request: a GET without a body. Raises PeerFailure."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
            return json.load(reply)
    except TimeoutError:
        raise PeerFailure("timed out", f"no answer within {LIMIT_S:g} s") from None
    except urllib.error.HTTPError as error:
        raise PeerFailure("failed", f"{error}: {error.read(500).decode(errors='replace')}") from None
    except OSError as error:
        raise PeerFailure("failed", str(error)[:500]) from None
