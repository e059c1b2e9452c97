"""RQ-VAE: reconstruction, revival of dead codes, files, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from leafbeam.errors import ArgumentError, CheckpointError, DataError
from leafbeam.files import CHECKSUMS
from leafbeam.semid import ResidualKMeans, RqVae, RqVaeConfig
from leafbeam.semid.rqvae import _with_gradient

SMALL = RqVaeConfig(steps=90, hidden=24, latent=6, batch=64, learning_rate=5e-3)


def clusters(seed: int = 0, rows: int = 400, dims: int = 10) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 3 * rng.normal(size=(12, dims))[rng.integers(0, 12, rows)] + 0.3 * rng.normal(size=(rows, dims))


@pytest.fixture(scope="module")
def fitted() -> RqVae:
    return RqVae(codebook_sizes=(16, 8, 4), seed=0, config=SMALL).fit(clusters())


def test_it_reconstructs_vectors_and_each_level_reduces_the_error(fitted: RqVae):
    vectors = clusters()
    codes = fitted.encode(vectors)
    spread = ((vectors - vectors.mean(axis=0)) ** 2).sum()
    errors = [((vectors - fitted.decode(codes[:, :levels])) ** 2).sum() / spread for levels in (1, 2, 3)]
    assert errors[2] < 0.3
    assert errors[2] < errors[0]
    assert (codes < np.array([16, 8, 4])).all()
    assert codes.shape == (400, 3)


def test_every_code_is_the_nearest_to_the_residual_of_the_latent(fitted: RqVae):
    vectors = clusters()
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
    again.fit(clusters())
    assert (again.encode(clusters()) == fitted.encode(clusters())).all()
    other = RqVae(codebook_sizes=(16, 8, 4), seed=1, config=SMALL).fit(clusters())
    assert (other.encode(clusters()) != fitted.encode(clusters())).any()


def test_save_and_load_are_bit_equal(fitted: RqVae, tmp_path: Path):
    fitted.save(tmp_path / "q")
    loaded = RqVae.load(tmp_path / "q")
    new = clusters(5)
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
    ResidualKMeans(codebook_sizes=(4,)).fit(clusters()).save(tmp_path / "k")
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
