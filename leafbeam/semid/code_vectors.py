"""CodeVectors: the mean vector of each code's items, with which a model's token embeddings start.

Shapes: N items, D dimensions of a vector, L levels, V codes of a level, W width of a model.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from leafbeam.errors import CheckpointError
from leafbeam.files import read_tensors, write_tensors
from leafbeam.index.tensor_file import digest
from leafbeam.semid.table import SidTable

_FILE = "code_vectors.safetensors"
_DIMS = 256  # of the principal axes that are kept: more than most models are wide


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CodeVectors:
    """The mean vector of the items of each code, on the principal axes of all items; NaN for a code without an item.

    A model whose token embeddings start from these vectors, and not from random numbers, begins with the items' texts
    and co-occurrence: it reaches the same recall in fewer passes, and a higher recall in the end.

    `levels` has one float32 (V, D) per level, of mean square about 1, the axis of largest variance first.
    """

    levels: tuple[NDArray[np.float32], ...]

    @classmethod
    def of_items(cls, vectors_ND: NDArray[np.float32], codes_NL: NDArray[np.int64], sizes: tuple[int, ...]) -> "CodeVectors":
        """Compute the vectors of codes from the items' vectors and codes. This costs one D x D eigendecomposition and N
        D (D + L) operations.
        """
        centred_ND = vectors_ND - vectors_ND.mean(axis=0)
        _, axes_DD = np.linalg.eigh(centred_ND.T.astype(np.float64) @ centred_ND)
        projected_ND = centred_ND @ axes_DD[:, ::-1][:, :_DIMS].astype(np.float32)
        levels: list[NDArray[np.float32]] = []
        for level, size in enumerate(sizes):
            sums_VD = np.zeros((size, projected_ND.shape[1]), np.float32)
            np.add.at(sums_VD, codes_NL[:, level], projected_ND)
            counts_V = np.bincount(codes_NL[:, level], minlength=size)[:, None]
            levels.append(np.where(counts_V, sums_VD / np.maximum(counts_V, 1), np.nan).astype(np.float32))
        return cls(levels=tuple(levels))

    def embeddings(self, width: int, *, seed: int = 0) -> tuple[NDArray[np.float32], ...]:
        """Return one array per level, with a row of `width` dimensions for each code, NaN for a code without an item.
        The mean square of all numbers is 1.

        The axes are rotated at random, by the seed, so that all heads of a model see all of them.
        """
        rotation_WW = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0].astype(np.float32)
        first = [level_VD[:, :width] for level_VD in self.levels]
        padded = [np.pad(level_VD, ((0, 0), (0, width - level_VD.shape[1]))) for level_VD in first]
        square = np.nanmean(np.concatenate(padded) ** 2)
        return tuple((level_VW @ rotation_WW) / np.sqrt(max(square, 1e-12)) for level_VW in padded)

    def save(self, directory: str | Path, sids: SidTable) -> None:
        """Write one file beside the quantiser's. `sids` is the table with these codes."""
        tensors = {f"level_{level}": vectors_VD for level, vectors_VD in enumerate(self.levels)}
        write_tensors(Path(directory) / _FILE, tensors, save_file, {"sids": sids.digest, "digest": digest(tensors)})

    @classmethod
    def load(cls, directory: str | Path, sids: SidTable) -> "CodeVectors | None":
        """Read what `save` wrote; return None if there is no file, as with SIDs that `fit_sids` did not make.

        Raises:
            CheckpointError: If the file is damaged, or of other SIDs.
        """
        path = Path(directory) / _FILE
        if not path.exists():
            return None
        try:
            metadata, tensors = read_tensors(path)
            levels = tuple(tensors[f"level_{level}"] for level in range(sids.num_levels))
        except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:  # dtypes that numpy lacks
            raise CheckpointError(f"{path} does not hold vectors of codes ({error}): run `leafbeam fit-sids`") from error
        shapes = [vectors.shape[:1] for vectors in levels if vectors.ndim == 2 and vectors.dtype == np.float32]
        if metadata.get("sids") != sids.digest or shapes != [(size,) for size in sids.codebook_sizes]:
            raise CheckpointError(f"{path} is of other Semantic IDs: run `leafbeam fit-sids` again, or remove the file")
        expected = metadata.get("digest")  # an older file has none
        if expected not in (None, digest({f"level_{level}": vectors for level, vectors in enumerate(levels)})):
            raise CheckpointError(f"{path} is damaged: its vectors do not have the digest in its metadata; copy it again")
        return cls(levels=levels)
