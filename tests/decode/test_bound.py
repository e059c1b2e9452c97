"""A search with `num_items` proves its answer: it is that of all allowed items scored, or `num_exact` says how far it is."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import BeamSearch, Trie
from leafbeam.decode import SearchResult
from leafbeam.errors import ArgumentError
from leafbeam.index import Filter, ItemColumn, Version
from leafbeam.index.version import Segment

BACKENDS = ["cpu", "torch", "reference"]


class Tiny:
    """A random index of few codes, with deltas, rules, deny lists and shared SIDs, and a model with ties and codes of -inf."""

    def __init__(self, seed: int, sizes: tuple[int, ...] = ()) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.sizes = sizes or tuple(int(size) for size in rng.integers(1, 7, rng.integers(1, 5)))
        self.batch = 2 if sizes else int(rng.integers(1, 4))
        num_items = int(rng.integers(1, 120))
        self.codes = rng.integers(0, self.sizes, (num_items, len(self.sizes)))
        base = int(rng.integers(1, num_items + 1))
        live_N = rng.random(base) < rng.choice([1.0, 0.7])
        tries = [Trie.build(self.codes[:base], self.sizes, item_ids=np.arange(base))]
        if base < num_items:
            tries.append(Trie.build(self.codes[base:], self.sizes, item_ids=np.arange(base, num_items)))
        self.live_N = np.concatenate([live_N, np.ones(num_items - base, np.bool_)])
        segments = [Segment(trie=tries[0], live=tries[0].filter(live_N)), *(Segment(trie=trie) for trie in tries[1:])]
        self.version = Version(segments=tuple(segments))
        share = rng.choice([1.0, 0.6, 0.2, 0.05])
        self.allowed_BN = rng.random((self.batch, num_items)) < share
        self.denied = [rng.choice(num_items, int(rng.integers(0, 4))) for _ in range(self.batch)]
        self.step, self.excluded, self.seed = rng.choice([0.0, 0.5, 3.0]), rng.choice([0.0, 0.2]), seed
        self.levels: list[list[list[tuple[int, ...]]]] = []  # the prefixes that ran, of each level and request
        self.boosts_BN = np.zeros((self.batch, num_items), np.float32)
        self.has_other = False  # whether the last logit is that of any other token than a code

    def draw_boosts(self) -> list[ItemColumn | None]:
        """Give each request the boost of some or all items, with a weight; or none."""
        num_items = len(self.codes)
        columns: list[ItemColumn | None] = []
        for request in range(self.batch):
            values_N = np.float32(self.rng.choice([0.3, 3.0, 30.0]) * self.rng.normal(size=num_items).round(1))
            values_N[self.rng.random(num_items) < self.rng.choice([0.0, 0.5, 0.95])] = 0
            weight = float(self.rng.choice([1.0, 0.5, -2.0, 0.0]))
            tries = [segment.trie for segment in self.version.segments]
            parts = tuple(values_N[trie.item_ids.astype(np.int64)][trie.items.order_N] for trie in tries)
            column = ItemColumn(parts=parts, index=self.version).scaled(weight) if self.rng.random() < 0.8 else None
            columns.append(column)
            self.boosts_BN[request] = 0 if column is None else np.float32(weight) * values_N
        return columns

    def filters(self) -> list[Filter]:
        """The rule of each request."""
        return [self.version.filter(item_ids=np.flatnonzero(allowed_N & self.live_N)) for allowed_N in self.allowed_BN]

    def logits(self, request: int, path: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, request, *path])
        logits_V = (self.step * rng.integers(-3, 4, self.sizes[len(path)])).astype(np.float32)
        logits_V[rng.random(len(logits_V)) < self.excluded] = -np.inf
        return np.append(logits_V, np.float32(self.step * rng.integers(-3, 6))) if self.has_other else logits_V

    def step_fn(self, codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        if codes is None or parents is None:
            self.levels = [[[()] for _ in range(self.batch)]]
            return np.stack([self.logits(b, ()) for b in range(self.batch)])
        return self.more_fn(codes, parents, len(self.levels) - 1)

    def more_fn(self, codes: np.ndarray, parents: np.ndarray, level: int) -> np.ndarray:
        rows = zip(self.levels[level], codes.tolist(), parents.tolist(), strict=True)
        new = [[(*paths[p], c) for c, p in zip(code_K, parent_K, strict=True)] for paths, code_K, parent_K in rows]
        if level + 1 == len(self.levels):
            self.levels.append([[] for _ in new])
        for before, more in zip(self.levels[level + 1], new, strict=True):
            before += more
        return np.array([[self.logits(b, path) for path in paths] for b, paths in enumerate(new)])

    def tables(self) -> list[np.ndarray]:
        """The logits after every prefix of each level, (B, prefixes, V)."""
        levels = [list(product(*map(range, self.sizes[:level]))) for level in range(len(self.sizes))]
        return [np.array([[self.logits(b, path) for path in paths] for b in range(self.batch)]) for paths in levels]

    def scores(self, request: int, scoring: str) -> dict[int, float]:
        """The score of every allowed item that the model does not exclude, in float64."""
        allowed = [n for n in np.flatnonzero(self.allowed_BN[request] & self.live_N) if n not in self.denied[request]]
        sids = {n: tuple(self.codes[n].tolist()) for n in allowed}
        prefixes = {sid[:length] for sid in sids.values() for length in range(len(self.sizes) + 1)}
        scores: dict[int, float] = {}
        for n, sid in sids.items():
            score = 0.0
            for level, code in enumerate(sid):
                logits_V = self.logits(request, sid[:level]).astype(np.float64)
                legal = [c for c in range(len(logits_V)) if scoring != "allowed" or (*sid[:level], c) in prefixes]
                score += logits_V[code] - np.logaddexp.reduce(logits_V[legal]) if logits_V[code] > -np.inf else -np.inf
            if score > -np.inf:
                scores[n] = score + self.boosts_BN[request, n]
        return scores


def check(tiny: Tiny, result: SearchResult, scoring: str, num_items: int) -> None:
    """The proved items are the best of all, and those that follow are at least allowed and scored as the model does."""
    assert result.num_exact is not None
    for request in range(tiny.batch):
        scores = tiny.scores(request, scoring)
        best = sorted(scores.values(), reverse=True)[:num_items]
        ids, count = result.item_ids[request].tolist(), int(result.num_exact[request])
        np.testing.assert_allclose(result.scores[request, : len(ids)], [scores[n] for n in ids], atol=1e-4)
        if result.boosts is not None:
            np.testing.assert_allclose(result.boosts[request, : len(ids)], tiny.boosts_BN[request, ids], rtol=1e-5)
        np.testing.assert_allclose(result.scores[request, :count], best[:count], atol=1e-4)
        if result.is_proved[request]:
            assert len(ids) == count == len(best)


CASES = {
    "seed": st.integers(0, 1 << 30),
    "num_items": st.integers(1, 30),
    "widths": st.lists(st.integers(1, 12), min_size=4, max_size=4),
    "max_rows": st.sampled_from([1, 3, 10, 10_000]),
    "scoring": st.sampled_from(["full", "allowed", "vocabulary"]),
    "backend": st.sampled_from(BACKENDS),
    "explain": st.booleans(),
    "runs_more": st.booleans(),
    "is_boosted": st.booleans(),
}


def check_case(
    seed: int,
    num_items: int,
    widths: list[int],
    max_rows: int,
    scoring: Any,
    backend: str,
    explain: bool,
    runs_more: bool,
    is_boosted: bool,
) -> None:
    tiny = Tiny(seed)
    tiny.has_other = scoring == "vocabulary"
    boosts = tiny.draw_boosts() if is_boosted else None
    search = BeamSearch(tiny.version, scoring=scoring, backend=backend, device="cpu", num_items=num_items, max_rows=max_rows)
    each = [[width] * (len(tiny.sizes) - 1) for width in widths[: tiny.batch]]
    finals: list[tuple[SearchResult, np.ndarray]] = []
    result = search.run(
        tiny.step_fn, tiny.batch, tiny.filters(), tiny.denied, explain=explain, widths=each, boosts=boosts,
        more_fn=tiny.more_fn if runs_more and backend == "cpu" else None,
        on_pass=lambda found: finals.append((found, found.is_proved)),
    )  # fmt: skip
    check(tiny, result, scoring, min(num_items, search.num_items))
    for found, is_proved in finals:  # what a pass proves, a later one does not change
        np.testing.assert_allclose(found.scores[is_proved], result.scores[is_proved], atol=1e-4)
    for number, level in enumerate(result.levels):
        live = level.scores > -np.inf
        assert ((level.passes[live] >= 1) & (level.passes[live] <= result.passes)).all(), number
    if max_rows == 10_000:
        assert result.is_proved.all()


@settings(max_examples=150, deadline=None)
@given(**CASES)
def test_the_answer_is_that_of_all_allowed_items_scored(**case: Any) -> None:
    check_case(**case)


@pytest.mark.full
@settings(max_examples=10_000, deadline=None)
@given(**CASES)
def test_the_answer_is_that_of_all_allowed_items_scored_in_many_cases(**case: Any) -> None:
    check_case(**case)


# One shape, so that little is compiled.
ONE_SHAPE = (5, 6, 4)
MORE_CASES = {**{name: CASES[name] for name in ("seed", "scoring", "is_boosted")}, "num_items": st.sampled_from([2, 9])}


def jax_step(carry: Any, codes: Any, parents: Any, level: int) -> tuple[Any, Any]:
    import jax.numpy as jnp

    tables, prefixes_BK = carry
    if level:
        prefixes_BK = jnp.take_along_axis(prefixes_BK, parents, 1) * ONE_SHAPE[level - 1] + codes
    logits_BKV = jnp.take_along_axis(tables[level], prefixes_BK[:, :, None], 1)
    return (tables, prefixes_BK), logits_BKV if level else logits_BKV[:, 0]


@pytest.mark.full
@settings(max_examples=1000, deadline=None)
@given(**MORE_CASES)
def test_jax_proves_the_answer_too(seed: int, num_items: int, scoring: Any, is_boosted: bool) -> None:
    jax_search: Any = pytest.importorskip("leafbeam.decode.jax_search")
    tiny = Tiny(seed, ONE_SHAPE)
    tiny.has_other = scoring == "vocabulary"
    boosts = tiny.draw_boosts() if is_boosted else None
    options: Any = {"max_rows": 10_000, "delta_leaves": 128, "max_filters": 3}
    search = jax_search.JaxBeamSearch(tiny.version, num_items=num_items, scoring=scoring, **options)
    carry = tiny.tables(), np.zeros((tiny.batch, 1), np.int32)
    result = search.run(jax_step, carry, tiny.batch, tiny.filters(), tiny.denied, boosts=boosts)
    check(tiny, result, scoring, search.num_items)
    assert result.is_proved.all()


def test_items_that_a_mask_gives_the_lowest_score_are_proved_too() -> None:
    codes = np.indices((4, 4)).reshape(2, -1).T
    lowest = np.finfo(np.float32).min

    def step_fn(codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        row_V = np.float32([0.0, lowest, lowest, lowest])
        return row_V[None] if codes is None else np.tile(row_V, (*codes.shape, 1))

    result = BeamSearch(Trie.build(codes, [4, 4]), num_items=4).run(step_fn, widths=[1])
    assert result.passes == 2
    assert result.is_proved.all()
    assert result.scores[0].tolist() == [0.0, *[lowest] * 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": [3]}, r"widths is \[3\]"),
        ({"widths": [[1, 2], [3]]}, r"widths is \[3\]"),
        ({"widths": [[1, 2]] * 3}, "widths has 3 entries"),
        ({"widths": [1.5, 2]}, "widths is"),
        ({"num_items": [0, 1]}, r"num_items is \[0, 1\]"),
        ({"num_items": [1, 2, 3]}, "num_items is"),
    ],
)
def test_numbers_that_do_not_fit_the_batch_are_named(options: dict[str, Any], message: str) -> None:
    search = BeamSearch(Trie.build(np.indices((2, 2, 2)).reshape(3, -1).T, [2, 2, 2]), num_items=2)
    with pytest.raises(ArgumentError, match=message):
        search.run(lambda codes, parents: pytest.fail("called"), 2, **options)
