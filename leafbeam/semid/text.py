"""Vectors of what is written about items: TF-IDF and truncated SVD, or any sentence-transformers model.

Shapes: N items, D dimensions.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from importlib import import_module

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from leafbeam.errors import ArgumentError, DataError, MissingExtraError
from leafbeam.semid.arrays import one_thread, unit_rows

__all__ = ["sentence_vectors", "text_columns", "text_vectors", "texts"]

_NUMBER = r"^\s*[$€£]?\s*[-+]?[0-9][0-9.,]*\s*$"
_ADDRESS = r"^\s*https?://"


def text_columns(items: pa.Table) -> tuple[str, ...]:
    """The columns of `items` that hold words: text, or lists of text, that is not mostly numbers or web addresses.

    `item_id` is never one of them. May be empty.
    """
    return tuple(name for name in items.column_names if name != "item_id" and _holds_words(items[name]))


def texts(items: pa.Table, columns: tuple[str, ...]) -> list[str]:
    """Each item's words from `columns`, joined; empty where nothing is known. Raises DataError for a column of no text."""
    for name in columns:
        if name not in items.column_names:
            raise DataError(f"the items have no column {name!r}; they have {', '.join(map(repr, items.column_names))}")
        if not _is_text(items[name].type):
            raise DataError(f"the items' column {name!r} is of type {items[name].type}: choose columns of text")
    joined = [""] * len(items)
    for name in columns:
        joined = [f"{before} . {text}" if before else text for before, text in zip(joined, _plain(items[name]), strict=True)]
    return joined


def text_vectors(items: pa.Table, columns: tuple[str, ...], *, dims: int, seed: int) -> NDArray[np.float32]:
    """TF-IDF of the items' words, one weighting per column, brought to `dims` dimensions by a truncated SVD.

    Each column is a text of its own, so that a brand of one word is not drowned by a title of twenty. Rows have length 1,
    or 0 where an item has no known word. float32 (N, at most dims). Seconds for 20,000 items on one core.
    Raises DataError where no item has a word. (Latent semantic analysis, Deerwester et al., 1990.)
    """
    if dims < 1:
        raise ArgumentError(f"text_dims={dims}: at least 1")
    blocks = []
    for name in columns:
        words = texts(items, (name,))
        # A word that stands at one item only cannot make it resemble another, unless the table is tiny.
        vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2 if len(words) > 20 else 1, dtype=np.float32)  # pyright: ignore[reportArgumentType]
        try:
            blocks.append(vectorizer.fit_transform(words))
        except ValueError:  # no word at all in this column
            continue
    if not blocks:
        raise DataError(f"none of the columns {', '.join(map(repr, columns))} holds a word that two items share")
    weights_NW = csr_array(hstack(blocks))
    if sum(block.shape[1] for block in blocks) <= dims:  # nothing to bring down
        return unit_rows(weights_NW.toarray())
    rank = min(dims, len(items))
    with one_thread():
        return unit_rows(TruncatedSVD(rank, n_iter=5, random_state=seed).fit_transform(weights_NW))


def sentence_vectors(items: pa.Table, columns: tuple[str, ...], *, model: str) -> NDArray[np.float32]:
    """The vectors that a sentence-transformers model gives to the items' texts; rows of length 1, 0 without text.

    `model` is a name or a directory. Raises MissingExtraError where sentence-transformers is not installed.
    """
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


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _plain(values: pa.ChunkedArray) -> list[str]:
    """A column of text, or of lists of text, as one text an item, "" for null."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return [" ".join(word for word in words if word) if words else "" for words in values.to_pylist()]
    return [text or "" for text in values.to_pylist()]


def _holds_words(values: pa.ChunkedArray) -> bool:
    if not _is_text(values.type):
        return False
    flat = pa.array(_plain(values), pa.large_string())
    flat = flat.filter(pc.greater(pc.utf8_length(flat), 0))
    if len(flat) == 0:
        return False
    other = pc.or_(pc.match_substring_regex(flat, _NUMBER), pc.match_substring_regex(flat, _ADDRESS))
    return pc.sum(other).as_py() * 2 < len(flat)
