"""Quantisers: residual k-means and RQ-VAE."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from leafbeam.errors import ArgumentError, CheckpointError, DataError
from leafbeam.files import CHECKSUMS
from leafbeam.semid import ResidualKMeans, RqVae, RqVaeConfig
from leafbeam.semid.rqvae import _with_gradient


def clusters(seed: int, rows: int = 300, dims: int = 8) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(12, dims))[rng.integers(0, 12, rows)] + 0.2 * rng.normal(size=(rows, dims))


def test_every_code_is_the_nearest_centroid_to_the_residual():
    vectors = clusters(0)
    quantiser = ResidualKMeans(codebook_sizes=(16, 8, 4), seed=0).fit(vectors)
    codes = quantiser.encode(vectors)
    residual = vectors.astype(np.float64)
    for level, centroids in enumerate(quantiser.centroids):
        distances = np.linalg.norm(residual[:, None] - centroids[None], axis=2)
        chosen = distances[np.arange(len(vectors)), codes[:, level]]
        np.testing.assert_allclose(chosen, distances.min(axis=1), rtol=1e-5, atol=1e-5)
        residual -= centroids[codes[:, level]]


def test_every_level_reduces_the_error():
    vectors = clusters(1)
    quantiser = ResidualKMeans(codebook_sizes=(8, 8, 8), seed=0).fit(vectors)
    codes = quantiser.encode(vectors)
    errors = [((vectors - quantiser.decode(codes[:, :levels])) ** 2).sum() for levels in (1, 2, 3)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < ((vectors - vectors.mean(axis=0)) ** 2).sum()


def test_the_first_code_of_separate_clusters_is_the_cluster():
    rng = np.random.default_rng(2)
    cluster = np.repeat(np.arange(5), 20)
    vectors = 100 * np.eye(5)[cluster] + rng.normal(size=(100, 5))
    codes = ResidualKMeans(codebook_sizes=(5, 4), seed=0).fit(vectors).encode(vectors)
    assert len(np.unique(np.column_stack([cluster, codes[:, 0]]), axis=0)) == 5


def test_equal_seeds_give_equal_bits_and_other_seeds_other_centroids():
    vectors = clusters(3)
    first, again, other = (ResidualKMeans(codebook_sizes=(16, 16), seed=seed).fit(vectors) for seed in (5, 5, 6))
    assert all((a == b).all() for a, b in zip(first.centroids, again.centroids, strict=True))
    assert any(a.shape != b.shape or (a != b).any() for a, b in zip(first.centroids, other.centroids, strict=True))


def test_the_global_random_state_is_neither_read_nor_moved():
    vectors = clusters(4)
    before = np.random.get_state()[1].copy()
    first = ResidualKMeans(codebook_sizes=(8,), seed=0).fit(vectors)
    assert (np.random.get_state()[1] == before).all()
    np.random.seed(99)
    assert (ResidualKMeans(codebook_sizes=(8,), seed=0).fit(vectors).centroids[0] == first.centroids[0]).all()


def test_save_and_load_are_bit_equal(tmp_path):
    vectors = clusters(5)
    quantiser = ResidualKMeans(codebook_sizes=(16, 8), seed=3).fit(vectors)
    quantiser.save(tmp_path / "sids")
    loaded = ResidualKMeans.load(tmp_path / "sids")
    assert (loaded.codebook_sizes, loaded.seed) == ((16, 8), 3)
    assert all((a == b).all() for a, b in zip(quantiser.centroids, loaded.centroids, strict=True))
    assert (loaded.encode(vectors) == quantiser.encode(vectors)).all()


def test_fewer_vectors_than_codes_leaves_dead_codes_and_exact_reconstruction():
    vectors = clusters(6, rows=10)
    quantiser = ResidualKMeans(codebook_sizes=(256, 256), seed=0).fit(vectors)
    codes = quantiser.encode(vectors)
    assert len(np.unique(codes[:, 0])) == 10
    assert len(np.unique(codes[:, 1])) == 1
    np.testing.assert_allclose(quantiser.decode(codes), vectors, atol=1e-6)


def test_one_vector_and_equal_vectors_beside_another_are_fine():
    assert ResidualKMeans(codebook_sizes=(4,)).fit(np.ones((1, 3))).encode(np.ones((1, 3))).tolist() == [[0]]
    vectors = np.array([[0.0, 0.0]] * 50 + [[1.0, 1.0]])
    codes = ResidualKMeans(codebook_sizes=(8, 8)).fit(vectors).encode(vectors)
    assert len(np.unique(codes[:50], axis=0)) == 1
    assert (codes[50] != codes[0]).any()


def test_many_equal_vectors_leave_dead_codes_without_a_warning():
    vectors = np.repeat(np.eye(3), 200, axis=0)
    quantiser = ResidualKMeans(codebook_sizes=(64,), seed=0).fit(vectors)
    assert len(np.unique(quantiser.encode(vectors))) == 3


def test_vectors_are_encoded_alone_as_in_a_batch():
    vectors = clusters(7)
    quantiser = ResidualKMeans(codebook_sizes=(16, 16), seed=0).fit(vectors[:200])
    together = quantiser.encode(vectors)
    assert together[250:251].tolist() == quantiser.encode(vectors[250:251]).tolist()
    assert quantiser.encode(vectors[:0]).shape == (0, 2)


@pytest.mark.slow
def test_very_many_vectors_use_mini_batches_and_stay_deterministic():
    vectors = clusters(11, rows=200_000, dims=3)
    first, again = (ResidualKMeans(codebook_sizes=(12, 4), seed=1).fit(vectors) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first.centroids, again.centroids, strict=True))
    left = vectors - first.decode(first.encode(vectors)[:, :1])
    assert (left**2).sum() < 0.2 * ((vectors - vectors.mean(axis=0)) ** 2).sum()


def test_progress_rises_to_one():
    seen: list[float] = []
    ResidualKMeans(codebook_sizes=(4, 4), seed=0).fit(clusters(8), lambda what, share: seen.append(share))
    assert seen == [0.5, 1.0]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.full((5, 2), np.nan), "NaN, infinite numbers .* first in row 0"),
        (np.array([[0.0, 1.0], [np.inf, 1.0]]), "first in row 1"),
        (np.array([[0.0, 1.0], [1e200, 1.0]]), "first in row 1"),
        (np.ones((5, 2)), "the same vector"),
        (np.zeros((0, 2)), "at least one item"),
        (np.zeros((3, 0)), "at least one item"),
        (np.zeros(3), r"of shape \(3,\)"),
        (np.array([["a", "b"]]), "one row of numbers"),
        (np.ones((2, 2), complex), "one row of numbers"),
    ],
)
def test_vectors_that_cannot_be_fitted_are_named(vectors, message):
    with pytest.raises(DataError, match=message):
        ResidualKMeans(codebook_sizes=(4,)).fit(vectors)


def test_vectors_that_cannot_be_encoded_are_named():
    quantiser = ResidualKMeans(codebook_sizes=(4,)).fit(clusters(9))
    for error, call, says in (
        (DataError, lambda: quantiser.encode(np.zeros((2, 3))), "takes"),
        (DataError, lambda: quantiser.encode(np.array([[0.0] * 8, [np.nan] * 8])), r"NaN.* first in row 1"),
        (ArgumentError, lambda: ResidualKMeans().encode(np.zeros((2, 3))), "no centroids yet"),
    ):
        with pytest.raises(error, match=says):
            call()


@pytest.mark.parametrize("sizes", [(), (0,), (4, -1), (2,) * 17])
def test_codebooks_out_of_range_are_named(sizes):
    with pytest.raises(ArgumentError, match="codebook_sizes"):
        ResidualKMeans(codebook_sizes=sizes)


def damaged(directory: Path, how: str) -> None:
    settings_file, arrays = directory / "quantiser.json", directory / "centroids.safetensors"
    if how == "no settings":
        settings_file.unlink()
    elif how == "no centroids":
        arrays.unlink()
    elif how == "cut":
        arrays.write_bytes(arrays.read_bytes()[:-40])
    elif how == "not json":
        settings_file.write_text("{")
    elif how == "a list":
        settings_file.write_text("[]")
    else:
        changes = {
            "another format": {"format": "x"},
            "newer": {"version": 2},
            "more levels": {"codebook_sizes": [8, 8, 8]},
            "smaller codebook": {"codebook_sizes": [8, 1]},
            "sizes of text": {"codebook_sizes": "88"},
            "seed of text": {"seed": "one"},
        }
        settings_file.write_text(json.dumps({**json.loads(settings_file.read_text()), **changes[how]}))


DAMAGES = [
    "no settings",
    "no centroids",
    "cut",
    "not json",
    "a list",
    "another format",
    "newer",
    "more levels",
    "smaller codebook",
]


@pytest.mark.parametrize("how", [*DAMAGES, "seed of text"])
def test_a_damaged_directory_is_named(tmp_path, how):
    ResidualKMeans(codebook_sizes=(8, 8), seed=0).fit(clusters(10)).save(tmp_path)
    damaged(tmp_path, how)
    with pytest.raises(CheckpointError):
        ResidualKMeans.load(tmp_path)


SMALL = RqVaeConfig(steps=90, hidden=24, latent=6, batch=64, learning_rate=5e-3)


def vectors_of_clusters(seed: int = 0, rows: int = 400, dims: int = 10) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 3 * rng.normal(size=(12, dims))[rng.integers(0, 12, rows)] + 0.3 * rng.normal(size=(rows, dims))


@pytest.fixture(scope="module")
def fitted() -> RqVae:
    return RqVae(codebook_sizes=(16, 8, 4), seed=0, config=SMALL).fit(vectors_of_clusters())


def test_it_reconstructs_vectors_and_each_level_reduces_the_error(fitted: RqVae):
    vectors = vectors_of_clusters()
    codes = fitted.encode(vectors)
    spread = ((vectors - vectors.mean(axis=0)) ** 2).sum()
    errors = [((vectors - fitted.decode(codes[:, :levels])) ** 2).sum() / spread for levels in (1, 2, 3)]
    assert errors[2] < 0.3
    assert errors[2] < errors[0]
    assert (codes < np.array([16, 8, 4])).all()
    assert codes.shape == (400, 3)


def test_every_code_is_the_nearest_to_the_residual_of_the_latent(fitted: RqVae):
    vectors = vectors_of_clusters()
    codes, before_last = fitted.encode_with_residuals(vectors)
    residual = fitted.latents(vectors)
    for level, centroids in enumerate(fitted.centroids):
        if level == 2:
            np.testing.assert_allclose(before_last, residual, atol=1e-5)
        distances = np.linalg.norm(residual[:, None] - centroids[None], axis=2)
        np.testing.assert_allclose(distances[np.arange(400), codes[:, level]], distances.min(axis=1), atol=1e-4)
        residual = residual - centroids[codes[:, level]]


def test_dead_codes_are_revived():
    """Two clumps far apart, and codes that begin at one of them: without revival the others stay unused."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 4)) * 0.2 + np.repeat([[0.0] * 4, [9.0] * 4], 300, axis=0)

    def used(revive: float) -> tuple[int, int]:
        config = RqVaeConfig(steps=120, warmup=0.0, hidden=16, latent=3, batch=100, revive=revive, learning_rate=1e-2)
        quantiser = RqVae(codebook_sizes=(64,), config=config).fit(vectors)
        return len(np.unique(quantiser.encode(vectors))), quantiser.revived

    without_revival, none_revived = used(0.0)
    with_revival, revived = used(0.3)
    assert none_revived == 0 < revived
    assert with_revival > without_revival


