"""Engines that people run, on one model: beam search of vLLM on a CPU and of transformers, beside leafbeam.

    small    the demo's model, trained on the synthetic shop for two minutes; offline, and over HTTP
    large    the shape of Qwen3-0.6B over Semantic IDs, random weights; offline (`prefill`: its prompts alone)

All get the same checkpoint, prompts, beams, dtype (float32; `large` and `prefill` in bfloat16 too) and two threads, of which
leafbeam takes one where it measures that as faster, as its engine does. Each turn has prompts of its own, so that no engine
finds yesterday's keys and values. vLLM's ways: beams without a constraint; beams under a grammar of all items; sampling from
the tokens of items, which is no search. An engine that is missing, fails, crashes or takes too long has its status in the row.

Shapes: B requests, K beams, T tokens of a prompt, L levels.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.papers.inference import MODELS
from benchmarks.papers.setting import memory_of_machine
from benchmarks.peers.failure import PeerFailure, failure_of
from benchmarks.peers.hf_generate import HfGenerate
from benchmarks.peers.vllm_cpu import (
    ENVIRONMENT,
    VllmEngine,
    token_text,
    vllm_engine,
    vllm_server,
    write_tokenizer,
)
from benchmarks.rows import spread
from benchmarks.serving.load_run import POSITIONS, LoadRun
from benchmarks.serving.load_server import serving
from leafbeam.decode import BeamSearch
from leafbeam.engine import Limits
from leafbeam.engine.threads import measure_threads
from leafbeam.errors import ArgumentError
from leafbeam.model import ModelConfig, Transformer, Workspace, search_bytes
from leafbeam.model.threads import torch_threads
from leafbeam.ops.backend import IndexBindings

__all__ = [
    "LIMIT_S",
    "MAX_TOKENS",
    "THREADS",
    "Answers",
    "Case",
    "Dtype",
    "Part",
    "Prompts",
    "Runs",
    "Way",
    "compare",
    "in_dtype",
    "large_run",
    "offline_ways",
    "parameters_of",
    "runs",
    "shares_of",
    "timed_case",
    "tokens_of",
]

Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]
Prompts = Sequence[NDArray[np.int64]]
Answers = Sequence[Sequence[Sequence[int]]]  # tokens of each answer of each request
Way = Callable[[Prompts], Answers]
Part = Literal["small", "http", "large"]
Dtype = Literal["float32", "bfloat16"]

THREADS, MAX_TOKENS = 2, 1024
REPEAT_S, ONCE_S, SLOW_S, LIMIT_S = 2.0, 8.0, 150.0, 600.0
_LEAST, _ENOUGH_S = 7, 60.0  # turns that a case has at least, if there are so many; seconds after which it has no more
_OTHERS = 1_000  # turns from here on have prompts that are not timed
WARM_S = 0.1  # for which a way answers other prompts just before
PAUSE_S = 0.25  # before a way is timed: threads of the way before it wait for work in a busy loop so long


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cell: items of each history, beams, requests at once."""

    items: int
    beams: int
    batch: int


Judge = Callable[[LoadRun, Case, Sequence[Answers], Sequence[Answers]], dict[str, float]]


def _cases(*sizes: tuple[int, int, int]) -> tuple[Case, ...]:
    return tuple(Case(items=items, beams=beams, batch=batch) for items, beams, batch in sizes)


# Prompts of 29, 129, 509 and 997 tokens of four levels.
_SMALL = _cases((7, 20, 1), (7, 50, 4), (7, 50, 16), (127, 50, 1), (127, 128, 1), (127, 128, 4), (249, 512, 1))
_LARGE = _cases((7, 20, 1), (32, 50, 4), (127, 128, 1), (249, 128, 1), (249, 512, 1))


def runs(quick: bool, part: Part | None = None, environment: Path = ENVIRONMENT, dtype: Dtype = "float32") -> Runs:
    """One row for each case: of one part, or of all. Raises ArgumentError for bfloat16 except with the part "large"."""
    if dtype == "bfloat16" and part != "large":
        raise ArgumentError("--dtype bfloat16 goes with --part large or --part prefill")
    run = LoadRun.demo(quick)
    write_tokenizer(run.path / "model")
    small, repeats = (_SMALL[:1], 2) if quick else (_SMALL, 31)
    with torch_threads(THREADS):
        if part in ("small", None):
            yield from _offline("small", run, small, repeats, environment)
        if part in ("http", None):
            yield from _over_http(run, small, repeats, environment)
        if part == "large" or (part is None and not quick):
            yield from _offline("large", in_dtype(large_run(run), dtype), _LARGE, 3, environment, dtype)


