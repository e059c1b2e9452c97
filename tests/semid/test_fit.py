"""fit_sids: from items and sessions to unique SIDs and a report."""

import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from leafbeam.errors import ArgumentError, CheckpointError, CodesError, DataError
from leafbeam.semid import CodeVectors, EmbeddingConfig, QuantiserConfig, RqVae, RqVaeConfig, SidTable, fit_sids, plot_report
from leafbeam.semid.report import neighbour_overlap
from leafbeam.train import leave_one_out, load_log

DATA = Path(os.environ.get("LEAFBEAM_DATA", Path(__file__).parents[3] / "shared" / "data"))
SMALL = QuantiserConfig(codebook_sizes=(4, 4))


def items(count: int = 60) -> pa.Table:
    rng = np.random.default_rng(0)
    words = np.array(["red", "blue", "shoe", "boot", "tea", "green", "silk", "old", "new"])
    return pa.table(
        {"item_id": [f"i{n}" for n in range(count)], "title": [" ".join(rng.choice(words, 4)) for _ in range(count)]}
    )


@pytest.mark.parametrize("strategy", ["level", "free", "hungarian", "sinkhorn", "none"])
def test_every_collision_strategy_gives_codes_that_fit_and_all_but_none_make_them_unique(strategy):
    config = QuantiserConfig(codebook_sizes=(4, 32), collision_strategy=strategy)
    fit = fit_sids(items(), None, quantiser=config, seed=1)
    distinct = len(np.unique(fit.table.codes, axis=0))
    assert distinct == (60 if strategy != "none" else fit.report.distinct_sids)
    assert fit.table.num_levels == (3 if strategy == "level" else 2)
    assert fit.table.item_ids.tolist() == items()["item_id"].to_pylist()
    assert fit.report.colliding_items > 0
    assert (fit.report.moved_items > 0) == (strategy not in ("level", "none"))
    assert fit.report.distinct_after == distinct


def test_the_report_counts_what_the_codes_show():
    fit = fit_sids(items(), None, quantiser=SMALL)
    encoded = fit.table.codes[:, :2]
    _, sizes = np.unique(encoded, axis=0, return_counts=True)
    report = fit.report
    assert report.distinct_sids == len(sizes)
    assert report.colliding_items == sizes[sizes > 1].sum()
    assert report.largest_group == sizes.max() == fit.table.codebook_sizes[2]
    shares = np.bincount(encoded[:, 0], minlength=4) / 60
    assert report.levels[0].codes_used == (shares > 0).sum()
    assert report.levels[0].perplexity == pytest.approx(np.exp(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()))
    first, second, last = (level.unexplained for level in report.levels)
    assert first is not None
    assert second is not None
    assert 1 > first > second > 0
    assert last is None
    for part in ("60 items", "perplexity", "title", "collision_strategy='level'"):
        assert part in str(report)


def test_the_most_popular_of_colliding_items_is_number_zero():
    table = pa.table({"item_id": [1, 2, 3], "title": ["a tea", "a tea", "a tea cup"]})

    class Sessions:
        indptr_U1 = np.array([0, 3])
        items_E = np.array([1, 2, 1], np.int32)

    config = QuantiserConfig(codebook_sizes=(1,))
    fit = fit_sids(table, Sessions(), embedding=EmbeddingConfig(text_dims=2, behaviour_dims=0), quantiser=config)
    assert fit.table.codes[:, 1].tolist() == [2, 0, 1]


def test_own_vectors_replace_an_embedding():
    vectors = np.random.default_rng(2).normal(size=(60, 5))
    fit = fit_sids(items(), None, vectors=vectors, quantiser=SMALL)
    assert (fit.table.codes[:, :2] == fit.quantiser.encode(vectors)).all()
    assert fit.report.text_columns == ()


def test_equal_seeds_give_equal_codes():
    codes = [fit_sids(items(), None, quantiser=SMALL, seed=seed).table.codes for seed in (4, 4, 5)]
    assert (codes[0] == codes[1]).all()
    assert codes[0].shape != codes[2].shape or (codes[0] != codes[2]).any()


def test_one_item_has_a_sid():
    fit = fit_sids(pa.table({"item_id": ["a"], "title": ["red shoe"]}), None)
    assert fit.table.codes.tolist() == [[0, 0]]


