"""Residual k-means: a Semantic ID by coarse-to-fine quantisation.

Shapes: N items, D dimensions, L levels, V live codes of a level.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning

from leafbeam.errors import ArgumentError, CheckpointError, DataError
from leafbeam.semid.arrays import check_finite, check_vectors, one_thread

__all__ = ["Progress", "ResidualKMeans", "check_numbers", "checked_sizes", "nearest", "residual_codes"]

Progress = Callable[[str, float], None]  # (what is being done, share of it that is done)

_FORMAT = "leafbeam residual k-means"
_VERSION = 1
_BLOCK = 8192  # rows whose distances to all centroids are held at once
_LARGE = 200_000  # rows from which k-means goes by mini-batches


class ResidualKMeans:
    """A quantiser that names a vector by L codes: the nearest centroid, then the nearest to what is left, and so on.

    Think of it as an address: the first code is the town, the second the street, the third the house. Vectors that are
    alike share their first codes, so a model that knows the town already knows much.

        residual = vector
        for each level:
            code = the nearest of the level's centroids to residual (the lower code on a tie)
            residual = residual - that centroid

    A level never has more live codes than there are distinct residuals: codes beyond are dead and never given. The same
    vectors and seed give the same bits (k-means runs on one thread). `fit` costs about 20 * N * D * sum(codebook_sizes)
    multiplications: 15 seconds for 12,000 items, 384 dimensions and 3 x 256 codes on one core; by mini-batches from
    200,000 items on. (Residual quantisation: TIGER, section 3.1; with k-means in place of an autoencoder: OneRec, QARM.)

    >>> vectors = np.random.default_rng(0).normal(size=(50, 4))
    >>> ResidualKMeans(codebook_sizes=(4, 4), seed=0).fit(vectors).encode(vectors).shape
    (50, 2)
    """

    def __init__(self, *, codebook_sizes: tuple[int, ...] = (256, 256, 256), seed: int = 0) -> None:
        self.codebook_sizes = checked_sizes(codebook_sizes, seed)
        self.seed = seed
        self.centroids: tuple[NDArray[np.float32], ...] = ()

    @property
    def num_dims(self) -> int:
        """D of the vectors it was fitted on."""
        self._check_fitted()
        return self.centroids[0].shape[1]

    def fit(self, vectors_ND: NDArray[np.floating], progress: Progress | None = None) -> "ResidualKMeans":
        """Find the centroids of every level; returns itself. Raises DataError for NaN, empty or constant vectors."""
        residual_ND = check_vectors(np.asarray(vectors_ND), "the table of vectors").copy()
        centroids: list[NDArray[np.float32]] = []
        for level, size in enumerate(self.codebook_sizes):
            centroids_VD = _k_means(residual_ND, size, seed=self.seed + level)
            residual_ND -= centroids_VD[nearest(residual_ND, centroids_VD)]
            centroids.append(centroids_VD)
            if progress:
                progress("residual k-means", (level + 1) / len(self.codebook_sizes))
        self.centroids = tuple(centroids)
        return self

    def fit_blocks(
        self, blocks: Iterable[NDArray[np.float32]], progress: Progress | None = None, *, first: int = 20_000
    ) -> "ResidualKMeans":
        """Find the centroids of vectors that do not fit in memory; returns itself.

        blocks: read once for each level and once more (`VectorBlocks`, or any list of arrays). Each level starts from
        k-means on `first` vectors drawn from all of them alike, and then moves by mini-batches through every block.
        Memory: one block, `first` vectors, and what k-means takes on them; it does not grow with the number of vectors.
        Time: about N * D * sum over levels of (level + 1) * V multiplications. Raises DataError for vectors that are empty
        or constant.
        """
        sample_ND = _draw(blocks, first, np.random.default_rng(self.seed))
        residual_ND = check_vectors(sample_ND, "the blocks of vectors")
        centroids: list[NDArray[np.float32]] = []
        for level, size in enumerate(self.codebook_sizes):
            centroids_VD = _k_means(residual_ND, size, seed=self.seed + level)
            if len(centroids_VD) == size:  # fewer: every different residual has a code of its own already
                centroids_VD = _follow(blocks, centroids, centroids_VD, len(residual_ND))
            residual_ND = residual_ND - centroids_VD[nearest(residual_ND, centroids_VD)]
            centroids.append(centroids_VD)
            if progress:
                progress("residual k-means", (level + 1) / len(self.codebook_sizes))
        self.centroids = tuple(centroids)
        return self

    def encode_blocks(self, blocks: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.int64]]:
        """The codes of each block, (n, L), one block in memory at a time."""
        return (self.encode(block_nD) for block_nD in blocks)

    def encode(self, vectors_ND: NDArray[np.floating]) -> NDArray[np.int64]:
        """The codes of vectors, seen in `fit` or not: int64 (N, L)."""
        codes_NL, _ = self.encode_with_residuals(vectors_ND)
        return codes_NL

    def encode_with_residuals(self, vectors_ND: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The codes, and what is left of each vector before the last level: what its last code stands for, (N, D)."""
        return residual_codes(check_numbers(vectors_ND, self.num_dims), self.centroids)

    def decode(self, codes_NL: NDArray[np.integer]) -> NDArray[np.float32]:
        """The vectors that codes stand for: the sum of their centroids, (N, D). Takes the first levels alone, too."""
        self._check_fitted()
        levels = codes_NL.shape[1]
        vectors_ND = np.zeros((len(codes_NL), self.num_dims), np.float32)
        for centroids_VD, codes_N in zip(self.centroids[:levels], codes_NL.T, strict=True):
            vectors_ND += centroids_VD[codes_N]
        return vectors_ND

    def save(self, directory: str | Path) -> None:
        """Write centroids.safetensors and quantiser.json into a directory."""
        self._check_fitted()
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        save_file({f"level_{level}": values for level, values in enumerate(self.centroids)}, place / "centroids.safetensors")
        settings = {"format": _FORMAT, "version": _VERSION, "codebook_sizes": self.codebook_sizes, "seed": self.seed}
        (place / "quantiser.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> "ResidualKMeans":
        """Read what `save` wrote, bit for bit. Raises CheckpointError where it is incomplete or something else."""
        place = Path(directory)
        try:
            settings = json.loads((place / "quantiser.json").read_text(encoding="utf-8"))
            arrays = load_file(place / "centroids.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"{place} is not a saved quantiser ({error}): write one with `leafbeam fit-sids`") from error
        if not isinstance(settings, dict) or settings.get("format") != _FORMAT:
            raise CheckpointError(f"{place / 'quantiser.json'} belongs to something else than residual k-means")
        if settings.get("version") != _VERSION:
            raise CheckpointError(
                f"{place} has format version {settings.get('version')}, this leafbeam reads {_VERSION}: fit the SIDs again"
            )
        try:
            quantiser = cls(codebook_sizes=tuple(settings["codebook_sizes"]), seed=settings["seed"])
            centroids = tuple(arrays[f"level_{level}"] for level in range(len(quantiser.codebook_sizes)))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{place} lacks a part of the quantiser: {error}") from error
        dims = centroids[0].shape[-1]
        for size, values in zip(quantiser.codebook_sizes, centroids, strict=True):
            if values.dtype != np.float32 or values.ndim != 2 or values.shape[1] != dims or not 1 <= len(values) <= size:
                raise CheckpointError(f"{place} holds centroids {values.dtype} {values.shape} for a codebook of {size}")
        quantiser.centroids = centroids
        return quantiser

    def _check_fitted(self) -> None:
        if not self.centroids:
            raise ArgumentError("this quantiser has no centroids yet: call fit(vectors) or load(directory)")


def checked_sizes(codebook_sizes: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """The sizes of a quantiser's codebooks as plain integers. Raises ArgumentError for sizes or a seed that cannot be."""
    sizes = tuple(int(size) for size in codebook_sizes)
    if not 1 <= len(sizes) <= 16 or min(sizes) < 1:
        raise ArgumentError(f"codebook_sizes={codebook_sizes}: 1 to 16 levels of at least one code each")
    if seed < 0:
        raise ArgumentError(f"seed={seed}: a seed is not negative")
    return sizes


def check_numbers(vectors_ND: NDArray[np.floating], dims: int) -> NDArray[np.float32]:
    """Vectors to encode: finite numbers of `dims` dimensions (none, one or equal ones are fine here)."""
    vectors = np.asarray(vectors_ND)
    if vectors.ndim != 2 or vectors.shape[1] != dims or not np.issubdtype(vectors.dtype, np.number):
        raise DataError(f"vectors of shape {vectors.shape} ({vectors.dtype}): this quantiser takes (N, {dims}) numbers")
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32)
    check_finite(vectors, "the table of vectors")
    return vectors


def _k_means(vectors_ND: NDArray[np.float32], size: int, *, seed: int) -> NDArray[np.float32]:
    """At most `size` centroids: as many as there are distinct vectors, if those are fewer."""
    if len(vectors_ND) <= 4 * size:  # only then is it worth counting
        distinct_ND = np.unique(vectors_ND, axis=0)
        if len(distinct_ND) <= size:
            return distinct_ND
    kind = KMeans if len(vectors_ND) < _LARGE else MiniBatchKMeans
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than codes: those codes are dead
        model = kind(size, n_init=1, max_iter=100, random_state=seed)  # pyright: ignore[reportArgumentType]
        model.fit(vectors_ND)
    return np.unique(np.asarray(model.cluster_centers_, np.float32), axis=0)


def _draw(blocks: Iterable[NDArray[np.float32]], count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """At most `count` rows of all blocks, each as likely as any other: those of the smallest random numbers."""
    keys_n, kept_nD = np.empty(0), np.empty((0, 0), np.float32)
    for block_nD in blocks:
        keys = rng.random(len(block_nD))
        if len(keys_n) == count:  # most rows of a late block stay out at once
            block_nD, keys = block_nD[keys < keys_n.max()], keys[keys < keys_n.max()]
        keys_n = np.concatenate([keys_n, keys])
        kept_nD = np.concatenate([kept_nD, block_nD]) if kept_nD.size else block_nD
        if len(keys_n) > count:
            smallest = np.argpartition(keys_n, count - 1)[:count]
            keys_n, kept_nD = keys_n[smallest], kept_nD[smallest]
    if not len(keys_n):
        raise DataError("there is no block with a vector in it: nothing to fit")
    return kept_nD


def _follow(
    blocks: Iterable[NDArray[np.float32]], before: list[NDArray[np.float32]], centroids_VD: NDArray[np.float32], weight: int
) -> NDArray[np.float32]:
    """One pass of mini-batch k-means over what earlier levels leave of every block; the start counts as `weight` vectors.

    A centroid stays the mean of all that came to it, so each vector counts alike, in whatever order they come. (Sculley, 2010.)
    """
    load_V = np.full(len(centroids_VD), weight / len(centroids_VD))
    means_VD = centroids_VD.astype(np.float64)
    for block_nD in blocks:
        residual_nD = block_nD
        for earlier_VD in before:
            residual_nD = residual_nD - earlier_VD[nearest(residual_nD, earlier_VD)]
        code_n = nearest(residual_nD, means_VD.astype(np.float32))
        counts_V = np.bincount(code_n, minlength=len(means_VD))
        order_n = np.argsort(code_n, kind="stable")
        came = np.flatnonzero(counts_V)
        starts = (np.cumsum(counts_V) - counts_V)[came]
        load_V += counts_V
        sums = np.add.reduceat(residual_nD[order_n].astype(np.float64), starts, axis=0)
        means_VD[came] += (sums - counts_V[came, None] * means_VD[came]) / load_V[came, None]
    return np.unique(means_VD.astype(np.float32), axis=0)


def residual_codes(
    vectors_ND: NDArray[np.float32], centroids: tuple[NDArray[np.float32], ...]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest code of each level to what is left, (N, L), and what was left before the last level, (N, D)."""
    codes_NL = np.empty((len(vectors_ND), len(centroids)), np.int64)
    residual_ND = before_last_ND = vectors_ND
    for level, centroids_VD in enumerate(centroids):
        before_last_ND = residual_ND
        codes_NL[:, level] = nearest(residual_ND, centroids_VD)
        residual_ND = residual_ND - centroids_VD[codes_NL[:, level]]
    return codes_NL, before_last_ND


def nearest(vectors_ND: NDArray[np.float32], centroids_VD: NDArray[np.float32]) -> NDArray[np.int64]:
    """The row of the nearest centroid to each vector, the lower on a tie."""
    nearest_N = np.empty(len(vectors_ND), np.int64)
    half_V = 0.5 * (centroids_VD.astype(np.float64) ** 2).sum(axis=1).astype(np.float32)
    for start in range(0, len(vectors_ND), _BLOCK):
        block = vectors_ND[start : start + _BLOCK]
        nearest_N[start : start + _BLOCK] = (half_V - block @ centroids_VD.T).argmin(axis=1)
    return nearest_N
