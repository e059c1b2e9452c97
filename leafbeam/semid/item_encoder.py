"""ItemEncoder: the Semantic IDs of new items, from their text.

Shapes: n new items, R items of the fit, L levels, D dimensions of a vector, W words.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from safetensors.numpy import save_file

from leafbeam.errors import CheckpointError, DataError, check_choice, counted
from leafbeam.files import read_json, read_tensors, write_tensors
from leafbeam.index import Trie, Version
from leafbeam.index.tensor_file import Tensors, digest
from leafbeam.json_reader import Json
from leafbeam.semid.config import CollisionStrategy
from leafbeam.semid.embedder import ItemEmbedder
from leafbeam.semid.quantiser import Quantiser
from leafbeam.semid.rqkmeans import ResidualKMeans
from leafbeam.semid.table import SidTable
from leafbeam.semid.text_vectorizer import ColumnWords, TextVectorizer
from leafbeam.semid.vectors import check_finite

FILE = "encoder.safetensors"
_VERSION = 1
_MAX_BYTES = 64 << 20  # of the vectors of items of the fit


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemEncoder:
    """An encoder that gives new items Semantic IDs, from the vectors that `fit_sids` would have made of them.

        codes of the quantiser's levels = the quantiser's codes of the item's vector
        code of a level that resolves collisions = that of the nearest item with the same codes before it

    So a new item shares the SID of the item that it resembles most, and the model, which has never seen it, gives it
    that item's score. A free code would not do if the last level only tells items apart ("spread", "level"): the model
    has never seen that code after these others, and in measurements no beam reached such an item. If the last level is
    the quantiser's and items were moved to its free codes ("free", "hungarian", "sinkhorn"), a code means what its
    centroid does, and a new item gets the nearest free code: beams reach it, though less often than with a shared code.

    `embedder` is None if the vectors of the fit were the caller's own. `vectors_RD` and `codes_RL` are of items of the fit.

    Examples:
        >>> items = pa.table({"item_id": [1, 2, 3], "title": ["red shoe", "red boot", "green tea"]})
        >>> fit = fit_sids(items, None, quantiser=QuantiserConfig(codebook_sizes=(2, 2)))
        >>> index = Trie.build(fit.table.codes, fit.table.codebook_sizes)
        >>> fit.encoder.encode(pa.table({"title": ["old green tea"]}), index).tolist() == fit.table.codes[2:].tolist()
        True
    """

    embedder: ItemEmbedder | None
    quantiser: Quantiser
    codebook_sizes: tuple[int, ...]
    vectors_RD: NDArray[np.float32] = field(repr=False)
    codes_RL: NDArray[np.int64] = field(repr=False)
    collision_strategy: CollisionStrategy = "none"

    @classmethod
    def of_fit(
        cls,
        embedder: ItemEmbedder | None,
        quantiser: Quantiser,
        vectors_ND: NDArray[np.float32],
        table: SidTable,
        rows_R: NDArray[np.int64] | None = None,
        collision_strategy: CollisionStrategy = "none",
    ) -> "ItemEncoder":
        """Return the encoder of a fit. It keeps vectors of the items `rows_R`: all of them up to 64 MB, else a random
        sample.
        """
        rows_R = np.arange(len(table)) if rows_R is None else rows_R
        if len(rows_R) > (max_rows := _MAX_BYTES // max(1, 4 * vectors_ND.shape[1])):
            rows_R = np.sort(np.random.default_rng(quantiser.seed).choice(rows_R, max_rows, replace=False))
        return cls(
            embedder=embedder,
            quantiser=quantiser,
            codebook_sizes=table.codebook_sizes,
            vectors_RD=vectors_ND[rows_R],
            codes_RL=table.codes[rows_R],
            collision_strategy=collision_strategy,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of text that it reads; empty if it takes vectors."""
        return () if self.embedder is None else self.embedder.columns

    @property
    def num_dims(self) -> int:
        """Return D of the vectors that it takes."""
        return self.quantiser.num_dims

    def embed(self, items: pa.Table) -> NDArray[np.float32]:
        """Return the vectors (n, D) of items by their text; a row is 0 if no word is known.

        Raises DataError, also if the fit was made without text.
        """
        if self.embedder is None:
            raise DataError(
                "these Semantic IDs were fitted on vectors of your own: pass the vectors of new items, or their codes"
            )
        return self.embedder.embed(items, self.vectors_RD)

    def encode(self, items: pa.Table, index: Trie | Version) -> NDArray[np.int64]:
        """Return the SIDs (n, L) of items by their `columns`; `index` holds the items so far. An item takes about a
        millisecond.

        Raises:
            DataError: If an item has no word that the fit knew (see `embed`).
        """
        vectors_nD = self.embed(items)
        if len(unknown := np.flatnonzero(~vectors_nD.any(axis=1))):
            raise DataError(
                f"{counted(len(unknown), 'item has', 'items have')} no word that the fit knew, the first in row {unknown[0]:,}"
            )
        return self.encode_vectors(vectors_nD, index)

    def encode_vectors(
        self, vectors_nD: NDArray[np.floating], index: Trie | Version, own_codes: Sequence[Sequence[int] | None] | None = None
    ) -> NDArray[np.int64]:
        """Return the SIDs (n, L) of items by their vectors.

        `own_codes` are the SIDs of items that are in the index already, None for the others. Where free codes are
        given, an item keeps its own last code if the codes before it stay the same. Raises DataError unless the vectors
        are finite and of D dimensions.
        """
        codes_nQ, residuals_nZ = self.quantiser.encode_with_residuals(vectors_nD)
        version = Version.of(index)
        if codes_nQ.shape[1] == len(self.codebook_sizes):
            is_shared = self.collision_strategy == "none"
            return codes_nQ if is_shared else self._with_free_codes(codes_nQ, residuals_nZ, version, own_codes)
        children = {prefix: version.children(prefix) for prefix in set(map(tuple, codes_nQ.tolist()))}
        last_n = [
            self._code_like(vector_D, codes_Q, children[tuple(codes_Q.tolist())])
            for vector_D, codes_Q in zip(np.asarray(vectors_nD, np.float32), codes_nQ, strict=True)
        ]
        return np.column_stack([codes_nQ, np.array(last_n, np.int64)])

    def _with_free_codes(
        self,
        codes_nL: NDArray[np.int64],
        residuals_nZ: NDArray[np.float32],
        version: Version,
        own_codes: Sequence[Sequence[int] | None] | None,
    ) -> NDArray[np.int64]:
        """Return the codes with another last code: the nearest that no item has after the same first codes, if there is one."""
        centroids_VZ, free_nL = self.quantiser.centroids[-1], codes_nL.copy()
        taken: dict[tuple[int, ...], set[int]] = {}
        for row, (*before, _) in enumerate(codes_nL.tolist()):
            prefix = tuple(before)
            own = None if own_codes is None else own_codes[row]
            if own is not None and tuple(own[:-1]) == prefix:
                free_nL[row, -1] = own[-1]
                continue
            used = taken.setdefault(prefix, set(version.children(prefix).tolist()))
            nearest = np.argsort(((centroids_VZ - residuals_nZ[row]) ** 2).sum(axis=1), kind="stable").tolist()
            code = next((code for code in nearest if code not in used), None)
            if code is not None:
                used.add(code)
                free_nL[row, -1] = code
        return free_nL

    def _code_like(self, vector_D: NDArray[np.float32], codes_Q: NDArray[np.int64], children: NDArray[np.int64]) -> int:
        """Return the last code of the nearest item, among those of the index with the same first codes, or else among all."""
        same_R = (self.codes_RL[:, :-1] == codes_Q).all(axis=1) & np.isin(self.codes_RL[:, -1], children)
        if len(children) and not same_R.any():
            return int(children[0])
        rows = np.flatnonzero(same_R) if len(children) else np.arange(len(self.codes_RL))
        if len(rows) == 0:
            return 0
        distance = ((self.vectors_RD[rows] - vector_D) ** 2).sum(axis=1)
        return int(self.codes_RL[rows[distance.argmin()], -1])

    def save(self, directory: str | Path, sids: SidTable) -> None:
        """Write one file beside the quantiser's. `sids` is the table of the fit."""
        tensors: dict[str, NDArray[np.generic]] = {"vectors": self.vectors_RD, "codes": self.codes_RL}
        header: dict[str, object] = {"format_version": _VERSION, "codebook_sizes": self.codebook_sizes, "embedder": None}
        header["collision_strategy"] = self.collision_strategy
        if (embedder := self.embedder) is not None:
            fields = ("columns", "model", "neighbours", "behaviour_weight", "behaviour_dims")
            header["embedder"] = {name: getattr(embedder, name) for name in fields}
            if (vectorizer := embedder.vectorizer) is not None:
                header["embedder"]["words"] = len(vectorizer.columns)
                for number, column in enumerate(vectorizer.columns):
                    text = "\n".join(column.words).encode()
                    tensors |= {f"words_{number}": np.frombuffer(text, np.uint8), f"idf_{number}": column.idf}
                if vectorizer.axes_WD is not None:
                    tensors["axes"] = vectorizer.axes_WD
        metadata = {"sids": sids.digest, "digest": digest(tensors), "leafbeam-encoder": json.dumps(header)}
        write_tensors(Path(directory) / FILE, tensors, save_file, metadata)

    @classmethod
    def load(cls, directory: str | Path, sids: SidTable) -> "ItemEncoder":
        """Read what `save` wrote, and the quantiser beside it.

        Raises:
            CheckpointError: If the file is missing (as with SIDs of an older leafbeam), is damaged, or belongs to other
                SIDs.
        """
        path = Path(directory) / FILE
        if not path.exists():
            raise CheckpointError(
                f"{path} does not exist, so new items get no codes from their text: run `leafbeam fit-sids` again, which "
                "writes it and gives the same codes for the same log and options, or give new items codes of your own"
            )
        try:
            metadata, tensors = read_tensors(path)
            header = json.loads(metadata["leafbeam-encoder"])
            if header["format_version"] != _VERSION:
                raise CheckpointError(f"{path} has format version {header['format_version']}, not {_VERSION}: upgrade leafbeam")
            if metadata["digest"] != digest(tensors):
                raise CheckpointError(f"{path} is damaged: its arrays do not have the digest in its metadata; copy it again")
            encoder = cls(
                embedder=_embedder_of(header["embedder"], tensors),
                quantiser=_load_quantiser(Path(directory)),
                codebook_sizes=tuple(header["codebook_sizes"]),
                vectors_RD=tensors["vectors"],
                codes_RL=tensors["codes"],
                collision_strategy=header.get("collision_strategy", "none"),  # a file of an older leafbeam has none
            )
            encoder._check()
        except CheckpointError:
            raise
        except (OSError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} does not hold an encoder of items ({error}): run `leafbeam fit-sids`") from error
        if metadata.get("sids") != sids.digest or encoder.codebook_sizes != sids.codebook_sizes:
            raise CheckpointError(f"{path} is of other Semantic IDs: run `leafbeam fit-sids` again")
        return encoder

    def _check(self) -> None:
        """Raise ValueError unless the parts fit each other."""
        vectors, codes, sizes = self.vectors_RD, self.codes_RL, self.codebook_sizes
        check_choice("collision_strategy", self.collision_strategy, CollisionStrategy)
        if vectors.dtype != np.float32 or vectors.ndim != 2 or vectors.shape[1] != self.num_dims:
            raise ValueError(
                f"vectors of {vectors.dtype} {vectors.shape}, and a quantiser of {counted(self.num_dims, 'dimension')}"
            )
        if codes.dtype != np.int64 or codes.shape != (len(vectors), len(sizes)) or np.any((codes < 0) | (codes >= sizes)):
            raise ValueError(
                f"codes of {codes.dtype} {codes.shape} for {counted(len(vectors), 'vector')} and codebooks of {sizes}"
            )
        check_finite(vectors, "the matrix of vectors")
        quantised = self.quantiser.codebook_sizes
        if sizes[: len(quantised)] != quantised or len(sizes) > len(quantised) + 1:
            raise ValueError(f"codebooks of {sizes}, and a quantiser of {quantised}")
        if self.embedder is not None and (vectorizer := self.embedder.vectorizer) is not None:
            vectorizer.check()
            if vectorizer.num_dims + self.embedder.behaviour_dims != self.num_dims:
                raise ValueError(
                    f"an embedding of {vectorizer.num_dims} + {counted(self.embedder.behaviour_dims, 'dimension')}"
                )