def in_dtype(run: LoadRun, dtype: Dtype) -> LoadRun:
    """The run with a model that multiplies in this dtype."""
    return replace(run, model=run.model.with_bfloat16_products()) if dtype == "bfloat16" else run


def _offline(name: str, run: LoadRun, cases: Sequence[Case], repeats: int, environment: Path, dtype: Dtype = "float32") -> Runs:
    vllm = partial(vllm_engine, run.path / "model", threads=THREADS, max_tokens=MAX_TOKENS, dtype=dtype)
    with vllm(limit_s=LIMIT_S, environment=environment) as engine:
        ways_of = offline_ways(run, engine, dtype)
        named = {"what": "offline", "model": name, "dtype": dtype}
        for parameters, measured in compare(named, run, cases, ways_of, repeats):
            yield parameters, measured | {"vllm": engine.version}


def offline_ways(run: LoadRun, engine: VllmEngine, dtype: Dtype = "float32") -> Callable[[Case], dict[str, Way]]:
    """Every engine in this process or a child of it, for a case: leaves of histories to the tokens of answers."""
    vocabulary, levels = run.model.vocabulary, run.trie.num_levels
    items_NL = vocabulary.tokens(run.trie.codes_at(np.arange(run.trie.num_leaves)))
    peer = HfGenerate.of(run.path / "model", run.trie, vocabulary, getattr(torch, dtype))
    workspace = Workspace()
    threads: dict[Case, int] = {}
    index = IndexBindings(run.trie)
    jobs: dict[str, dict[str, Any]] = {
        "vllm_beams": {"way": "beams"},
        "vllm_grammar_beams": {"way": "beams", "choices": [token_text(*item) for item in items_NL.tolist()]},
        "vllm_allowed_tokens": {"way": "sample", "allowed_tokens": np.unique(items_NL).tolist()},
    }

    def leafbeam(case: Case, prompts: Prompts) -> list[list[list[int]]]:
        if case not in threads:  # as an engine chooses at its start
            time.sleep(PAUSE_S)
            threads[case] = measure_threads(THREADS, [partial(search, case, prompts)], time.perf_counter).count
        with torch_threads(threads[case], apart=True):
            return search(case, prompts)

    def search(case: Case, prompts: Prompts) -> list[list[list[int]]]:
        tokens_BT, lengths_B = vocabulary.prompts([run.trie.codes_at(one) for one in prompts])
        rounds = run.model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace=workspace)
        found = BeamSearch(index, case.beams, scoring="allowed").run(rounds.step_fn, batch_size=len(prompts))
        rows = zip(found.codes, found.num_valid, strict=True)
        return [vocabulary.tokens(codes_KL[:valid]).tolist() for codes_KL, valid in rows]

    def generate(case: Case, prompts: Prompts) -> list[list[list[int]]]:
        # In this process, which the system would end: keys and values of each beam's prompt, and once more as beams move.
        need = (
            2
            * case.beams
            * search_bytes(
                run.model.config,
                prompt_tokens=case.items * levels,
                beams=0,
                rounds=0,
                inflight=case.batch,
                itemsize=getattr(torch, dtype).itemsize,
            )
        )
        if need > (free := memory_of_machine()):
            raise PeerFailure("out of memory", f"its copies of the prompt take {need / 1e9:.1f} GB of {free / 1e9:.1f} GB")
        return items_NL[peer.recommend([run.trie.codes_at(one) for one in prompts], case.beams)[0]].tolist()

    def vllm(case: Case, job: dict[str, Any], prompts: Prompts) -> list[list[list[int]]]:
        return engine.run(job | {"prompts": tokens_of(run, prompts), "num_beams": case.beams, "num_tokens": levels})[
            "sequences"
        ]

    def ways_of(case: Case) -> dict[str, Way]:
        ways: dict[str, Way] = {"leafbeam": partial(leafbeam, case), "hf_generate": partial(generate, case)}
        return ways | {name: partial(vllm, case, job) for name, job in jobs.items()}

    return ways_of