@pytest.mark.parametrize("gradient", ["straight-through", "rotation"])
def test_the_forward_pass_gives_the_codes_and_the_gradient_is_copied_or_rotated(gradient: str):
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(5, 3, generator=generator, requires_grad=True)
    total = torch.randn(5, 3, generator=generator)
    out = _with_gradient(latent, total, gradient)
    torch.testing.assert_close(out, total, atol=1e-5, rtol=1e-5)
    if gradient == "straight-through":
        out.sum().backward()
        torch.testing.assert_close(latent.grad, torch.ones(5, 3))
        return
    out.backward(total)  # a push along the code becomes one along the latent, scaled by their lengths
    scale = total.norm(dim=1, keepdim=True) / latent.detach().norm(dim=1, keepdim=True)
    expected = scale * total.norm(dim=1, keepdim=True) * latent.detach() / latent.detach().norm(dim=1, keepdim=True)
    torch.testing.assert_close(latent.grad, expected, atol=1e-4, rtol=1e-4)


def test_equal_seeds_give_equal_bits_and_other_seeds_other_codes(fitted: RqVae):
    again = RqVae(codebook_sizes=(16, 8, 4), seed=0, config=SMALL)
    torch.manual_seed(99)  # the global generator has no part in it
    again.fit(vectors_of_clusters())
    assert (again.encode(vectors_of_clusters()) == fitted.encode(vectors_of_clusters())).all()
    other = RqVae(codebook_sizes=(16, 8, 4), seed=1, config=SMALL).fit(vectors_of_clusters())
    assert (other.encode(vectors_of_clusters()) != fitted.encode(vectors_of_clusters())).any()


