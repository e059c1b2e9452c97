"""TextVectorizer: the vectors of texts by latent semantic analysis, also of texts that come later.

Shapes: n texts, W words of all columns, D dimensions.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import check_whole, counted
from leafbeam.semid.vectors import unit_rows

_WORD = re.compile(r"\w\w+")  # as scikit-learn finds them
_MAX = 1e3  # beyond any inverse document frequency, and any entry of an axis of length 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnWords:
    """The words of a column that `fit` kept, and their inverse document frequencies."""

    words: tuple[str, ...] = field(repr=False)
    idf: NDArray[np.float32] = field(repr=False)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Return the number of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def weights(self, text: str) -> tuple[list[int], NDArray[np.float32]]:
        """Return the known words of a text, and their TF-IDF weights, scaled to a vector of length 1."""
        counts = Counter(row for word in _WORD.findall(text.lower()) if (row := self.row_of.get(word)) is not None)
        rows = list(counts)
        weights = (1 + np.log(np.fromiter(counts.values(), np.float32, len(rows)))) * self.idf[rows]
        length = np.linalg.norm(weights)
        return rows, (weights / length if length else weights).astype(np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class TextVectorizer:
    """TF-IDF of each column, concatenated and reduced by a truncated SVD. (Latent semantic analysis, Deerwester et al., 1990.)

    Columns are weighted separately, so a one-word brand counts beside a title of twenty words. `columns` are the words of each.
    `axes_WD` are the axes of the SVD; None if there are so few words that each is a dimension.

    Examples:
        >>> vectorizer, vectors = TextVectorizer.fit([["red shoe", "red boot", "green tea"]], dims=8)
        >>> np.allclose(vectorizer.encode([["red shoe"]])[0], vectors[0])
        True
    """

    columns: tuple[ColumnWords, ...]
    axes_WD: NDArray[np.float32] | None = field(repr=False)

    @classmethod
    def fit(
        cls, texts: Sequence[Sequence[str]], *, dims: int, seed: int = 0
    ) -> "tuple[TextVectorizer, NDArray[np.float32]] | None":
        """Return the vectorizer of some texts, and their vectors, (n, at most dims); None if no column has a word.

        `texts` has one list per column, with one text per item. 20,000 items take seconds on one core. Raises ArgumentError.
        """
        from scipy.sparse import csr_array, hstack  # a second to import: only fitting needs them
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from threadpoolctl import threadpool_limits

        check_whole(text_dims=dims)
        columns: list[ColumnWords] = []
        blocks = []
        for words in texts:
            # A word of one item only makes no two items similar; tiny tables keep such words.
            fitted = TfidfVectorizer(sublinear_tf=True, min_df=2 if len(words) > 20 else 1, dtype=np.float32)  # pyright: ignore[reportArgumentType]
            try:
                blocks.append(fitted.fit_transform(words))
            except ValueError:  # no word in this column
                columns.append(ColumnWords(words=(), idf=np.empty(0, np.float32)))
                continue
            names = tuple(str(name) for name in fitted.get_feature_names_out())
            columns.append(ColumnWords(words=names, idf=np.asarray(fitted.idf_, np.float32)))
        if not blocks:
            return None
        weights_nW = csr_array(hstack(blocks))
        num_words = sum(len(column.words) for column in columns)
        if num_words <= dims:  # few enough dimensions already
            return cls(columns=tuple(columns), axes_WD=None), unit_rows(weights_nW.toarray())
        with threadpool_limits(1):
            svd = TruncatedSVD(min(dims, len(texts[0])), n_iter=5, random_state=seed)
            vectors_nD = unit_rows(svd.fit_transform(weights_nW))
        axes_WD = np.ascontiguousarray(np.asarray(svd.components_).T, np.float32)
        return cls(columns=tuple(columns), axes_WD=axes_WD), vectors_nD

    @property
    def num_words(self) -> int:
        return sum(len(column.words) for column in self.columns)

    @property
    def num_dims(self) -> int:
        return self.num_words if self.axes_WD is None else self.axes_WD.shape[1]

    def encode(self, texts: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        """Return the vectors (n, D) of texts, one list per column: rows of length 1, or 0 if no word is known.

        A text takes 0.1 ms.
        """
        vectors_nD = np.zeros((len(texts[0]), self.num_dims), np.float32)
        for first, column, words in zip(self._first_rows(), self.columns, texts, strict=True):
            for number, text in enumerate(words):
                rows, weights = column.weights(text)
                if self.axes_WD is None:
                    vectors_nD[number, [first + row for row in rows]] = weights
                elif rows:
                    vectors_nD[number] += weights @ self.axes_WD[[first + row for row in rows]]
        return unit_rows(vectors_nD)

    def _first_rows(self) -> Iterator[int]:
        first = 0
        for column in self.columns:
            yield first
            first += len(column.words)

    def check(self) -> None:
        """Raise ValueError unless words and axes fit each other."""
        for column in self.columns:
            shape, idf = (len(column.row_of),), column.idf
            if idf.dtype != np.float32 or idf.shape != shape or len(column.words) != len(idf) or not (np.abs(idf) < _MAX).all():
                raise ValueError(f"{counted(len(column.words), 'word')}, and frequencies of {idf.dtype} {idf.shape}")
        axes_WD = self.axes_WD
        if axes_WD is not None and (axes_WD.ndim != 2 or len(axes_WD) != self.num_words or not (np.abs(axes_WD) < _MAX).all()):
            raise ValueError(f"axes of shape {axes_WD.shape} for {counted(self.num_words, 'word')}")
