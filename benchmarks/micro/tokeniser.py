"""`python -m benchmarks tokeniser`: time, memory and quality of making Semantic IDs.

fit      12,000 items of a made shop's statistics (or `--data`'s own): residual k-means 3 x 256 and RQ-VAE 4 x 256 (TIGER's and
         STATIC's shape), every repair; seconds of the fit, the report's figures for each
stream   vectors on disk, quantised block by block: seconds, and the memory that the process grew by, at 10^5 to 10^7 vectors

One thread. The vectors of `fit` are those of `semid.embed` over `--data`, else clusters in 384 dimensions.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from benchmarks.resident import peak_bytes
from leafbeam.semid import (
    CollisionStrategy,
    EmbeddingConfig,
    Method,
    QuantiserConfig,
    ResidualKMeans,
    VectorBlocks,
    embed,
    fit_sids,
)
from leafbeam.train import leave_one_out, load_log

__all__ = ["runs"]

_SHAPES: dict[Method, tuple[int, ...]] = {"kmeans": (256, 256, 256), "rqvae": (256, 256, 256, 256)}


def runs(quick: bool, data: Path | None = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured): a row for each quantiser and repair, one for each size that is streamed."""
    vectors_ND, ids, source = _vectors(data, 1_500 if quick else 12_000)
    items = pa.table({"item_id": ids})
    for method, sizes in _SHAPES.items():
        for repair in get_args(CollisionStrategy) if method == "kmeans" and not quick else ("level",):
            config = QuantiserConfig(codebook_sizes=sizes, method=method, collision_strategy=repair)
            begun, cpu = time.perf_counter(), time.process_time()
            fit = fit_sids(items, None, vectors=vectors_ND, quantiser=config)
            seconds = {"wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
            parameters = {"part": "fit", "data": source, "items": len(ids), "dims": vectors_ND.shape[1], "method": method}
            measured = asdict(fit.report) | {name: round(value, 2) for name, value in seconds.items()}
            yield {**parameters, "codebook_sizes": sizes, "repair": repair, "threads": 1}, measured
    for count in (100_000,) if quick else (100_000, 1_000_000, 10_000_000):
        yield _stream(count, dims=64)


def _vectors(data: Path | None, count: int) -> tuple[NDArray[np.float32], list[Any], str]:
    """What is to be quantised, the items' ids, and where it is from."""
    if data is None:
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(400, 384))
        vectors = centres[rng.integers(0, 400, count)] + 0.5 * rng.normal(size=(count, 384))
        return vectors.astype(np.float32), list(range(count)), "clusters"
    log = load_log(data)
    made = embed(log.items, leave_one_out(log).train, config=EmbeddingConfig())
    return made.vectors_ND[:count], log.item_ids[:count].tolist(), data.name


def _stream(count: int, *, dims: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """LatencyFit and encode `count` vectors from a file, in a process of its own, so that the memory is theirs alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        _write(path, count, dims)
        command = [sys.executable, "-m", "benchmarks.micro.tokeniser", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds_fit, seconds_encode, grown, mean_error = (float(word) for word in done.stdout.split())
    parameters = {"part": "stream", "items": count, "dims": dims, "codebook_sizes": (256, 256, 256), "threads": 1}
    file_bytes = count * dims * 4
    return parameters, {
        "fit_s": round(seconds_fit, 2),
        "encode_s": round(seconds_encode, 2),
        "grown_bytes": int(grown),
        "file_bytes": file_bytes,
        "variance_left": round(mean_error, 4),
    }


def _write(path: Path, count: int, dims: int, *, rows: int = 100_000) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(2000, dims)).astype(np.float32)
    file = open_memmap(path, mode="w+", dtype=np.float32, shape=(count, dims))
    for start in range(0, count, rows):
        size = min(rows, count - start)
        file[start : start + size] = centres[rng.integers(0, 2000, size)] + 0.4 * rng.normal(size=(size, dims))
    file.flush()


def _stream_alone(path: Path) -> None:
    """Print seconds of the fit and of encoding, bytes the process grew by, and the variance that is left."""
    blocks = VectorBlocks.open(path)
    small = np.random.default_rng(0).normal(size=(4096, blocks.shape[1])).astype(np.float32)
    ResidualKMeans(codebook_sizes=(256,)).fit(small)  # libraries are loaded
    before = peak_bytes(anew=True)
    begun = time.perf_counter()
    quantiser = ResidualKMeans(codebook_sizes=(256, 256, 256)).fit_blocks(blocks)
    fitted = time.perf_counter()
    for _ in quantiser.encode_blocks(blocks):
        pass
    encoded = time.perf_counter()
    grown = peak_bytes() - before
    block = next(iter(blocks))
    left = float(((block - quantiser.decode(quantiser.encode(block))) ** 2).sum())
    spread = float(((block - block.mean(axis=0)) ** 2).sum())
    print(fitted - begun, encoded - fitted, grown, left / spread)


if __name__ == "__main__":
    _stream_alone(Path(sys.argv[1]))
