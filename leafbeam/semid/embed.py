"""One vector an item: what is written about it, joined with what it is taken with.

Shapes: N items, D dimensions.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, DataError
from leafbeam.semid.arrays import check_vectors, one_thread, unit_rows
from leafbeam.semid.behaviour import Sessions, behaviour_vectors
from leafbeam.semid.text import sentence_vectors, text_columns, text_vectors

__all__ = ["Embedding", "EmbeddingConfig", "embed", "load_vectors"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingConfig:
    """What an item's vector is made of.

    text: "tfidf" (nothing to download), "none", or the name or directory of a sentence-transformers model.
    text_columns: columns of the item table to read; None takes every column that holds words.
    text_dims: what TF-IDF is brought down to.
    behaviour_dims: how many dimensions co-occurrence gets; 0 leaves behaviour out.
    window: how many places apart two items of a session may stand to count as taken together.
    behaviour_weight: the length of the behaviour part beside a text part of length 1.
    neighbours: an item without behaviour (a new one) borrows that of so many items of the nearest text; 0 leaves zeros.

    The weight was chosen on the validation items of Amazon Beauty (a decoder of 0.9M parameters, four epochs, 3 x 256
    codes, one run each, standard error 0.002): Recall@10 is 0.061 at a weight of 0.5, 0.067 at 0.7, 0.069 at 1.5 and
    0.066 at 2.5. Bringing the joined vectors down to 64 dimensions (weight 1.0) evens the codebooks out, perplexities
    218, 215, 189 in place of 207, 123, 95 (0.7), and halves the collisions, but the codes were harder to learn: 0.069
    against 0.077 after four epochs of eight (a third of the users, standard error 0.003).
    """

    text: str = "tfidf"
    text_columns: tuple[str, ...] | None = None
    text_dims: int = 256
    behaviour_dims: int = 128
    window: int = 5
    behaviour_weight: float = 1.5
    neighbours: int = 10

    def __post_init__(self) -> None:
        if not self.text:
            raise ArgumentError("text='': choose 'tfidf', 'none' or a sentence-transformers model")
        if self.text_dims < 1 or self.behaviour_dims < 0 or self.window < 1 or self.neighbours < 0:
            raise ArgumentError(
                f"text_dims={self.text_dims}, behaviour_dims={self.behaviour_dims}, window={self.window}, "
                f"neighbours={self.neighbours}: at least 1, 0, 1 and 0"
            )
        if not 0 < self.behaviour_weight < float("inf"):
            raise ArgumentError(f"behaviour_weight={self.behaviour_weight}: a positive number (behaviour_dims=0 leaves it out)")
        if self.text == "none" and self.behaviour_dims == 0:
            raise ArgumentError("text='none' and behaviour_dims=0 leave nothing to make vectors from")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Embedding:
    """The items' vectors, and what went into them.

    vectors_ND: float32. text_columns: the columns read (empty: no text, or a matrix of the user's own).
    items_without_text, items_without_behaviour: how many items have none of their own (all N where it is left out).
    """

    vectors_ND: NDArray[np.float32]
    text_columns: tuple[str, ...]
    items_without_text: int
    items_without_behaviour: int


def embed(items: pa.Table, sessions: Sessions | None, *, config: EmbeddingConfig, seed: int = 0) -> Embedding:
    """The vectors of `items`, from their text and from `sessions`, which are everything that is learnt of behaviour.

    Pass the training part of a split: an embedding never sees a log, so it cannot see what the log holds out.
    Parts that cannot be had are left out, and the counts in the result say so: no text column, or `sessions=None`.
    Deterministic under `seed`, on one thread. Raises DataError where neither part can be had.
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
            behaviour_ND = _lend(parts[0], behaviour_ND, config.neighbours)
        parts.append(behaviour_ND * np.float32(config.behaviour_weight))
    if not parts:
        raise DataError(
            f"nothing to make vectors from: no column of {', '.join(map(repr, items.column_names))} holds words, and "
            "behaviour is left out. Name text_columns, pass training sessions, or bring vectors of your own"
        )
    return Embedding(
        vectors_ND=np.concatenate(parts, axis=1),
        text_columns=columns,
        items_without_text=without_text,
        items_without_behaviour=without_behaviour,
    )


def load_vectors(path: str | Path, item_ids: NDArray[np.generic]) -> NDArray[np.float32]:
    """A user's own matrix, one row for each of `item_ids` in their order: float32 (N, D).

    `.npy`: rows already in that order. `.parquet`: a column item_id and one column of lists of numbers; any order, items
    that are not asked for are passed over. Raises DataError for another shape, an item without a vector, NaN.
    """
    place = Path(path)
    try:
        if place.suffix == ".npy":
            vectors = np.load(place, allow_pickle=False)
        elif place.suffix == ".parquet":
            vectors = _rows_of(pq.read_table(place), item_ids, place)
        else:
            raise DataError(f"{place.name} is neither .npy nor .parquet: convert the vectors to one of them")
    except (OSError, EOFError, ValueError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{place} cannot be read as vectors: {error}") from error
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or len(vectors) != len(item_ids):
        shape = getattr(vectors, "shape", "several arrays")
        raise DataError(f"{place} has shape {shape}: {len(item_ids):,} rows are expected, one an item")
    return check_vectors(vectors, str(place))


def _rows_of(table: pa.Table, item_ids: NDArray[np.generic], place: Path) -> NDArray[np.generic]:
    """The vectors of `item_ids` from a table of item_id and one column of lists."""
    lists = [
        field.name
        for field in table.schema
        if pa.types.is_list(field.type) or pa.types.is_large_list(field.type) or pa.types.is_fixed_size_list(field.type)
    ]
    if "item_id" not in table.column_names or len(lists) != 1:
        raise DataError(
            f"{place} has the columns {', '.join(map(repr, table.column_names))}: item_id and one list are expected"
        )
    row_of = {item: row for row, item in enumerate(table["item_id"].to_pylist())}
    if len(row_of) < len(table):
        raise DataError(f"{place} gives some item more than one vector: keep one")
    missing = [item for item in item_ids.tolist() if item not in row_of]
    if missing:
        raise DataError(f"{place} has no vector for {len(missing):,} items, the first is {missing[0]!r}")
    values = table[lists[0]].to_pylist()
    rows = [values[row_of[item]] for item in item_ids.tolist()]
    widths = {len(row) if row is not None else 0 for row in rows}
    if len(widths) != 1 or any(number is None for row in rows for number in row or ()):
        raise DataError(f"{place}: every vector needs the same number of numbers, without nulls; widths {sorted(widths)[:5]}")
    return np.asarray(rows)


def _lend(
    text_ND: NDArray[np.float32], behaviour_ND: NDArray[np.float32], neighbours: int, *, block: int = 1024
) -> NDArray[np.float32]:
    """Behaviour for items that have none: the mean over the items of the nearest text, weighted by how near they are.

    Without it new items would lie together, apart from everything they resemble, and share codes of their own.
    """
    has_text_N, known_N = text_ND.any(axis=1), behaviour_ND.any(axis=1)
    lenders, borrowers = np.flatnonzero(known_N & has_text_N), np.flatnonzero(~known_N & has_text_N)
    lent_ND = behaviour_ND.copy()
    if len(lenders) == 0:
        return lent_ND
    with one_thread():
        for start in range(0, len(borrowers), block):
            rows = borrowers[start : start + block]
            nearness = np.maximum(text_ND[rows] @ text_ND[lenders].T, 0)
            nearest = np.argsort(-nearness, axis=1, kind="stable")[:, :neighbours]
            weights = np.take_along_axis(nearness, nearest, axis=1)
            lent_ND[rows] = unit_rows((weights[:, :, None] * behaviour_ND[lenders[nearest]]).sum(axis=1))
    return lent_ND


def _count_empty(vectors_ND: NDArray[np.float32]) -> int:
    return int((~vectors_ND.any(axis=1)).sum())
