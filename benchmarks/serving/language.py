"""JSON under a schema of four fields, greedy: leafbeam's generator beside transformers with two processors, and vLLM.

    leafbeam                    hidden states, the head for legal tokens alone, tokens without an alternative in one pass
    leafbeam retokenized        text without an alternative too, in the tokenizer's own tokens: another text, fewer calls
    transformers xgrammar       `generate` with xgrammar's processor
    transformers outlines-core  `generate` with the masks of outlines' guide
    vllm xgrammar               vLLM's offline engine on a CPU
    ... bfloat16                the same in bfloat16, which rounds and so writes other texts

One checkpoint of random bfloat16 weights, as Qwen3's are, over 131,072 real tokens; the others compute in float32, all on one
thread; the same prompts; the schema's pattern, compiled ahead. Ways run in turns. Before a speed is printed, texts are
compared: those of float32 are equal, but for ties of the model's two best tokens, and all are whole texts of the schema.

constraint_ms: of a step, what the constraint takes of one thread: the masks of the processors; of leafbeam, a round on logits
that are there already.

Shapes: B prompts, V tokens of the model.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks.head_costs import measure_cpu
from benchmarks.object_pattern import object_pattern
from benchmarks.peers.failure import PeerFailure, failure_of
from benchmarks.peers.vllm_cpu import ENVIRONMENT, VllmEngine, VllmSettings, vllm_engine
from benchmarks.rows import spread, version_of
from benchmarks.static.inference import MODELS
from benchmarks.vocabulary import NUM_SPECIALS, SIZE, write_real_tokenizer
from leafbeam.automata import Automaton
from leafbeam.decode import SequenceSearch
from leafbeam.model import ModelConfig, TextTokens, Transformer
from leafbeam.text import TextGenerator

__all__ = ["SCHEMA", "TINY", "Shape", "compare", "make_checkpoint", "runs"]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 12},
        "price": {"type": "integer", "minimum": 0, "maximum": 9999},
        "in_stock": {"type": "boolean"},
        "kind": {"enum": ["lamp", "table", "chair", "shelf"]},
    },
    "required": ["name", "price", "in_stock", "kind"],
}
PROMPT_TOKENS, MAX_TOKENS, POSITIONS = 32, 64, 256
OURS = ("leafbeam", "leafbeam retokenized")
PEERS = (
    ("transformers xgrammar", "transformers outlines-core", "transformers xgrammar bfloat16"),
    ("vllm xgrammar",),
    ("vllm xgrammar bfloat16",),
)  # those of a tuple take turns with leafbeam: the weights of all at once need too much memory
REPEATS = {"Qwen3-0.6B": 3, "Qwen3-1.7B": 1}  # after a turn that warms up; one of the larger takes twelve minutes
_NEAR = 3e-4  # logits that are as good: those of random weights are some tenths apart
_LIMIT_S = 600.0
TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32,
}  # fmt: skip

Shape = Literal["Qwen3-0.6B", "Qwen3-1.7B"]
Prompts = list[list[int]]
Way = Callable[[Prompts], list[list[int]]]
Engines = tuple[VllmEngine, VllmEngine]  # in float32 and in bfloat16


def runs(
    quick: bool, shape: Shape = "Qwen3-0.6B", environment: Path = ENVIRONMENT, batches: Sequence[int] = (1, 8)
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One row for each batch size."""
    name, sizes = ("tiny", TINY) if quick else (shape, MODELS[shape])
    directory = Path("runs") / f"bench-text-{name.lower()}-bfloat16"
    make_checkpoint(directory, sizes)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        settings = VllmSettings(threads=1)
        vllm = partial(vllm_engine, directory, settings=settings, max_tokens=POSITIONS, cache_gib=1, limit_s=_LIMIT_S)
        with (
            threadpool_limits(1),
            vllm(environment=environment) as engine,
            vllm(environment=environment, dtype="bfloat16") as narrow,
        ):
            for batch in batches:
                parameters = {"what": "json", "model": name, "V": SIZE, "B": batch, "threads": 1, "dtype": "float32"}
                parameters |= {"prompt_tokens": PROMPT_TOKENS, "transformers": version_of("transformers")}
                yield parameters, compare(directory, (engine, narrow), batch, repeats=1 if quick else REPEATS[shape])
    finally:
        torch.set_num_threads(threads)


def make_checkpoint(directory: Path, sizes: Mapping[str, Any]) -> None:
    """A directory of Hugging Face with random weights of bfloat16, as Qwen's, and the real tokenizer, written once."""
    if (directory / "tokenizer.json").exists():
        return
    tokens = TextTokens(size=SIZE, num_tokens=1, eos=2)
    config = ModelConfig(vocab_size=SIZE, max_position_embeddings=POSITIONS, tie_word_embeddings=True, **sizes)
    Transformer(config, tokens).bfloat16().save_pretrained(directory)
    write_real_tokenizer(directory)


