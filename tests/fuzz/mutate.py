"""Random changes of an input, from a seeded generator."""

import random
import re
from collections.abc import Sequence

_NUMBERS = [0, 1, 2, 7, 63, 64, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
_TEXTS = [*map(str, _NUMBERS), "-1", "1e309", "NaN", "null", "true", '""', "[]", "{}", '"', "\\", "\\ud800", "\0", "\n", "\r\n"]
_TEXTS += [",", ":", "(", ")", "[" * 2000, "(" * 500, "9" * 5000, "\u202e", "\xff\xfe", "../x", "é"]
_TOKENS = [text.encode("utf-8") for text in _TEXTS] + [b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80"]


def mutate(dice: random.Random, data: bytes, corpus: Sequence[bytes], max_bytes: int = 1 << 16) -> bytes:
    """`data` with one to four random changes; some insert parts of other inputs of the corpus."""
    for _ in range(dice.choice((1, 1, 2, 4))):
        data = dice.choice(_CHANGES)(dice, data, corpus)
    return data[:max_bytes]


def _span(dice: random.Random, data: bytes) -> tuple[int, int]:
    begin = dice.randint(0, len(data))
    return begin, min(len(data), begin + int(dice.expovariate(1 / 8)))


def _flip_bit(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = dice.randrange(len(data) or 1)
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :] if data else b"\0"


def _set_integer(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """A little-endian integer of 1 to 8 bytes, a boundary value or one beside it."""
    size = dice.choice((1, 2, 4, 8))
    at = dice.randint(0, max(0, len(data) - size)) // dice.choice((1, size)) * 1
    value = (dice.choice(_NUMBERS) + dice.choice((-1, 0, 1))) % 2 ** (8 * size)
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def _delete(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    begin, end = _span(dice, data)
    return data[:begin] + data[end:]


def _truncate(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return data[: dice.randint(0, len(data))]


def _repeat(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    begin, end = _span(dice, data)
    return data[:end] + data[begin:end] * dice.choice((1, 2, 50)) + data[end:]


def _insert(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    begin, end = _span(dice, data)
    return data[:begin] + dice.choice((dice.choice(_TOKENS), dice.randbytes(4))) + data[dice.choice((begin, end)) :]


def _splice(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = dice.choice(corpus) if corpus else b""
    begin, end = _span(dice, other)
    at = dice.randint(0, len(data))
    return data[:at] + dice.choice((other[begin:end], other[begin:])) + dice.choice((data[at:], b""))


def _set_number(dice: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Another number, or anything, in place of a number or quoted text."""
    found = list(re.finditer(rb'-?\d+|"[^"]*"', data))
    if not found:
        return data
    begin, end = dice.choice(found).span()
    return data[:begin] + dice.choice(_TOKENS) + data[end:]


_CHANGES = [_flip_bit, _set_integer, _delete, _truncate, _repeat, _insert, _splice, _set_number]
