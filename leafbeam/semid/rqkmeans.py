"""Residual k-means: coarse-to-fine quantisation of vectors in memory or on disk.

Shapes: N items, D dimensions, L levels, V live codes of a level, n rows of a block.
"""

import warnings
from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import DataError
from leafbeam.semid.quantiser import Progress, Quantiser, nearest_centroids
from leafbeam.semid.vectors import check_vectors

_MINIBATCH_ROWS = 200_000  # from this many rows on k-means uses mini-batches


class ResidualKMeans(Quantiser):
    """A `Quantiser` whose centroids are k-means centroids of the vectors and their residuals.

    Similar vectors share their first codes. k-means runs on one thread, so the same vectors and seed give exactly the
    same codes. `fit` costs about 20 * N * D * sum(codebook_sizes) multiplications: 15 seconds for 12,000 items, 384
    dimensions and 3 x 256 codes on one core; from 200,000 items on it uses mini-batches. (Residual quantisation: TIGER,
    section 3.1; with k-means: OneRec, QARM.)

    Args:
        codebook_sizes: The number of codes of each level.
        seed: The seed of k-means.

    Examples:
        >>> vectors = np.random.default_rng(0).normal(size=(50, 4))
        >>> ResidualKMeans(codebook_sizes=(4, 4), seed=0).fit(vectors).encode(vectors).shape
        (50, 2)
    """

    format = "leafbeam residual k-means"
    _tensors_file = "centroids.safetensors"

    def __init__(self, *, codebook_sizes: tuple[int, ...] = (256, 256, 256), seed: int = 0) -> None:
        super().__init__(codebook_sizes=codebook_sizes, seed=seed)

    def fit(self, vectors_ND: NDArray[np.floating], progress: Progress | None = None) -> Self:
        """Learn the centroids of vectors in memory, and return this quantiser.

        Raises:
            DataError: If the vectors are empty or constant.
        """
        return self._fit(check_vectors(np.asarray(vectors_ND), "the matrix of vectors"), None, progress)

    def fit_blocks(
        self, blocks: Iterable[NDArray[np.float32]], progress: Progress | None = None, *, sample: int = 20_000
    ) -> Self:
        """Learn the centroids of vectors that do not fit in memory, and return this quantiser.

        Each level starts from k-means on a uniform sample, and is then refined by mini-batches over every block. Memory
        is needed for one block, the sample and k-means on the sample; it does not depend on N. This costs about N * D *
        sum over levels of (level + 1) * V multiplications.

        Args:
            blocks: A `VectorBlocks`, or a list of arrays, which is read once for each level and once more.
            progress: Called with the share that is done.
            sample: The number of vectors of the sample.

        Raises:
            DataError: If the vectors are empty or constant.
        """
        drawn_nD = _sample_rows(blocks, sample, np.random.default_rng(self.seed))
        return self._fit(check_vectors(drawn_nD, "the blocks of vectors"), blocks, progress)

    def encode_blocks(self, blocks: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.int64]]:
        """Yield the codes of each block, (n, L), with one block in memory at a time."""
        return (self.encode(block_nD) for block_nD in blocks)

    def _fit(
        self, residual_ND: NDArray[np.float32], blocks: Iterable[NDArray[np.float32]] | None, progress: Progress | None
    ) -> Self:
        centroids: list[NDArray[np.float32]] = []
        for level, size in enumerate(self.codebook_sizes):
            centroids_VD = fit_centroids(residual_ND, size, seed=self.seed + level)
            if blocks is not None and len(centroids_VD) == size:  # else every distinct residual has its own code already
                centroids_VD = _refine(blocks, centroids, centroids_VD, len(residual_ND))
            residual_ND -= centroids_VD[nearest_centroids(residual_ND, centroids_VD)]
            centroids.append(centroids_VD)
            if progress:
                progress("residual k-means", (level + 1) / len(self.codebook_sizes))
        self.centroids = tuple(centroids)
        return self


def fit_centroids(vectors_ND: NDArray[np.float32], size: int, *, seed: int, max_iterations: int = 100) -> NDArray[np.float32]:
    """Run k-means: at most `size` centroids, in sorted order; fewer if there are fewer distinct vectors."""
    if len(vectors_ND) <= 4 * size:  # counting distinct rows pays only for few vectors
        distinct_ND = np.unique(vectors_ND, axis=0)
        if len(distinct_ND) <= size:
            return distinct_ND
    from sklearn.cluster import KMeans, MiniBatchKMeans  # only fitting needs them
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    algorithm = KMeans if len(vectors_ND) < _MINIBATCH_ROWS else MiniBatchKMeans
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than codes: the others are dead
        model = algorithm(size, n_init=1, max_iter=max_iterations, random_state=seed)  # pyright: ignore[reportArgumentType]
        model.fit(vectors_ND)
    return np.unique(np.asarray(model.cluster_centers_, np.float32), axis=0)


def _sample_rows(blocks: Iterable[NDArray[np.float32]], count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw a uniform sample of at most `count` rows of all blocks: the rows with the smallest random keys."""
    keys_n, sample_nD = np.empty(0), np.empty((0, 0), np.float32)
    for block_nD in blocks:
        keys = rng.random(len(block_nD))
        if len(keys_n) == count:  # discard most rows of late blocks at once
            smaller = keys < keys_n.max()
            block_nD, keys = block_nD[smaller], keys[smaller]
        keys_n = np.concatenate([keys_n, keys])
        sample_nD = np.concatenate([sample_nD, block_nD]) if sample_nD.size else block_nD
        if len(keys_n) > count:
            smallest = np.argpartition(keys_n, count - 1)[:count]
            keys_n, sample_nD = keys_n[smallest], sample_nD[smallest]
    if not len(keys_n):
        raise DataError("there is no block with a vector in it: nothing to fit")
    return sample_nD


def _refine(
    blocks: Iterable[NDArray[np.float32]],
    earlier: list[NDArray[np.float32]],
    centroids_VD: NDArray[np.float32],
    initial_weight: int,
) -> NDArray[np.float32]:
    """Run one pass of mini-batch k-means over the residuals of every block after the `earlier` levels. (Sculley, 2010.)

    Each centroid stays the mean of all vectors assigned to it; the initial centroids count as `initial_weight` vectors in all.
    """
    weight_V = np.full(len(centroids_VD), initial_weight / len(centroids_VD))
    means_VD = centroids_VD.astype(np.float64)
    for block_nD in blocks:
        residual_nD = block_nD
        for earlier_VD in earlier:
            residual_nD = residual_nD - earlier_VD[nearest_centroids(residual_nD, earlier_VD)]
        code_n = nearest_centroids(residual_nD, means_VD.astype(np.float32))
        counts_V = np.bincount(code_n, minlength=len(means_VD))
        used = np.flatnonzero(counts_V)
        starts = (np.cumsum(counts_V) - counts_V)[used]
        weight_V += counts_V
        sums = np.add.reduceat(residual_nD[np.argsort(code_n, kind="stable")].astype(np.float64), starts, axis=0)
        means_VD[used] += (sums - counts_V[used, None] * means_VD[used]) / weight_V[used, None]
    return np.unique(means_VD.astype(np.float32), axis=0)
