"""Exact constrained beams over vLLM on a CPU, against vLLM's own beam search, which knows no constraint.

    small    the demo's model, trained on the synthetic shop for two minutes
    large    the shape of Qwen3-0.6B over Semantic IDs, random weights

One engine runs both ways in turns on the same checkpoint, prompts and beams, and forgets its prompts before each. Both rank by
log-probabilities over the model's vocabulary. `ratio`: the median time of the exact beams over that of vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.vllm_cpu import ENVIRONMENT, VllmEngine, VllmSettings, vllm_engine, write_tokenizer
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.production import MAX_TOKENS, large_run, vllm_answers
from benchmarks.serving.production_http import LIMIT_S
from benchmarks.serving.turns import THREADS, Case, Way, parameters_of, timed_case

__all__ = ["measure", "runs"]


def runs(quick: bool, environment: Path = ENVIRONMENT) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One row for each model and case."""
    run = LoadRun.demo(quick)
    write_tokenizer(run.path / "model")
    lengths = (7,) if quick else (32, 127)
    cases = [Case(items=length, beams=beams, batch=batch) for length in lengths for beams in (20, 50) for batch in (1, 4)]
    yield from _rows("small", run, cases[:2] if quick else cases, 2 if quick else 15, environment)
    if not quick:
        large = [Case(items=32, beams=50, batch=1), Case(items=32, beams=50, batch=4), Case(items=127, beams=50, batch=1)]
        yield from _rows("large", large_run(run), large, 3, environment)


def _rows(
    name: str, run: LoadRun, cases: list[Case], repeats: int, environment: Path
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    vllm = partial(vllm_engine, run.path / "model", settings=VllmSettings(threads=THREADS), max_tokens=MAX_TOKENS)
    with vllm(limit_s=LIMIT_S, environment=environment) as engine:
        for case in cases:
            measured = measure(run, engine, case, repeats)
            yield parameters_of(run, case) | {"what": "exact beams", "model": name}, measured | {"vllm": engine.version}


def measure(run: LoadRun, engine: VllmEngine, case: Case, repeats: int) -> dict[str, Any]:
    """Both ways in turns: milliseconds, and the shares of their answers that are no items or are missing."""
    exact = {"way": "exact_beams", "index": str((run.path / "index.leafbeam").absolute())}
    jobs: dict[str, dict[str, Any]] = {
        "vllm_beams": {"way": "beams"},
        "exact_beams": exact | {"vocabulary": run.model.vocabulary.to_dict()},
    }

    ways: dict[str, Way] = {name: partial(vllm_answers, run, engine, case, job) for name, job in jobs.items()}
    engines = timed_case(run, case, ways, repeats, {})
    theirs, mine = (engines[name].get("ms", {}).get("p50") for name in jobs)
    exact_found = engines["exact_beams"]
    assert "ms" in exact_found or "ms" not in engines["vllm_beams"], exact_found
    assert "ms" not in exact_found or exact_found["no_item"] == exact_found["missing"] == 0, exact_found
    return {"engines": engines, "ratio": round(mine / theirs, 3) if mine and theirs else "not measured"}
