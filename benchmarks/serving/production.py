"""Engines that people run, on one model: beam search of vLLM on a CPU and of transformers, beside leafbeam.

    small    the demo's model, trained on the synthetic shop for two minutes; offline, and over HTTP
    large    the shape of Qwen3-0.6B over Semantic IDs, random weights; offline (`prefill`: its prompts alone), and over HTTP.
             With --architecture the shape of Qwen2.5-0.5B (qwen2) or of SmolLM2-360M (llama)

All get the same checkpoint, prompts, beams, dtype (float32; `large` and `prefill` in bfloat16 too) and two threads at most:
leafbeam and `generate` take one where a trial is faster with it (`generate` with the small model), and vLLM what is fastest of
its settings. Each turn has prompts of its own, so that no engine finds yesterday's keys and values. vLLM's ways: beams without
a constraint; beams under a grammar of all items; sampling from the tokens of items, which is no search; over HTTP, sampling
under the grammar too. leafbeam's search leaves out beams that have one item left; `leafbeam_all_beams` runs them. An engine
that is missing, fails, crashes or takes too long has its status in the row.

vLLM caches whole pages of 32 tokens, so each beam computes what is left of its prompt again in each round: 9 tokens in three
rounds of a prompt of 33, 513 or 1,025 tokens, and 93 of one of 29 or 509. Both are measured.

Shapes: B requests, K beams, T tokens of a prompt, L levels.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.peers.failure import PeerFailure
from benchmarks.peers.hf_generate import HfGenerate, keep_freed_memory
from benchmarks.peers.vllm_cpu import (
    ENVIRONMENT,
    VllmEngine,
    VllmSettings,
    grammar_of,
    vllm_engine,
    write_padded,
    write_tokenizer,
)
from benchmarks.serving.fastest import Chosen, fastest_of, grouped
from benchmarks.serving.load_run import POSITIONS, LoadRun
from benchmarks.serving.production_http import LIMIT_S, over_http
from benchmarks.serving.turns import THREADS, Answers, Case, Prompts, Runs, Way, compare, items_of, tokens_of
from benchmarks.static.inference import MODELS
from benchmarks.static.setting import memory_of_machine
from leafbeam.decode import BeamSearch
from leafbeam.errors import ArgumentError
from leafbeam.files import write_checksums, write_json
from leafbeam.model import AnyVocabulary, ModelConfig, Transformer, Workspace, search_bytes
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.backend import IndexBindings

__all__ = [
    "MAX_TOKENS",
    "Architecture",
    "Dtype",
    "Part",
    "checkpoint_of",
    "in_dtype",
    "large_run",
    "name_of",
    "offline_ways",
    "runs",
    "settings_of",
    "vllm_answers",
    "write_model",
]

Part = Literal["small", "http", "large", "large-http"]
Architecture = Literal["qwen3", "qwen2", "llama"]
Dtype = Literal["float32", "bfloat16"]

Search = Callable[[Case, int, Prompts], Answers]  # for a case and a number of threads: leaves of histories to tokens

MAX_TOKENS = 1056
# Of Qwen/Qwen2.5-0.5B and of HuggingFaceTB/SmolLM2-360M, which is a Llama.
_SHAPES: dict[Architecture, dict[str, int]] = {
    "qwen2": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    | {"num_key_value_heads": 2},
    "llama": {"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 15}
    | {"num_key_value_heads": 5},
}
_SEQUENCES, _BATCH_TOKENS = 1024, 16_384  # all beams of 16 requests in one step


def _cases(*sizes: tuple[int, int, int]) -> tuple[Case, ...]:
    return tuple(Case(items=items, beams=beams, batch=batch) for items, beams, batch in sizes)


# Prompts of 33, 513 and 1,025 tokens of four levels, some of 29 and 509; of 33, 129, 513 and 1,025.
_SMALL = _cases(
    *((8, 20, 1), (8, 50, 4), (8, 50, 16), (128, 50, 1), (128, 128, 1), (128, 128, 4), (256, 256, 1), (256, 512, 1)),
    *((7, 20, 1), (7, 50, 4), (127, 128, 1)),
)
_LARGE = _cases((8, 20, 1), (32, 50, 4), (128, 128, 1), (256, 128, 1), (256, 512, 1))


def runs(
    quick: bool,
    part: Part | None = None,
    environment: Path = ENVIRONMENT,
    dtype: Dtype = "float32",
    architecture: Architecture = "qwen3",
) -> Runs:
    """One row for each case: of one part, or of all. Raises ArgumentError for options of the part "large" with others.

    quick: one case, two turns, one of vLLM's settings; "large" has two layers then.
    """
    if dtype == "bfloat16" and part != "large":
        raise ArgumentError("--dtype bfloat16 goes with --part large or --part prefill")
    if architecture != "qwen3" and part not in ("large", "large-http"):
        raise ArgumentError(f"--architecture {architecture} goes with --part large or --part large-http")
    if not quick:
        keep_freed_memory()
    run = LoadRun.demo(quick)
    write_tokenizer(run.path / "model")
    small, repeats = (_SMALL[:1], 2) if quick else (_SMALL, 31)
    settings = settings_of("small", quick)
    with torch_threads(THREADS):
        if part in ("small", None):
            yield from _offline("small", run, small, settings, repeats, environment)
        if part in ("http", None):
            listed = [case for case in small if case.beams <= 256]  # the most items of an answer
            yield from over_http("small", run, listed, settings, repeats, MAX_TOKENS, environment)
        if part in ("large", "large-http") or (part is None and not quick):
            large, settings = in_dtype(large_run(run, architecture, quick=quick), dtype), settings_of("large", quick)
            name, cases = name_of(architecture), _LARGE[:1] if quick else _LARGE
            if part != "large-http":
                yield from _offline(name, large, cases, settings, 3, environment, dtype)
            if part != "large":
                listed = [case for case in cases if case.beams <= 256]
                yield from over_http(name, large, listed, settings, 3, MAX_TOKENS, environment)


def settings_of(model: str, quick: bool) -> list[VllmSettings]:
    """What vLLM is tried with: eager and compiled, one thread and two, which spin long or briefly, all sequences in one step
    and its defaults.

    A large model takes all threads; quick: one of the settings, untried.
    """
    whole = partial(VllmSettings, sequences=_SEQUENCES, batch_tokens=_BATCH_TOKENS if model == "small" else None)
    many = [whole(threads=THREADS), whole(threads=THREADS, compiled=True), whole(threads=THREADS, passive=True)]
    ones = [whole(threads=1, passive=True), whole(threads=1, passive=True, compiled=True), VllmSettings(threads=THREADS)]
    return many[:1] if quick else many + (ones if model == "small" else [])


def in_dtype(run: LoadRun, dtype: Dtype) -> LoadRun:
    """The run with a model that multiplies in this dtype."""
    return replace(run, model=run.model.with_precision("bfloat16")) if dtype == "bfloat16" else run


def _offline(
    name: str,
    run: LoadRun,
    cases: Sequence[Case],
    settings: Sequence[VllmSettings],
    repeats: int,
    environment: Path,
    dtype: Dtype = "float32",
) -> Runs:
    threads = {"leafbeam": _fastest_threads(run, cases, _leafbeam(run))}
    if name == "small":
        threads["generate"] = _fastest_threads(run, cases, _generate(run, dtype))
    for directory, some in _checkpoints(run, cases).items():
        vllm = partial(vllm_engine, directory, max_tokens=MAX_TOKENS, limit_s=LIMIT_S, environment=environment, dtype=dtype)
        fastest = fastest_of(run, some, settings, partial(_beams_of, run, vllm))
        for one, chosen in grouped(fastest).items():
            with vllm(settings=one) as engine:
                grammar = {"vllm_grammar_ms": _grammar_ms(run, engine)}
                ways_of = offline_ways(run, engine, dtype, threads)
                named = {"what": "offline", "model": name, "dtype": dtype}
                for case, (parameters, measured) in zip(chosen, compare(named, run, chosen, ways_of, repeats), strict=True):
                    how = fastest[case].row()
                    for who, found in threads.items():
                        how |= found[case].row(f"{who}_threads")
                    yield parameters, measured | {"vllm": engine.version} | grammar | how


@contextmanager
def _beams_of(
    run: LoadRun, vllm: Callable[..., AbstractContextManager[VllmEngine]], settings: VllmSettings
) -> Generator[Callable[[Case], Way]]:
    """vLLM's beams without a constraint, under these settings."""
    with vllm(settings=settings) as engine:
        yield lambda case: partial(vllm_answers, run, engine, case, {"way": "beams"})


