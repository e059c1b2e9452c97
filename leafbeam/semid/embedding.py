"""Item embeddings: text vectors beside co-occurrence vectors. Shapes: N items, D dimensions, U sessions, E interactions."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, hstack
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from leafbeam.errors import ArgumentError, DataError, MissingExtraError
from leafbeam.semid.config import EmbeddingConfig
from leafbeam.semid.vectors import unit_rows

_NUMBER = r"^\s*[$€£]?\s*[-+]?[0-9][0-9.,]*\s*$"
_URL = r"^\s*https?://"


class Sessions(Protocol):
    """Item rows of all sessions, concatenated: session u is `items_E[indptr_U1[u]:indptr_U1[u + 1]]`."""

    @property
    def indptr_U1(self) -> NDArray[np.int64]: ...

    @property
    def items_E(self) -> NDArray[np.int32]: ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Embedding:
    """Item vectors (float32), the text columns they were made from, and how many items lack either part."""

    vectors_ND: NDArray[np.float32] = field(repr=False)
    text_columns: tuple[str, ...]
    items_without_text: int
    items_without_behaviour: int


def embed(items: pa.Table, sessions: Sessions | None, *, config: EmbeddingConfig, seed: int = 0) -> Embedding:
    """The vectors of `items` from their text and from `sessions`, deterministic under `seed`.

    sessions: the training part of a split; nothing else of the log is read. None, or a table without a text column, leaves
    that part out, which the counts of the result show. Raises DataError where both parts are missing.
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
    """Fill empty co-occurrence rows with the mean of the nearest items by text (else new items would form a cluster)."""
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


def text_columns(items: pa.Table) -> tuple[str, ...]:
    """The columns of text, or lists of text, that are not mostly numbers or URLs; never `item_id`. May be empty."""
    return tuple(name for name in items.column_names if name != "item_id" and _is_words(items[name]))


def texts(items: pa.Table, columns: tuple[str, ...]) -> list[str]:
    """The text of `columns`, joined for each item, "" where all are empty. Raises DataError for a column that is not text."""
    for name in columns:
        if name not in items.column_names:
            raise DataError(f"the items have no column {name!r}; they have {', '.join(map(repr, items.column_names))}")
        if not _is_text(items[name].type):
            raise DataError(f"the items' column {name!r} is of type {items[name].type}: choose columns of text")
    joined = [""] * len(items)
    for name in columns:
        joined = [
            f"{before} . {text}" if before else text for before, text in zip(joined, _flat_text(items[name]), strict=True)
        ]
    return joined


def text_vectors(items: pa.Table, columns: tuple[str, ...], *, dims: int, seed: int) -> NDArray[np.float32]:
    """TF-IDF of each column, concatenated and reduced to `dims` dimensions by a truncated SVD: float32 (N, at most dims).

    Columns are weighted separately, so a one-word brand counts beside a title of twenty words. Rows have length 1, or 0
    where an item has no known word. Seconds for 20,000 items on one core. Raises DataError where no item has a word.
    (Latent semantic analysis, Deerwester et al., 1990.)
    """
    if dims < 1:
        raise ArgumentError(f"text_dims={dims}: at least 1")
    blocks = []
    for name in columns:
        words = texts(items, (name,))
        # A word of one item only makes no two items similar; tiny tables keep such words.
        vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2 if len(words) > 20 else 1, dtype=np.float32)  # pyright: ignore[reportArgumentType]
        try:
            blocks.append(vectorizer.fit_transform(words))
        except ValueError:  # no word in this column
            continue
    if not blocks:
        raise DataError(f"none of the columns {', '.join(map(repr, columns))} holds a word that two items share")
    weights_NW = csr_array(hstack(blocks))
    if sum(block.shape[1] for block in blocks) <= dims:  # few enough dimensions already
        return unit_rows(weights_NW.toarray())
    rank = min(dims, len(items))
    with threadpool_limits(1):
        return unit_rows(TruncatedSVD(rank, n_iter=5, random_state=seed).fit_transform(weights_NW))


def sentence_vectors(items: pa.Table, columns: tuple[str, ...], *, model: str) -> NDArray[np.float32]:
    """The items' texts under a sentence-transformers model; rows of length 1, 0 without text. Raises MissingExtraError."""
    try:
        library = import_module("sentence_transformers")
    except ImportError as error:
        raise MissingExtraError(
            f"the text model {model!r} needs sentence-transformers: pip install sentence-transformers, or use text='tfidf'"
        ) from error
    words = texts(items, columns)
    vectors_ND = np.asarray(library.SentenceTransformer(model).encode(words, show_progress_bar=False), dtype=np.float32)
    vectors_ND[[not text for text in words]] = 0
    return unit_rows(vectors_ND)


def _is_text(dtype: pa.DataType) -> bool:
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        dtype = dtype.value_type
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)


def _flat_text(values: pa.ChunkedArray) -> list[str]:
    """One text an item: lists are joined, null becomes ""."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return [" ".join(word for word in words if word) if words else "" for words in values.to_pylist()]
    return [text or "" for text in values.to_pylist()]


def _is_words(values: pa.ChunkedArray) -> bool:
    if not _is_text(values.type):
        return False
    flat = pa.array(_flat_text(values), pa.large_string())
    flat = flat.filter(pc.greater(pc.utf8_length(flat), 0))
    if len(flat) == 0:
        return False
    numbers_or_urls = pc.or_(pc.match_substring_regex(flat, _NUMBER), pc.match_substring_regex(flat, _URL))
    return pc.sum(numbers_or_urls).as_py() * 2 < len(flat)


def positive_pmi(sessions: Sessions, num_items: int, *, window: int) -> csr_array:
    """Positive PMI of items at most `window` apart in a session: max(0, log P(a,b)/P(a)P(b)); sparse, empty diagonal."""
    if window < 1:
        raise ArgumentError(f"window={window}: at least 1")
    items_E = sessions.items_E.astype(np.int64)
    if len(items_E) and not 0 <= items_E.min() <= items_E.max() < num_items:
        raise DataError(f"the sessions name item rows {items_E.min()} to {items_E.max()}, but there are {num_items:,} items")
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
    """Vectors of items that co-occur: U sqrt(S) of the truncated SVD of the positive PMI. float32 (N, min(dims, N)).

    Rows have length 1, or 0 for an item that never co-occurs. Raises DataError where no session has two different items.
    """
    if dims < 1:
        raise ArgumentError(f"behaviour_dims={dims}: at least 1")
    pmi_NN = positive_pmi(sessions, num_items, window=window)
    if pmi_NN.nnz == 0:
        raise DataError("no session has two different items: there is no co-occurrence to learn vectors from")
    with threadpool_limits(1):  # one order of summation, so equal seeds give equal bits
        left_ND, singular_D, _ = randomized_svd(pmi_NN, min(dims, num_items), n_iter=5, random_state=seed)  # pyright: ignore[reportArgumentType]
    vectors_ND = left_ND * np.sqrt(singular_D)
    vectors_ND[np.diff(pmi_NN.indptr) == 0] = 0  # the SVD leaves rounding noise in empty rows
    return unit_rows(vectors_ND)
