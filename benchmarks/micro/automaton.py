"""Building an automaton over a real vocabulary, against outlines-core's `Index` and xgrammar's compiler.

The same pattern, the same 131,072 tokens, one thread, interleaved. Each side's vocabulary is prepared before. Before
any speed is printed, every state that outlines-core's index can reach has the same legal tokens and the same ends as ours, and
a sample of its transitions leads to the same state; random walks agree with xgrammar's masks. xgrammar compiles a grammar and
fills masks while decoding, so its compilation does less: its row has the time of a mask beside it, and so has ours.

Shapes: S states, R states looked up, C legal tokens.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.object_pattern import object_pattern
from benchmarks.rows import interleaved, spread
from benchmarks.vocabulary import real_vocabulary
from leafbeam.automata import Automaton, TokenTrie
from leafbeam.extras import optional_imports

__all__ = ["measure", "runs"]

_STOP = 2  # the vocabulary's end of sequence
_STEPS = 40  # tokens of a walk that is compared with xgrammar


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One row for each language: the schema and the choice that the targets name, and two that are easy."""
    length, items = (12, 50) if quick else (60, 1000)
    for name, language, repeats in (
        ("json, bounded strings", _bounded(length), 3),
        ("choice", _choice(items), 1),  # outlines-core takes most of a minute
        ("json, 4 fields", _Language.of_schema(_FIELDS), 3),
        ('"(true|false|NA)"', _Language.of_pattern('"(true|false|NA)"'), 3),
    ):
        yield measure(name, language, repeats=1 if quick else repeats)


class _Language:
    """A pattern for the peers, and how we build it from what it was made of."""

    def __init__(self, pattern: str, build: Callable[[TokenTrie], Automaton]) -> None:
        self.pattern = pattern
        self.build = build

    @classmethod
    def of_pattern(cls, pattern: str) -> _Language:
        return cls(pattern, lambda tokens: Automaton.from_regex(pattern, tokens))

    @classmethod
    def of_schema(cls, schema: dict[str, Any]) -> _Language:
        return cls(object_pattern(schema), lambda tokens: Automaton.from_json_schema(schema, tokens))


_FIELDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "known": {"type": "boolean"},
        "kind": {"enum": ["one", "two", "three"]},
    },
    "required": ["name", "age", "known", "kind"],
}


def _bounded(length: int) -> _Language:
    bounded = {"type": "string", "maxLength": length}
    properties = {"title": bounded, "summary": bounded, **_FIELDS["properties"]}
    del properties["name"]
    return _Language.of_schema({"type": "object", "properties": properties, "required": list(properties)})


def _choice(items: int) -> _Language:
    """Names of goods, quoted, so that none is the beginning of another (there outlines-core drops legal tokens)."""
    rng = np.random.default_rng(0)
    kinds = ["Cream", "Serum", "Mask", "Brush", "Lotion", "Balm", "Shampoo", "Oil", "Gel", "Soap", "Mist", "Scrub"]
    words = ["Soft", "Bright", "Gentle", "Deep", "Night", "Day", "Face", "Hand", "Body", "Rose", "Mint", "Clay", "Honey"]
    names: set[str] = set()
    while len(names) < items:
        names.add(f"{' '.join(rng.choice(words, int(rng.integers(1, 5))))} {rng.choice(kinds)}, {rng.integers(1, 500)} ml")
    choices = [f'"{name}"' for name in sorted(names)]
    pattern = '"(' + "|".join(choice[1:-1] for choice in choices) + ')"'  # letters, digits, spaces, commas: nothing to escape
    return _Language(pattern, lambda tokens: Automaton.from_choices(choices, tokens))


