"""Every target over its corpus and some mutations, deterministic; `make fuzz` runs many more in child processes."""

import random

import pytest

from tests.fuzz.driver import all_targets, check, corpus_of
from tests.fuzz.mutate import mutate


@pytest.mark.parametrize("cases", [30, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", all_targets())
def test_a_target_raises_errors_of_our_own_tree_alone(name: str, cases: int) -> None:
    target, corpus, dice = all_targets()[name], corpus_of(name), random.Random(name)
    accepted = [check(target, data) for data in corpus]
    assert any(accepted), "no input of the corpus is accepted, so little of the target runs"
    for _ in range(cases):
        data = mutate(dice, dice.choice(corpus), corpus)
        try:
            check(target, data)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}, not a LeafbeamError, for {data!r}") from error
