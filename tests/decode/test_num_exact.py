"""`SearchResult.num_exact`: no allowed item that the search left out scores above the items that it counts."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import BeamSearch, Sampler, Trie
from tests.fixtures.paths import Paths

SIZES = [6, 5, 4]


def catalog(seed: int, num_items: int = 150) -> tuple[np.random.Generator, Trie]:
    rng = np.random.default_rng(seed)
    return rng, Trie.build(rng.integers(0, SIZES, (num_items, 3)), SIZES)  # several items may have one SID


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    beams=st.tuples(st.integers(1, 8), st.integers(1, 32), st.integers(1, 24)),
    batch=st.integers(1, 3),
    sharpness=st.sampled_from([0.0, 1.0, 8.0]),
    scoring=st.sampled_from(["full", "allowed"]),
    share=st.sampled_from([1.0, 0.5, 0.05]),
    backend=st.sampled_from(["cpu", "torch"]),
)
def test_the_exact_items_are_the_first_of_a_search_that_drops_nothing(  # type: ignore[no-untyped-def]
    seed, beams, batch, sharpness, scoring, share, backend
) -> None:
    rng, trie = catalog(seed)
    allowed = None if share == 1.0 else trie.filter(rng.random(150) < share)
    few = BeamSearch(trie, beams, scoring, backend=backend, device="cpu")
    found = few.run(Paths(SIZES, batch, sharpness, seed).step_fn, batch, allowed)
    best = BeamSearch(trie, [6, 30, 150], scoring).run(Paths(SIZES, batch, sharpness, seed).step_fn, batch, allowed)
    assert found.num_exact is not None
    assert (found.num_exact <= found.num_valid).all()
    for row, count in enumerate(found.num_exact):
        np.testing.assert_allclose(found.scores[row, :count], best.scores[row, :count], atol=1e-5)


def test_a_search_that_misses_the_best_item_does_not_call_it_exact() -> None:
    logits = [[0.0, 1.0], [-9.0, 9.0]]  # the likelier first code has a forbidden likely child
    trie = Trie.build([[0, 0], [1, 0], [1, 1]], [2, 2])

    def model(codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        return np.float32([logits[0]]) if codes is None else np.float32([[logits[1] if c else [9.0, 9.0] for c in codes[0]]])

    allowed = trie.filter([True, True, False])
    narrow, wide = (BeamSearch(trie, [beams, 1]).run(model, filters=allowed) for beams in (1, 2))
    assert (narrow.item_ids[0].tolist(), wide.item_ids[0].tolist()) == ([1], [0])
    assert (narrow.num_exact[0], wide.num_exact[0]) == (0, 1)


def test_all_items_of_one_level_are_exact_and_nothing_is_where_nothing_is_allowed() -> None:
    trie = Trie.build([[code] for code in range(9)], [9])
    model = np.random.default_rng(0).normal(size=(2, 9)).astype(np.float32)
    assert BeamSearch(trie, 4).run(lambda codes, parents: model, 2).num_exact.tolist() == [4, 4]
    nothing = trie.filter(np.zeros(9, bool))
    assert BeamSearch(trie, 4).run(lambda codes, parents: model, 2, nothing).num_exact.tolist() == [0, 0]


def test_samples_are_in_no_order_so_none_is_called_exact() -> None:
    _, trie = catalog(0)
    assert Sampler(trie, 5).run(Paths(SIZES, 1, 1.0, 0).step_fn, rng=np.random.default_rng(0)).num_exact is None