def _load_quantiser(directory: Path) -> Quantiser:
    """Load the quantiser of either method. Raises CheckpointError, OSError, ValueError."""
    if read_json(directory / "quantiser.json").get("format") == ResidualKMeans.format:
        return ResidualKMeans.load(directory)
    from leafbeam.semid.rqvae import RqVae  # imports torch

    return RqVae.load(directory)


_TYPES = {"columns": list, "model": str, "neighbours": int, "behaviour_weight": float, "behaviour_dims": int}


def _embedder_of(fields: Json | None, tensors: Tensors) -> ItemEmbedder | None:
    """Return the embedder of a file. Raises LookupError, ValueError, TypeError."""
    if fields is None:
        return None
    for name, kind in _TYPES.items():
        if not isinstance(fields[name], kind) or (kind is int and fields[name] < 0):
            raise ValueError(f"{name} is {fields[name]!r:.80}")
    vectorizer = None
    if (count := fields.get("words")) is not None:
        vectorizer = TextVectorizer(
            columns=tuple(_words_of(tensors[f"words_{number}"], tensors[f"idf_{number}"]) for number in range(count)),
            axes_WD=tensors.get("axes"),
        )
    columns = tuple(str(name) for name in fields["columns"])
    if vectorizer is not None and len(vectorizer.columns) != len(columns):
        raise ValueError(f"the words of {counted(len(vectorizer.columns), 'column')} for {len(columns)}")
    return ItemEmbedder(**{name: fields[name] for name in _TYPES if name != "columns"}, columns=columns, vectorizer=vectorizer)


def _words_of(text: NDArray[np.generic], idf: NDArray[np.float32]) -> ColumnWords:
    words = bytes(text.astype(np.uint8, casting="no")).decode()
    return ColumnWords(words=tuple(words.split("\n")) if words else (), idf=idf)
