"""The interface of a residual quantiser, and its encoding, decoding and files.

Shapes: N items, D dimensions of a vector, Z of the quantised space, L levels, V live codes of a level.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from leafbeam.errors import ArgumentError, CheckpointError, DataError, counted
from leafbeam.files import check_checksums, read_json, read_tensors, write_checksums, write_json, write_tensors
from leafbeam.json_reader import Json
from leafbeam.semid.config import check_codebook_sizes
from leafbeam.semid.vectors import check_finite

Progress = Callable[[str, float], None]  # (the current step, the share of it that is done)

_MAX_SEED = (1 << 32) - 16  # scikit-learn has seeds of 32 bits, and each of up to 16 levels has one of its own
_VERSION = 1
_BLOCK = 8192  # rows whose distances to all centroids are held at once


class Quantiser(ABC):
    """A map of vectors to L codes: the nearest centroid, then the nearest centroid to the residual, and so on.

        residual = latent of the vector
        for each level:
            code = index of the level's centroid nearest to residual (the lower index on a tie)
            residual = residual - that centroid

    `centroids` has one float32 (V, Z) per level. A level never has more centroids than distinct residuals; the
    remaining codes are dead: no vector gets them.
    """

    format: ClassVar[str]
    _tensors_file: ClassVar[str]

    def __init__(self, *, codebook_sizes: tuple[int, ...], seed: int = 0) -> None:
        self.codebook_sizes = check_codebook_sizes(codebook_sizes)
        if not 0 <= seed < _MAX_SEED:
            raise ArgumentError(f"seed={seed}: expected at least 0 and below {_MAX_SEED:,}")
        self.seed = seed
        self.centroids: tuple[NDArray[np.float32], ...] = ()

    def __repr__(self) -> str:
        fitted = counted(self.num_dims, "dimension") if self.centroids else "not fitted"
        return f"{type(self).__name__}(codebook_sizes={self.codebook_sizes}, seed={self.seed}, {fitted})"

    @property
    def num_dims(self) -> int:
        """Return D of the vectors on which it was fitted."""
        self._check_fitted()
        return self.centroids[0].shape[1]

    @abstractmethod
    def fit(self, vectors_ND: NDArray[np.floating], progress: Progress | None = None) -> Self:
        """Learn the centroids, and return this quantiser; raise DataError for NaN, empty or constant vectors."""

    def _to_latents(self, vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        return vectors_ND

    def _from_latents(self, latents_NZ: NDArray[np.float32]) -> NDArray[np.float32]:
        return latents_NZ

    def _state(self) -> tuple[dict[str, NDArray[np.float32]], dict[str, object]]:
        """Return the arrays and JSON settings that `save` writes beside codebook sizes, seed and centroids."""
        return {}, {}

    @classmethod
    def _from_state(cls, arrays: dict[str, NDArray[np.float32]], settings: Json) -> Self:
        """Return the quantiser of a `_state`; `settings` also holds codebook_sizes and seed."""
        return cls(codebook_sizes=tuple(settings["codebook_sizes"]), seed=settings["seed"])

    def latents(self, vectors_ND: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the vectors in the quantised space, (N, Z); raise DataError unless they are finite and of D dimensions."""
        self._check_fitted()
        vectors = np.asarray(vectors_ND)
        if vectors.ndim != 2 or vectors.shape[1] != self.num_dims or not np.issubdtype(vectors.dtype, np.number):
            raise DataError(
                f"vectors of shape {vectors.shape} ({vectors.dtype}): this quantiser takes (N, {self.num_dims}) numbers"
            )
        with np.errstate(over="ignore"):
            vectors = vectors.astype(np.float32)
        check_finite(vectors, "the matrix of vectors")
        return self._to_latents(vectors)

    def encode(self, vectors_ND: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the codes of vectors, seen in `fit` or not: int64 (N, L)."""
        return self.encode_with_residuals(vectors_ND)[0]

    def encode_with_residuals(self, vectors_ND: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the codes (N, L), and each latent's residual before the last level (N, Z)."""
        residual_NZ = before_last_NZ = self.latents(vectors_ND)
        codes_NL = np.empty((len(residual_NZ), len(self.centroids)), np.int64)
        for level, centroids_VZ in enumerate(self.centroids):
            before_last_NZ = residual_NZ
            codes_NL[:, level] = nearest_centroids(residual_NZ, centroids_VZ)
            residual_NZ = residual_NZ - centroids_VZ[codes_NL[:, level]]
        return codes_NL, before_last_NZ

    def decode(self, codes_NL: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the vectors (N, D) of codes, or of their first levels: the sum of the centroids, mapped back."""
        self._check_fitted()
        if not 1 <= codes_NL.shape[1] <= len(self.centroids):
            raise ArgumentError(f"codes of {counted(codes_NL.shape[1], 'level')}: this quantiser has {len(self.centroids)}")
        latents_NZ = np.zeros((len(codes_NL), self.centroids[0].shape[1]), np.float32)
        for centroids_VZ, codes_N in zip(self.centroids, codes_NL.T, strict=False):
            latents_NZ += centroids_VZ[codes_N]
        return self._from_latents(latents_NZ)

    def save(self, directory: str | Path) -> None:
        """Write quantiser.json, one safetensors file and their checksums into a directory."""
        self._check_fitted()
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        arrays, settings = self._state()
        centroids = {f"level_{level}": values for level, values in enumerate(self.centroids)}
        write_tensors(directory / self._tensors_file, arrays | centroids, save_file)
        header = {"format": self.format, "version": _VERSION, "codebook_sizes": self.codebook_sizes, "seed": self.seed}
        write_json(directory / "quantiser.json", header | settings)
        write_checksums(directory, ("quantiser.json", self._tensors_file))

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Read what `save` wrote, bit for bit; raise CheckpointError if it is incomplete or of another format."""
        directory = Path(directory)
        check_checksums(directory)
        try:
            settings = read_json(directory / "quantiser.json")
            found = settings.get("format") if isinstance(settings, dict) else None
            if found != cls.format:
                raise CheckpointError(f"{directory / 'quantiser.json'} has the format {found!r}, not {cls.format!r}")
            if (found := settings.get("version")) != _VERSION:
                raise CheckpointError(f"{directory} has format version {found}, not {_VERSION}: fit the SIDs again")
            arrays = read_tensors(directory / cls._tensors_file)[1]
            quantiser = cls._from_state(arrays, settings)
            centroids = tuple(arrays[f"level_{level}"] for level in range(len(quantiser.codebook_sizes)))
        except CheckpointError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
            raise CheckpointError(f"{directory} is not a saved quantiser ({error}): run `leafbeam fit-sids`") from error
        for size, values in zip(quantiser.codebook_sizes, centroids, strict=True):
            fits = values.dtype == np.float32 and values.ndim == 2 and 1 <= len(values) <= size
            if not fits or values.shape[1] != centroids[0].shape[1]:
                raise CheckpointError(f"{directory} holds centroids {values.dtype} {values.shape} for a codebook of {size}")
        quantiser.centroids = centroids
        return quantiser

    def _check_fitted(self) -> None:
        if not self.centroids:
            raise ArgumentError("this quantiser has no centroids yet: call fit(vectors) or load(directory)")


def nearest_centroids(vectors_NZ: NDArray[np.float32], centroids_VZ: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of the nearest centroid to each vector, the lower on a tie."""
    nearest_N = np.empty(len(vectors_NZ), np.int64)
    half_V = 0.5 * (centroids_VZ.astype(np.float64) ** 2).sum(axis=1).astype(np.float32)
    for start in range(0, len(vectors_NZ), _BLOCK):
        block = vectors_NZ[start : start + _BLOCK]
        nearest_N[start : start + _BLOCK] = (half_V - block @ centroids_VZ.T).argmin(axis=1)
    return nearest_N
