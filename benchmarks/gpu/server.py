"""`leafbeam serve` on a GPU over HTTP: models of real shapes with random weights.

Whole answers by beams, prompt and requests at once, then rising rates, and the GPU's memory.

Latency does not depend on what a model has learnt. Codes are drawn too: three codebooks of 2,048, or of 8,192 for OneRec.
Needs all of leafbeam's extras that `leafbeam serve` and `make-shop` need.

Shapes: N items, L levels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.timing import Measured, attempt
from benchmarks.serving import load
from benchmarks.serving.load_server import Served, serving
from benchmarks.serving.production_http import Client
from benchmarks.static.inference import MODELS
from leafbeam.errors import DataError
from leafbeam.model import ModelConfig, Transformer, Vocabulary

__all__ = ["SHAPES", "Shape", "config_of", "make_run", "runs"]

_LEVELS = 3
_SLO_S = 0.2
_WARM, _SAMPLES = 3, 40
_RATE_S = 4.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model, and what is asked of it. sizes: fields of `ModelConfig`. items: of the histories, `_LEVELS` tokens each."""

    name: str
    sizes: dict[str, Any]
    codes: int = 2048
    catalog: int = 12_000
    beams: tuple[int, ...] = (256, 512, 128, 50)
    items: tuple[int, ...] = (333, 1666)
    at_once: tuple[int, ...] = (1, 8)
    rates: tuple[float, ...] = (8, 16, 32, 64, 128, 256)


_QWEN3_4B = MODELS["Qwen3-1.7B"] | {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}
SHAPES = {
    "Qwen3-0.6B": Shape(name="Qwen3-0.6B", sizes=MODELS["Qwen3-0.6B"]),
    "Qwen3-1.7B": Shape(name="Qwen3-1.7B", sizes=MODELS["Qwen3-1.7B"]),
    "Qwen3-4B": Shape(name="Qwen3-4B", sizes=_QWEN3_4B),
    "OneRec-1.7B": Shape(name="OneRec-1.7B", sizes=MODELS["Qwen3-1.7B"], codes=8192),
}