def compare(directory: Path, engines: Engines, batch: int, repeats: int) -> dict[str, Any]:
    """Every way: seconds, tokens a second, what constraints take; and the calls of the model."""
    generator = TextGenerator.load(directory)
    head = generator.model.head_weight.detach().numpy()
    generator = TextGenerator(generator.model, generator.tokenizer, costs=measure_cpu(head))
    ways = _Ways(directory, generator, engines)
    groups = [_Turns(ways, peers, batch, repeats) for peers in PEERS]
    found: dict[str, dict[str, Any]] = {}
    for name in ways.all:
        groups_of = [turns for turns in groups if name in turns.seconds or name in turns.failures]
        if name in groups_of[0].failures:
            found[name] = groups_of[0].failures[name]
            continue
        taken, tokens = [s for turns in groups_of for s in turns.seconds[name]], sum(turns.tokens[name] for turns in groups_of)
        found[name] = {"status": "ok", "s": spread(taken, 1.0), "tokens_per_s": round(tokens / sum(taken), 2)}
        found[name] |= ways.constraints.get(name, {})
        found[name] |= {"near_ties": ways.near_ties[name]} if ways.near_ties[name] else {}
    mine = found["leafbeam"]
    calls = {name: np.sum(counts, 0).tolist() for name, counts in ways.calls.items()}
    step_ms = 1e3 * sum(groups[-1].seconds["leafbeam"]) / calls["leafbeam"][1]
    mine["constraint_ms"] = _round_ms(generator, ways.automaton, batch)
    mine["constraint_share"] = round(mine["constraint_ms"] / step_ms, 5)
    return {
        "engines": found,
        "over_leafbeam": {name: ratio for turns in groups for name, ratio in turns.over_leafbeam().items()},
        "calls": {name: {"tokens": count, "model_calls": number} for name, (count, number) in calls.items()},
        "vllm": engines[0].version,
        "repeats": repeats,
    }


class _Turns:
    """leafbeam's ways and those of some peers in turns: seconds of each turn, and tokens of all, by way; failures by way."""

    def __init__(self, ways: _Ways, peers: Sequence[str], batch: int, repeats: int) -> None:
        names = [*OURS, *peers]
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self.tokens = dict.fromkeys(names, 0)
        self.failures: dict[str, dict[str, Any]] = {}
        for turn in range(-1, repeats):  # the first turn warms up, and starts what is not running
            prompts = _prompts(turn + 1, batch)
            wanted: list[list[int]] = []
            for name in [name for name in names if name not in self.failures]:
                began = time.perf_counter()
                try:
                    found = ways.all[name](prompts)
                    taken = time.perf_counter() - began
                    wanted = wanted or found
                    _check(name, ways, prompts, found, wanted)
                except AssertionError:
                    raise
                except Exception as error:  # whatever stops a peer; leafbeam's own errors are errors of the benchmark
                    if name in OURS:
                        raise
                    self.failures[name] = failure_of(error).row
                    self.seconds.pop(name)
                    continue
                if turn >= 0:
                    self.seconds[name].append(taken)
                    self.tokens[name] += sum(len(text) + 1 for text in found)  # the end token included
            if turn < 0:
                ways.calls.clear()
        ways.release()

    def over_leafbeam(self) -> dict[str, Any]:
        """Tokens a second of leafbeam over those of each way, or why it has none."""
        rate = {name: self.tokens[name] / sum(taken) for name, taken in self.seconds.items()}
        found = {name: round(rate["leafbeam"] / rate[name], 3) for name in rate}
        return found | {name: failure["status"] for name, failure in self.failures.items()}


