"""Values of options, parsed from text. Every function raises ArgumentError, which names the option."""

import re

from leafbeam.errors import ArgumentError, counted

_NUMBER = re.compile(r"(\d(?:_?\d){0,19})(?:(e|\^)(\d{1,2}))?")
_PLAN = "expected N,V,L: items, codebook and levels, such as 10000000,2048,8, 1e7,2048x2048x8192 or 10^8,256,4"


def parse_sizes(text: str, option: str = "--codebook-sizes") -> tuple[int, ...]:
    """Parse codebook sizes: `2048` or `2048,2048,8192`."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,9}", word) for word in words):
        raise ArgumentError(f"{option} {text}: expected the number of codes of each level, at least 1, such as 256,256,256")
    return tuple(int(word) for word in words)


def parse_bytes(text: str) -> int:
    """Parse a number of bytes: `4GiB`, `512 MB` or `1000000`."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,6})?) ?(?:([kmgt])(i?)b?|b)?", text.strip().lower())
    if match is None:
        raise ArgumentError(f"--memory-limit {text}: expected a number of bytes, such as 4GiB, 512MB or 1000000000")
    unit = (1024 if match[3] else 1000) ** ("kmgt".index(match[2]) + 1) if match[2] else 1
    return int(float(match[1]) * unit)


def parse_plan(text: str) -> tuple[int, tuple[int, ...]]:
    """Parse a number of items and the codebook sizes: `N,V,L` or `N,V1xV2x...`."""
    words = [word.strip() for word in text.split(",")]
    if len(words) not in (2, 3):
        raise ArgumentError(f"--plan {text}: {_PLAN}")
    num_items, *sizes = (_parse_whole(word, text) for word in [words[0], *words[1].split("x")])
    num_levels = _parse_whole(words[2], text) if len(words) == 3 else len(sizes)
    if len(words) == 2 and len(sizes) == 1:
        raise ArgumentError(f"--plan {text} names no number of levels: {_PLAN}")
    if len(sizes) == 1 and num_levels <= 1000:
        return num_items, tuple(sizes * num_levels)
    if len(sizes) != num_levels:
        raise ArgumentError(
            f"--plan {text} names {counted(len(sizes), 'codebook')} for {counted(num_levels, 'level')}: {_PLAN}"
        )
    return num_items, tuple(sizes)


def _parse_whole(word: str, text: str) -> int:
    match = _NUMBER.fullmatch(word)
    if match is None:
        raise ArgumentError(f"--plan {text}: {word!r} is not a whole number; {_PLAN}")
    base, operator, power = int(match[1]), match[2], int(match[3] or 0)
    return base * 10**power if operator == "e" else base**power if operator == "^" else base