def _checkpoints(run: LoadRun, cases: Sequence[Case]) -> dict[Path, list[Case]]:
    """The cases of each directory for vLLM."""
    found: dict[Path, list[Case]] = {}
    for case in cases:
        found.setdefault(checkpoint_of(run, case.beams), []).append(case)
    return found


def checkpoint_of(run: LoadRun, beams: int) -> Path:
    """The directory for vLLM: one with more tokens for more beams than half of the vocabulary, written once."""
    path = run.path / "model"
    if 2 * beams > run.model.config.vocab_size:
        path = run.path / f"model-{2 * beams}"
        if not path.exists():
            write_padded(run.path / "model", path, 2 * beams)
    return path


def _grammar_ms(run: LoadRun, engine: VllmEngine) -> float | str:
    """What a search of one beam and one token takes under the grammar: to compile it, once for each search."""
    job = {"way": "beams", "grammar": grammar_of(items_of(run)), "prompts": [[1]], "num_beams": 1, "num_tokens": 1}
    try:
        return round(1e3 * statistics.median([engine.run(job)["seconds"] for _ in range(3)]), 1)
    except PeerFailure as failure:
        return failure.status


def vllm_answers(run: LoadRun, engine: VllmEngine, case: Case, job: dict[str, Any], prompts: Prompts) -> list[list[list[int]]]:
    """The tokens of a job's answers to these prompts. Raises PeerFailure."""
    sizes = {"num_beams": case.beams, "num_tokens": run.trie.num_levels}
    return engine.run(job | {"prompts": tokens_of(run, prompts)} | sizes)["sequences"]