def test_a_saved_rq_vae_is_loaded_bit_equal(fitted: RqVae, tmp_path: Path):
    fitted.save(tmp_path / "q")
    loaded = RqVae.load(tmp_path / "q")
    new = vectors_of_clusters(5)
    assert (loaded.encode(new) == fitted.encode(new)).all()
    assert (loaded.decode(fitted.encode(new)) == fitted.decode(fitted.encode(new))).all()
    assert (loaded.codebook_sizes, loaded.config, loaded.num_dims) == ((16, 8, 4), SMALL, 10)
    settings = json.loads((tmp_path / "q" / "quantiser.json").read_text())
    (tmp_path / "q" / CHECKSUMS).unlink()
    for broken, words in (
        ({**settings, "format": "something"}, "not 'leafbeam rq-vae'"),
        ({**settings, "version": 9}, "version 9"),
        ({**settings, "codebook_sizes": [16, 8, 4, 4]}, "not a saved quantiser"),
    ):
        (tmp_path / "q" / "quantiser.json").write_text(json.dumps(broken))
        with pytest.raises(CheckpointError, match=words):
            RqVae.load(tmp_path / "q")
    ResidualKMeans(codebook_sizes=(4,)).fit(vectors_of_clusters()).save(tmp_path / "k")
    with pytest.raises(CheckpointError, match="not 'leafbeam rq-vae'"):
        RqVae.load(tmp_path / "k")
    with pytest.raises(CheckpointError, match="not a saved quantiser"):
        RqVae.load(tmp_path / "nowhere")