def _over_http(run: LoadRun, cases: Sequence[Case], repeats: int, environment: Path) -> Runs:
    """`leafbeam serve`, then vLLM's server, each alone; all requests of a batch at once, until the last answer."""
    mine: dict[Case, dict[str, Any]] = {}
    for num_beams in dict.fromkeys(case.beams for case in cases):
        options = "--beams", str(num_beams), "--slo-ms", "600000"
        with serving(run.path, *options, threads=THREADS) as served:
            ours = partial(_leafbeam_over_http, run, f"{served.url}/v1/recommend")
            chosen = [case for case in cases if case.beams == num_beams]
            mine |= {case: timed_case(run, case, {"leafbeam": partial(ours, case)}, repeats, {}) for case in chosen}
    try:
        with vllm_server(run.path / "model", threads=THREADS, max_tokens=MAX_TOKENS, environment=environment) as url:
            slow: dict[str, list[Case]] = {}
            for case in cases:
                theirs = timed_case(run, case, {"vllm_beams": partial(_vllm_over_http, run, url, case)}, repeats, slow)
                yield parameters_of(run, case) | {"what": "http", "model": "small"}, _ratios(mine.pop(case) | theirs)
    except PeerFailure as failure:
        for case, one in mine.items():
            yield parameters_of(run, case) | {"what": "http", "model": "small"}, _ratios(one | {"vllm_beams": failure.row})


def shares_of(run: LoadRun, case: Case, turns: Sequence[Answers], exact: Sequence[Answers]) -> dict[str, float]:
    """Of the K answers of each request: no item; missing (fewer than K different items, or than the catalog has); and exact,
    the share of leafbeam's answers to the same turns that are among them, where there are any.
    """
    items = set(map(tuple, run.model.vocabulary.tokens(run.trie.codes_at(np.arange(run.trie.num_leaves))).tolist()))
    answers = [list(map(tuple, one)) for turn in turns for one in turn]
    expected = min(case.beams, len(items)) * len(answers)
    wrong = sum(sid not in items for one in answers for sid in one)
    found = sum(len(set(one) & items) for one in answers)
    shares = {"no_item": round(wrong / max(1, sum(map(len, answers))), 4), "missing": round(1 - found / expected, 4)}
    ours = [set(map(tuple, one)) for turn in exact[: len(turns)] for one in turn]
    if ours:
        common = sum(len(one & set(other)) for one, other in zip(ours, answers, strict=True))
        shares["exact"] = round(common / max(1, sum(map(len, ours))), 4)
    return shares


def compare(
    named: dict[str, Any],
    run: LoadRun,
    cases: Sequence[Case],
    ways_of: Callable[[Case], dict[str, Way]],
    repeats: int,
    judge: Judge = shares_of,
) -> Runs:
    """A row for each case, smallest first, all ways in turns; a way that was slow on a case is left out of larger ones."""
    slow: dict[str, list[Case]] = {}
    for case in cases:
        engines = timed_case(run, case, ways_of(case), repeats, slow, judge)
        yield parameters_of(run, case) | named, _ratios(engines)


def timed_case(
    run: LoadRun,
    case: Case,
    ways: Mapping[str, Way],
    repeats: int,
    slow: dict[str, list[Case]],
    judge: Judge = shares_of,
) -> dict[str, dict[str, Any]]:
    """Milliseconds of each way and what `judge` says of its answers, or its status.

    repeats: turns at most; fewer where they take long. A way that takes more than ONCE_S seconds runs once. One that takes
    less than REPEAT_S answers other prompts just before, for WARM_S, because the ways before it emptied the machine's caches;
    "first_ms" is what the first of these answers took.
    """
    engines: dict[str, dict[str, Any]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    first: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, list[Any]] = {name: [] for name in ways}
    last: dict[str, float] = {}
    started = time.perf_counter()
    for turn in range(-1, repeats):  # the first turn warms up, and starts what is not running
        if turn >= _LEAST and time.perf_counter() - started > _ENOUGH_S:
            break
        prompts, others = _prompts(run, case, turn + 1), _prompts(run, case, turn + 1 + _OTHERS)
        for name, way in ways.items():
            if name in engines:
                continue
            before = [one for one in slow.get(name, ()) if _is_within(one, case)]
            if before:
                reason = f"{before[0].batch} x {before[0].beams} beams of {before[0].items} items took over {SLOW_S:g} s"
                engines[name] = {"status": "left out", "reason": reason}
                continue
            time.sleep(PAUSE_S)
            try:
                if last.get(name, REPEAT_S) < REPEAT_S:
                    first[name].append(_warm(way, others))
                began = time.perf_counter()
                found = way(prompts)
            except Exception as error:  # whatever stops a peer; leafbeam's own errors are errors of the benchmark
                if name == "leafbeam":
                    raise
                engines[name] = failure_of(error).row
                continue
            taken = last[name] = time.perf_counter() - began
            if turn < 0:
                continue
            seconds[name].append(taken)
            answers[name].append(found)
            if taken > SLOW_S:
                slow.setdefault(name, []).append(case)
            if taken > ONCE_S:
                engines[name] = {}
    for name in ways:
        if seconds[name]:
            found = judge(run, case, answers[name], answers.get("leafbeam", []))
            cold = {"first_ms": spread(first[name], 1e-3)} if first[name] else {}
            timed = {"ms": spread(seconds[name], 1e-3), "repeats": len(seconds[name])}
            engines[name] = {"status": "ok"} | timed | cold | found
    return {name: engines[name] for name in ways}