def test_progress_is_reported_from_start_to_end():
    calls: list[tuple[str, float]] = []
    fit_sids(items(), None, quantiser=SMALL, progress=lambda what, share: calls.append((what, share)))
    assert calls[0] == ("embedding items", 0.0)
    assert calls[-1] == ("residual k-means", 1.0)


def test_unusable_input_is_named():
    vectors = np.random.default_rng(3).normal(size=(60, 5))
    for error, call, message in (
        (DataError, lambda: fit_sids(items(), None, vectors=vectors[:59]), "59 vectors for 60 items"),
        (DataError, lambda: fit_sids(items(), None, vectors=np.ones((60, 5))), "the same vector"),
        (ArgumentError, lambda: fit_sids(items(), None, vectors=vectors, embedding=EmbeddingConfig()), "not both"),
        (DataError, lambda: fit_sids(items().slice(0, 0), None), "expected item_id and at least one row"),
        (DataError, lambda: fit_sids(items().drop_columns(["item_id"]), None), "expected item_id and at least one row"),
        (DataError, lambda: fit_sids(pa.table({"item_id": [1, 2], "title": ["tea", "tea"]}), None), "the same vector"),
        (
            CodesError,
            lambda: fit_sids(items(), None, quantiser=QuantiserConfig(codebook_sizes=(1, 4), collision_strategy="free")),
            "collision_strategy='level'",
        ),
        (ArgumentError, lambda: QuantiserConfig(collision_strategy="both"), "collision_strategy is 'both'"),
        (ArgumentError, lambda: QuantiserConfig(codebook_sizes=()), "codebook_sizes"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_an_rq_vae_fits_behind_the_same_call_and_the_report_is_plotted(tmp_path: Path):
    config = QuantiserConfig(
        codebook_sizes=(8, 8), method="rqvae", collision_strategy="level", rqvae=RqVaeConfig(steps=30, hidden=16, latent=4)
    )
    fit = fit_sids(items(), None, quantiser=config)
    assert isinstance(fit.quantiser, RqVae)
    assert len(np.unique(fit.table.codes, axis=0)) == 60
    assert fit.report.method == "rqvae"
    assert "of ten nearest neighbours kept" in str(fit.report)
    plot_report(fit.report, fit.table).savefig(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 10_000
    with pytest.raises(ArgumentError, match="method is 'kmean'"):
        QuantiserConfig(method="kmean")
    with pytest.raises(ArgumentError, match="no such settings"):
        QuantiserConfig(rqvae=RqVaeConfig())


def test_neighbour_overlap_is_one_for_the_vectors_themselves_and_chance_for_noise():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(300, 6)).astype(np.float32)
    assert neighbour_overlap(vectors, vectors) == 1.0
    assert neighbour_overlap(vectors, rng.normal(size=(300, 6)).astype(np.float32)) == pytest.approx(10 / 299, abs=0.02)
    assert 0.3 < neighbour_overlap(vectors, vectors + 0.3 * rng.normal(size=vectors.shape).astype(np.float32)) < 0.9
    assert neighbour_overlap(vectors[:1], vectors[:1]) == 1.0


@pytest.mark.data
@pytest.mark.slow
def test_beauty_has_few_collisions_and_used_codebooks_in_minutes():
    if not (DATA / "amazon_beauty").is_dir():
        pytest.skip("amazon_beauty is not beside the checkout, and LEAFBEAM_DATA does not name it")
    log = load_log(DATA / "amazon_beauty")
    start = time.process_time()
    report = fit_sids(log.items, leave_one_out(log).train).report
    assert time.process_time() - start < 150
    assert report.largest_group <= 128  # of 6 on average; k-means ends elsewhere under another BLAS (33, 42)
    assert [level.codebook_size for level in report.levels] == [2048, 12101]
    assert report.distinct_after == report.items
    assert [level.codes_used for level in report.levels] == [2048, 12101]
    assert report.levels[0].perplexity > 1000


def test_default_codes_are_spread_over_a_last_level_that_is_as_large_as_the_largest_prefix():
    fit = fit_sids(items(), None)
    assert fit.table.codebook_sizes == (16, 60)
    assert (fit.report.collision_strategy, fit.report.distinct_after) == ("spread", 60)
    same = pa.table({"item_id": list(range(90)), "title": ["tea"] * 80 + [f"cup {row}" for row in range(10)]})
    fit = fit_sids(same, None)
    assert fit.table.codebook_sizes == (16, 90)
    assert (fit.report.collision_strategy, fit.report.distinct_after) == ("spread", 90)


def test_code_vectors_are_the_means_of_their_items_and_come_back_from_their_file(tmp_path):
    fit = fit_sids(items(), None)
    first, last = fit.code_vectors.levels
    assert (first.shape[0], last.shape[0]) == (16, 60)
    assert np.isnan(first).all(axis=1).tolist() == (np.bincount(fit.table.codes[:, 0], minlength=16) == 0).tolist()
    counts = np.bincount(fit.table.codes[:, 0], minlength=16)
    of_items = last[fit.table.codes[:, 1]]  # each item has its own
    for code in np.flatnonzero(counts):
        np.testing.assert_allclose(first[code], of_items[fit.table.codes[:, 0] == code].mean(axis=0), atol=1e-5)
    for width in (8, 96, 512):
        rows = np.concatenate(fit.code_vectors.embeddings(width, seed=3))
        assert rows.shape == (76, width)
        assert np.nanmean(rows**2) == pytest.approx(1, rel=1e-3)
    fit.code_vectors.save(tmp_path, fit.table)
    loaded = CodeVectors.load(tmp_path, fit.table)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(loaded.levels, fit.code_vectors.levels, strict=True))


def test_code_vectors_with_a_changed_bit_are_refused_and_older_files_without_a_digest_load(tmp_path):
    table = SidTable(item_ids=np.array(["a", "b"]), codes=np.array([[0], [1]]), codebook_sizes=(2,))
    CodeVectors(levels=(np.ones((2, 4), np.float32),)).save(tmp_path, table)
    path = tmp_path / "code_vectors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        CodeVectors.load(tmp_path, table)
    save_file({"level_0": torch.ones(2, 4)}, path, metadata={"sids": table.digest})
    assert CodeVectors.load(tmp_path, table) is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, None])
