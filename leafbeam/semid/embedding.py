"""Item embeddings: text vectors concatenated with co-occurrence vectors.

Shapes: N items, D dimensions.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from leafbeam.errors import DataError
from leafbeam.semid.behaviour import Sessions, behaviour_vectors
from leafbeam.semid.config import EmbeddingConfig
from leafbeam.semid.text import sentence_vectors, text_columns, text_vectors
from leafbeam.semid.vectors import unit_rows

__all__ = ["Embedding", "embed"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Embedding:
    """Item vectors (float32), the text columns they were made from, and how many items lack either part."""

    vectors_ND: NDArray[np.float32] = field(repr=False)
    text_columns: tuple[str, ...]
    items_without_text: int
    items_without_behaviour: int


def embed(items: pa.Table, sessions: Sessions | None, *, config: EmbeddingConfig, seed: int = 0) -> Embedding:
    """The vectors of `items` from their text and from `sessions`.

    sessions: pass the training part of a split; nothing else of the log is read. None, or a table without a text column,
    leaves that part out, which the counts of the result show. Deterministic under `seed`, on one thread.
    Raises DataError where both parts are missing.
    """
    columns = config.text_columns if config.text_columns is not None else text_columns(items)
    parts: list[NDArray[np.float32]] = []
    without_text = without_behaviour = len(items)
    if config.text == "none":
        columns = ()
    elif columns:
        if config.text == "tfidf":
            text_ND = text_vectors(items, columns, dims=config.text_dims, seed=seed)
        else:
            text_ND = sentence_vectors(items, columns, model=config.text)
        without_text = _count_empty(text_ND)
        parts.append(text_ND)
    if sessions is not None and config.behaviour_dims:
        behaviour_ND = behaviour_vectors(sessions, len(items), dims=config.behaviour_dims, window=config.window, seed=seed)
        without_behaviour = _count_empty(behaviour_ND)
        if parts and config.neighbours:
            behaviour_ND = _impute_cooccurrence(parts[0], behaviour_ND, config.neighbours)
        parts.append(behaviour_ND * np.float32(config.behaviour_weight))
    if not parts:
        raise DataError(
            f"nothing to make vectors from: no column of {', '.join(map(repr, items.column_names))} holds words, and "
            "co-occurrence is left out. Name text_columns, pass training sessions, or pass vectors of your own"
        )
    return Embedding(
        vectors_ND=np.concatenate(parts, axis=1),
        text_columns=columns,
        items_without_text=without_text,
        items_without_behaviour=without_behaviour,
    )


def _impute_cooccurrence(
    text_ND: NDArray[np.float32], behaviour_ND: NDArray[np.float32], neighbours: int, *, block: int = 1024
) -> NDArray[np.float32]:
    """Fill empty co-occurrence rows with the mean of the nearest items by text, weighted by cosine.

    Otherwise new items would form a cluster of their own, apart from similar known items.
    """
    has_text_N, known_N = text_ND.any(axis=1), behaviour_ND.any(axis=1)
    known, missing = np.flatnonzero(known_N & has_text_N), np.flatnonzero(~known_N & has_text_N)
    imputed_ND = behaviour_ND.copy()
    if len(known) == 0:
        return imputed_ND
    with threadpool_limits(1):
        for start in range(0, len(missing), block):
            rows = missing[start : start + block]
            cosine = np.maximum(text_ND[rows] @ text_ND[known].T, 0)
            nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :neighbours]
            weights = np.take_along_axis(cosine, nearest, axis=1)
            imputed_ND[rows] = unit_rows((weights[:, :, None] * behaviour_ND[known[nearest]]).sum(axis=1))
    return imputed_ND


def _count_empty(vectors_ND: NDArray[np.float32]) -> int:
    return int((~vectors_ND.any(axis=1)).sum())
