"""Vectors from files: loaded for given items, or read and quantised in blocks in bounded memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.errors import ArgumentError, DataError
from leafbeam.semid import ResidualKMeans, VectorBlocks, load_vectors


def vectors(rows: int = 5000, dims: int = 6, *, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (2 * rng.normal(size=(20, dims))[rng.integers(0, 20, rows)] + 0.3 * rng.normal(size=(rows, dims))).astype(np.float32)


def test_blocks_are_the_files_in_order(tmp_path: Path):
    every = vectors(100)
    np.save(tmp_path / "a.npy", every[:70])
    np.save(tmp_path / "b.npy", every[70:].astype(np.float64))
    blocks = VectorBlocks.open([tmp_path / "a.npy", tmp_path / "b.npy"], rows=32)
    assert blocks.shape == (100, 6)
    for _ in range(2):
        assert [len(block) for block in blocks] == [32, 32, 6, 30]
        np.testing.assert_array_equal(np.concatenate(list(blocks)), every)
    assert all(block.dtype == np.float32 for block in blocks)


def test_a_streamed_fit_is_as_good_as_one_in_memory_whatever_the_order(tmp_path: Path):
    every = vectors()
    every = every[np.argsort(every[:, 0])]  # a file sorted by what it holds
    np.save(tmp_path / "v.npy", every)
    blocks = VectorBlocks.open(tmp_path / "v.npy", rows=512)
    at_once = ResidualKMeans(codebook_sizes=(16, 16), seed=0).fit(every)
    streamed = ResidualKMeans(codebook_sizes=(16, 16), seed=0).fit_blocks(blocks, sample=600)

    def error(quantiser: ResidualKMeans) -> float:
        return float(((every - quantiser.decode(quantiser.encode(every))) ** 2).mean())

    assert error(streamed) < 1.25 * error(at_once)
    codes = np.concatenate(list(streamed.encode_blocks(blocks)))
    np.testing.assert_array_equal(codes, streamed.encode(every))
    again = ResidualKMeans(codebook_sizes=(16, 16), seed=0).fit_blocks(blocks, sample=600)
    assert all((a == b).all() for a, b in zip(streamed.centroids, again.centroids, strict=True))


def test_every_vector_of_the_blocks_counts():
    """A level of one code is the mean of all vectors, to rounding, however few were drawn to begin with."""
    every = vectors(4000)
    streamed = ResidualKMeans(codebook_sizes=(1,)).fit_blocks([every[:1000], every[1000:]], sample=10)
    np.testing.assert_allclose(streamed.centroids[0][0], every.mean(axis=0), atol=0.02)


PROGRAM = """
import sys, numpy as np
from benchmarks.resident import peak_bytes
from leafbeam.semid import VectorBlocks
from leafbeam.semid import ResidualKMeans
blocks = VectorBlocks.open(sys.argv[1:], rows=4096)
quantiser = ResidualKMeans(codebook_sizes=(4, 4)).fit_blocks(list([next(iter(blocks))]), sample=4096)
before = peak_bytes(anew=True)
quantiser = ResidualKMeans(codebook_sizes=(4, 4)).fit_blocks(blocks, sample=4096)
used = sum(np.bincount(codes[:, 0], minlength=4) for codes in quantiser.encode_blocks(blocks))
assert used.sum() == blocks.shape[0]
print(peak_bytes() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_vectors(tmp_path: Path):
    """100 MB of vectors on disk, read several times over; the process may grow by a third of that (with the files' pages)."""
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{part}.npy" for part in range(2)]
    for path, rows in zip(paths, (350_000, 50_000), strict=True):
        np.save(path, rng.normal(size=(rows, 64)).astype(np.float32))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, paths)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 34e6


def test_files_that_are_not_vectors_are_named(tmp_path: Path):
    np.save(tmp_path / "flat.npy", np.zeros(4))
    np.save(tmp_path / "wide.npy", np.zeros((2, 5)))
    np.save(tmp_path / "narrow.npy", np.zeros((2, 3)))
    np.save(tmp_path / "nan.npy", np.array([[0.0, np.nan], [1.0, 2.0]]))
    (tmp_path / "text.npy").write_text("hello")
    for names, words in (
        (["flat"], "expected one row of floats"),
        (["wide", "narrow"], "vectors of the same width"),
        (["text"], "cannot be read"),
        (["nowhere"], "cannot be read"),
    ):
        with pytest.raises(DataError, match=words):
            VectorBlocks.open([tmp_path / f"{name}.npy" for name in names])
    for error, call, says in (
        (DataError, lambda: list(VectorBlocks.open(tmp_path / "nan.npy")), "NaN"),
        (ArgumentError, lambda: VectorBlocks.open(tmp_path / "wide.npy", rows=0), "rows must be"),
        (DataError, lambda: ResidualKMeans(codebook_sizes=(2,)).fit_blocks([np.ones((4, 2), np.float32)]), "the same vector"),
        (DataError, lambda: ResidualKMeans(codebook_sizes=(2,)).fit_blocks([]), "no block"),
    ):
        with pytest.raises(error, match=says):
            call()


def test_own_vectors_come_from_npy_and_parquet_in_the_order_of_the_items(tmp_path):
    vectors = np.random.default_rng(6).normal(size=(3, 4))
    np.save(tmp_path / "v.npy", vectors)
    ids = np.array(["c", "a", "b"])
    np.testing.assert_allclose(load_vectors(tmp_path / "v.npy", ids), vectors, rtol=1e-6)
    table = pa.table({"item_id": ["a", "b", "c", "d"], "vector": [*vectors[[1, 2, 0]].tolist(), [0.0] * 4]})
    pq.write_table(table, tmp_path / "v.parquet")
    np.testing.assert_allclose(load_vectors(tmp_path / "v.parquet", ids), vectors, rtol=1e-6)


def test_own_vectors_that_do_not_fit_are_named(tmp_path):
    ids = np.array([1, 2])

    def refused(message: str, name: str = "v.npy") -> None:
        with pytest.raises(DataError, match=message):
            load_vectors(tmp_path / name, ids)

    refused("cannot be read")
    (tmp_path / "v.npy").write_bytes(b"")
    refused("cannot be read")
    np.save(tmp_path / "v.npy", np.zeros((3, 2)))
    refused("2 rows are expected")
    np.save(tmp_path / "v.npy", np.array([[1.0, 2.0], [np.nan, 1.0]]))
    refused("first in the vector of item 2")
    np.save(tmp_path / "v.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    refused("cannot be read")
    np.savez(tmp_path / "w.npz", a=np.zeros(3))
    (tmp_path / "w.npz").rename(tmp_path / "v.npy")
    refused("cannot be read")
    refused("neither", "v.csv")
    for columns, message in (
        ({"item_id": [1], "vector": [[1.0]]}, "no vector for 1 item, the first is 2"),
        ({"item_id": [1, 2, 2], "vector": [[1.0], [2.0], [3.0]]}, "more than one vector"),
        ({"item_id": [1, 2], "vector": [[1.0], [2.0, 3.0]]}, "expected as many numbers in every vector"),
        ({"item_id": [1, 2], "vector": [[1.0], None]}, "expected as many numbers in every vector"),
        ({"item_id": [1, 2], "vector": [[1.0], [None]]}, "without nulls"),
        ({"item_id": [1, 2], "vector": [1.0, 2.0]}, "one column of lists"),
    ):
        pq.write_table(pa.table(columns), tmp_path / "v.parquet")
        refused(message, "v.parquet")
