"""The tokens of plain text: the beginnings of characters that JSON writes in a string as they are."""

import itertools
import random

import numpy as np
import pytest

from leafbeam.automata import Automaton, TokenTrie
from leafbeam.automata.plain_tokens import PlainTokens

SIGNS = [
    " ",
    "a",
    "~",
    "\xe9",
    "\xff",
    "\xa0",
    "\u07ff",
    "\u0800",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0001f642",
    "\U0010ffff",
]
OTHERS = ['"', "\\", "\n", "\x7f", "\x80", "\x9f", "\x00"]


@pytest.mark.parametrize("max_bytes", [100, 3])
def test_plain_tokens_are_the_beginnings_of_text_without_quotes_backslashes_and_controls(max_bytes: int) -> None:
    rng = random.Random(0)
    texts = {"".join(rng.choices(SIGNS + OTHERS, k=rng.randint(1, 4))).encode() for _ in range(600)}
    cut = {text[: rng.randint(1, len(text))] for text in texts} | {text[rng.randint(0, len(text) - 1) :] for text in texts}
    vocabulary = sorted(texts | cut | {bytes([byte]) for byte in range(256)})
    plain = PlainTokens.of(TokenTrie.of(vocabulary).nodes, len(vocabulary), max_bytes)
    ends = [bytes(end) for count in range(4) for end in itertools.product((0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF), repeat=count)]

    def is_plain(text: bytes) -> bool:
        return len(text) <= max_bytes and any(_is_text(text + end) for end in ends)

    bits = np.unpackbits(plain.mask_W.view(np.uint8), bitorder="little")[: len(vocabulary)]
    assert [text for text, bit in zip(vocabulary, bits, strict=True) if bit] == [text for text in vocabulary if is_plain(text)]


def _is_text(text: bytes) -> bool:
    try:
        return not any(ord(sign) < 32 or 127 <= ord(sign) < 160 or sign in '"\\' for sign in text.decode())
    except UnicodeDecodeError:
        return False


def test_masks_of_strings_are_those_of_a_walk_over_all_tokens() -> None:
    """Bounded ones too, where some states have space for a short token only, and patterns that leave out few characters."""
    rng = random.Random(1)
    words = {
        "".join(rng.choices([*SIGNS, *OTHERS, '",', "\\n", "abcdefgh"], k=rng.randint(1, 6))).encode() for _ in range(3_000)
    }
    words |= {
        ("ab" * length)[:length].encode() + end for length in (11, 12, 13, 29, 30, 31, 60) for end in (b"", b'"', b"\xc3")
    }
    tokens = TokenTrie.of(sorted(words | {bytes([byte]) for byte in range(256)}))
    bounds = [{"maxLength": length} for length in (7, 11, 12, 13, 14, 29, 31, 32, 70)]
    for part in ({}, *bounds, {"minLength": 60}, {"pattern": "^[^z]*$"}, {"pattern": "^[ -é]*$"}):
        automaton = Automaton.from_json_schema(
            {"type": "array", "prefixItems": [{"const": "k" * 70}, {"type": "string", **part}]}, tokens
        )
        assert automaton.is_lazy
        full, states, others = automaton.filled(), [0], [0]
        for byte in b'["' + b"k" * 70 + b'","a\xc3\xa9a' + (b"" if part == {"pattern": "^[ -é]*$"} else b"\\na"):
            states.append(full.next(states[-1], _token(tokens, bytes([byte]))))
            others.append(automaton.next(others[-1], _token(tokens, bytes([byte]))))
            assert np.array_equal(full.masks(np.array([states[-1]])), automaton.masks(np.array([others[-1]]))), (part, byte)


def _token(tokens: TokenTrie, text: bytes) -> int:
    return next(token for token in range(tokens.vocabulary_size) if tokens.bytes_of(token) == text)
