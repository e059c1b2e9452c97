"""Compile the Triton kernels for an H100/H200 (sm_90), to machine code, on a machine without any GPU.

The interpreter accepts much that the compiler refuses. A stand-in for the driver names the target; kernels are specialised and
compiled exactly as a launch would, and not launched. A process of its own, because the interpreter is chosen at import.

    python tests/ops/compile_kernels.py constrain automata head attention linear
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Target:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0


class Compiled:
    """Stands where a kernel does; a launch compiles it and says so."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            compiled = self.kernel.warmup(*args, grid=grid, **kwargs)
            print(self.kernel.fn.__name__, len(compiled.asm["cubin"]), "bytes")

        return launch


def kernels_of(module: Any) -> None:
    """Replace every kernel that a module launches."""
    for name in [name for name in vars(module) if name.endswith("_kernel")]:
        setattr(module, name, Compiled(getattr(module, name)))


def constrain() -> None:
    from leafbeam import Trie
    from leafbeam.index import ItemColumn, Segment, Version
    from leafbeam.ops.constrain import Beams, request_filters
    from leafbeam.ops.constrain.triton import step as triton

    kernels_of(triton)
    rng = np.random.default_rng(0)
    size, rows = 256, 70

    def trie(items: int, packed: bool) -> Trie:
        return Trie.build(rng.integers(0, size, (items, 2)), [size] * 2, packed=packed)

    base, delta = trie(20_000, packed=False), trie(700, packed=True)
    one, two = Version.of(base), Version(segments=(Segment(trie=base), Segment(trie=delta)))
    for version, filtered, beams, scoring in ((one, False, 512, "full"), (two, True, 70, "allowed")):
        arrays = triton.bind(version, "cpu")
        deny = [[0], None] if filtered else None
        parts = tuple(np.zeros(segment.trie.num_items, np.float32) for segment in version.segments)
        boosts = [ItemColumn(parts=parts, index=version), None] if filtered else None
        bound = triton.bind_filters(arrays, request_filters(version, 2, None, deny), boosts)
        ranges = torch.zeros(len(version.segments), 2, rows, dtype=torch.int64)
        start = Beams.start(ranges, ranges, torch.zeros(2, rows))
        logits = torch.zeros(2, rows, size, dtype=torch.bfloat16 if filtered else torch.float32)
        for level in (0, 1) if filtered else (1,):
            triton.launch(arrays, level, start, logits, bound, num_beams=beams, scoring=scoring)  # pyright: ignore[reportArgumentType]
    triton.children(arrays, 1, ranges, ranges, bound)  # pyright: ignore[reportPossiblyUnboundVariable]


def automata() -> None:
    from leafbeam.automata import Automaton
    from leafbeam.ops.constrain import Beams
    from leafbeam.ops.constrain.cpu import automaton as automata
    from leafbeam.ops.constrain.triton import automaton as triton_automata

    kernels_of(triton_automata)
    for requests, share in ((1, 0.0), (2, 1.0)):
        automaton = Automaton.from_choices(["ab", "ba"], [b"a", b"b", None], dense_share=share)
        arrays = triton_automata.bind(automata.bind([automaton] * requests, end_code=2, num_codes=4096), "cpu")
        states, scores = torch.zeros(1, requests, 70, dtype=torch.int64), torch.zeros(requests, 70)
        for dtype, scoring in ((torch.bfloat16, "full"), (torch.float32, "allowed")):
            logits = torch.zeros(requests, 70, 4096, dtype=dtype)
            triton_automata.launch(arrays, 0, Beams.start(states, states, scores), logits, None, num_beams=70, scoring=scoring)  # pyright: ignore[reportArgumentType]


def head() -> None:
    from benchmarks.peers import masked_head
    from leafbeam.ops.head import LegalCodes, triton

    kernels_of(triton)
    kernels_of(masked_head)
    rows, codes, hidden = 20, 4096, 3072
    states = LegalCodes(indptr_R1=torch.arange(rows + 1), code_C=torch.arange(rows), max_row=1)
    for dtype in (torch.bfloat16, torch.float32):
        hidden_RD, weight_VD = torch.zeros(rows, hidden, dtype=dtype), torch.zeros(codes, hidden, dtype=dtype)
        triton.head(hidden_RD, weight_VD, states, "allowed", path="gather")
        few = LegalCodes(indptr_R1=torch.arange(17), code_C=torch.arange(16), max_row=1)
        triton.head(hidden_RD[:16], weight_VD, few, "full")
        if dtype == torch.float32:  # a CPU has no product of bfloat16 into float32
            triton.head(hidden_RD, weight_VD, states, "full")
        for level in ("block", "column"):
            masked_head.masked_logits(hidden_RD, weight_VD, torch.ones(1, codes, dtype=torch.bool), level=level)  # type: ignore[arg-type]


def linear() -> None:
    from leafbeam.ops.linear import triton

    kernels_of(triton)
    for dtype in (torch.bfloat16, torch.float32):
        triton.round_rows(torch.zeros(4, 1024, dtype=dtype))


def attention() -> None:
    from benchmarks.peers import in_place_kernel, paged_attention
    from benchmarks.peers.paged_beams import PagedBeams
    from leafbeam.ops.attention import triton
    from leafbeam.ops.attention.costs import AttentionCosts

    kernels_of(triton)
    kernels_of(paged_attention)
    kernels_of(in_place_kernel)
    for dtype, per, codes in ((torch.bfloat16, 2, 3), (torch.float32, 8, 1)):
        requests, beams, groups, size, tokens = 2, 70, 4, 128, 1000
        query = torch.zeros(requests, beams, groups * per, size, dtype=dtype)
        key = torch.zeros(requests, groups, size, tokens, dtype=dtype)
        slots = torch.zeros(requests, beams, codes, groups, size, dtype=dtype)
        ancestors = torch.zeros(requests, beams, codes, dtype=torch.int64)
        lengths = torch.full((requests,), tokens)
        for splits in (None, AttentionCosts(merge=1e6, one_launch=True, descriptors=True)):
            triton.attend(query, key, key.transpose(2, 3).contiguous(), lengths, slots, slots, ancestors, splits=splits)
        if codes == 3:  # an encoder-decoder's two kinds
            triton.attend_prompt(query, key, key.transpose(2, 3).contiguous(), lengths)
            triton.attend_codes(query, slots, slots, ancestors, torch.zeros(groups * per, codes, dtype=dtype))
        in_place_kernel.follow_in_place(slots, ancestors[:, :, 0].contiguous())
        pages = PagedBeams.of(key[:1], key[:1].transpose(2, 3), slots[:1, :2], slots[:1, :2])
        paged_attention.attend(pages, query[:1, :2])


def main(names: Iterator[str]) -> None:
    driver.set_active(Target())  # pyright: ignore[reportArgumentType]
    for name in names:
        globals()[name]()


if __name__ == "__main__":
    main(iter(sys.argv[1:]))
