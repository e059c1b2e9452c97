"""Automata over a real vocabulary of 131,072 tokens: the allowed sets, ends and forced texts of xgrammar."""

from functools import cache

import numpy as np
import pytest

from benchmarks.vocabulary import real_vocabulary
from leafbeam.automata import Automaton
from tests.automata.languages import tokens_131k


@cache
def xgrammar_compiler():
    tokens_131k()
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [entry or b"" for entry in real_vocabulary()]
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[2])
    return xgrammar, xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


REAL_PATTERNS = [
    r"-?[0-9]+(\.[0-9]+)?",
    r'"(true|false|NA)"',
    r"a|ab|abc",
    r"[a-z]{1,8}( [a-z]{1,8}){0,3}",
    r'[^"]{0,12}"',
    r"(é|日本|a)+",
    r'"([^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt]){0,20}"',
    r"[\x20-\x7e]{5,20}",
    r"(foo|foobar)*(baz)?",
    r'\{"a": ?[0-9]{1,3}(, ?"b": ?(true|false))?\}',
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "[\u0430-\u044f]{3,9}",
    r"(the |of |a )*(end)?",
    r"[^\n]*\n",
]


@pytest.mark.parametrize(
    "pattern",
    [*REAL_PATTERNS[:5], *(pytest.param(pattern, marks=pytest.mark.slow) for pattern in REAL_PATTERNS[5:])],
)
def test_legal_tokens_and_ends_equal_those_of_xgrammar(pattern: str) -> None:
    xgrammar, compiler = xgrammar_compiler()
    automaton = Automaton.from_regex(pattern, tokens_131k())
    grammar = compiler.compile_regex(pattern)
    mask = xgrammar.allocate_token_bitmask(1, len(tokens_131k()))
    rng = np.random.default_rng(len(pattern))
    for _ in range(6):
        matcher, state = xgrammar.GrammarMatcher(grammar), 0
        for _ in range(12):
            matcher.fill_next_token_bitmask(mask)
            ours = automaton.masks(np.array([state]))[0]
            ours[0] |= 4 * automaton.accepts(state)  # the stop token
            assert np.array_equal(mask.numpy()[0], ours)
            allowed = automaton.allowed(state)
            if not len(allowed):
                assert automaton.is_final(state)
                break
            # Short tokens as often as long ones, so that walks stay inside bounded strings for a while.
            token = int(min(rng.choice(allowed, 3), key=lambda one: len(tokens_131k().bytes_of(int(one)))))
            assert matcher.accept_token(token)
            state = automaton.next(state, token)


def test_forced_text_is_at_least_that_of_xgrammar() -> None:
    xgrammar, compiler = xgrammar_compiler()
    pattern = r'\{"summary": "[a-z]{2}", "kind": "(one|once)"\}'
    automaton, matcher = Automaton.from_regex(pattern, tokens_131k()), xgrammar.GrammarMatcher(compiler.compile_regex(pattern))
    state = 0
    for piece in (b'{"summary": "', b"ab", b'", "kind": "on', b'e"}'):
        assert piece.startswith(matcher.find_jump_forward_string().encode())
        assert automaton.forced_bytes(state) == (b"" if piece == b"ab" or piece[:1] == b"e" else piece)
        for byte in piece:
            state = automaton.next(state, real_vocabulary().index(bytes([byte])))
            assert matcher.accept_token(real_vocabulary().index(bytes([byte])))
    assert automaton.is_final(state)


def test_a_bounded_string_shares_its_masks() -> None:
    lazy = Automaton.from_regex(r'"[^"\\\x00-\x1f]{0,200}"', tokens_131k())
    automaton = lazy.filled()
    assert lazy.is_lazy
    assert not automaton.is_lazy
    assert (automaton.arrays.table.mask_S >= 0).sum() > 190
    assert len(automaton.arrays.table.mask_MW) < 90
    assert sum(automaton.parts.values()) == automaton.nbytes < 5_000_000
