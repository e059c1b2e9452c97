"""Vectors and logs that carry little information: what is wrong is said, and what can be used is used."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.errors import DataError
from leafbeam.semid import (
    EmbeddingConfig,
    QuantiserConfig,
    ResidualKMeans,
    RqVaeConfig,
    SidReport,
    VectorBlocks,
    fit_sids,
    load_vectors,
)
from leafbeam.semid.duplicates import NearDuplicates
from tests.fixtures.command_line import call

WORDS = ["red", "blue", "green", "old", "silk", "tiny", "shoe", "boot", "tea", "lamp", "cup", "book", "bag", "hat"]
TITLES = [f"{WORDS[n % 14]} {WORDS[n // 14]} {'x' * (1 + n // 100)}" for n in range(196)] + ["red hat", "old cup", "tea", "bag"]
SMALL = QuantiserConfig(codebook_sizes=(16, 16))


def table(count: int, **columns: Any) -> pa.Table:
    return pa.table({"item_id": [f"i{n}" for n in range(count)], **columns})


def groups(count: int, distinct: int, noise: float, *, seed: int = 0, scale: float = 1.0, offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(distinct, 16))
    return scale * (offset + centres[rng.integers(0, distinct, count)] + noise * rng.normal(size=(count, 16)))


def report_of(vectors: np.ndarray, **options: Any) -> SidReport:
    return fit_sids(table(len(vectors)), None, vectors=vectors, quantiser=options.get("quantiser", SMALL)).report


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-4])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e6, 0.0), (1e-6, 0.0), (1.0, 5.0)])
def test_few_distinct_vectors_are_said_with_codes_in_use_largest_group_and_cause(count, noise, scale, offset):
    """S4"""
    report = report_of(groups(count, 10, noise, scale=scale, offset=offset))
    (note,) = report.notes
    drawn = "300 items" if count == 300 else "2,000 items drawn"
    assert note.startswith(f"Only 10 different vectors of {drawn}; the codes of the others tell noise apart. Codes in use: ")
    assert f"{report.levels[0].codes_used:,} of 16, {report.levels[1].codes_used:,} of 16" in note
    assert ("about " if count == 5000 else "The largest group of equal vectors has ") in note
    assert note.endswith(": the vectors passed hardly differ")
    assert f"warning: {note}" in str(report)
    assert note not in report.summary


def test_a_tenth_of_equal_vectors_among_others_is_said():
    """S4: with their cause: items without text or behaviour, whose vectors are 0."""
    titles = [title if n % 5 else "" for n, title in enumerate(TITLES)]
    report = fit_sids(table(200, title=titles), None, quantiser=SMALL).report
    (note,) = report.notes
    assert "different vector" in note
    assert "40 items, such as 'i0': they have neither text nor behaviour" in note
    same = fit_sids(table(200, title=["red shoe"] * 40 + titles[40:]), None, quantiser=SMALL).report
    assert "such as 'i0': they have equal texts, or occur together with the same items" in same.notes[0]


def test_a_quantiser_that_collapsed_is_said():
    """S4: an RQ-VAE that was hardly trained."""
    rqvae = RqVaeConfig(steps=1, batch=2, latent=2, hidden=2, warmup=0.0, revive=0.0)
    config = QuantiserConfig(codebook_sizes=(64,), method="rqvae", rqvae=rqvae, collision_strategy="none")
    report = report_of(np.random.default_rng(0).normal(size=(600, 8)), quantiser=config)
    assert bool(report.notes) == (10 * report.levels[0].perplexity < 64)
    assert not report.notes or "uses few of its codes" in report.notes[0]


@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_vectors_that_differ_give_no_warning(noise):
    """S4"""
    assert report_of(groups(3000, 20, noise)).notes == ()
    assert NearDuplicates.of(np.eye(30, dtype=np.float32)) == NearDuplicates(sample=30, distinct=30, largest=1, row=0)


def test_the_command_prints_the_warning(tmp_path: Path):
    """S4, S7: in the place of silence beside a tick; also where every user has one item."""
    lines = "\n".join(f"u{n},i{n % 50},{1_769_000_000 + n}" for n in range(400))
    (tmp_path / "interactions.csv").write_text(f"user_id,item_id,timestamp\n{lines}\n")
    titles = "\n".join(f"i{n},{'red shoe' if n % 3 else TITLES[n]}" for n in range(50))
    (tmp_path / "items.csv").write_text(f"item_id,title\n{titles}\n")
    done = call("fit-sids", "--data", tmp_path, "--run", tmp_path / "run", "--codebooks", "8")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    assert "Warning: No session has two different items, so the vectors are made of text alone" in shown
    assert re.search(r"Warning: Only \d different vectors? of 50 items", shown), shown


def sessions(*histories: list[int]) -> Any:
    indptr = np.cumsum([0, *map(len, histories)])
    return SimpleNamespace(indptr_U1=indptr, items_E=np.array([item for row in histories for item in row], np.int32))


@pytest.mark.parametrize("histories", [([0], [1], [2]), ([1, 1, 1], [2]), (), ([], [0])])
def test_users_of_a_single_item_leave_the_vectors_to_the_text(histories):
    """S7: and say so; without text the error says what to add."""
    titled = table(3, title=["red shoe", "red boot", "green tea"])
    fit = fit_sids(titled, sessions(*histories), quantiser=QuantiserConfig(codebook_sizes=(2, 2)))
    alone = fit_sids(titled, None, quantiser=QuantiserConfig(codebook_sizes=(2, 2)))
    assert (fit.table.codes == alone.table.codes).all()
    assert fit.report.notes == ("No session has two different items, so the vectors are made of text alone",)
    assert fit.report.items_without_behaviour == 3
    assert fit.encoder.encode(titled.slice(0, 1), _index(fit)).shape == (1, 3)
    for config in (EmbeddingConfig(text="none"), EmbeddingConfig()):
        untitled = table(3, price=[1.0, 2.0, 3.0]) if config.text == "tfidf" else titled
        with pytest.raises(DataError, match=r"no session has two different items.* Add a column of text"):
            fit_sids(untitled, sessions(*histories), embedding=config)
    assert fit_sids(titled, sessions([0, 1], [1, 2]), quantiser=QuantiserConfig(codebook_sizes=(2, 2))).report.notes == ()


def _index(fit: Any) -> Any:
    from leafbeam.index import Trie

    return Trie.build(fit.table.codes, fit.table.codebook_sizes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bad_vector_is_named_by_its_item(tmp_path: Path, bad, dtype):
    """S5: in Parquet in any order, in .npy, and for vectors that are passed; blocks of a file name its row."""
    with np.errstate(over="ignore"):
        matrix = np.arange(12).reshape(6, 2).astype(dtype)
        matrix[4, 1] = bad
    ids = np.array([f"i{n}" for n in range(6)])
    order = [3, 4, 0, 5, 1, 2]
    lists = [matrix[n].tolist() for n in order]
    pq.write_table(pa.table({"item_id": ids[order], "v": pa.array(lists)}), tmp_path / "v.parquet")
    np.save(tmp_path / "v.npy", matrix)
    said = r"in 1 row, first in the vector of item 'i4', column 1"
    for name in ("v.parquet", "v.npy"):
        with pytest.raises(DataError, match=said):
            load_vectors(tmp_path / name, ids)
    for attempt, says in (
        (lambda: fit_sids(table(6), None, vectors=matrix), said),
        (
            lambda: fit_sids(pa.table({"item_id": [n * 10 for n in range(6)]}), None, vectors=matrix),
            r"vector of item 40, column 1",
        ),
        (lambda: list(VectorBlocks.open(tmp_path / "v.npy", rows=3)), r"first in row 4, column 1"),
    ):
        with pytest.raises(DataError, match=says):
            attempt()


@pytest.mark.parametrize("vector", [None, [1.0], [1.0, None], [1.0, 2.0, 3.0]])
def test_a_vector_of_another_shape_is_named_by_its_item(tmp_path: Path, vector):
    """S5"""
    ids = np.array(["a", "b", "c"])
    lists = pa.array([[0.0, 1.0], vector, [2.0, 3.0]], pa.list_(pa.float64()))
    pq.write_table(pa.table({"item_id": ["c", "b", "a"], "v": lists}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match="item 'b': expected as many numbers in every vector, without nulls"):
        load_vectors(tmp_path / "v.parquet", ids)
    with pytest.raises(DataError, match=r"no vector for 2 items, the first is 1; its ids are such as 'c'"):
        load_vectors(tmp_path / "v.parquet", np.array([1, 2]))


@pytest.mark.parametrize("scale", [1e-300, 1e-310, 1e-40, 1e-20])
@pytest.mark.parametrize("as_blocks", [False, True])
def test_numbers_that_vanish_in_single_precision_are_said_with_a_factor(tmp_path: Path, scale, as_blocks):
    """S6: they were taken for equal vectors, or lost in squares; times the factor they fit."""
    matrix = np.random.default_rng(0).normal(size=(50, 4)) * scale
    np.save(tmp_path / "v.npy", matrix)
    blocks = VectorBlocks.open(tmp_path / "v.npy")
    with pytest.raises(DataError, match=r"no number beyond .*vanish in single precision: multiply all by \d+e\+\d+") as caught:
        _ = ResidualKMeans(codebook_sizes=(4,)).fit_blocks(blocks) if as_blocks else report_of(matrix)
    factor = float(str(caught.value).rpartition(" ")[2])
    assert report_of(matrix * factor).distinct_sids > 1


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.full((3, 2), 1e300) * np.arange(3)[:, None], "numbers beyond 1e"),
        (np.full((3, 3), np.inf, np.float16), "NaN, infinite numbers"),
        (np.ones((3, 2)), "the same vector: no code could tell them apart$"),
        (1 + np.arange(6).reshape(3, 2) * 1e-12, "apart; in single precision, so subtract their mean and scale them"),
        (np.eye(3) * 1j, "is complex128"),
        (np.eye(3) > 0, "is bool"),
        (np.eye(3).astype(str), "is <U"),
    ],
)
def test_other_vectors_that_cannot_be_told_apart_are_said(matrix, message):
    """S6"""
    with np.errstate(invalid="ignore"), pytest.raises(DataError, match=message):
        report_of(matrix)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int8, np.uint64])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_vectors_of_every_type_of_number_give_the_same_codes(dtype, scale):
    """S6: also half-precision numbers below their smallest normal one."""
    matrix = (np.random.default_rng(0).integers(0, 100, (60, 4)) * scale / 100).astype(dtype)
    if np.issubdtype(dtype, np.integer) and scale == 1:
        matrix = np.random.default_rng(0).integers(0, 100, (60, 4)).astype(dtype)
    fit = fit_sids(table(60), None, vectors=matrix, quantiser=SMALL)
    again = fit_sids(table(60), None, vectors=matrix.astype(np.float64), quantiser=SMALL)
    assert (fit.table.codes == again.table.codes).all()
    if dtype is np.float16:
        denormal = fit_sids(table(60), None, vectors=matrix * np.float16(6e-8 if scale == 100 else 1e-5), quantiser=SMALL)
        assert denormal.report.distinct_sids > 1
