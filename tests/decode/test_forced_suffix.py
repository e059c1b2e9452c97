"""Forced suffixes: the same answer as round by round, with fewer calls of the model."""

from __future__ import annotations

import numpy as np
import pytest

from leafbeam import BeamSearch, SearchResult, Trie
from leafbeam.errors import LogitsError
from tests.fixtures.grid import CASES, FEW_SHAPES, Catalog, Recorder, TableModel
from tests.fixtures.paths import Paths


class Forecaster(Recorder):
    """A model of both kinds, that counts how often it was asked."""

    def __init__(self, models: list[TableModel]) -> None:
        super().__init__(models)
        self.steps = self.passes = 0

    def __call__(self, codes_BK: np.ndarray | None, parents_BK: np.ndarray | None) -> np.ndarray:
        self.steps += 1
        return super().__call__(codes_BK, parents_BK)

    def suffix_fn(self, codes_BKT: np.ndarray, parents_BK: np.ndarray) -> list[np.ndarray]:
        self.passes += 1
        own = np.broadcast_to(np.arange(codes_BKT.shape[1]), codes_BKT.shape[:2])
        steps = [super().__call__(codes_BKT[:, :, 0], parents_BK)]
        return steps + [super(Forecaster, self).__call__(codes_BKT[:, :, t], own) for t in range(1, codes_BKT.shape[2])]


