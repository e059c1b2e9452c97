"""Automata of JSON Schemas whose states are found when a search reaches them: the same as with all states found before."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam.automata import Automaton, TokenTrie
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.network import END, START, Network
from leafbeam.errors import AutomatonError, IndexFileError
from tests.automata.languages import tokens_131k

BYTES = [bytes([byte]) for byte in range(256)]
WORDS = [
    None,
    b"ab",
    b'","',
    b'":',
    b'": "',
    b"aaaaaaaa",
    b"a" * 40,
    b"\xc3\xa9",
    b"\xa9a",
    b'\\"a',
    b'a"}',
    b"], [",
    b"11",
    *BYTES,
]
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 300},
            "tags": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 40}, "maxItems": 30},
            "kind": {"enum": ["aa", "ab", 11]},
        },
        "required": ["name"],
    },
    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 70}]}, "minItems": 20},
    {"type": "object", "additionalProperties": {"type": "string", "pattern": "^(ab|a{3,90})+$"}, "maxProperties": 3},
    {"type": "string", "pattern": r"^(?:\S+\s+){0,9}\S+$", "minLength": 50, "maxLength": 130},
    {"type": "array", "items": {"type": "string", "pattern": "^a{90}b*$|^é+$", "maxLength": 200}, "maxItems": 2},
    {"type": "array", "items": {"type": "array", "items": {"type": "string", "maxLength": 60}, "maxItems": 6}, "maxItems": 7},
    {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"properties": {"a": {"$ref": "#/$defs/tree"}, "b": {"type": ["string", "null"]}}}},
    },
]


def walked(automaton: Automaton, seed: int, num_tokens: int = 120) -> list[int]:
    """Return the tokens of a random walk, longer ones more often."""
    rng, state, tokens = random.Random(seed), 0, list[int]()
    for _ in range(num_tokens):
        allowed = automaton.allowed(state).tolist()
        if not allowed:
            break
        tokens.append(rng.choice(sorted(allowed)[:8] if rng.random() < 0.7 else allowed))
        state = automaton.next(state, tokens[-1])
    return tokens


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_every_state_on_random_walks_is_as_in_the_full_automaton(schema: dict[str, Any]) -> None:
    tokens = TokenTrie.of(WORDS)
    full = Automaton.from_json_schema(schema, tokens).filled()
    for seed in range(6):
        lazy = Automaton.from_json_schema(schema, tokens)  # nothing is known yet
        assert lazy.lazy is not None
        assert lazy.lazy.dfa is not None
        one = other = 0
        for token in walked(full, seed):
            assert np.array_equal(full.masks(np.array([one])), lazy.masks(np.array([other])))
            assert full.accepts(one) == lazy.accepts(other)
            assert full.accepting.has(np.array([one])) == lazy.accepting.has(np.array([other]))
            assert full.forced_bytes(one) == lazy.forced_bytes(other)
            illegal = np.setdiff1d(np.arange(len(WORDS)), full.allowed(one))[:3]
            assert (lazy.step(np.full(len(illegal), other), illegal) == -1).all()
            one, other = full.next(one, token), lazy.next(other, token)


def test_forced_chains_are_those_of_the_full_automaton() -> None:
    lazy = Automaton.from_json_schema(
        {"const": {"a": ["x" * 90, 1, {"b": "y"}]}, "type": "object"}, TokenTrie.of(WORDS), compress=True
    )
    full = lazy.filled()
    assert full.chains is not None
    one = other = 0
    for token in walked(full, 0):
        chains = lazy.chains_from(np.array([other]))
        assert chains is not None
        assert chains.length_S[other] == full.chains.length_S[one]
        assert chains.token_S[other] == full.chains.token_S[one]
        one, other = full.next(one, token), lazy.next(other, token)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 3), (1, 1), (2, 5), (3, None), (0, None), (1, None), (4, 4)])
@pytest.mark.parametrize("strings", [[b"a", b"bc"], [b"a", b"aa"], [b"", b"ab"]], ids=str)
def test_a_counted_repetition_has_the_strings_of_one_that_is_written_out(
    strings: list[bytes], low: int, high: int | None
) -> None:
    network = Network(1000)
    network.add_repeated(START, ByteDFA.from_strings(strings), END, low, high)
    language = network.language()
    texts = {b""}
    levels = [texts]
    for _ in range(8):
        texts = {text + more for text in texts for more in strings if len(text + more) <= 7}
        levels.append(texts)
    valid = set[bytes]().union(*levels[low : None if high is None else high + 1])
    every = set[bytes]().union(*levels, {text + b"a" for level in levels for text in level}, {b"b", b"c", b"abc"})
    assert {text for text in every if len(text) <= 7 and language.accepts(text)} == {text for text in valid if len(text) <= 7}


@pytest.mark.parametrize(("low", "high"), [(0, 3), (1, 1), (2, 4), (2, None), (0, None)])
def test_a_repeated_network_that_repeats_long_parts_has_the_strings_of_its_automaton(low: int, high: int | None) -> None:
    inner, networks = Network(100_000), (Network(100_000), Network(100_000))
    node = inner.node()
    inner.add_repeated(START, ByteDFA.from_strings([b"a", b"bc"]), node, 2, 900)
    inner.add_text(node, b",", END)
    networks[0].add_repeated(START, inner, END, low, high)
    networks[1].add_repeated(START, inner.language(), END, low, high)
    assert networks[0].arrays().accepting_X.size < 200, "its copies are short"
    first, second = (network.language() for network in networks)
    assert first.num_states > 1000
    for text in (b"", b"aa,", b"a,", b"a" * 900 + b",", b"a" * 901 + b","):
        for count in range(6):
            assert first.accepts(text * count) == second.accepts(text * count)
            assert first.accepts(b"bca," * count + text) == second.accepts(b"bca," * count + text)


@pytest.mark.parametrize("count", [5, 9, 40])
def test_counted_lists_have_the_items_that_the_schema_says(count: int) -> None:
    for low in (0, 1, 3, count):
        for first in (0, 1, 2):
            schema = {"items": {"enum": [1, 22]}, "prefixItems": [{"const": "a"}] * first, "minItems": low, "maxItems": count}
            schema = {"type": "array", **{name: value for name, value in schema.items() if value != []}}
            automaton = Automaton.from_json_schema(schema, BYTES)
            for length in range(count + 3):
                text = json.dumps((["a"] * first + [1, 22] * count)[:length]).encode()
                assert (list(text) in automaton) == (low <= length <= count), (schema, text)


def test_a_long_string_costs_nothing_until_it_is_reached() -> None:
    automaton = Automaton.from_json_schema({"type": "string", "minLength": 7, "maxLength": 32_767}, tokens_131k())
    assert automaton.lazy is not None
    assert automaton.lazy.dfa is not None
    automaton.masks(np.array([0]))
    assert automaton.lazy.dfa.num_states < 200
    assert automaton.nbytes < 1 << 22


def test_a_file_keeps_the_network_and_the_notes(tmp_path: Path) -> None:
    tokens, schema = TokenTrie.of(WORDS), {**SCHEMAS[0], "x-note": 1}
    lazy = Automaton.from_json_schema(schema, tokens, compress=True)
    lazy.save(tmp_path / "schema.leafbeam")
    loaded = Automaton.load(tmp_path / "schema.leafbeam", tokens)
    assert loaded.is_lazy
    assert (loaded.notes, loaded.num_states, loaded.version) == (lazy.notes, lazy.num_states, lazy.version)
    assert loaded.chains is not None
    full = lazy.filled()
    for seed in range(4):
        one = other = 0
        for token in walked(full, seed):
            assert np.array_equal(full.masks(np.array([one])), loaded.masks(np.array([other])))
            one, other = full.next(one, token), loaded.next(other, token)


def test_a_damaged_network_is_refused_or_can_be_walked(tmp_path: Path) -> None:
    path, tokens = tmp_path / "schema.leafbeam", TokenTrie.of(WORDS)
    Automaton.from_json_schema(SCHEMAS[0], tokens).save(path)
    content, rng, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(60):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            automaton = Automaton.load(path, tokens)
        except IndexFileError:
            refused += 1
            continue
        walked(automaton, 0, 10)
    assert refused > 20


def test_a_search_that_reaches_too_many_states_gets_a_named_error() -> None:
    schema = {"type": "string", "minLength": 10_000}
    automaton = Automaton.from_json_schema(schema, TokenTrie.of(WORDS), max_states=2_000)
    with pytest.raises(AutomatonError, match="max_states=2,000"):
        _ = [WORDS.index(b'"'), *[WORDS.index(b"a")] * 10_000] in automaton


def test_threads_that_share_an_automaton_get_the_same_texts() -> None:
    tokens = TokenTrie.of(WORDS)
    shared, full = Automaton.from_json_schema(SCHEMAS[0], tokens), Automaton.from_json_schema(SCHEMAS[0], tokens).filled()

    def masks(seed: int) -> bool:
        one = other = 0
        for token in walked(full, seed):
            if not np.array_equal(full.masks(np.array([one])), shared.masks(np.array([other]))):
                return False
            one, other = full.next(one, token), shared.next(other, token)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(masks, range(12)))


def test_a_state_that_was_not_reached_is_refused() -> None:
    automaton = Automaton.from_json_schema(SCHEMAS[0], TokenTrie.of(WORDS))
    with pytest.raises(AutomatonError, match="state 99999 is not in the automaton"):
        automaton.masks(np.array([99_999]))
    assert automaton.has_token(WORDS.index(b"ab"))
    assert not automaton.has_token(0)