def _leafbeam(run: LoadRun, *, all_beams: bool = False) -> Search:
    """leafbeam in this process. all_beams: its model runs those with one item left too."""
    vocabulary, workspace, index = run.model.vocabulary, Workspace(), IndexBindings(run.trie)

    def search(case: Case, threads: int, prompts: Prompts) -> Answers:
        with torch_threads(threads, apart=True):
            tokens_BT, lengths_B = vocabulary.prompts([run.trie.codes_at(one) for one in prompts])
            rounds = run.model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace=workspace)
            beams = BeamSearch(index, case.beams, scoring="allowed")
            suffix_fn = None if all_beams else rounds.suffix_fn
            found = beams.run(rounds.step_fn, batch_size=len(prompts), suffix_fn=suffix_fn)
        rows = zip(found.codes, found.num_valid, strict=True)
        return [vocabulary.tokens(codes_KL[:valid]).tolist() for codes_KL, valid in rows]

    return search


def _generate(run: LoadRun, dtype: Dtype) -> Search:
    """`generate` of transformers in this process, loaded at its first call."""
    items_NL = np.asarray(items_of(run))
    peer = cache(lambda: HfGenerate.of(run.path / "model", run.trie, run.model.vocabulary, getattr(torch, dtype)))

    def search(case: Case, threads: int, prompts: Prompts) -> Answers:
        # In this process, which the system would end. Each layer is copied as beams move and as it grows; what is freed stays
        # in pieces: 10.3 GB were taken for keys and values of 6.1 GB.
        tokens = run.model.vocabulary.prompt_length(case.items)
        itemsize = getattr(torch, dtype).itemsize
        sizes = {"prompt_tokens": tokens, "beams": 0, "rounds": 0, "inflight": case.batch, "itemsize": itemsize}
        each = search_bytes(run.model.config, **sizes)
        need = 2 * case.beams * each
        if need > (free := memory_of_machine()):
            reason = (
                f"copies of the keys and values of each beam's prompt take {need / 1e9:.1f} GB, and {free / 1e9:.1f} are free"
            )
            raise PeerFailure("not run", reason)
        with torch_threads(threads, apart=True):
            return items_NL[peer().recommend([run.trie.codes_at(one) for one in prompts], case.beams)[0]].tolist()

    return search