def measure(name: str, language: _Language, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured): milliseconds of each build, what ours takes, and microseconds of its look-ups.

    Three turns each, of which outlines-core takes part in the first `repeats`.
    """
    with optional_imports("this benchmark"):
        from outlines_core import Index, Vocabulary
    vocabulary = real_vocabulary()
    entries: dict[bytes, list[int]] = {}
    for token, entry in enumerate(vocabulary):
        if entry is not None:
            entries.setdefault(entry, []).append(token)
    tokens, theirs = TokenTrie.of(vocabulary), Vocabulary(_STOP, entries)
    ours = language.build(tokens).filled()  # compiles, or reads what was compiled
    _equal(ours, Index(language.pattern, theirs))
    builds: dict[str, Callable[[], Any]] = {
        "leafbeam": lambda: language.build(tokens).filled(),
        "outlines-core": lambda: Index(language.pattern, theirs),
    }
    grammar = _grammar(language.pattern)
    if grammar is not None:
        builds["xgrammar"] = grammar.compile
        grammar.equal(ours)
    gc.collect()
    seconds: dict[str, list[float]] = {peer: [] for peer in builds}
    for turn in range(3):
        for peer, build in builds.items():
            if peer != "outlines-core" or turn < repeats:
                begin = time.perf_counter()
                build()
                seconds[peer].append(time.perf_counter() - begin)
    ms = {peer: spread(taken, 1e-3) for peer, taken in seconds.items()}
    measured = {
        "build_ms": ms,
        "outlines_core_over_leafbeam": round(ms["outlines-core"]["p50"] / ms["leafbeam"]["p50"], 1),
        "vocabulary_ms": spread(interleaved({"leafbeam": lambda: TokenTrie.of(vocabulary)}, 3)["leafbeam"], 1e-3),
        "states": ours.num_states,
        "row_entries": len(ours.arrays.table.code_E),
        "masks": len(ours.arrays.table.mask_MW),
        "states_with_masks": int((ours.arrays.table.mask_S >= 0).sum()),
        "nbytes": ours.nbytes,
        "parts": ours.parts,
        "look_ups_us": _look_ups(ours, grammar),
        "repeats": {peer: len(taken) for peer, taken in seconds.items()},
    }
    return {"language": name, "V": len(vocabulary), "threads": 1}, measured


def _equal(ours: Automaton, index: Any) -> None:
    """Every state of outlines-core's index is one of ours: legal tokens and ends exactly, next states by a sample of each."""
    rng = np.random.default_rng(0)
    first = index.get_initial_state()
    place: dict[int, int] = {first: 0}
    waiting = [first]
    while waiting:
        state = waiting.pop()
        legal = np.sort(np.array(index.get_allowed_tokens(state), np.int64))
        ends = bool(len(legal)) and bool((legal == _STOP).any())
        assert ends == ours.accepts(place[state]), f"state {state} of outlines-core ends differently"
        np.testing.assert_array_equal(legal[legal != _STOP], ours.allowed(place[state]))
        short = [token for token in ours.allowed(place[state]) if len(real_vocabulary()[token] or b"") == 1]  # reach all states
        some = rng.choice(ours.allowed(place[state]), 20) if len(ours.allowed(place[state])) else []
        for token in {int(one) for one in (*short, *some)}:
            target, expected = index.get_next_state(state, token), ours.next(place[state], token)
            if target not in place:
                place[target] = expected
                waiting.append(target)
            assert place[target] == expected, f"token {token} of state {state} leads elsewhere"


class _Grammar:
    """xgrammar's compiled grammar of the same pattern."""

    def __init__(self, pattern: str) -> None:
        import xgrammar

        vocabulary = [entry or b"" for entry in real_vocabulary()]
        kind = xgrammar.VocabType.RAW
        info = xgrammar.TokenizerInfo(vocabulary, kind, vocab_size=len(vocabulary), stop_token_ids=[_STOP])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.compile = lambda: self.compiler.compile_regex(pattern)
        self.matcher = xgrammar.GrammarMatcher(self.compile())
        self.mask = xgrammar.allocate_token_bitmask(1, len(vocabulary))

    def equal(self, ours: Automaton) -> None:
        """Random walks have the same masks and the same ends at each step."""
        rng = np.random.default_rng(0)
        for _ in range(5):
            self.matcher.reset()
            state = 0
            for _ in range(_STEPS):
                self.matcher.fill_next_token_bitmask(self.mask)
                mine = ours.masks(np.array([state]))[0]
                mine[0] |= (1 << _STOP) * ours.accepts(state)
                np.testing.assert_array_equal(self.mask.numpy()[0], mine)
                if not len(ours.allowed(state)):
                    break
                token = int(rng.choice(ours.allowed(state)))
                assert self.matcher.accept_token(token)
                state = ours.next(state, token)


def _grammar(pattern: str) -> _Grammar | None:
    try:
        return _Grammar(pattern)
    except ImportError:
        return None


def _look_ups(ours: Automaton, grammar: _Grammar | None) -> dict[str, Any]:
    """Legal tokens, masks and next states of 32 random states at once, and xgrammar's mask of its first state, per state."""
    rng = np.random.default_rng(0)
    states_R = rng.integers(0, ours.num_states, 32)
    pointer_R1, code_C = ours.legal(states_R)
    some = np.diff(pointer_R1) > 0
    states_r, codes_r = states_R[some], code_C[pointer_R1[:-1][some]]
    calls: dict[str, Callable[[], Any]] = {
        "legal": lambda: ours.legal(states_R),
        "masks": lambda: ours.masks(states_R),
        "step": lambda: ours.step(states_r, codes_r),
    }
    found = {name: spread(taken, 1e-6 * 32) for name, taken in interleaved(calls, 50).items()}
    if grammar is not None:
        grammar.matcher.reset()
        matcher, mask = grammar.matcher, grammar.mask
        taken = interleaved({"mask": lambda: matcher.fill_next_token_bitmask(mask)}, 50)["mask"]
        found["xgrammar first mask"] = spread(taken)
    return {**found, "legal_tokens_per_state": round(len(code_C) / 32, 1)}