def _warm(way: Way, prompts: Prompts) -> float:
    """Answer for WARM_S; what the first answer took."""
    began = time.perf_counter()
    way(prompts)
    taken = time.perf_counter() - began
    while time.perf_counter() - began < WARM_S:
        way(prompts)
    return taken


def _is_within(smaller: Case, case: Case) -> bool:
    return smaller.items <= case.items and smaller.beams <= case.beams and smaller.batch <= case.batch


def _ratios(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The engines, and how many times leafbeam's median each one's is, or its status."""
    mine = engines["leafbeam"].get("ms", {}).get("p50")
    over = {name: round(one["ms"]["p50"] / mine, 2) if mine and "ms" in one else one["status"] for name, one in engines.items()}
    return {"engines": engines, "over_leafbeam": over}


def parameters_of(run: LoadRun, case: Case) -> dict[str, Any]:
    config = run.model.config
    return {
        "prompt_tokens": run.model.vocabulary.prompt_length(case.items),
        "K": case.beams,
        "B": case.batch,
        "threads": THREADS,
        "dtype": "float32",
        "num_items": run.trie.num_items,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "transformers": version("transformers"),
    }


def _prompts(run: LoadRun, case: Case, turn: int) -> Prompts:
    """Leaves of histories of items drawn at random, different ones for each turn and case."""
    rng = np.random.default_rng([turn, case.items, case.beams, case.batch])
    return [rng.integers(0, run.trie.num_leaves, case.items) for _ in range(case.batch)]


def tokens_of(run: LoadRun, prompts: Prompts) -> list[list[int]]:
    tokens_BT, lengths_B = run.model.vocabulary.prompts([run.trie.codes_at(one) for one in prompts])
    return [tokens_T[:length].tolist() for tokens_T, length in zip(tokens_BT, lengths_B, strict=True)]


def _leafbeam_over_http(run: LoadRun, url: str, case: Case, prompts: Prompts) -> list[list[list[int]]]:
    items = run.trie.items
    rows = [items.order_N[[items.ordinals_of_leaf(leaf)[0] for leaf in leaves.tolist()]] for leaves in prompts]
    histories = [items.ids_of(each).tolist() for each in rows]
    common = {"num_items": min(case.beams, Limits().max_items), "num_beams": case.beams, "keep_history": True}
    common |= {"scoring": "allowed", "channel": "model"}
    answers = _posted(url, [common | {"history": history} for history in histories])
    found = [run.leaves_of(np.asarray(answer["item_ids"])) for answer in answers]
    return [run.model.vocabulary.tokens(run.trie.codes_at(leaves)).tolist() for leaves in found]


def _vllm_over_http(run: LoadRun, url: str, case: Case, prompts: Prompts) -> list[list[list[int]]]:
    common = {"model": "model", "n": case.beams, "use_beam_search": True, "temperature": 0, "ignore_eos": True}
    common |= {"max_tokens": run.trie.num_levels}
    answers = _posted(url, [common | {"prompt": tokens} for tokens in tokens_of(run, prompts)])
    texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
    return [[[int(word) for word in text.strip("<>").split("><")] for text in one] for one in texts]


def _posted(url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The JSON answers of requests sent at once."""

    def post(body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
                return json.load(reply)
        except TimeoutError:
            raise PeerFailure("timed out", f"no answer within {LIMIT_S:g} s") from None
        except urllib.error.HTTPError as error:
            raise PeerFailure("failed", f"{error}: {error.read(500).decode(errors='replace')}") from None
        except OSError as error:
            raise PeerFailure("failed", str(error)[:500]) from None

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(post, bodies))


def large_run(run: LoadRun) -> LoadRun:
    """The same items under a model of Qwen3-0.6B's shape; 0.44 billion random weights, written once."""
    path = run.path.with_name(run.path.name + "-large")
    if not (path / "model").exists():
        vocabulary = run.model.vocabulary
        config = ModelConfig(vocab_size=vocabulary.size, max_position_embeddings=POSITIONS, **MODELS["Qwen3-0.6B"])
        Transformer(config, vocabulary).save_pretrained(path / "model")
        write_tokenizer(path / "model")
    if not (path / "index.leafbeam").exists():
        run.trie.save(path / "index.leafbeam")
    return replace(run, path=path, model=Transformer.from_pretrained(path / "model").pack())
