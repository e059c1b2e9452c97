"""Boosts, caps and quotas on JAX and Triton, beside scoring every allowed item: random cases by their seeds.

`make check-full` runs 1,000 cases of each backend, in ten pieces that can be run one by one; a piece of JAX has one scoring and
one number of items, so that little is compiled. Quick tests run a few.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from leafbeam import BeamSearch, Trie
from leafbeam.decode import SearchResult
from leafbeam.decode.policy import Cap, Policy, Quota, fill_lists
from leafbeam.decode.results import check_batch
from leafbeam.index import ItemColumn
from tests.fixtures.tiny import Tiny, check

PIECES, CASES_OF_PIECE = 10, 100
_JAX_SIZES = (5, 6, 4)  # one shape, so that little is compiled
_GAP = 1e-4  # items whose scores are closer may change places, and then fill other groups

Search = Callable[[Tiny, Sequence[ItemColumn | None], str, int], Callable[..., SearchResult]]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The cap and the quota of a case, with the group and the membership of each item by its id."""

    policy: Policy
    group_N: np.ndarray
    is_member_N: np.ndarray

    @classmethod
    def drawn(cls, tiny: Tiny, num_items: int) -> "Wish":
        rng, size = tiny.rng, len(tiny.codes)
        group_N = rng.integers(-1, 3, size).astype(np.int32)
        is_member_N = rng.random(size) < rng.choice([0.1, 0.5])
        members = tiny.version.filter(item_ids=np.flatnonzero(is_member_N & tiny.live_N))
        caps = (Cap(groups=tiny.column(group_N), most=int(rng.integers(1, 3))),)
        quotas = (Quota(items=members, least=int(rng.integers(1, num_items + 1))),) if rng.random() < 0.6 else ()
        return cls(policy=Policy(num_items=num_items, caps=caps, quotas=quotas), group_N=group_N, is_member_N=is_member_N)

    def fill(self, scores: dict[int, float]) -> tuple[list[int], int]:
        """Return the list that a pass over all items takes, and how many items of the quota are missing."""
        order, taken, counts = sorted(scores, key=lambda item: -scores[item]), list[int](), Counter[int]()

        def take(items: list[int], number: int) -> int:
            for item in items:
                group = int(self.group_N[item])
                if number and item not in taken and (group < 0 or counts[group] < self.policy.caps[0].most):
                    counts[group] += 1
                    taken.append(item)
                    number -= 1
            return number

        missing = sum(take([item for item in order if self.is_member_N[item]], quota.least) for quota in self.policy.quotas)
        take(order, self.policy.num_items - len(taken))
        return sorted(taken, key=lambda item: -scores[item]), missing


def with_distinct_boosts(tiny: Tiny) -> list[ItemColumn]:
    """Give each request a boost in which no two items are equal."""
    columns: list[ItemColumn] = []
    for request in range(tiny.batch):
        values_N = np.float32(tiny.rng.choice([0.003, 0.1]) * tiny.rng.permutation(len(tiny.codes)))
        weight = float(tiny.rng.choice([1.0, 0.5, -2.0]))
        columns.append(tiny.column(values_N).scaled(weight))
        tiny.boosts_BN[request] = np.float32(weight) * values_N
    return columns


def check_case(
    seed: int, tiny: Tiny, search: Search, num_items: Sequence[int], scorings: Sequence[str] = ("full", "allowed", "vocabulary")
) -> None:
    """Compare the answer of a case with that of scoring all items: of boosts alone, or in every third case of lists."""
    rng = np.random.default_rng([seed, 1])
    count, has_policy = int(rng.choice(num_items)), seed % 3 == 0
    if has_policy:  # which need a scoring that does not change with the filter
        scorings = [scoring for scoring in scorings if scoring != "allowed"] or ["full"]
    scoring = str(rng.choice(scorings))
    tiny.has_other = scoring == "vocabulary"
    if not has_policy:
        result = search(tiny, tiny.draw_boosts(), scoring, count)(tiny.filters(), tiny.denied, None)
        check(tiny, result, scoring, int(result.num_items[0]))
        assert result.is_proved.all()
        return
    boosts, wishes = with_distinct_boosts(tiny), [Wish.drawn(tiny, count) for _ in range(tiny.batch)]
    run = search(tiny, boosts, scoring, 2 * count)
    filters = check_batch(tiny.version, tiny.batch, tiny.filters(), tiny.denied)
    result, unmet = fill_lists(tiny.version, [wish.policy for wish in wishes], filters, run)
    assert result.is_proved.all()
    for request, wish in enumerate(wishes):
        scores = tiny.scores(request, scoring)
        if len(scores) > 1 and np.diff(np.sort(list(scores.values()))).min() < _GAP:
            continue
        items, missing = wish.fill(scores)
        assert result.item_ids[request].tolist() == items
        assert sum(unmet[request]) == missing
        np.testing.assert_allclose(result.scores[request, : len(items)], [scores[item] for item in items], atol=1e-4)


