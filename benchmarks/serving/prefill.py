"""The prompt alone: until the logits of the first code, vLLM's offline engine beside leafbeam, at Qwen3-0.6B's shape.

    leafbeam   the model's session, and the logits of the first level
    float32    in bfloat16, leafbeam's session in float32 too
    vLLM       one token, the likeliest of the first level's

All compute the same number from the same prompts; the share of equal first tokens is in the row.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from benchmarks.peers.vllm_cpu import ENVIRONMENT, VllmEngine, VllmSettings, vllm_engine, write_tokenizer
from benchmarks.serving.fastest import fastest_of, grouped
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.production import MAX_TOKENS, Dtype, in_dtype, large_run, settings_of
from benchmarks.serving.production_http import LIMIT_S
from benchmarks.serving.turns import THREADS, Answers, Case, Prompts, Runs, Turns, Way, compare, tokens_of
from leafbeam.model import Transformer, Workspace
from leafbeam.model.cpu.threads import torch_threads

__all__ = ["equal_tokens", "prefill_ways", "runs"]

# Prompts of 33, 129, 513 and 1,025 tokens.
_CASES = tuple(Case(items=items, beams=1, batch=batch) for items, batch in ((8, 1), (32, 1), (32, 4), (128, 1), (256, 1)))


def runs(quick: bool, environment: Path = ENVIRONMENT, dtype: Dtype = "float32") -> Runs:
    """One row for each length and batch; quick: one, of the demo's model."""
    run = LoadRun.demo(quick)
    write_tokenizer(run.path / "model")
    name, run = ("small", run) if quick else ("large", large_run(run))
    cases, repeats = (_CASES[:1], 2) if quick else (_CASES, 7)
    vllm = partial(
        vllm_engine, run.path / "model", max_tokens=MAX_TOKENS, limit_s=LIMIT_S, environment=environment, dtype=dtype
    )
    named = {"what": "prefill", "model": name, "dtype": dtype}

    @contextmanager
    def opened(settings: VllmSettings) -> Generator[Callable[[Case], Way]]:
        with vllm(settings=settings) as engine:
            yield lambda case: prefill_ways(run, engine, dtype)(case)["vllm"]

    with torch_threads(THREADS):
        fastest = fastest_of(run, cases, settings_of("large", quick), opened)
        for one, chosen in grouped(fastest).items():
            with vllm(settings=one) as engine:
                found = compare(named, run, chosen, prefill_ways(run, engine, dtype), repeats, equal_tokens)
                for case, (parameters, measured) in zip(chosen, found, strict=True):
                    yield parameters, measured | {"vllm": engine.version} | fastest[case].row()


def prefill_ways(run: LoadRun, engine: VllmEngine, dtype: Dtype = "float32") -> Callable[[Case], dict[str, Way]]:
    """All engines, for a case: leaves of histories to the first token of each."""
    vocabulary, workspace = run.model.vocabulary, Workspace()
    first_V = vocabulary.level_tokens(0)

    def leafbeam(model: Transformer, prompts: Prompts) -> Answers:
        tokens_BT, lengths_B = vocabulary.prompts([run.trie.codes_at(one) for one in prompts])
        session = model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace=workspace)
        best_B = session.step_fn(None, None).argmax(-1).reshape(-1)
        return [[[int(first_V[code])]] for code in best_B.tolist()]

    def vllm(prompts: Prompts) -> Answers:
        job = {"way": "sample", "temperature": 0.0, "allowed_tokens": first_V.tolist(), "num_beams": 1, "num_tokens": 1}
        return engine.run(job | {"prompts": tokens_of(run, prompts)})["sequences"]

    ways: dict[str, Way] = {"leafbeam": partial(leafbeam, in_dtype(run, dtype).model)}
    if dtype != "float32":
        ways["float32"] = partial(leafbeam, run.model)
    return lambda case: ways | {"vllm": vllm}


def equal_tokens(run: LoadRun, case: Case, turns: Turns, exact: Turns) -> dict[str, float]:
    """exact: the share of leafbeam's first tokens that this engine found too, in the turns of both."""
    both = turns.keys() & exact.keys()
    pairs = [one == other for turn in both for one, other in zip(turns[turn], exact[turn], strict=True)]
    return {"exact": round(sum(pairs) / max(1, len(pairs)), 4)}
