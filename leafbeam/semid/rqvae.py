"""RQ-VAE: residual quantisation in the latent space of an autoencoder; both are trained together.

Shapes: N items, B items of a batch, D dimensions of a vector, Z of the latent space, L levels, V codes of a level.
"""

from dataclasses import asdict
from math import cos, pi
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from leafbeam.errors import TrainingError
from leafbeam.json_reader import Json
from leafbeam.semid.config import Gradient, RqVaeConfig
from leafbeam.semid.quantiser import Progress, Quantiser, nearest_centroids
from leafbeam.semid.rqkmeans import fit_centroids
from leafbeam.semid.vectors import check_vectors

_BLOCK = 8192  # rows encoded at once


class RqVae(Quantiser):
    """A `Quantiser` in the latent space of an autoencoder; the codes are moving averages of the latents assigned to them.

        latent = encoder(vector);  codes = residual quantisation of latent;  vector' = decoder(sum of the codes)
        loss = |vector - vector'|^2 + commitment * sum over levels of |residual - its code|^2

    On one thread, the same seed gives exactly the same codes. `fit` costs about 6 * steps * batch * hidden * (D +
    latent) multiplications. `revived` counts the dead codes that were moved. (TIGER, section 3.1; moving averages: van
    den Oord et al., 2017; dead codes: Zeghidour et al., 2021.)

    Args:
        codebook_sizes: The number of codes of each level; by default TIGER's 4 levels of 256.
        seed: The seed of everything random.
        config: The sizes of the autoencoder and its training.

    Examples:
        >>> vectors = np.random.default_rng(0).normal(size=(64, 4))
        >>> config = RqVaeConfig(steps=8, batch=32, latent=3, hidden=8)
        >>> RqVae(codebook_sizes=(4, 4), config=config).fit(vectors).encode(vectors).shape
        (64, 2)
    """

    format = "leafbeam rq-vae"
    _tensors_file = "rqvae.safetensors"

    def __init__(
        self, *, codebook_sizes: tuple[int, ...] = (256, 256, 256, 256), seed: int = 0, config: RqVaeConfig | None = None
    ) -> None:
        super().__init__(codebook_sizes=codebook_sizes, seed=seed)
        self.config = config or RqVaeConfig()
        self.revived = 0
        self._mean_D = torch.zeros(0)
        self._scale = 1.0
        self._net = nn.ModuleDict()

    @property
    def num_dims(self) -> int:
        self._check_fitted()
        return len(self._mean_D)

    def fit(self, vectors_ND: NDArray[np.floating], progress: Progress | None = None) -> Self:
        """Train the autoencoder and its codes, and return this quantiser."""
        vectors = torch.from_numpy(check_vectors(np.asarray(vectors_ND), "the matrix of vectors"))
        config, generator = self.config, torch.Generator().manual_seed(self.seed)
        self._mean_D = vectors.mean(dim=0)
        self._scale = float((vectors - self._mean_D).std()) or 1.0
        inputs_ND = (vectors - self._mean_D) / self._scale
        self._net = _autoencoder(vectors.shape[1], config, generator)
        optimizer = torch.optim.AdamW(self._net.parameters(), lr=config.learning_rate, weight_decay=1e-4)
        warmup_steps = min(round(config.warmup * config.steps), config.steps - 1)
        self.revived = 0
        levels: list[_Level] = []
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            batches: list[Tensor] = []
            for step in range(config.steps):
                if step == warmup_steps:
                    levels = self._initial_levels(inputs_ND)
                for group in optimizer.param_groups:
                    group["lr"] = config.learning_rate * 0.5 * (1 + cos(pi * step / config.steps))
                batches = batches or list(torch.randperm(len(vectors), generator=generator).split(config.batch))
                self._step(inputs_ND[batches.pop()], levels, optimizer, generator)
                if progress and step % 50 == 0:
                    progress("RQ-VAE", (step + 1) / config.steps)
        finally:
            torch.set_num_threads(threads)
        self.centroids = tuple(level.means_VZ.numpy().copy() for level in levels)
        return self

    @torch.inference_mode()
    def _to_latents(self, vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        inputs_ND = (torch.from_numpy(vectors_ND) - self._mean_D) / self._scale
        return torch.cat([self._net["encoder"](block) for block in inputs_ND.split(_BLOCK)]).numpy()

    @torch.inference_mode()
    def _from_latents(self, latents_NZ: NDArray[np.float32]) -> NDArray[np.float32]:
        return (self._net["decoder"](torch.from_numpy(latents_NZ)) * self._scale + self._mean_D).numpy()

    def _state(self) -> tuple[dict[str, NDArray[np.float32]], dict[str, object]]:
        arrays = {f"net_{name}": value.numpy() for name, value in self._net.state_dict().items()}
        return arrays | {"mean": self._mean_D.numpy()}, {"scale": self._scale, "config": asdict(self.config)}

    @classmethod
    def _from_state(cls, arrays: dict[str, NDArray[np.float32]], settings: Json) -> Self:
        config = RqVaeConfig(**settings["config"])
        model = cls(codebook_sizes=tuple(settings["codebook_sizes"]), seed=settings["seed"], config=config)
        model._mean_D, model._scale = torch.from_numpy(arrays["mean"]), float(settings["scale"])
        model._net = _autoencoder(len(model._mean_D), config, torch.Generator())
        weights = {name.removeprefix("net_"): torch.from_numpy(x) for name, x in arrays.items() if name.startswith("net_")}
        model._net.load_state_dict(weights)
        return model

    def _step(
        self, inputs_BD: Tensor, levels: list["_Level"], optimizer: torch.optim.Optimizer, generator: torch.Generator
    ) -> None:
        latent_BZ = self._net["encoder"](inputs_BD)
        commitment = torch.zeros(())
        quantised_BZ = latent_BZ
        if levels:
            residual_BZ, total_BZ = latent_BZ, torch.zeros_like(latent_BZ)
            for level in levels:
                code_BZ = level.assign(residual_BZ.detach())
                commitment = commitment + F.mse_loss(residual_BZ, code_BZ)
                total_BZ, residual_BZ = total_BZ + code_BZ, residual_BZ - code_BZ
            quantised_BZ = _with_gradient(latent_BZ, total_BZ, self.config.gradient)
        loss = F.mse_loss(self._net["decoder"](quantised_BZ), inputs_BD) + self.config.commitment * commitment
        if not bool(torch.isfinite(loss)):
            raise TrainingError(f"the loss of the RQ-VAE is {loss.item()}: lower learning_rate")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.revived += sum(level.update(self.config, generator) for level in levels)

    @torch.no_grad()
    def _initial_levels(self, inputs_ND: Tensor) -> list["_Level"]:
        """Return codebooks from k-means on the latents and their residuals."""
        residual_NZ = torch.cat([self._net["encoder"](block) for block in inputs_ND.split(_BLOCK)]).numpy().copy()
        levels: list[_Level] = []
        for level, size in enumerate(self.codebook_sizes):
            centroids_VZ = fit_centroids(residual_NZ, size, seed=self.seed + level, max_iterations=25)
            residual_NZ -= centroids_VZ[nearest_centroids(residual_NZ, centroids_VZ)]
            levels.append(_Level(torch.from_numpy(centroids_VZ)))
        return levels


def _autoencoder(dims: int, config: RqVaeConfig, generator: torch.Generator) -> nn.ModuleDict:
    hidden, latent = config.hidden, config.latent
    net = nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(dims, hidden), nn.GELU(), nn.Linear(hidden, latent)),
            "decoder": nn.Sequential(nn.Linear(latent, hidden), nn.GELU(), nn.Linear(hidden, dims)),
        }
    )
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim == 2:
                weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
            else:
                weight.zero_()
    return net