def on_triton(tiny: Tiny, boosts: Sequence[ItemColumn | None], scoring: Any, num_items: int) -> Callable[..., SearchResult]:
    search = BeamSearch(tiny.version, scoring=scoring, backend="triton", device="cpu", num_items=num_items, max_rows=10_000)
    options: Any = {"boosts": boosts, "widths": [2] * (len(tiny.sizes) - 1)}

    def run(filters: Any, deny: Any, counts: Sequence[int] | None) -> SearchResult:
        with np.errstate(invalid="ignore"):  # numpy subtracts infinities in lanes that the kernels mask
            return search.run(tiny.step_fn, tiny.batch, filters, deny, num_items=counts, **options)

    return run


@cache
def jax_step() -> Callable[..., Any]:
    import jax.numpy as jnp

    def step(carry: Any, codes: Any, parents: Any, level: int) -> tuple[Any, Any]:
        tables, prefixes_BK = carry
        if level:
            prefixes_BK = jnp.take_along_axis(prefixes_BK, parents, 1) * _JAX_SIZES[level - 1] + codes
        logits_BKV = jnp.take_along_axis(tables[level], prefixes_BK[:, :, None], 1)
        return (tables, prefixes_BK), logits_BKV if level else logits_BKV[:, 0]

    return step


@cache
def jax_searches() -> dict[tuple[str, int], Any]:
    """Return a search of each kind over all codes: other versions run what is compiled for its sizes."""
    return {}


def on_jax(tiny: Tiny, boosts: Sequence[ItemColumn | None], scoring: Any, num_items: int) -> Callable[..., SearchResult]:
    jax_search: Any = pytest.importorskip("leafbeam.decode.jax_search")
    options: Any = {"max_rows": 10_000, "delta_leaves": 128, "max_filters": 3}
    searches, key = jax_searches(), (scoring, num_items)
    if key not in searches:
        every = Trie.build(np.indices(_JAX_SIZES).reshape(len(_JAX_SIZES), -1).T, _JAX_SIZES)
        searches[key] = jax_search.JaxBeamSearch(every, num_items=num_items, scoring=scoring, **options)
    search = searches[key].for_version(tiny.version)

    def run(filters: Any, deny: Any, counts: Sequence[int] | None) -> SearchResult:
        carry = tiny.tables(), np.zeros((tiny.batch, 1), np.int32)
        return search.run(jax_step(), carry, tiny.batch, filters, deny, boosts=boosts)

    return run


def check_triton(seed: int) -> None:
    rng = np.random.default_rng([seed, 2])
    sizes = tuple(int(size) for size in rng.integers(1, 4, rng.integers(1, 4)))
    check_case(seed, Tiny(seed, sizes, most_items=30, batch=1 + (seed % 8 == 0)), on_triton, range(1, 5))


def check_jax(seed: int) -> None:
    # A search is compiled for its scoring and widths: one piece has one scoring and one number of items.
    scoring, count = tuple(product(("full", "allowed", "vocabulary"), (9, 2)))[seed // CASES_OF_PIECE % 6]
    check_case(seed, Tiny(seed, _JAX_SIZES), on_jax, [count], [scoring])


@pytest.mark.parametrize("seed", range(6))
def test_triton_gives_the_lists_of_all_items_scored(seed: int) -> None:
    check_triton(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 202, 401])
def test_jax_gives_the_lists_of_all_items_scored(seed: int) -> None:
    check_jax(seed)


@pytest.mark.full
@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("backend", [check_triton, check_jax])
def test_the_lists_of_1000_random_cases_are_those_of_all_items_scored(backend: Callable[[int], None], piece: int) -> None:
    for seed in range(CASES_OF_PIECE * piece, CASES_OF_PIECE * (piece + 1)):
        try:
            backend(seed)
        except AssertionError as error:
            raise AssertionError(f"case {seed}") from error
