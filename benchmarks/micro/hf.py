"""Constrained `generate` of transformers, our processor against `prefix_allowed_tokens_fn` with a Python trie.

A tiny Qwen3 (2 layers, so that the model hides as little as possible), 20 beams, 12,000 items, one thread. Measured is the time
inside the logits processor, summed over one `generate` and divided by its calls, as it is met there: with the caches that the
model has just filled with other things. All methods give the same sequences and scores, which is asserted before.

Shapes: B requests, K beams, V codes of a level, L levels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.generation.logits_process import LogitsProcessorList, PrefixConstrainedLogitsProcessor

from benchmarks.peers.python_trie import PythonTrie
from benchmarks.rows import spread
from benchmarks.workloads import DISTRIBUTIONS, random_codes
from leafbeam.index import Trie
from leafbeam.integrations.transformers import CodeTokens, TrieLogitsProcessor, prefix_allowed_tokens_fn

__all__ = ["measure", "runs"]

K, PROMPT, EOS, SPECIALS = 20, 32, 2, 3
SHAPES = ((4, 256), (3, 1024))  # (L, V)
Processor = Callable[[Any, Any], Tensor]


class _Timed:
    """A processor that counts the seconds spent in another."""

    def __init__(self, inner: Processor) -> None:
        self.inner, self.seconds, self.calls = inner, 0.0, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        begin = time.perf_counter()
        scores = self.inner(input_ids, scores)
        self.seconds += time.perf_counter() - begin
        self.calls += 1
        return scores


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One row for each shape, distribution and batch size."""
    for levels, size in SHAPES[:1] if quick else SHAPES:
        for distribution in DISTRIBUTIONS:
            for batch_size in (1, 8):
                yield measure(distribution, 1_200 if quick else 12_000, levels, size, batch_size, repeats=3 if quick else 40)


def measure(
    distribution: str, num_items: int, levels: int, size: int, batch_size: int, repeats: int, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of one row."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(distribution, num_items, levels, size, batch_size, repeats, seed)
    finally:
        torch.set_num_threads(threads)


def _measure(
    distribution: str, num_items: int, levels: int, size: int, batch_size: int, repeats: int, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, distribution, num_items, size, levels)
    index = Trie.build(codes, [size] * levels)
    first_L = SPECIALS + size * np.arange(levels)
    tokens = CodeTokens.of([np.arange(first, first + size) for first in first_L])
    model = _model(SPECIALS + size * levels, seed)
    prompts = torch.from_numpy(rng.integers(SPECIALS, SPECIALS + size * levels, (batch_size, PROMPT)))
    filters = [index.filter(rng.random(num_items) < 0.1) for _ in range(batch_size)]

    def ours(**options: Any) -> TrieLogitsProcessor:
        return TrieLogitsProcessor(index, code_tokens=tokens, eos_token_id=EOS, prompt_length=PROMPT, **options)

    python_trie = PythonTrie((codes + first_L).tolist()).allowed_tokens(PROMPT, EOS)
    callback = prefix_allowed_tokens_fn(index, code_tokens=tokens, eos_token_id=EOS, prompt_length=PROMPT)
    methods: dict[str, Processor | None] = {
        "python_trie": PrefixConstrainedLogitsProcessor(python_trie, K),
        "leafbeam": ours(),
        "leafbeam_vocabulary": ours(scoring="vocabulary"),
        "leafbeam_in_place": ours(scoring="vocabulary", in_place=True),
        "leafbeam_filters": ours(filters=filters),  # a different rule for each request, which the others cannot
        "leafbeam_callback": PrefixConstrainedLogitsProcessor(callback, K),
        "unconstrained": None,
    }
    _assert_parity({name: methods[name] for name in methods if name != "leafbeam_filters"}, model, prompts, levels)
    total: dict[str, list[float]] = {name: [] for name in methods}
    inside: dict[str, list[float]] = {name: [] for name in methods}
    names = list(methods)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            timed = _Timed(methods[name] or (lambda input_ids, scores: scores))
            begin = time.perf_counter()
            _generate(model, prompts, levels, timed)
            total[name].append(time.perf_counter() - begin)
            inside[name].append(timed.seconds / timed.calls)
    begin = time.perf_counter()
    for _ in range(20):
        ours(filters=filters)
    construction = (time.perf_counter() - begin) / 20
    per_call = {name: spread(seconds) for name, seconds in inside.items() if name != "unconstrained"}
    measured = {
        "processor_us": per_call,
        "generate_ms": {name: spread(seconds, 1e-3) for name, seconds in total.items()},
        "construction_us": round(construction * 1e6, 1),
        "python_trie_over_leafbeam": {
            name: round(per_call["python_trie"]["p50"] / per_call[name]["p50"], 1) for name in per_call if name != "python_trie"
        },
    }
    parameters = {"distribution": distribution, "num_items": num_items, "B": batch_size, "K": K, "V": size, "L": levels}
    return {**parameters, "threads": 1, "transformers": version("transformers")}, {**measured, "repeats": repeats}


def _model(vocabulary: int, seed: int) -> Any:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    return Qwen3ForCausalLM(config).eval()


def _generate(model: Any, prompts: Tensor, steps: int, processor: Processor | None, **options: Any) -> Any:
    return model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        logits_processor=LogitsProcessorList([] if processor is None else [processor]),
        num_beams=K,
        num_return_sequences=K,
        max_new_tokens=steps,
        min_new_tokens=steps,
        length_penalty=0.0,
        do_sample=False,
        **options,
    )


def _assert_parity(methods: dict[str, Processor | None], model: Any, prompts: Tensor, steps: int) -> None:
    """The same sequences from all that score alike, the same items where scores are normalised over a level."""
    found = {
        name: _generate(model, prompts, steps, one, return_dict_in_generate=True, output_scores=True)
        for name, one in methods.items()
        if one is not None
    }
    wanted = found["python_trie"]
    for name in ("leafbeam_vocabulary", "leafbeam_in_place", "leafbeam_callback"):
        torch.testing.assert_close(found[name].sequences_scores, wanted.sequences_scores)
        assert torch.equal(found[name].sequences, wanted.sequences), name
    legal = methods["leafbeam"]
    assert isinstance(legal, TrieLogitsProcessor)
    assert (legal.results(found["leafbeam"].sequences, num_return_sequences=K).num_valid == K).all()