class _Level:
    """The codes of one level during training: exponential moving averages of the residuals assigned to them."""

    def __init__(self, means_VZ: Tensor) -> None:
        self.means_VZ = means_VZ
        self._load_V = torch.ones(len(means_VZ))  # items a step, moving average
        self._sums_VZ = means_VZ.clone()
        self._last_BZ = means_VZ
        self._codes_B = torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def assign(self, residual_BZ: Tensor) -> Tensor:
        """Return the nearest code of each residual, (B, Z)."""
        half_V = 0.5 * (self.means_VZ**2).sum(dim=1)
        self._last_BZ, self._codes_B = residual_BZ, (half_V - residual_BZ @ self.means_VZ.T).argmin(dim=1)
        return self.means_VZ[self._codes_B]

    @torch.no_grad()
    def update(self, config: RqVaeConfig, generator: torch.Generator) -> int:
        """Update the averages after `assign`, revive dead codes, and return the number of revived ones."""
        counts_V = torch.bincount(self._codes_B, minlength=len(self.means_VZ)).float()
        sums_VZ = torch.zeros_like(self.means_VZ).index_add_(0, self._codes_B, self._last_BZ)
        self._load_V = config.decay * self._load_V + (1 - config.decay) * counts_V
        self._sums_VZ = config.decay * self._sums_VZ + (1 - config.decay) * sums_VZ
        self.means_VZ = self._sums_VZ / self._load_V.clamp(min=1e-6)[:, None]
        even_load = min(len(self._codes_B) / len(self.means_VZ), 1.0)
        dead = torch.nonzero(self._load_V < config.revive * even_load).flatten()
        if len(dead):
            rows = torch.randint(len(self._last_BZ), (len(dead),), generator=generator)
            self.means_VZ[dead] = self._last_BZ[rows]
            self._load_V[dead] = even_load
            self._sums_VZ[dead] = self.means_VZ[dead] * self._load_V[dead, None]
        return len(dead)


def _with_gradient(latent_BZ: Tensor, total_BZ: Tensor, gradient: Gradient) -> Tensor:
    """Return `total_BZ` with a gradient for `latent_BZ`: copied ("straight-through"), or rotated and scaled."""
    if gradient == "straight-through":
        return latent_BZ + (total_BZ - latent_BZ).detach()
    with torch.no_grad():  # the rotation and scaling that map latent to total, held constant
        from_BZ, to_BZ = F.normalize(latent_BZ, dim=1), F.normalize(total_BZ, dim=1)
        middle_BZ = F.normalize(from_BZ + to_BZ, dim=1)
        scale_B1 = total_BZ.norm(dim=1, keepdim=True) / latent_BZ.norm(dim=1, keepdim=True).clamp(min=1e-6)
    along_B1, half_B1 = ((latent_BZ * unit_BZ).sum(1, keepdim=True) for unit_BZ in (from_BZ, middle_BZ))
    return scale_B1 * (latent_BZ - 2 * half_B1 * middle_BZ + 2 * along_B1 * to_BZ)
