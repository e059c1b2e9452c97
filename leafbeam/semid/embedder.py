"""ItemEmbedder: the vectors of new items, on the axes of the items of a fit.

Shapes: n new items, R items of the fit, T dimensions of text, B of behaviour.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from dataclasses import dataclass
from importlib import import_module

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.errors import MissingExtraError
from leafbeam.semid.text_vectorizer import TextVectorizer
from leafbeam.semid.texts import texts
from leafbeam.semid.vectors import unit_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemEmbedder:
    """An encoder that turns a new item's text into a vector, as `embed` does for items without interactions.

        vector = its text's vector, then the mean behaviour of the `neighbours` nearest items by text, of length
        `behaviour_weight`

    `columns` are the columns of text. `vectorizer` makes TF-IDF vectors; without one, `model` names a sentence-transformers
    model. `behaviour_dims` is B.
    """

    columns: tuple[str, ...]
    vectorizer: TextVectorizer | None
    model: str
    neighbours: int
    behaviour_weight: float
    behaviour_dims: int

    def embed(self, items: pa.Table, vectors_RD: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vectors (n, T + B) of items by their text; rows of 0 if no word is known. `vectors_RD` are of items with
        behaviour.

        An item costs 0.1 ms, and a product with the R vectors.

        Raises:
            DataError: If a column is missing or is not text.
            MissingExtraError: If sentence-transformers is needed and not installed.
        """
        if self.vectorizer is None:
            text_nT = sentence_vectors(items, self.columns, model=self.model)
        else:
            text_nT = self.vectorizer.encode([texts(items, (name,)) for name in self.columns])
        behaviour_nB = np.zeros((len(text_nT), self.behaviour_dims), np.float32)
        has_text_n, num_dims = text_nT.any(axis=1), text_nT.shape[1]
        if self.neighbours and self.behaviour_dims:
            text_RT, behaviour_RB = vectors_RD[:, :num_dims], vectors_RD[:, num_dims:]
            found_nB = borrowed_behaviour(text_nT[has_text_n], text_RT, behaviour_RB, neighbours=self.neighbours)
            behaviour_nB[has_text_n] = found_nB * np.float32(self.behaviour_weight)
        return np.concatenate([text_nT, behaviour_nB], axis=1)


def borrowed_behaviour(
    text_nT: NDArray[np.float32], text_RT: NDArray[np.float32], behaviour_RB: NDArray[np.float32], *, neighbours: int
) -> NDArray[np.float32]:
    """Return the mean behaviour of the nearest of R items by text, weighted by the cosine: (n, B); 0 if none is near.

    Without it, items without interactions would form a cluster of their own.
    """
    borrowed_nB = np.zeros((len(text_nT), behaviour_RB.shape[1]), np.float32)
    if len(text_RT) == 0:
        return borrowed_nB
    block = max(1, min(1024, (1 << 26) // len(text_RT)))
    for start in range(0, len(text_nT), block):
        cosine_nR = np.maximum(text_nT[start : start + block] @ text_RT.T, 0)
        nearest_nk = _largest(cosine_nR, neighbours)
        weights_nk = np.take_along_axis(cosine_nR, nearest_nk, axis=1)
        borrowed_nB[start : start + block] = unit_rows((weights_nk[:, :, None] * behaviour_RB[nearest_nk]).sum(axis=1))
    return borrowed_nB


def _largest(values_nR: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the columns of the `count` largest values of each row, largest first; of equal values, the first column
    comes first.
    """
    if count >= values_nR.shape[1]:
        return np.argsort(-values_nR, axis=1, kind="stable")[:, :count]
    least_n1 = -np.partition(-values_nR, count - 1, axis=1)[:, count - 1 : count]
    rows = []
    for values_R, threshold in zip(values_nR, least_n1, strict=True):
        candidates = np.flatnonzero(values_R >= threshold)
        rows.append(candidates[np.argsort(-values_R[candidates], kind="stable")[:count]])
    return np.stack(rows) if rows else np.empty((0, count), np.int64)


def sentence_vectors(items: pa.Table, columns: tuple[str, ...], *, model: str) -> NDArray[np.float32]:
    """Return the vectors of the items' texts under a sentence-transformers model; rows of length 1, 0 without text."""
    try:
        library = import_module("sentence_transformers")
    except ImportError as error:
        raise MissingExtraError(
            f"the text model {model!r} needs sentence-transformers: pip install sentence-transformers, or use text='tfidf'"
        ) from error
    words = texts(items, columns)
    vectors_nT = np.asarray(library.SentenceTransformer(model).encode(words, show_progress_bar=False), dtype=np.float32)
    vectors_nT[[not text for text in words]] = 0
    return unit_rows(vectors_nT)
