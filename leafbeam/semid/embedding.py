"""Item embeddings: text vectors beside co-occurrence vectors. Shapes: N items, D dimensions, U sessions, E interactions."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from leafbeam.errors import DataError, check_whole, counted
from leafbeam.semid.config import EmbeddingConfig
from leafbeam.semid.embedder import ItemEmbedder, borrowed_behaviour, sentence_vectors
from leafbeam.semid.text_vectorizer import TextVectorizer
from leafbeam.semid.texts import text_columns, texts
from leafbeam.semid.vectors import unit_rows


class Sessions(Protocol):
    """Item rows of all sessions, concatenated: session u is `items_E[indptr_U1[u]:indptr_U1[u + 1]]`."""

    @property
    def indptr_U1(self) -> NDArray[np.int64]: ...

    @property
    def items_E(self) -> NDArray[np.int32]: ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Embedding:
    """Item vectors (float32), the text columns from which they were made, and the numbers of items without text and
    without co-occurrence.

    `embedder` makes the vectors of new items; it is None if these are not made from text. `complete_R` are the rows of the
    items that have every part; None is all. `notes` are sentences that name the parts that were left out because there
    is no data for them.
    """

    vectors_ND: NDArray[np.float32] = field(repr=False)
    embedder: ItemEmbedder | None = None
    complete_R: NDArray[np.int64] | None = None
    text_columns: tuple[str, ...]
    items_without_text: int
    items_without_behaviour: int
    notes: tuple[str, ...] = ()


def embed(items: pa.Table, sessions: Sessions | None, *, config: EmbeddingConfig, seed: int = 0) -> Embedding:
    """Return the vectors of `items` from their text and from `sessions`, deterministic under `seed`.

    `sessions` are the training part of a split; nothing else of the log is read. With None, or a table without a text
    column, that part is left out; the counts of the result show it. Raises DataError if both parts are missing.
    """
    columns = config.text_columns if config.text_columns is not None else text_columns(items)
    text_NT = behaviour_NB = np.empty((len(items), 0), np.float32)
    without_text = without_behaviour = len(items)
    vectorizer = None
    if config.text == "none":
        columns = ()
    elif columns:
        if config.text == "tfidf":
            vectorizer, text_NT = fit_vectorizer(items, columns, dims=config.text_dims, seed=seed)
        else:
            text_NT = sentence_vectors(items, columns, model=config.text)
        without_text = _count_empty(text_NT)
    notes: tuple[str, ...] = ()
    if sessions is not None and config.behaviour_dims and text_NT.shape[1] and not has_pairs(sessions):
        notes = ("No session has two different items, so the vectors are made of text alone",)
    elif sessions is not None and config.behaviour_dims:
        behaviour_NB = behaviour_vectors(sessions, len(items), dims=config.behaviour_dims, window=config.window, seed=seed)
        without_behaviour = _count_empty(behaviour_NB)
    if not text_NT.shape[1] + behaviour_NB.shape[1]:
        raise DataError(
            f"nothing to make vectors from: no column of {', '.join(map(repr, items.column_names))} holds words, and "
            "co-occurrence is left out. Name text_columns, pass training sessions, or pass vectors of your own"
        )
    has_text_N, has_behaviour_N = text_NT.any(axis=1), behaviour_NB.any(axis=1)
    known_R, missing_n = np.flatnonzero(has_behaviour_N & has_text_N), np.flatnonzero(~has_behaviour_N & has_text_N)
    if len(known_R) and len(missing_n) and config.neighbours:
        behaviour_NB = behaviour_NB.copy()
        with threadpool_limits(1):  # one order of summation, so equal seeds give equal bits
            behaviour_NB[missing_n] = borrowed_behaviour(
                text_NT[missing_n], text_NT[known_R], behaviour_NB[known_R], neighbours=config.neighbours
            )
    embedder = ItemEmbedder(
        columns=columns,
        vectorizer=vectorizer,
        model=config.text,
        neighbours=config.neighbours,
        behaviour_weight=config.behaviour_weight,
        behaviour_dims=behaviour_NB.shape[1],
    )
    return Embedding(
        vectors_ND=np.concatenate([text_NT, behaviour_NB * np.float32(config.behaviour_weight)], axis=1),
        embedder=embedder if columns else None,
        complete_R=known_R if behaviour_NB.shape[1] else np.flatnonzero(has_text_N),
        text_columns=columns,
        items_without_text=without_text,
        items_without_behaviour=without_behaviour,
        notes=notes,
    )


def _count_empty(vectors_ND: NDArray[np.float32]) -> int:
    return int((~vectors_ND.any(axis=1)).sum())


def text_vectors(items: pa.Table, columns: tuple[str, ...], *, dims: int, seed: int) -> NDArray[np.float32]:
    """Return the vectors of `TextVectorizer` for the text of `columns`; raise DataError if no item has a word."""
    return fit_vectorizer(items, columns, dims=dims, seed=seed)[1]


def fit_vectorizer(
    items: pa.Table, columns: tuple[str, ...], *, dims: int, seed: int
) -> tuple[TextVectorizer, NDArray[np.float32]]:
    """Call `TextVectorizer.fit` on the text of `columns`; raise DataError if no item has a word."""
    fitted = TextVectorizer.fit([texts(items, (name,)) for name in columns], dims=dims, seed=seed)
    if fitted is None:
        raise DataError(f"none of the columns {', '.join(map(repr, columns))} holds a word that two items share")
    return fitted


def has_pairs(sessions: Sessions) -> bool:
    """Return whether a session has two different items next to each other."""
    session_E = np.repeat(np.arange(len(sessions.indptr_U1) - 1), np.diff(sessions.indptr_U1))
    return bool(((session_E[1:] == session_E[:-1]) & (sessions.items_E[1:] != sessions.items_E[:-1])).any())


def positive_pmi(sessions: Sessions, num_items: int, *, window: int) -> csr_array:
    """Return the positive PMI of items at most `window` apart in a session, max(0, log P(a,b)/P(a)P(b)), sparse."""
    check_whole(window=window)
    items_E = sessions.items_E.astype(np.int64)
    if len(items_E) and not 0 <= items_E.min() <= items_E.max() < num_items:
        raise DataError(
            f"the sessions name item rows {items_E.min()} to {items_E.max()}, but there are {counted(num_items, 'item')}"
        )
    session_E = np.repeat(np.arange(len(sessions.indptr_U1) - 1), np.diff(sessions.indptr_U1))
    lefts, rights = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for lag in range(1, window + 1):
        pair = (session_E[lag:] == session_E[:-lag]) & (items_E[lag:] != items_E[:-lag])
        lefts.append(items_E[:-lag][pair])
        rights.append(items_E[lag:][pair])
    left, right = np.concatenate(lefts), np.concatenate(rights)
    pairs = np.concatenate([left, right]), np.concatenate([right, left])
    counts = coo_array((np.ones(len(pairs[0])), pairs), shape=(num_items, num_items)).tocsr().tocoo()
    totals_N = np.bincount(counts.row, weights=counts.data, minlength=num_items)
    pmi = np.log(counts.data * totals_N.sum() / (totals_N[counts.row] * totals_N[counts.col]))
    keep = pmi > 0
    entries = (pmi[keep].astype(np.float32), (counts.row[keep], counts.col[keep]))
    return coo_array(entries, shape=(num_items, num_items)).tocsr()


def behaviour_vectors(sessions: Sessions, num_items: int, *, dims: int, window: int, seed: int) -> NDArray[np.float32]:
    """Return vectors of items that co-occur: U sqrt(S) of the truncated SVD of the positive PMI, float32 (N, min(dims, N)).

    Rows have length 1, or 0 for an item that never co-occurs. Raises DataError if no session has two different items.
    """
    check_whole(behaviour_dims=dims)
    pmi_NN = positive_pmi(sessions, num_items, window=window)
    if pmi_NN.nnz == 0:
        raise DataError(
            "no session has two different items: there is no co-occurrence to learn vectors from. Add a column of text to the "
            "items, or pass vectors of your own"
        )
    with threadpool_limits(1):  # one order of summation, so equal seeds give equal bits
        left_ND, singular_D, _ = randomized_svd(pmi_NN, min(dims, num_items), n_iter=5, random_state=seed)  # pyright: ignore[reportArgumentType]
    vectors_ND = left_ND * np.sqrt(singular_D)
    vectors_ND[np.diff(pmi_NN.indptr) == 0] = 0  # the SVD leaves rounding noise in empty rows
    return unit_rows(vectors_ND)