def test_code_vectors_of_types_that_numpy_lacks_or_in_a_fifo_are_refused(tmp_path, dtype):
    table = SidTable(item_ids=np.array(["a", "b"]), codes=np.array([[0], [1]]), codebook_sizes=(2,))
    path = tmp_path / "code_vectors.safetensors"
    if dtype is None:
        os.mkfifo(path)
    else:
        save_file({"level_0": torch.zeros(2, 4).to(dtype)}, path, metadata={"sids": table.digest})
    with pytest.raises(CheckpointError, match="fit-sids"):
        CodeVectors.load(tmp_path, table)


def test_code_vectors_of_other_sids_or_in_a_damaged_file_are_refused(tmp_path):
    fit = fit_sids(items(), None)
    assert CodeVectors.load(tmp_path, fit.table) is None
    fit.code_vectors.save(tmp_path, fit.table)
    other = SidTable(item_ids=fit.table.item_ids, codes=fit.table.codes[::-1], codebook_sizes=fit.table.codebook_sizes)
    with pytest.raises(CheckpointError, match="other Semantic IDs"):
        CodeVectors.load(tmp_path, other)
    (path,) = tmp_path.glob("code_vectors*")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="fit-sids"):
        CodeVectors.load(tmp_path, fit.table)


@pytest.mark.parametrize(
    ("num_items", "sizes"),
    [(0, (16,)), (1, (16,)), (300, (64,)), (12_101, (2048,)), (200_000, (2048,)), (10**6, (2048, 256))],
)
def test_the_first_codebook_grows_with_the_items(num_items: int, sizes: tuple[int, ...]):
    assert QuantiserConfig().sizes_for(num_items) == sizes
    assert QuantiserConfig(codebook_sizes=(7, 7)).sizes_for(num_items) == (7, 7)


@pytest.mark.parametrize("method", ["kmeans", "rqvae"])
@pytest.mark.parametrize("seed", [-1, (1 << 32) - 16, 1 << 70])
def test_a_seed_that_no_generator_takes_is_refused_before_the_work(method, seed) -> None:
    items = pa.table({"item_id": ["a", "b"], "title": ["red shoe", "green tea"]})
    sizes = (2, 2) if method == "kmeans" else (2, 2, 2)
    with pytest.raises(ArgumentError, match=r"seed=-?\d+: expected at least 0 and below"):
        fit_sids(items, None, quantiser=QuantiserConfig(method=method, codebook_sizes=sizes), seed=seed)