def assert_equal(one: SearchResult, other: SearchResult) -> None:
    assert [ids.tolist() for ids in one.item_ids] == [ids.tolist() for ids in other.item_ids]
    assert one.num_valid.tolist() == other.num_valid.tolist()
    assert np.array_equal(one.codes, other.codes)
    assert np.array_equal(one.scores, other.scores)


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("shape", FEW_SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_that_of_the_rounds(name: str, shape: str, scoring: str) -> None:
    case = CASES[name]
    if case.minus_infinity and scoring == "allowed":
        pytest.skip("a model that excludes codes goes without suffix_fn under 'allowed'")
    catalog = Catalog.of(case, shape)
    ids = list(catalog.sids)
    rng = np.random.default_rng(4)
    chosen = None if case.share is None else catalog.filter([one for one in ids if rng.random() < case.share])
    deny = [ids[:: max(1, len(ids) // 5)] if case.denied else None, None]
    search = BeamSearch(catalog.index, list(case.widths), scoring=scoring)
    slow, fast = (Forecaster([TableModel(case, seed) for seed in (1, 2)]) for _ in range(2))
    expected = search.run(slow, batch_size=2, filters=[chosen, chosen], deny=deny)
    result = search.run(fast, batch_size=2, filters=[chosen, chosen], deny=deny, suffix_fn=fast.suffix_fn)
    assert_equal(result, expected)
    assert expected.rounds_saved == slow.passes == 0
    assert fast.steps + fast.passes + result.rounds_saved == slow.steps


def test_most_rounds_of_deep_sparse_ids_are_saved() -> None:
    rng = np.random.default_rng(0)
    trie = Trie.build(rng.integers(0, 64, (2000, 8)), [64] * 8)
    logits = rng.normal(size=(8, 64)).astype(np.float32)

    class Model:
        calls = 0

        def __call__(self, codes_BK: np.ndarray | None, parents_BK: np.ndarray | None) -> np.ndarray:
            self.calls += 1
            self.level = 0 if codes_BK is None else self.level + 1
            shape = (1, 64) if codes_BK is None else (*codes_BK.shape, 64)
            return np.broadcast_to(
                logits[self.level], shape
            ).copy()  # an array that can be written is one kernel less to compile

        def suffix_fn(self, codes_BKT: np.ndarray, parents_BK: np.ndarray) -> list[np.ndarray]:
            assert codes_BKT.shape[2] == 8 - 3
            return [self(codes_BKT[:, :, 0], parents_BK) for _ in range(codes_BKT.shape[2])]

    for scoring, saved in (("full", 4), ("allowed", 5)):
        model = Model()
        result = BeamSearch(trie, 20, scoring=scoring).run(model, suffix_fn=model.suffix_fn)
        assert result.rounds_saved == saved
        assert model.calls == (8 if scoring == "full" else 3)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_the_model_gets_copies_of_one_beam_for_those_with_one_allowed_item(share: float, in_parts: bool) -> None:
    rng = np.random.default_rng(3)
    sids, allowed = rng.integers(0, 12, (600, 4)), rng.random(600) < share
    trie = Trie.build(sids, [12] * 4)
    kept = trie.filter(allowed)
    model, plain = (Paths([12] * 4, 2, 1.0, seed=2) for _ in range(2))
    distinct: list[list[int]] = []

    def counted(codes_BK: np.ndarray | None, parents_BK: np.ndarray | None) -> None:
        if codes_BK is not None and parents_BK is not None:
            rows = zip(codes_BK.tolist(), parents_BK.tolist(), strict=True)
            distinct.append([len(set(zip(*row, strict=True))) for row in rows])

    def step_fn(codes_BK: np.ndarray | None, parents_BK: np.ndarray | None) -> np.ndarray:
        counted(codes_BK, parents_BK)
        return model.step_fn(codes_BK, parents_BK)

    def more_fn(codes_BJ: np.ndarray, parents_BJ: np.ndarray, level: int) -> np.ndarray:
        counted(codes_BJ, parents_BJ)
        return model.more_fn(codes_BJ, parents_BJ, level)

    def suffix_fn(codes_BKT: np.ndarray, parents_BK: np.ndarray) -> list[np.ndarray]:
        raise AssertionError("codes that are certain need no scores")

    search = BeamSearch(trie, [12, 40, 40, 40 - 20 * in_parts], scoring="allowed")
    parts = {"more_fn": more_fn, "widths": 40} if in_parts else {}
    result = search.run(step_fn, 2, filters=kept, suffix_fn=suffix_fn, **parts)
    explained = search.run(plain.step_fn, 2, filters=kept, explain=True)
    assert_equal(result, explained)
    shown = np.unique(sids[allowed], axis=0)
    paths: list[list[tuple[int, ...]]] = [[()], [()]]
    assert len(distinct) == 3 - result.rounds_saved
    for level, calls in zip(explained.levels, distinct):  # noqa: B905 (the model does not get the last levels' codes)
        rows = enumerate(zip(level.codes.tolist(), level.parents.tolist(), strict=True))
        paths = [[(*paths[b][p], c) for c, p in zip(code_K, parent_K, strict=True)] for b, (code_K, parent_K) in rows]
        for call, beams in zip(calls, paths, strict=True):
            several = sum((shown[:, : len(path)] == path).all(1).sum() > 1 for path in set(beams))
            assert call == max(1, several)
    assert max(distinct[-1]) < 30


def test_sequences_are_scored_until_the_longest_ends() -> None:
    words = [[1, 2], [1, 3, 4, 5], [2], [3, 3, 3, 3, 3, 3, 3]]
    trie = Trie.from_sequences(words, vocabulary_size=6, item_ids=["a", "b", "c", "d"])
    logits = np.random.default_rng(1).normal(size=(9, 7)).astype(np.float32)
    asked: list[int] = []

    class Model:
        def __call__(self, codes_BK: np.ndarray | None, parents_BK: np.ndarray | None) -> np.ndarray:
            self.level = 0 if codes_BK is None else self.level + 1
            return np.broadcast_to(logits[self.level], (1, 7) if codes_BK is None else (*codes_BK.shape, 7)).copy()

        def suffix_fn(self, codes_BKT: np.ndarray, parents_BK: np.ndarray) -> list[np.ndarray]:
            asked.append(codes_BKT.shape[2])
            return [self(codes_BKT[:, :, 0], parents_BK) for _ in range(codes_BKT.shape[2])]

    short = trie.filter(item_ids=["a", "b", "c"])
    for kept, num_codes in ((None, 6), (short, 3)):  # after two rounds: "d" ends at the eighth level, "b" at the fifth
        search, model = BeamSearch(trie, 4), Model()
        assert_equal(search.run(model, filters=kept, suffix_fn=model.suffix_fn), search.run(Model(), filters=kept))
        assert asked.pop() == num_codes
        certain = BeamSearch(trie, 4, scoring="allowed").run(model, filters=kept, suffix_fn=model.suffix_fn)
        assert (certain.rounds_saved, asked) == (num_codes, [])


def test_a_suffix_function_that_answers_too_little_is_named() -> None:
    trie = Trie.build([[0, 0, 0], [1, 1, 1]], [2, 2, 2])
    with pytest.raises(LogitsError, match="suffix_fn returned the logits of 1 level: expected 2"):
        BeamSearch(trie, 2).run(lambda codes, parents: np.zeros((1, 2)), suffix_fn=lambda codes, parents: [np.zeros((1, 2, 2))])
