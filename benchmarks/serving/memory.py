"""Peak memory of a search as beams and prompts grow: leafbeam, PagedAttention, and a copy of the prompt for each beam.

Each point is a process of its own, which warms up with a small search, sets its peak back, runs one search in memory that is
not there yet, and says by how much its resident memory grew at most (Linux: VmHWM), and what torch's allocator held at most.
Both stand beside the formula of the engine (`kv_bytes_of`); leafbeam's is inflight x (prompt + beams x rounds) x bytes of keys
and values of a token.

A Qwen3 of 8 layers, so that keys and values outweigh the rest as they do in large models; histories of random items.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.peers import paged_engine, per_beam_engine
from benchmarks.peers.failure import ended, failure_of
from benchmarks.peers.searches import Sizes, kv_bytes_of
from benchmarks.resident import peak_bytes
from leafbeam.decode import BeamSearch
from leafbeam.index import Trie
from leafbeam.model import DecodeSession, ModelConfig, Transformer, Vocabulary, Workspace

__all__ = ["TIMED", "Point", "measure", "probe", "runs"]

TIMED = False

Kind = Literal["leafbeam", "paged_attention", "per_beam_copies"]
SIZES = (256, 256, 256, 16)
_CONFIG = ModelConfig(
    vocab_size=Vocabulary(codebook_sizes=SIZES).size,
    num_hidden_layers=8,
    num_key_value_heads=4,
    max_position_embeddings=4096,
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One search: so many requests of so many tokens, so wide."""

    kind: Kind
    beams: int
    tokens: int
    inflight: int = 1

    @property
    def formula(self) -> int:
        """Bytes of keys and values by arithmetic."""
        sizes = Sizes(prompt_tokens=self.tokens, beams=self.beams, rounds=len(SIZES) - 1, inflight=self.inflight)
        return kv_bytes_of(self.kind, _CONFIG, sizes)


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One row as the beams grow, one as the prompts do."""
    yield measure("beams", quick)
    yield measure("tokens", quick)


def measure(what: Literal["beams", "tokens"], quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Peaks from 128 to 512 beams with 1,000 tokens (figure 15 of xGR), or from 500 to 3,000 tokens with 256 beams (16)."""
    scale = 4 if quick else 1
    kinds: tuple[Kind, ...] = ("leafbeam", "paged_attention", "per_beam_copies")
    if what == "beams":
        sizes = [(beams, 1000 // scale) for beams in (128, 256, 512)]
    else:
        sizes = [(256 // scale, tokens // scale) for tokens in (500, 1000, 2000, 3000)]
    points = [Point(kind=kind, beams=beams, tokens=tokens) for kind in kinds for beams, tokens in sizes]
    crowd = [Point(kind="leafbeam", beams=beams, tokens=1000 // scale, inflight=8) for beams in (128, 512)]
    # Quick, all in this process: what the allocator held is the same, but what was freed may be taken again unseen.
    peak_of = probe if quick else _in_a_process
    peaks = [asdict(point) | {"formula": point.formula} | _or_failure(point, peak_of) for point in points]
    measured: dict[str, Any] = {"peaks": peaks}
    if what == "beams":
        alone = [peak_of(point) for point in crowd]
        growth = crowd[1].formula - crowd[0].formula
        last = {peak["kind"]: peak for peak in peaks}
        measured |= {
            "growth_over_formula": {
                "inflight": 8,
                "formula": growth,
                "allocator": round((alone[1]["allocator"] - alone[0]["allocator"]) / growth, 4),
                "resident": round((alone[1]["resident"] - alone[0]["resident"]) / growth, 4),
            },
            "over_leafbeam": {
                kind: {
                    name: round(last[kind][name] / last["leafbeam"][name], 2)
                    for name in ("formula", "allocator", "resident")
                    if name in last[kind]
                }
                for kind in kinds[1:]
            },
        }
    parameters = {"what": what, "layers": 8, "hidden": 128, "key_heads": 4, "head_dim": 32, "dtype": "float32", "V": SIZES}
    return parameters, measured


def probe(point: Point) -> dict[str, int]:
    """Run one search and say what it took: of torch's allocator, and of this process. Run it in a process of its own."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    trie = Trie.build(np.stack([rng.integers(0, size, 20_000) for size in SIZES], 1), list(SIZES))
    model = Transformer(_CONFIG, vocabulary).eval()

    def run(beams: int, tokens: int, requests: int) -> None:
        tokens_BT = torch.from_numpy(rng.integers(0, vocabulary.size, (requests, tokens)))
        lengths_B = torch.full((requests,), tokens)
        rounds: DecodeSession
        if point.kind == "leafbeam":
            rounds = model.start(tokens_BT, lengths_B, workspace=Workspace(), beams=beams)
        else:
            engine = paged_engine if point.kind == "paged_attention" else per_beam_engine
            rounds = engine.start(model, tokens_BT, lengths_B, Workspace(), beams)
        BeamSearch(trie, beams, scoring="allowed").run(rounds.step_fn, batch_size=requests)

    run(16, 24, 2)
    before = peak_bytes(anew=True)
    run(point.beams, point.tokens, point.inflight)
    resident = peak_bytes() - before  # before the next run, of which malloc would have kept the memory
    gc.collect()  # what is freed while it is recorded would count below zero
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run(point.beams, point.tokens, point.inflight)
    results = cast(Any, recorded.profiler).kineto_results
    held = np.cumsum([event.nbytes() for event in results.events() if event.name() == "[memory]"])
    return {"allocator": int(held.max()), "resident": resident}


def _or_failure(point: Point, peak_of: Callable[[Point], dict[str, int]]) -> dict[str, Any]:
    """A point's peak, or the row of a peer that fails."""
    try:
        return dict(peak_of(point))
    except Exception as error:
        if point.kind == "leafbeam":
            raise
        return dict(failure_of(error).row)


def _in_a_process(point: Point) -> dict[str, int]:
    # Blocks of 128 KiB and more go back to the system when they are freed, so that none is there already.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    words = [sys.executable, "-m", "benchmarks.serving.memory", json.dumps(asdict(point))]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise ended(done.returncode, (done.stderr.splitlines() or ["it printed nothing"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(probe(Point(**json.loads(sys.argv[1])))))