def _fastest_threads(run: LoadRun, cases: Sequence[Case], search: Search) -> dict[Case, Chosen[int]]:
    return fastest_of(run, cases, (THREADS, 1), lambda count: nullcontext(lambda case: partial(search, case, count)))


def offline_ways(
    run: LoadRun,
    engine: VllmEngine,
    dtype: Dtype = "float32",
    threads: Mapping[str, Mapping[Case, Chosen[int]]] | None = None,
) -> Callable[[Case], dict[str, Way]]:
    """Every engine in this process or a child of it, for a case. threads: all for an engine that has none here."""
    items = items_of(run)
    jobs: dict[str, dict[str, Any]] = {
        "vllm_beams": {"way": "beams"},
        "vllm_grammar_beams": {"way": "beams", "grammar": grammar_of(items)},
        "vllm_allowed_tokens": {"way": "sample", "allowed_tokens": np.unique(items).tolist()},
    }
    searches = {
        "leafbeam": ("leafbeam", _leafbeam(run)),
        "leafbeam_all_beams": ("leafbeam", _leafbeam(run, all_beams=True)),
        "hf_generate": ("generate", _generate(run, dtype)),
    }

    def ways_of(case: Case) -> dict[str, Way]:
        counts = {who: found[case].settings for who, found in (threads or {}).items()}
        ways: dict[str, Way] = {
            name: partial(search, case, counts.get(who, THREADS)) for name, (who, search) in searches.items()
        }
        return ways | {name: partial(vllm_answers, run, engine, case, job) for name, job in jobs.items()}

    return ways_of


def name_of(architecture: Architecture) -> str:
    """The large model of this architecture in rows."""
    return "large" if architecture == "qwen3" else f"large {architecture}"


def large_run(run: LoadRun, architecture: Architecture = "qwen3", *, quick: bool = False) -> LoadRun:
    """The same items under a model of the shape of a published one; random weights, written once. quick: two layers of it."""
    path = run.path.with_name(run.path.name + "-large" + ("" if architecture == "qwen3" else f"-{architecture}"))
    layers: dict[str, Any] = {"num_hidden_layers": 2} if quick else {}
    if not (path / "model").exists():
        vocabulary = run.model.vocabulary
        if architecture == "qwen3":
            sizes = MODELS["Qwen3-0.6B"] | layers
            config = ModelConfig(vocab_size=vocabulary.size, max_position_embeddings=POSITIONS, **sizes)
            Transformer(config, vocabulary).save_pretrained(path / "model")
        else:
            write_model(path / "model", architecture, vocabulary, _SHAPES[architecture] | layers)
        write_tokenizer(path / "model")
    for name in ("index.leafbeam", "catalog.duckdb", "rules.toml", "memory.leafbeam"):  # what `leafbeam serve` takes
        if not (path / name).exists():
            shutil.copyfile(run.path / name, path / name)
    return replace(run, path=path, model=Transformer.from_pretrained(path / "model").pack())


def write_model(directory: Path, architecture: Architecture, vocabulary: AnyVocabulary, sizes: Mapping[str, int]) -> None:
    """A checkpoint of another architecture, with the config.json that transformers writes: its tensors have the same names."""
    from transformers import AutoConfig  # a benchmark without transformers has a row that says so

    fields = {"vocab_size": vocabulary.size, "max_position_embeddings": POSITIONS, "tie_word_embeddings": True, **sizes}
    hf = AutoConfig.for_model(architecture, **fields).to_dict() | {"torch_dtype": "float32"}
    hf["architectures"] = [{"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[architecture]]
    Transformer(ModelConfig.from_hf(hf), vocabulary).save_pretrained(directory)
    write_json(directory / "config.json", hf)
    write_checksums(directory, ("config.json", "leafbeam.json", "model.safetensors"))
