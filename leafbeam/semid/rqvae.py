"""RQ-VAE: residual quantisation of what an encoder makes of a vector, learnt together with the encoder.

Shapes: N items, B items of a batch, D dimensions of a vector, Z of the latent space, L levels, V codes of a level.
"""

import json
import warnings
from dataclasses import asdict, dataclass
from math import cos, pi
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from leafbeam.errors import ArgumentError, CheckpointError, TrainingError
from leafbeam.semid.arrays import check_vectors, one_thread
from leafbeam.semid.rqkmeans import Progress, check_numbers, checked_sizes, nearest, residual_codes

__all__ = ["RqVae", "RqVaeConfig"]

_FORMAT = "leafbeam rq-vae"
_VERSION = 1
_BLOCK = 8192  # rows encoded at once

Gradient = Literal["straight-through", "rotation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RqVaeConfig:
    """How an RQ-VAE is built and trained.

    hidden, latent: widths of the encoder (the decoder mirrors it) and of what is quantised. steps: batches in all; the
    first `warmup` share of them trains encoder and decoder alone, then k-means on the latents places the codes.
    commitment: weight of the pull of the latents to their codes. decay: of the running means that the codes are.
    revive: a code that got fewer than this share of an even load, on the running mean, moves to a residual of the batch.
    gradient: what passes the quantiser on its way back: "straight-through" copies it, "rotation" turns and scales it with
    the angle between latent and codes (Fifty et al., 2024).
    """

    hidden: int = 256
    latent: int = 64
    steps: int = 1500
    warmup: float = 0.3
    batch: int = 512
    learning_rate: float = 2e-3
    commitment: float = 0.25
    decay: float = 0.95
    revive: float = 0.05
    gradient: Gradient = "straight-through"

    def __post_init__(self) -> None:
        for name in ("hidden", "latent", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}={getattr(self, name)}: at least 1")
        for name in ("warmup", "decay", "revive"):
            if not 0 <= getattr(self, name) < 1:
                raise ArgumentError(f"{name}={getattr(self, name)}: at least 0 and below 1")
        if self.learning_rate <= 0 or self.commitment < 0:
            raise ArgumentError(f"learning_rate={self.learning_rate}, commitment={self.commitment}: above 0 and at least 0")
        if self.gradient not in get_args(Gradient):
            raise ArgumentError(f"gradient={self.gradient!r}: choose one of {', '.join(map(repr, get_args(Gradient)))}")


class RqVae(nn.Module):
    """A quantiser like `ResidualKMeans`, behind an encoder that learns which differences are worth a code.

    Think of it as residual k-means in a space that bends while the codes are placed: encoder and decoder keep what the
    decoder needs to rebuild the vector, the codes follow the latents as running means, and a code that nobody uses is
    moved to where items are. The same verbs as `ResidualKMeans`; codes and residuals live in the latent space.

        latent = encoder(vector);  codes = residual quantisation of latent;  vector' = decoder(sum of the codes)
        loss = |vector - vector'|^2 + commitment * sum over levels of |residual - its code|^2

    4 levels of 256 codes, as TIGER and STATIC's section 6 have it. On one thread and one seed the codes are the same bits.
    Cost: about 6 * steps * batch * hidden * (D + latent) multiplications. (TIGER, section 3.1; EMA codes: van den Oord et
    al., 2017; revival: Zeghidour et al., 2021.)

    >>> vectors = np.random.default_rng(0).normal(size=(64, 4))
    >>> config = RqVaeConfig(steps=8, batch=32, latent=3, hidden=8)
    >>> RqVae(codebook_sizes=(4, 4), config=config).fit(vectors).encode(vectors).shape
    (64, 2)
    """

    def __init__(
        self, *, codebook_sizes: tuple[int, ...] = (256, 256, 256, 256), seed: int = 0, config: RqVaeConfig | None = None
    ) -> None:
        super().__init__()
        self.codebook_sizes = checked_sizes(codebook_sizes, seed)
        self.seed = seed
        self.config = config or RqVaeConfig()
        self.centroids: tuple[NDArray[np.float32], ...] = ()
        self.revived = 0
        self._mean_D = torch.zeros(0)
        self._scale = 1.0
        self._encoder = self._decoder = nn.Sequential()

    @property
    def num_dims(self) -> int:
        """D of the vectors it was fitted on."""
        self._check_fitted()
        return len(self._mean_D)

    def fit(self, vectors_ND: NDArray[np.floating], progress: Progress | None = None) -> "RqVae":
        """Learn encoder, codes and decoder; returns itself. Raises DataError for NaN, empty or constant vectors."""
        vectors = torch.from_numpy(check_vectors(np.asarray(vectors_ND), "the table of vectors"))
        config, count = self.config, len(vectors)
        self._mean_D = vectors.mean(dim=0)
        self._scale = float((vectors - self._mean_D).std()) or 1.0
        inputs_ND = (vectors - self._mean_D) / self._scale
        generator = torch.Generator().manual_seed(self.seed)
        self._build(vectors.shape[1], generator)
        codes: list[_Level] = []
        optimizer = torch.optim.AdamW(self.parameters(), lr=config.learning_rate, weight_decay=1e-4)
        warm = min(round(config.warmup * config.steps), config.steps - 1)
        self.revived = 0
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            order: list[Tensor] = []
            for step in range(config.steps):
                if step == warm:
                    codes = self._first_codes(inputs_ND)
                for group in optimizer.param_groups:
                    group["lr"] = config.learning_rate * 0.5 * (1 + cos(pi * step / config.steps))
                order = order or list(torch.randperm(count, generator=generator).split(config.batch))
                self._step(inputs_ND[order.pop()], codes, optimizer, generator)
                if progress and step % 50 == 0:
                    progress("RQ-VAE", (step + 1) / config.steps)
        finally:
            torch.set_num_threads(threads)
        self.centroids = tuple(level.means_VZ.numpy().copy() for level in codes)
        return self

    def encode(self, vectors_ND: NDArray[np.floating]) -> NDArray[np.int64]:
        """The codes of vectors, seen in `fit` or not: int64 (N, L)."""
        codes_NL, _ = self.encode_with_residuals(vectors_ND)
        return codes_NL

    def encode_with_residuals(self, vectors_ND: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The codes, and what is left of each latent before the last level: what its last code stands for, (N, Z)."""
        return residual_codes(self.latents(vectors_ND), self.centroids)

    @torch.inference_mode()
    def latents(self, vectors_ND: NDArray[np.floating]) -> NDArray[np.float32]:
        """What the encoder makes of vectors, before it is quantised: (N, Z)."""
        vectors = check_numbers(vectors_ND, self.num_dims)
        inputs = (torch.from_numpy(vectors) - self._mean_D) / self._scale
        parts = [self._encoder(block) for block in inputs.split(_BLOCK)]
        return torch.cat(parts).numpy() if parts else np.empty((0, self.config.latent), np.float32)

    @torch.inference_mode()
    def decode(self, codes_NL: NDArray[np.integer]) -> NDArray[np.float32]:
        """The vectors that codes stand for, (N, D). Takes the first levels alone, too."""
        self._check_fitted()
        if not 1 <= codes_NL.shape[1] <= len(self.centroids):
            raise ArgumentError(f"codes of {codes_NL.shape[1]} levels: this quantiser has {len(self.centroids)}")
        latent_NZ = np.zeros((len(codes_NL), self.config.latent), np.float32)
        for centroids_VZ, codes_N in zip(self.centroids[: codes_NL.shape[1]], codes_NL.T, strict=True):
            latent_NZ += centroids_VZ[codes_N]
        return (self._decoder(torch.from_numpy(latent_NZ)) * self._scale + self._mean_D).numpy()

    def save(self, directory: str | Path) -> None:
        """Write rqvae.safetensors and quantiser.json into a directory."""
        self._check_fitted()
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        tensors = {f"net{name}": value.detach().contiguous() for name, value in self.state_dict().items()}
        tensors |= {f"level_{level}": torch.from_numpy(values) for level, values in enumerate(self.centroids)}
        save_file(tensors | {"mean": self._mean_D}, place / "rqvae.safetensors")
        settings = {"format": _FORMAT, "version": _VERSION, "codebook_sizes": self.codebook_sizes, "seed": self.seed}
        settings |= {"scale": self._scale, "config": asdict(self.config)}
        (place / "quantiser.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> "RqVae":
        """Read what `save` wrote, bit for bit. Raises CheckpointError where it is incomplete or something else."""
        place = Path(directory)
        try:
            settings = json.loads((place / "quantiser.json").read_text(encoding="utf-8"))
            if not isinstance(settings, dict) or settings.get("format") != _FORMAT:
                raise CheckpointError(f"{place / 'quantiser.json'} belongs to something else than an RQ-VAE")
            if settings.get("version") != _VERSION:
                raise CheckpointError(
                    f"{place} has format version {settings.get('version')}, this leafbeam reads {_VERSION}: fit the SIDs again"
                )
            tensors = load_file(place / "rqvae.safetensors")
            config = RqVaeConfig(**settings["config"])
            model = cls(codebook_sizes=tuple(settings["codebook_sizes"]), seed=settings["seed"], config=config)
            model._mean_D, model._scale = tensors["mean"], float(settings["scale"])
            model._build(len(model._mean_D), torch.Generator())
            net = {name.removeprefix("net"): x for name, x in tensors.items() if name.startswith("net")}
            model.load_state_dict(net)
            model.centroids = tuple(tensors[f"level_{level}"].numpy() for level in range(len(model.codebook_sizes)))
        except CheckpointError:
            raise
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{place} is not a saved RQ-VAE ({error}): write one with `leafbeam fit-sids`") from error
        return model

    def _build(self, dims: int, generator: torch.Generator) -> None:
        hidden, latent = self.config.hidden, self.config.latent
        self._encoder = nn.Sequential(nn.Linear(dims, hidden), nn.GELU(), nn.Linear(hidden, latent))
        self._decoder = nn.Sequential(nn.Linear(latent, hidden), nn.GELU(), nn.Linear(hidden, dims))
        with torch.no_grad():
            for weight in self.parameters():
                if weight.ndim == 2:
                    weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
                else:
                    weight.zero_()

    def _step(
        self, inputs_BD: Tensor, codes: list["_Level"], optimizer: torch.optim.Optimizer, generator: torch.Generator
    ) -> None:
        latent_BZ = self._encoder(inputs_BD)
        commitment = torch.zeros(())
        quantised_BZ = latent_BZ
        if codes:
            residual_BZ, total_BZ = latent_BZ, torch.zeros_like(latent_BZ)
            for level in codes:
                taken_BZ = level.take(residual_BZ.detach())
                commitment = commitment + F.mse_loss(residual_BZ, taken_BZ)
                total_BZ, residual_BZ = total_BZ + taken_BZ, residual_BZ - taken_BZ
            quantised_BZ = _through(latent_BZ, total_BZ, self.config.gradient)
        loss = F.mse_loss(self._decoder(quantised_BZ), inputs_BD) + self.config.commitment * commitment
        if not bool(torch.isfinite(loss)):
            raise TrainingError(f"the loss of the RQ-VAE is {loss.item()}: lower learning_rate")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.revived += sum(level.follow(self.config, generator) for level in codes)

    @torch.no_grad()
    def _first_codes(self, inputs_ND: Tensor) -> list["_Level"]:
        """k-means on the latents, level by level; fewer codes where there are fewer different residuals."""
        residual_NZ = torch.cat([self._encoder(block) for block in inputs_ND.split(_BLOCK)]).numpy().copy()
        levels: list[_Level] = []
        for number, size in enumerate(self.codebook_sizes):
            distinct_NZ = np.unique(residual_NZ, axis=0)
            if len(distinct_NZ) <= size:
                centroids_VZ = distinct_NZ
            else:
                with one_thread(), warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    model = KMeans(size, n_init=1, max_iter=25, random_state=self.seed + number)  # pyright: ignore[reportArgumentType]
                    centroids_VZ = np.asarray(model.fit(residual_NZ).cluster_centers_, np.float32)
            residual_NZ -= centroids_VZ[nearest(residual_NZ, centroids_VZ)]
            levels.append(_Level(torch.from_numpy(np.ascontiguousarray(centroids_VZ))))
        return levels

    def _check_fitted(self) -> None:
        if not self.centroids and not len(self._mean_D):
            raise ArgumentError("this quantiser has no codes yet: call fit(vectors) or load(directory)")


class _Level:
    """The codes of one level while they are learnt: running means of the residuals that take them."""

    def __init__(self, means_VZ: Tensor) -> None:
        self.means_VZ = means_VZ
        self._load_V = torch.ones(len(means_VZ))  # items a step, on the running mean
        self._sums_VZ = means_VZ.clone()
        self._last_BZ = means_VZ
        self._codes_B = torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def take(self, residual_BZ: Tensor) -> Tensor:
        """The nearest code of each residual, (B, Z)."""
        half_V = 0.5 * (self.means_VZ**2).sum(dim=1)
        self._last_BZ, self._codes_B = residual_BZ, (half_V - residual_BZ @ self.means_VZ.T).argmin(dim=1)
        return self.means_VZ[self._codes_B]

    @torch.no_grad()
    def follow(self, config: RqVaeConfig, generator: torch.Generator) -> int:
        """Move the codes to the running means of what took them, revive dead ones; returns how many were revived."""
        counts_V = torch.bincount(self._codes_B, minlength=len(self.means_VZ)).float()
        sums_VZ = torch.zeros_like(self.means_VZ).index_add_(0, self._codes_B, self._last_BZ)
        self._load_V = config.decay * self._load_V + (1 - config.decay) * counts_V
        self._sums_VZ = config.decay * self._sums_VZ + (1 - config.decay) * sums_VZ
        self.means_VZ = self._sums_VZ / self._load_V.clamp(min=1e-6)[:, None]
        even = len(self._codes_B) / len(self.means_VZ)
        dead = torch.nonzero(self._load_V < config.revive * min(even, 1.0)).flatten()
        if len(dead):
            rows = torch.randint(len(self._last_BZ), (len(dead),), generator=generator)
            self.means_VZ[dead] = self._last_BZ[rows]
            self._load_V[dead] = min(even, 1.0)
            self._sums_VZ[dead] = self.means_VZ[dead] * self._load_V[dead, None]
        return len(dead)


def _through(latent_BZ: Tensor, total_BZ: Tensor, gradient: Gradient) -> Tensor:
    """The codes' sum going forward; going back, the gradient reaches the latent as it is, or turned and scaled."""
    if gradient == "straight-through":
        return latent_BZ + (total_BZ - latent_BZ).detach()
    with torch.no_grad():  # the rotation (and scaling) that takes latent to total, held constant
        from_BZ, to_BZ = F.normalize(latent_BZ, dim=1), F.normalize(total_BZ, dim=1)
        middle_BZ = F.normalize(from_BZ + to_BZ, dim=1)
        scale_B1 = total_BZ.norm(dim=1, keepdim=True) / latent_BZ.norm(dim=1, keepdim=True).clamp(min=1e-6)
    along_B1, half_B1 = ((latent_BZ * unit_BZ).sum(1, keepdim=True) for unit_BZ in (from_BZ, middle_BZ))
    return scale_B1 * (latent_BZ - 2 * half_B1 * middle_BZ + 2 * along_B1 * to_BZ)
