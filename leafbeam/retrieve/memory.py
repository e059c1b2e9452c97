"""ItemMemory: which items follow which, and which have similar texts.

Shapes: N items, n items of one call, h items of a history, k items of a result.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, ItemIdError, check_whole, counted
from leafbeam.ids import first_of_other_kind, is_possible
from leafbeam.index.items import ItemIds, as_id_array, check_item_ids, check_unique, decode_ids
from leafbeam.retrieve import kernels
from leafbeam.retrieve.fusion import Beams, Fusions, MemoryScores
from leafbeam.retrieve.state import ChangedRow, MemoryFile, MemoryState
from leafbeam.retrieve.text import TextEncoder, TextVectors
from leafbeam.retrieve.transitions import MemoryConfig, count_transitions


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """The largest part of an item's score, which explains why the item was found.

    Attributes:
        channel: The source of the part: "transition" or "text", from an item of the history; "model"; or "popular", if nothing
            found the item and it fills up a short answer.
        item_id: The item of the history.
        score: The part.
    """

    channel: str
    item_id: int | str | None
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryResult:
    """The items that a memory found.

    Attributes:
        item_ids: The items, best first.
        scores: The score of each item.
        reasons: The largest part of each score.
    """

    item_ids: tuple[int | str, ...]
    scores: tuple[float, ...]
    reasons: tuple[Reason, ...]


class ItemMemory:
    """Transitions between items and the similarity of their texts, with which it scores the allowed items for a
    history.

        score(item) = sum over the newest items of the history, each older one at `history_decay`:
            log(1 + count(pair)) / (shrinkage + the largest of its row) + text_weight * cosine(texts), except for the
            item itself

    Nothing is trained. A count covers the two orders of a pair and up to `distances` positions. Items that may not be returned
    cost nothing and never displace others. An item is found if its score is above 0. `fit` and `load` make a memory.

    `version` is the digest of the file from which it was loaded or to which it was saved, and `follows` the version
    that this file replaced. `fusion` says how its scores are added to those of a model, if `fit_fusion` has learnt
    that.

    Args:
        state: The transitions and the texts.
        encoder: The encoder of texts into vectors.
        config: How transitions are counted and added up.
        fusion: The weights beside a model.

    Examples:
        >>> memory = ItemMemory.fit(["a", "b", "c"], np.array([0, 2, 4]), np.array([0, 1, 0, 1]), texts=["red", "blue", "red"])
        >>> memory.search(["a"]).item_ids
        ('b', 'c')
    """

    def __init__(
        self, state: MemoryState, encoder: TextEncoder | None, config: MemoryConfig, fusion: Fusions | None = None
    ) -> None:
        self.config, self.encoder, self.fusion = config, encoder, fusion
        self.version = self.follows = ""
        self._state, self._lock = state, threading.Lock()
        self._changed: dict[int, ChangedRow] = {}
        self._popularity: tuple[MemoryState, NDArray[np.float64]] | None = None

    @classmethod
    def fit(
        cls,
        item_ids: ItemIds,
        indptr_U1: NDArray[np.integer],
        items_E: NDArray[np.integer],
        *,
        times_E: NDArray[np.integer] | None = None,
        texts: Sequence[str] | None = None,
        config: MemoryConfig | None = None,
    ) -> "ItemMemory":
        """Count the transitions of histories, and encode the items' texts.

        This costs a sort of 6 pairs per interaction, and 20 microseconds per text: two seconds for Amazon Beauty.

        Args:
            item_ids: The ids of the items.
            indptr_U1: The start of each history in items_E, and the end of the last.
            items_E: The rows of the items of history u, oldest first, are `items_E[indptr_U1[u]:indptr_U1[u + 1]]`. Sort and
                deduplicate them before (`load_log` does). A history of one item counts for nothing.
            times_E: The times of the interactions, if older ones are to count less (`half_life_days`).
            texts: One text per item, "" for none.
            config: How transitions are counted.

        Raises:
            ItemIdError: If ids are invalid.
            ArgumentError: If the arrays do not fit each other.
        """
        config = config or MemoryConfig()
        ids = check_item_ids(as_id_array(item_ids), len(item_ids))
        check_unique(ids)
        if texts is not None and len(texts) != len(ids):
            raise ArgumentError(
                f"{counted(len(texts), 'text')} for {counted(len(ids), 'item')}: expected one for each item, "
                "'' for an item without text"
            )
        encoder = TextEncoder.fit(texts) if texts is not None and any(texts) else None
        transitions = count_transitions(indptr_U1, items_E, len(ids), config, times_E)
        vectors = TextVectors.of_weights([{}] * len(ids)) if encoder is None or texts is None else encoder.encode(texts)
        return cls(MemoryState.of(ids, transitions, vectors), encoder, config)

    def with_transitions(
        self,
        indptr_U1: NDArray[np.integer],
        items_E: NDArray[np.integer],
        *,
        times_E: NDArray[np.integer] | None = None,
        config: MemoryConfig | None = None,
    ) -> "ItemMemory":
        """Return a memory of the same items and texts that counts other histories.

        Args:
            indptr_U1: As for `fit`.
            items_E: As for `fit`.
            times_E: As for `fit`.
            config: How transitions are counted; None takes this memory's config.
        """
        config = config or self.config
        transitions = count_transitions(indptr_U1, items_E, self.num_items, config, times_E)
        return ItemMemory(self._state.with_transitions(transitions), self.encoder, config, self.fusion)

    def save(self, path: str | os.PathLike[str], *, follows: str = "") -> None:
        """Write one file, atomically. It takes about 150 bytes per item on Amazon Beauty.

        Args:
            path: The file.
            follows: The version that it replaces.
        """
        self._merge()
        file = MemoryFile(state=self._state, encoder=self.encoder, config=self.config, fusion=self.fusion, follows=follows)
        self.version, self.follows = file.write(path), follows

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = True) -> "ItemMemory":
        """Read a file that `save` wrote.

        Args:
            path: The file.
            verify: If false, the file is memory-mapped and trusted (see `Trie.load`).

        Raises:
            IndexFileError: If the file is missing, damaged or not an item memory.
        """
        file, version = MemoryFile.read(path, verify=verify)
        memory = cls(file.state, file.encoder, file.config, file.fusion)
        memory.version, memory.follows = version, file.follows
        return memory

    @property
    def num_items(self) -> int:
        return self._state.items.num_items

    @property
    def id_kind(self) -> str | None:
        """Return the kind of the ids' dtype: "i" for integers, "S" for text; None while there are no items."""
        return self._state.items.kind if self.num_items else None

    @property
    def item_ids(self) -> NDArray[np.generic]:
        """Return the ids of all items, int64 or str, in the order of their rows."""
        return decode_ids(self._state.items.ids_N)

    @property
    def texts(self) -> TextVectors:
        """Return the texts of all items."""
        return self._state.texts

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything that `save` writes."""
        state, encoder = self._state, self.encoder
        arrays = [*state.transitions[:3], state.items.ids_N]
        arrays += [] if encoder is None else [encoder.hashes_T, encoder.idf_T]
        return sum(array.nbytes for array in arrays) + state.texts.nbytes

    def __len__(self) -> int:
        return self.num_items

    def __repr__(self) -> str:
        return f"ItemMemory({counted(self.num_items, 'item')}, {self.nbytes / max(1, self.num_items):.0f} bytes an item)"

    def rows_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """Return the row of each id, -1 for an unknown id."""
        return self._state.items.rows_of(item_ids)

    def ids_of(self, rows_k: NDArray[np.int64]) -> list[int | str]:
        """Return the ids of some rows."""
        return self._state.items.ids_of(rows_k).tolist()

    def beams(self, item_ids: ItemIds, scores_k: NDArray[np.float32]) -> Beams:
        """Return a search's items and their log probabilities as `Beams`. The memory must know all of the items."""
        rows_k, state = self.rows_of(item_ids), self._state
        has_text_k = state.texts.indptr_N1[rows_k + 1] > state.texts.indptr_N1[rows_k]
        return Beams(rows_k, scores_k, has_text_k & ~state.taken_N[rows_k])

    def known(self, item_ids: Sequence[int | str]) -> list[int | str]:
        """Return those ids that the memory has.

        Raises:
            ItemIdError: If the ids are text and the memory's numbers, or the reverse.
        """
        ids_N = self._state.items.ids_N
        self.check_kind(item_ids)
        possible = [item_id for item_id in item_ids if is_possible(item_id, ids_N.dtype.itemsize)]
        return [item_id for item_id, row in zip(possible, self.rows_of(possible).tolist(), strict=True) if row >= 0]

    def observe(self, history: ItemIds, item_id: int | str) -> int:
        """Count one more interaction; searches that begin later see it.

        This takes about 20 microseconds. `save` writes the counts; see LiveMemory for a log of them.

        Args:
            history: The items before it, oldest first. Unknown ids are left out.
            item_id: The item that was taken.

        Returns:
            The number of pairs that were counted.
        """
        config = self.config
        *before, item = self.rows_of([*history[-config.distances :], item_id]).tolist()
        pairs = [(row, distance) for distance, row in enumerate(reversed(before)) if row >= 0]
        if item < 0:
            return 0
        with self._lock:
            self._state.taken_N[item] = True
            for row, distance in pairs:
                self._add(row, item, config.distance_decay**distance)
                self._add(item, row, config.reverse * config.distance_decay**distance)
        return len(pairs)

    def counts(self, item_id: int | str) -> dict[int | str, float]:
        """Return the counts of the items that followed an item; empty for an unknown item."""
        row = int(self.rows_of([item_id])[0])  # type: ignore[list-item]
        if row < 0:
            return {}
        changed = self._changed.get(row)
        items, counts = self._state.transitions.row(row) if changed is None else (changed.items, changed.counts)
        return dict(zip(self.ids_of(items.astype(np.int64)), counts.tolist(), strict=True))

    def _add(self, row: int, item: int, count: float) -> None:
        """Add to one count. The whole row is replaced, so that a search sees either the old row or the new one."""
        changed = self._changed.get(row)
        items, counts = self._state.transitions.row(row) if changed is None else (changed.items, changed.counts)
        at = np.flatnonzero(items == item)
        if len(at):
            counts = counts.copy()
            counts[at[0]] += count
        elif count > 0:
            items, counts = np.append(items, np.uint32(item)), np.append(counts, count)
        if len(items):
            self._changed[row] = ChangedRow.of(items, counts, self.config.shrinkage)

    def _merge(self) -> None:
        """Move the changed rows into the transitions. The largest `max_entries` counts of a row are kept."""
        with self._lock:
            if self._changed:
                self._state, self._changed = self._state.with_rows(self._changed, self.config.max_entries), {}

    def insert(self, item_ids: ItemIds, *, texts: Sequence[str] | None = None, like: Sequence[ItemIds] | None = None) -> None:
        """Add items, or replace the texts of known ones; searches that begin later find them. This copies the texts of all
        items.

        Args:
            item_ids: The ids.
            texts: One text per item; terms that `fit` did not see are ignored.
            like: In place of texts, for each item the ids of items with similar texts.

        Raises:
            ItemIdError: If an id occurs twice or is of the wrong kind.
            ArgumentError: If neither or both of texts and like are given, or they do not fit the ids.
        """
        sources = texts if like is None else like
        if sources is None or (texts is not None and like is not None) or len(sources) != len(item_ids):
            raise ArgumentError(f"{counted(len(item_ids), 'item')}: expected as many texts, or as many lists of similar items")
        if texts is not None and self.encoder is None:
            raise ArgumentError("this memory was fitted without texts: pass like=, or fit it with texts")
        if like is not None:
            state = self._state
            rows = [state.items.rows_of(similar) for similar in like]
            vectors = TextVectors.of_weights([state.texts.mean(row_n[row_n >= 0]) for row_n in rows])
        else:
            assert self.encoder is not None
            assert texts is not None
            vectors = self.encoder.encode(texts)
        self.insert_vectors(item_ids, vectors)

    def insert_vectors(self, item_ids: ItemIds, vectors: TextVectors) -> None:
        """Insert items with texts that are encoded already, such as some of `texts`.

        Raises:
            ArgumentError: If the vectors do not fit.
        """
        ids_n = check_item_ids(as_id_array(item_ids), len(item_ids))
        check_unique(ids_n)
        if len(vectors) != len(ids_n):
            raise ArgumentError(
                f"{counted(len(vectors), 'text')} for {counted(len(ids_n), 'item')}: expected one for each item"
            )
        try:
            vectors.check(0 if self.encoder is None else len(self.encoder.hashes_T))
        except ValueError as error:
            raise ArgumentError(f"these are not texts of this memory: {error}") from error
        with self._lock:
            self.check_kind(decode_ids(ids_n))
            self._state = self._state.with_texts(ids_n, vectors)

    def check_kind(self, item_ids: ItemIds) -> None:
        """Check that ids are of the memory's kind; raise ItemIdError otherwise."""
        wrong = first_of_other_kind(item_ids, self.id_kind)
        if wrong is not None:
            own, other = ("integers", "strings") if self.id_kind == "i" else ("strings", "integers")
            raise ItemIdError(f"the memory's ids are {own}, not {other}: {str(wrong)[:80]!r}")

    def search(
        self,
        history: ItemIds,
        *,
        num_items: int = 10,
        allowed_N: NDArray[np.bool_] | None = None,
        deny: ItemIds = (),
    ) -> MemoryResult:
        """Return the best allowed items after a history. Of items with equal scores, the one with the smaller row comes
        first.

        Fewer items are returned if fewer are found. A search takes about 100 microseconds for 12,000 items, and grows linearly
        with the allowed items.

        Args:
            history: Item ids, oldest first. Unknown ids are ignored.
            num_items: The largest number of items.
            allowed_N: The items that may be returned, in the order of `item_ids`; see `BoundMemory.allowed` for a filter of an
                index.
            deny: Items that may not be returned, such as those that the user has.
        """
        check_whole(num_items=num_items)
        rows_h = self.newest(self.rows_of(history))
        allowed_N = np.ones(self.num_items, np.bool_) if allowed_N is None else allowed_N.copy()
        if allowed_N.shape != (self.num_items,):
            raise ArgumentError(f"allowed_N has shape {allowed_N.shape}: expected ({self.num_items:,},), one for each item")
        deny_ids = as_id_array(deny)
        self._state.items.check_kind("deny", deny_ids)
        denied = self.rows_of(deny_ids)
        allowed_N[denied[denied >= 0]] = False
        scores = self.scores(rows_h, allowed_N)
        total_N = self.total(scores)
        best_k = top_rows(total_N, num_items, minimum=0.0)
        return MemoryResult(
            item_ids=tuple(self.ids_of(best_k)),
            scores=tuple(total_N[best_k].tolist()),
            reasons=tuple(self.reasons(rows_h, best_k, (1.0, self.config.text_weight))),
        )

    def newest(self, rows_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the known rows of a history that are scored, newest first."""
        return np.ascontiguousarray(rows_n[rows_n >= 0][: -self.config.history - 1 : -1])  # kernels compile once for one layout

    def scores(self, rows_h: NDArray[np.int64], allowed_N: NDArray[np.bool_] | None = None) -> MemoryScores:
        """Return both parts of the score of every allowed item.

        Args:
            rows_h: The rows of the history, newest first, as `newest` returns them.
            allowed_N: The items that are allowed; None allows all.
        """
        state = self._state
        if allowed_N is None:
            allowed_N = np.ones(state.items.num_items, np.bool_)
        elif len(allowed_N) < state.items.num_items:  # marked before items were inserted
            allowed_N = np.pad(allowed_N, (0, state.items.num_items - len(allowed_N)))
        transition_N, text_N = np.zeros(len(allowed_N), np.float32), np.zeros(len(allowed_N), np.float32)
        for row, weight in zip(rows_h.tolist(), self._weights(rows_h).tolist(), strict=True):
            items, values = self._row(state, row)
            transition_N[items] += np.float32(weight) * values
        transition_N[~allowed_N] = 0
        if self.encoder is not None:
            texts, query = state.texts, (rows_h, self._weights(rows_h), len(self.encoder.hashes_T))
            kernels.text_scores(texts.indptr_N1, texts.terms_C, texts.weights_C, *query, allowed_N, text_N)
        return MemoryScores(transition_N, text_N, allowed_N)

    def popular(self, allowed_N: NDArray[np.bool_], num_items: int) -> NDArray[np.int64]:
        """Return the rows of the allowed items that were taken most often after others; of equally frequent items, the
        smaller rows.

        Interactions count here once they are saved. This costs a pass over the allowed items, and at the first call one
        over all transitions.
        """
        state, known = self._state, self._popularity
        if known is None or known[0] is not state:
            counts_C = np.expm1(state.transitions.levels_C * np.float64(state.transitions.step))
            known = (
                state,
                np.bincount(state.transitions.items_C, weights=counts_C, minlength=state.items.num_items).astype(np.float64),
            )
            self._popularity = known
        popularity_N = np.where(allowed_N, known[1][: len(allowed_N)], -np.inf)
        return top_rows(popularity_N, num_items, minimum=-np.inf)

    def total(self, scores: MemoryScores) -> NDArray[np.float32]:
        """Return the score of each item; -inf for an item that is not allowed."""
        total_N: NDArray[np.float32] = np.multiply(scores.text_N, self.config.text_weight, dtype=np.float32)
        total_N += scores.transition_N
        total_N[~scores.allowed_N] = -np.inf
        return total_N

    def reasons(self, rows_h: NDArray[np.int64], rows_k: NDArray[np.int64], weights: tuple[float, float]) -> list[Reason]:
        """Return the largest part of the score of each of some items.

        Args:
            rows_h: The rows of the history, newest first.
            rows_k: The rows of the items.
            weights: The weights of transitions and of texts.
        """
        if len(rows_k) == 0:
            return []
        state, weights_h = self._state, self._weights(rows_h)
        parts_chk = np.zeros((2, len(rows_h), len(rows_k)), np.float32)
        for at, row in enumerate(rows_h.tolist()):
            items, values = self._row(state, row)
            row_i, place_i = np.nonzero(items[:, None] == rows_k[None])
            parts_chk[0, at, place_i] = values[row_i]
        texts = state.texts
        cosine_hk = kernels.cosines(texts.indptr_N1, texts.terms_C, texts.weights_C, rows_h, rows_k)
        parts_chk[1] = np.where(np.not_equal.outer(rows_h, rows_k), cosine_hk, 0)
        parts_chk *= weights_h[:, None] * np.asarray(weights, np.float32)[:, None, None]
        if len(rows_h) == 0:
            return [Reason(channel="transition", item_id=None, score=0.0) for _ in rows_k]
        ids, largest_k = self.ids_of(rows_h), np.argmax(parts_chk.reshape(-1, len(rows_k)), axis=0)
        values_k = parts_chk.reshape(-1, len(rows_k)).max(axis=0).tolist()
        return [
            Reason(channel=("transition", "text")[position // len(ids)], item_id=ids[position % len(ids)], score=value)
            for position, value in zip(largest_k.tolist(), values_k, strict=True)
        ]

    def _weights(self, rows_h: NDArray[np.int64]) -> NDArray[np.float32]:
        return (self.config.history_decay ** np.arange(len(rows_h))).astype(np.float32)

    def _row(self, state: MemoryState, item: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.float32]]:
        """Return the transitions of an item, divided by the largest and `shrinkage`."""
        changed = self._changed.get(item)
        return state.row(item, self.config.shrinkage) if changed is None else (changed.items, changed.weights)


def top_rows(scores_N: NDArray[np.floating], num_items: int, *, minimum: float) -> NDArray[np.int64]:
    """Return the rows of the `num_items` largest scores above `minimum`, largest first; of equal ones the smaller row first."""
    if num_items >= len(scores_N):
        rows = np.flatnonzero(scores_N > minimum)
    else:
        threshold = np.partition(scores_N, -num_items)[-num_items]
        rows = np.flatnonzero((scores_N >= threshold) & (scores_N > minimum))
        above, equal = rows[scores_N[rows] > threshold], rows[scores_N[rows] == threshold]
        rows = np.concatenate([above, equal[: num_items - len(above)]])
    return rows[np.lexsort((rows, -scores_N[rows]))]