class _Ways:
    """The ways by name. calls: (tokens of all texts, calls of the model) of leafbeam's runs in these turns, without the first.

    constraints: of the processors, at the last run. near_ties: texts that differ from leafbeam's by a tie.
    """

    def __init__(self, directory: Path, generator: TextGenerator, engines: Engines) -> None:
        self._generator, self._engines = generator, engines
        self.decode = generator.tokenizer.decode
        self._pattern = object_pattern(SCHEMA)
        self.automaton = Automaton.from_json_schema(SCHEMA, generator.tokens, compress=True)
        self._models: dict[torch.dtype, Any] = {}
        self._peers: dict[tuple[str, torch.dtype], Any] = {}
        self._directory = directory
        self.calls: dict[str, list[tuple[int, int]]] = {}
        self.constraints: dict[str, dict[str, float]] = {}
        self.near_ties: Counter[str] = Counter()
        self.all: dict[str, Way] = {
            "leafbeam": partial(self._leafbeam, "leafbeam", False),
            "leafbeam retokenized": partial(self._leafbeam, "leafbeam retokenized", True),
            "transformers xgrammar": partial(self._transformers, "xgrammar", torch.float32),
            "transformers outlines-core": partial(self._transformers, "outlines-core", torch.float32),
            "transformers xgrammar bfloat16": partial(self._transformers, "xgrammar", torch.bfloat16),
            "vllm xgrammar": partial(self._vllm, engines[0]),
            "vllm xgrammar bfloat16": partial(self._vllm, engines[1]),
        }

    def release(self) -> None:
        """End vLLM, and free the weights of transformers; a later run loads them again."""
        self._peers.clear()
        self._models.clear()
        for engine in self._engines:
            engine.close()

    def gap(self, prompt: list[int], tokens: list[int], expected: list[int]) -> float:
        """How far apart the model's logits are of the first tokens in which two texts differ."""
        end = self._generator.tokenizer.end
        pairs = list(zip([*tokens, end], [*expected, end], strict=False))
        first = next(number for number, (one, other) in enumerate(pairs) if one != other)
        with torch.inference_mode():
            hidden_1TD = self._generator.model(torch.tensor([[*prompt, *tokens[:first]]]))
            logits_V = self._generator.model.logits(hidden_1TD[0, -1])
        return float((logits_V[pairs[first][0]] - logits_V[pairs[first][1]]).abs())

    def _leafbeam(self, name: str, retokenize: bool, prompts: Prompts) -> list[list[int]]:
        result = self._generator.generate(prompts, self.automaton, max_tokens=MAX_TOKENS, retokenize=retokenize)
        texts = [list(text.tokens) for (text,) in result.texts]
        assert all(text.finished for (text,) in result.texts), "the schema's longest text has more than MAX_TOKENS tokens"
        self.calls.setdefault(name, []).append((sum(map(len, texts)) + len(texts), result.model_calls))
        return texts

    def _transformers(
        self, kind: Literal["xgrammar", "outlines-core"], dtype: torch.dtype, prompts: Prompts
    ) -> list[list[int]]:
        from benchmarks.peers.hf_text import HfText, load_sharing

        if (kind, dtype) not in self._peers:
            if dtype not in self._models:
                self._models[dtype] = load_sharing(self._directory, dict(self._generator.model.named_parameters()), dtype)
            self._peers[kind, dtype] = HfText(self._models[dtype], self._pattern, kind)
        peer = self._peers[kind, dtype]
        texts = peer.write(prompts, MAX_TOKENS)
        name = f"transformers {kind}{'' if dtype == torch.float32 else ' bfloat16'}"
        self.constraints[name] = {"constraint_ms": round(float(np.median(peer.step_s)) * 1e3, 4)}
        return texts

    def _vllm(self, engine: VllmEngine, prompts: Prompts) -> list[list[int]]:
        job = {"way": "text", "prompts": prompts, "regex": self._pattern, "num_tokens": MAX_TOKENS}
        end = self._generator.tokenizer.end
        return [[token for token in text if token != end] for (text,) in engine.run(job)["sequences"]]


def _check(name: str, ways: _Ways, prompts: Prompts, found: Sequence[list[int]], wanted: Sequence[list[int]]) -> None:
    """The texts are those of leafbeam; retokenized ones, and bfloat16's, are whole texts of the schema.

    A text may go another way where the model's two best tokens are as good: the order of a sum decides there, and random
    weights have such places. Raises AssertionError for another text, AutomatonError or PeerFailure for one that the schema does
    not allow.
    """
    if name.endswith(("retokenized", "bfloat16")):
        for tokens in found:
            _check_allowed(name, ways.automaton, tokens)
        return
    for prompt, tokens, expected in zip(prompts, found, wanted, strict=True):
        if ways.decode(tokens) != ways.decode(expected):
            _check_allowed(name, ways.automaton, tokens)
            gap = ways.gap(prompt, tokens, expected)
            assert gap < _NEAR, f"{name} wrote {ways.decode(tokens)}, leafbeam {ways.decode(expected)}: {gap} apart"
            ways.near_ties[name] += 1


def _check_allowed(name: str, automaton: Automaton, tokens: Sequence[int]) -> None:
    state = 0
    for token in tokens:
        state = automaton.next(state, token)
    if not automaton.accepts(state):
        raise PeerFailure("failed", f"{name} wrote {tokens}, no whole text of the schema")


def _round_ms(generator: TextGenerator, automaton: Automaton, batch: int) -> float:
    """The median time of a round of the search alone, on random logits that are there already."""
    logits = np.random.default_rng(0).standard_normal((4, batch, 1, SIZE), np.float32)
    search = SequenceSearch(
        automaton, end_code=generator.tokenizer.end, num_codes=SIZE, num_beams=1, max_tokens=MAX_TOKENS, scoring="allowed"
    )
    per_round: list[float] = []
    for _ in range(5):
        calls = iter(range(MAX_TOKENS))
        began = time.perf_counter()
        result = search.run(lambda *beams, calls=calls: logits[next(calls) % 4], batch)
        per_round.append((time.perf_counter() - began) / result.rounds)
    return round(float(np.median(per_round)) * 1e3, 4)


def _prompts(turn: int, batch: int) -> Prompts:
    """Prompts of random tokens, different ones for each turn and batch."""
    rng = np.random.default_rng([turn, batch])
    return rng.integers(NUM_SPECIALS, SIZE, (batch, PROMPT_TOKENS)).tolist()
