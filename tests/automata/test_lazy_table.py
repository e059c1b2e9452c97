"""Automata whose legal tokens are computed when a state is reached: the same as with all of them computed before."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from leafbeam.automata import Automaton, TokenTrie
from leafbeam.automata.arrays import AutomatonLimits
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.compose import without_table
from leafbeam.automata.forced_chains import ForcedChains
from leafbeam.automata.lazy_table import LazyTable, max_legal
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import IndexFileError
from tests.automata.languages import patterns, same, tokens_131k, vocabularies

BYTES = [bytes([byte]) for byte in range(256)]
WORDS = [None, b"ab", b"bc", b"ab", b"abc", b"caa", b"\xc3\xa9", b"\xa9a", b'"a', b'a"', b'":', *BYTES]
TEXT = '\\{"a": "[^"]{0,9}", "b": -?[0-9]{1,20}\\}'


def lazily(language: ByteDFA, tokens: TokenTrie, max_bytes: int = 1 << 30) -> Automaton:
    limits = AutomatonLimits(max_bytes=max_bytes)
    arrays = without_table(language, tokens, AutomatonLimits())
    chains = ForcedChains.unknown(language.num_states)
    return Automaton(arrays=arrays, chains=chains, lazy=LazyTable(language, tokens, limits))


@settings(max_examples=80)
@given(patterns, vocabularies)
def test_every_state_allows_what_it_does_in_the_filled_automaton(pattern: str, vocabulary: list[bytes | None]) -> None:
    tokens = TokenTrie.of([*vocabulary, *BYTES])
    language = compile_pattern(pattern, 10_000)
    lazy = lazily(language, tokens)
    same(lazy, Automaton.from_language(language, tokens, dense_share=1.0))
    for state in range(lazy.num_states):  # one state at a time, in another order
        again = lazily(language, tokens)
        assert np.array_equal(again.allowed(lazy.num_states - 1 - state), lazy.allowed(lazy.num_states - 1 - state))


@settings(max_examples=80)
@given(patterns)
def test_forced_chains_are_those_of_the_filled_automaton(pattern: str) -> None:
    lazy = lazily(compile_pattern(pattern, 10_000), TokenTrie.of(WORDS))
    filled = lazy.filled()
    assert filled.chains is not None
    for state in range(lazy.num_states):
        chains = lazy.chains_from(np.array([state]))
        assert chains is not None
        for name in ("token_S", "next_S", "end_S", "length_S"):
            assert getattr(chains, name)[state] == getattr(filled.chains, name)[state], name


def test_a_token_is_in_the_language_if_it_is_legal_somewhere() -> None:
    lazy = lazily(compile_pattern("(ab)*c", 100), TokenTrie.of(WORDS))
    filled = lazy.filled()
    found = [token for token in range(len(WORDS)) if lazy.has_token(token)]
    assert found == [token for token in range(len(WORDS)) if filled.has_token(token)]
    assert not lazy.has_token(len(WORDS))
    assert not lazy.has_token(0)


def test_masks_are_forgotten_above_the_limit_and_computed_again() -> None:
    tokens = TokenTrie.of(WORDS)
    language = compile_pattern(TEXT, 10_000)
    small, filled = lazily(language, tokens, max_bytes=6 * 16 * (len(WORDS) // 64 + 1)), lazily(language, tokens).filled()
    assert small.lazy is not None
    rng = np.random.default_rng(0)
    for _ in range(200):
        states = rng.integers(-1, small.num_states, 3)
        assert np.array_equal(small.masks(states), filled.masks(states))
        assert small.lazy.nbytes - lazily(language, tokens).lazy.nbytes <= (6 + 3) * 16 * (len(WORDS) // 64 + 1)  # pyright: ignore[reportOptionalMemberAccess]


def test_threads_that_share_an_automaton_get_the_same_masks() -> None:
    tokens = TokenTrie.of(WORDS)
    language = compile_pattern(TEXT, 10_000)
    small, filled = lazily(language, tokens, max_bytes=20 * 16 * (len(WORDS) // 64 + 1)), lazily(language, tokens).filled()

    def walk(seed: int) -> None:
        rng, state = np.random.default_rng(seed), 0
        for _ in range(300):
            allowed = small.allowed(state)
            assert np.array_equal(allowed, filled.allowed(state))
            state = small.next(state, int(rng.choice(allowed))) if len(allowed) else 0

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(walk, range(8)))


def test_size_decides_what_is_computed_at_once() -> None:
    tokens = tokens_131k()
    digits, texts = Automaton.from_regex("[0-9]{1,9}", tokens), Automaton.from_regex('"[^"]*"', tokens)
    assert not digits.is_lazy
    assert texts.is_lazy
    assert "computed when a state is reached" in repr(texts)
    assert max_legal(texts.arrays.dfa, tokens) > 1 << 17
    same(texts, texts.filled())
    assert texts.filled() is texts.filled()
    assert digits.filled() is digits


def test_a_vocabulary_without_all_bytes_is_computed_at_once() -> None:
    tokens = tokens_131k()
    spellings = [None if text == b"q" else text for text in map(tokens.bytes_of, range(tokens.vocabulary_size))]
    automaton = Automaton.from_regex('"[^"]*"', [text or None for text in spellings])
    assert not automaton.is_lazy


def test_max_legal_bounds_the_legal_tokens() -> None:
    tokens = TokenTrie.of(WORDS)
    for pattern in ("(ab)*c", TEXT, "é*", '"[^"]*"'):
        filled = lazily(compile_pattern(pattern, 10_000), tokens).filled()
        num_legal = int(filled.num_allowed(np.arange(filled.num_states)).sum())
        assert num_legal <= max_legal(filled.arrays.dfa, tokens) <= filled.num_states * len(WORDS)


def test_a_file_holds_no_masks_and_loads_as_lazily(tmp_path: Path) -> None:
    lazy = lazily(compile_pattern(TEXT, 10_000), TokenTrie.of(WORDS))
    lazy.masks(np.arange(9))
    lazy.save(tmp_path / "lazy")
    loaded, shared = Automaton.load(tmp_path / "lazy"), Automaton.load(tmp_path / "lazy", TokenTrie.of(WORDS))
    for automaton in (loaded, shared):
        assert automaton.is_lazy
        assert automaton.version == lazy.version
        assert automaton.chains is not None
        same(automaton, lazy)
    with pytest.raises(IndexFileError, match="another vocabulary"):
        Automaton.load(tmp_path / "lazy", TokenTrie.of([b"x", *BYTES]))
    lazy.filled().save(tmp_path / "filled")
    assert not Automaton.load(tmp_path / "filled").is_lazy
