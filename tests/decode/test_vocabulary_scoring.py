"""Scoring "vocabulary": a code's probability among all tokens of the model, of which the codes of a level are a few."""

from typing import Any

import numpy as np
import pytest

from leafbeam import BeamSearch, Trie
from leafbeam.automata import Automaton
from leafbeam.decode import SequenceSearch
from leafbeam.errors import ArgumentError, LogitsError

NUM_TOKENS, SIZES = 64, (32, 6, 5)  # a level of as many codes as a chunk of a compiled backend
Path = tuple[int, ...]


class Model:
    """Logits over all tokens, drawn by a beam's codes; the codes of a level are tokens anywhere among them."""

    def __init__(self, seed: int, batch: int = 1, sizes: tuple[int, ...] = SIZES) -> None:
        rng = np.random.default_rng(seed)
        self.seed, self.sizes = seed, sizes
        self.tokens = [rng.permutation(NUM_TOKENS)[:size] for size in sizes]
        self.levels: list[list[list[Path]]] = [[[()] for _ in range(batch)]]
        self.calls = 0

    def logits(self, request: int, path: Path) -> np.ndarray:
        return 3 * np.random.default_rng([self.seed, request, *path]).normal(size=NUM_TOKENS)

    def row(self, request: int, path: Path) -> np.ndarray:
        """The logits of the codes after a path, and that of any other token."""
        logits_W, tokens_V = self.logits(request, path), self.tokens[len(path)]
        return np.float32([*logits_W[tokens_V], np.logaddexp.reduce(np.delete(logits_W, tokens_V))])

    def score(self, request: int, sid: Path) -> float:
        """The sum of log probabilities of an item's tokens, in float64."""
        rows = [self.logits(request, sid[:level]) for level in range(len(sid))]
        return sum(
            row[self.tokens[level][code]] - np.logaddexp.reduce(row)
            for level, (row, code) in enumerate(zip(rows, sid, strict=True))
        )

    def step_fn(self, codes: Any, parents: Any) -> np.ndarray:
        if codes is None:
            del self.levels[1:]
            return np.stack([self.row(b, ()) for b in range(len(self.levels[0]))])
        return self.more_fn(codes, parents, len(self.levels) - 1)

    def more_fn(self, codes: Any, parents: Any, level: int) -> np.ndarray:
        self.calls += 1
        pairs = zip(self.levels[level], np.asarray(codes).tolist(), np.asarray(parents).tolist(), strict=True)
        new = [[(*paths[p], c) for c, p in zip(code_K, parent_K, strict=True)] for paths, code_K, parent_K in pairs]
        if level + 1 == len(self.levels):
            self.levels.append([[] for _ in new])
        for before, more in zip(self.levels[level + 1], new, strict=True):
            before += more
        return np.array([[self.row(b, path) for path in paths] for b, paths in enumerate(new)])

    def suffix_fn(self, codes_BKT: Any, parents_BK: Any) -> list[np.ndarray]:
        batch, num_beams, count = np.shape(codes_BKT)
        own_BK = np.tile(np.arange(num_beams), (batch, 1))
        return [self.step_fn(codes_BKT[:, :, t], own_BK if t else parents_BK) for t in range(count)]


def items(seed: int, num_items: int = 150, sizes: tuple[int, ...] = SIZES) -> tuple[Trie, list[Path]]:
    rows = np.unique(np.random.default_rng(seed).integers(0, sizes, (num_items, len(sizes))), axis=0)
    return Trie.build(rows, sizes), [tuple(row) for row in rows.tolist()]


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference", "static", pytest.param("jax", marks=pytest.mark.slow)])
def test_scores_are_log_probabilities_over_the_whole_vocabulary(backend: str) -> None:
    pytest.importorskip(backend if backend == "jax" else "torch")
    trie, sids = items(1)
    model = Model(2, batch=2)
    result = BeamSearch(trie, len(sids), "vocabulary", backend=backend).run(model.step_fn, 2)
    for request in range(2):
        scores = np.array([model.score(request, sid) for sid in sids])
        assert result.item_ids[request].tolist() == np.argsort(-scores).tolist()
        np.testing.assert_allclose(result.scores[request], np.sort(scores)[::-1], atol=1e-4)


def test_forced_codes_in_one_call_and_prefixes_that_run_later_change_no_answer() -> None:
    trie, sids = items(3, num_items=40, sizes=(9, 8, 7, 6))
    plain = Model(4, sizes=(9, 8, 7, 6))
    scores = sorted((plain.score(0, sid) for sid in sids), reverse=True)[:5]
    for name in ("suffix_fn", "more_fn"):
        model = Model(4, sizes=(9, 8, 7, 6))
        options: Any = {name: getattr(model, name)}
        found = BeamSearch(trie, num_items=5, scoring="vocabulary").run(model.step_fn, **options)
        assert found.is_proved.all()
        np.testing.assert_allclose(found.scores[0], scores, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_a_sequence_that_has_ended_keeps_its_score(backend: str) -> None:
    words, end = [[1, 2], [1, 3, 4], [2], [4]], 5
    trie = Trie.from_sequences(words, vocabulary_size=end)
    rows = 2 * np.random.default_rng(5).normal(size=(trie.num_levels, end + 2)).astype(np.float32)
    level = iter(range(trie.num_levels))

    def step_fn(codes: Any, parents: Any) -> np.ndarray:
        row_V = rows[next(level)]
        return row_V[None] if codes is None else np.tile(row_V, (*codes.shape, 1))

    result = BeamSearch(trie, 4, "vocabulary", backend=backend).run(step_fn)
    log_p = rows - np.logaddexp.reduce(rows, 1)[:, None]
    scores = [sum(log_p[at, code] for at, code in enumerate([*word, end][: trie.num_levels])) for word in words]
    assert result.item_ids[0].tolist() == np.argsort(scores)[::-1].tolist()
    np.testing.assert_allclose(result.scores[0], np.sort(scores)[::-1], atol=1e-5)


def test_what_has_no_column_of_other_tokens_is_refused() -> None:
    trie, _ = items(6)
    search = BeamSearch(trie, 5, "vocabulary")
    with pytest.raises(LogitsError, match=r"expected \(1, 1, 33\), of 32 codes and, last, the log-sum-exp"):
        search.run(lambda codes, parents: np.zeros((1, 32)))
    with pytest.raises(ArgumentError, match="head has the rows of codes alone: with scoring 'vocabulary' leave it out"):
        search.run(lambda codes, parents: np.zeros((1, 4)), head=[np.ones((size, 4), np.float32) for size in SIZES])
    with pytest.raises(ArgumentError, match="use scoring 'full' in place of 'vocabulary'"):
        SequenceSearch(Automaton.from_sequences([[1]], 3), end_code=2, num_codes=3, scoring="vocabulary")
    with pytest.raises(LogitsError, match="request 0, beam 0 at level 0 hold NaN"):
        search.run(lambda codes, parents: np.append(np.zeros(32), np.nan)[None])
