"""A search with `num_items` proves its answer: it is that of all allowed items scored, or `num_exact` says how far it is."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import BeamSearch, Trie
from leafbeam.decode import SearchResult
from leafbeam.errors import ArgumentError
from tests.fixtures.tiny import Tiny, check

BACKENDS = ["cpu", "torch", "reference"]


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