def runs(device: torch.device, shape: Shape, seconds: float, folder: Path = Path("runs")) -> Measured:
    """Rows of one model; what no longer fits into `seconds` is left out and said so."""
    until = time.monotonic() + seconds
    path = folder / f"bench-gpu-{shape.name}"
    ids = make_run(path, shape, device)
    for beams in shape.beams:
        about = {"what": "server", "model": shape.name, "beams": beams, "codes": shape.codes, "num_items": shape.catalog}
        if time.monotonic() > until:
            yield about, {"left_out": f"after {seconds:.0f} s"}
            continue
        options = ["--device", str(device), "--beams", str(beams), "--slo-ms", "600000"]
        began = time.monotonic()
        try:
            with serving(path, *options, threads=max(1, (os.cpu_count() or 2) // 2)) as served, Client(served.url) as client:
                yield about | {"part": "start"}, {"ready_s": round(time.monotonic() - began, 1)}
                for items in shape.items:
                    for at_once in shape.at_once:
                        parameters = about | {"part": "answers", "tokens": 1 + items * _LEVELS, "at_once": at_once}
                        yield attempt(parameters, partial(_answers, client, ids, items, at_once, beams))
                if time.monotonic() < until:
                    yield from _rates(served, ids, shape, beams, about)
                yield about | {"part": "memory"}, {"gpu_bytes": gpu_bytes(served.pid), "ready": client.get("/readyz")}
        except Exception as error:  # one server that fails does not end the others
            yield about, {"failed": f"{type(error).__name__}: {str(error)[-600:]}"}


def config_of(shape: Shape) -> tuple[ModelConfig, Vocabulary]:
    """The model's configuration over its codes."""
    vocabulary = Vocabulary(codebook_sizes=(shape.codes,) * _LEVELS)
    positions = 64 + _LEVELS * (max(shape.items) + 1)
    return ModelConfig(vocab_size=vocabulary.size, max_position_embeddings=positions, **shape.sizes), vocabulary


def make_run(path: Path, shape: Shape, device: torch.device) -> NDArray[Any]:
    """Make a run directory with drawn Semantic IDs and weights, unless it is there; returns the item ids."""
    from pyarrow import parquet  # beside duckdb, which the catalog needs

    from leafbeam.cli.run import Source
    from leafbeam.semid import SidTable

    if not (path / "items.parquet").exists():
        _leafbeam("make-shop", "--out", path, "--items", shape.catalog, "--users", 100)
    ids = parquet.read_table(path / "items.parquet", columns=["item_id"])["item_id"].to_numpy()
    if not (path / "sids.parquet").exists():
        drawn_N = np.random.default_rng(0).choice(shape.codes**_LEVELS, len(ids), replace=False)
        codes_NL = np.stack(np.unravel_index(drawn_N, (shape.codes,) * _LEVELS), axis=1)
        SidTable(item_ids=ids, codes=codes_NL, codebook_sizes=(shape.codes,) * _LEVELS).save(path / "sids.parquet")
        Source(path=path.absolute()).save(path / "source.json")
    if not (path / "catalog.duckdb").exists():
        _leafbeam("build", "--run", path)
    if not (path / "model" / "config.json").exists():
        config, vocabulary = config_of(shape)
        model = Transformer(config, vocabulary, torch.Generator(device).manual_seed(0), device=device)
        model.to(torch.bfloat16 if device.type == "cuda" else torch.float32).save_pretrained(path / "model")
    return ids


def gpu_bytes(pid: int) -> int | str:
    """Return the GPU memory of a process, or why it is unknown."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi: {error}"
    rows = [line.split(",") for line in output.splitlines()]
    used = [int(mebibytes) for process, mebibytes in rows if process.strip() == str(pid) and mebibytes.strip().isdigit()]
    return sum(used) << 20 if used else "nvidia-smi does not list the process"


def _answers(client: Client, ids: NDArray[Any], items: int, at_once: int, beams: int) -> dict[str, Any]:
    """Milliseconds from sending so many requests until all are answered; each sends new histories."""
    rng = np.random.default_rng([items, at_once, beams])
    taken: list[float] = []
    for number in range(_WARM + _SAMPLES):
        bodies = [_body(rng, ids, items, beams) for _ in range(at_once)]
        begin = time.perf_counter()
        answers = client.post("/v1/recommend", bodies)
        if number >= _WARM:
            taken.append(1e3 * (time.perf_counter() - begin))
        assert all(len(answer["item_ids"]) == 10 for answer in answers), "an answer is short"
    p50, p99 = np.percentile(taken, [50, 99]).round(2).tolist()
    return {"ms": {"p50": p50, "p99": p99}, "samples": len(taken)}


def _rates(served: Served, ids: NDArray[Any], shape: Shape, beams: int, about: dict[str, Any]) -> Measured:
    """Rows of rising rates of the shorter prompts, until p99 is beyond the objective or a request is not answered."""
    for rate in shape.rates:
        rng = np.random.default_rng([int(rate), beams])
        times = load.arrivals(rng, load.steady(rate), _RATE_S)
        planned = [load.Planned(at=float(at), body=_body(rng, ids, shape.items[0], beams)) for at in times]
        found = load.summary(served.send(planned), seconds=_RATE_S, slo_s=_SLO_S)
        yield about | {"part": "rate", "rate": rate, "tokens": 1 + shape.items[0] * _LEVELS, "slo_ms": 1e3 * _SLO_S}, found
        late = found["errors"] + found["refused"]
        if late or found.get("latency_ms", {"p99": float("inf")})["p99"] > 1e3 * _SLO_S:
            return


def _body(rng: np.random.Generator, ids: NDArray[Any], items: int, beams: int) -> dict[str, Any]:
    history = rng.choice(ids, items).tolist()
    return {"history": history, "num_items": 10, "num_beams": beams, "keep_history": True, "channel": "model"}


def _leafbeam(*words: object) -> None:
    command: Sequence[str] = [sys.executable, "-m", "leafbeam", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}, check=False)
    if done.returncode:
        raise DataError(f"`leafbeam {' '.join(map(str, words))}` failed: {done.stderr[-2000:]}")