def test_bad_vectors_and_settings_are_named(fitted: RqVae):
    with pytest.raises(DataError, match="NaN"):
        RqVae(config=SMALL).fit(np.full((4, 3), np.nan))
    with pytest.raises(DataError, match="the same vector"):
        RqVae(config=SMALL).fit(np.ones((4, 3)))
    with pytest.raises(DataError, match=r"\(N, 10\)"):
        fitted.encode(np.zeros((2, 3)))
    with pytest.raises(ArgumentError, match="no centroids yet"):
        RqVae().encode(np.zeros((2, 3)))
    with pytest.raises(ArgumentError, match="gradient"):
        RqVaeConfig(gradient="none")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="decay"):
        RqVaeConfig(decay=1.0)
    assert fitted.encode(np.zeros((0, 10))).shape == (0, 3)


def test_few_vectors_give_few_codes():
    vectors = np.repeat(np.eye(3), 4, axis=0)
    quantiser = RqVae(codebook_sizes=(8, 8), config=RqVaeConfig(steps=12, hidden=8, latent=2, batch=4)).fit(vectors)
    codes = quantiser.encode(vectors)
    assert len(np.unique(codes, axis=0)) <= 3
    assert (codes.reshape(3, 4, 2) == codes.reshape(3, 4, 2)[:, :1]).all()
