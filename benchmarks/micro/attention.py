"""`python -m benchmarks attention`: one layer of a decode step of many beams: prompt shared, block tables, copies, a tree.

On a CPU at modest shapes, one thread, float32; and, from arithmetic alone, the bytes of a whole step of Qwen3-0.6B at 512 beams
and a prompt of 1,000 tokens, bfloat16: shapes for a GPU (`gpu` measures them on one).

All give the same answer (asserted) before any speed is printed. Shapes: as `ops.attention`; S: codes decoded so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.peers.paged_beams import PagedBeams
from benchmarks.peers.per_beam_attention import BeamCopies, TreeBeams
from benchmarks.rows import interleaved, spread
from leafbeam.ops.attention.reference import merge, prefix_attention, suffix_attention

__all__ = ["Shape", "bytes_of", "drawn", "runs"]

Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One layer's attention: requests, beams, prompt tokens, codes so far, query heads, key heads, values of a head."""

    requests: int
    beams: int
    tokens: int
    codes: int
    heads: int
    groups: int
    size: int


SHAPES = (
    Shape(requests=1, beams=16, tokens=256, codes=2, heads=8, groups=4, size=64),
    Shape(requests=1, beams=64, tokens=256, codes=2, heads=8, groups=4, size=64),
    Shape(requests=2, beams=70, tokens=512, codes=3, heads=4, groups=2, size=64),
    Shape(requests=1, beams=256, tokens=512, codes=3, heads=4, groups=2, size=64),
)
QWEN3_06B = Shape(requests=1, beams=512, tokens=1000, codes=3, heads=16, groups=8, size=128)
_LAYERS = 28


def runs(quick: bool) -> Runs:
    """(parameters, measured) of each shape, and one row of arithmetic."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for shape in SHAPES[:1] if quick else SHAPES:
            yield _measure(shape, repeats=3 if quick else 40)
    finally:
        torch.set_num_threads(threads)
    counts = {name: count * _LAYERS for name, count in bytes_of(QWEN3_06B, 2).items()}
    parameters = {"what": "bytes of a step, by arithmetic", "model": "Qwen3-0.6B", "layers": _LAYERS, "dtype": "bfloat16"}
    yield (
        parameters | asdict(QWEN3_06B),
        {"bytes": counts, "per_beam_over_shared": round(counts["per_beam"] / counts["shared"], 1)},
    )


def bytes_of(shape: Shape, itemsize: int) -> dict[str, int]:
    """Bytes of keys and values that one layer's attention reads; per_beam: through block tables and of copies alike."""
    token = 2 * shape.groups * shape.size * itemsize
    prompts, suffixes = shape.requests * shape.tokens, shape.requests * shape.beams * shape.codes
    return {
        "shared": token * (prompts + suffixes),
        "shared_prompt_alone": token * prompts,
        "per_beam": token * (prompts * shape.beams + suffixes),
        "tree": token * (prompts + suffixes) + shape.requests * shape.beams * (shape.tokens + shape.beams * shape.codes),
    }


def launch_bytes(shape: Shape, itemsize: int, splits: int) -> dict[str, int]:
    """Bytes of all tensors that one layer's attention on a GPU reads and writes, each read of a launch counted once.

    "two launches": parts of prompts are written in float32 and read again, and queries are read by each part and by the merge.
    "one launch": for prompts in one part. What a launch reads twice is expected in the cache.
    """
    heads = shape.requests * shape.beams * shape.heads
    query, part = heads * shape.size * itemsize, 4 * heads * (shape.size + 1)
    ancestors = 8 * shape.requests * shape.beams * shape.codes
    needed = bytes_of(shape, itemsize)["shared"] + ancestors + 2 * query  # with the answer
    return {"two launches": needed + splits * (query + 2 * part), "one launch": needed}


def drawn(shape: Shape, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Random float32 queries, the prompts' keys and values, and [keys, values] of the codes so far."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator)

    query = draw(shape.requests, shape.beams, shape.heads, shape.size)
    key = draw(shape.requests, shape.groups, shape.size, shape.tokens)
    value = draw(shape.requests, shape.groups, shape.tokens, shape.size)
    return query, key, value, [draw(shape.requests, shape.beams, shape.codes, shape.groups, shape.size) for _ in range(2)]


@torch.inference_mode()
def _measure(shape: Shape, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    query, key, value, slots = drawn(shape, seed)
    copies, tree = BeamCopies.of(key, value, *slots), TreeBeams.of(key, value, *slots)
    pages = PagedBeams.of(key, value, *slots)
    key_pages = pages.transposed()

    def shared() -> torch.Tensor:
        return merge(*prefix_attention(query, key, value), *suffix_attention(query, *slots))

    ways = {
        "shared": shared,
        "paged": lambda: pages.attend(query, key_pages),
        "per_beam": lambda: copies.attend(query),
        "tree": lambda: tree.attend(query),
    }
    expected = shared()
    for run in ways.values():
        torch.testing.assert_close(run(), expected, rtol=1e-3, atol=1e-4)
    times = {name: spread(seconds) for name, seconds in interleaved(ways, repeats).items()}
    mine = times["shared"]["p50"]
    measured = {
        "us": times,
        **{f"{name}_over_shared": round(times[name]["p50"] / mine, 2) for name in ways if name != "shared"},
        "bytes": bytes_of(shape, 4),
        "bytes_held": {"paged": pages.nbytes, "per_beam": copies.nbytes, "tree": tree.nbytes},
        "repeats": repeats,
    }
    return {"what": "one layer", "dtype": "float32", "threads": 1} | asdict(shape), measured
