import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies.cold_split import cold_split
from benchmarks.studies.retriever import DenseRecipe, fit_dense
from leafbeam.semid import QuantiserConfig, fit_sids, text_vectors
from leafbeam.train import Histories
from tests.fixtures.logs import shop

pytestmark = pytest.mark.slow

DATA = Path(os.environ.get("LEAFBEAM_DATA", Path(__file__).parents[3].parent / "shared" / "data"))


@pytest.mark.parametrize("part", ["test", "valid"])
def test_the_newest_items_are_cold_and_no_training_sequence_has_one(part: str):
    log = shop()
    split = cold_split(log, share=0.2, part=part)
    newest = np.arange(48, 60) if part == "test" else np.arange(36, 48)
    assert split.cold_items.tolist() == newest.tolist()
    users = split.eval_set.users.tolist()
    for user in range(log.num_users):
        whole, trained = log.histories[user], split.train[user]
        has_cold, has_test = bool(split.cold_N[whole].any()), bool((whole >= 48).any())
        assert trained.tolist() == ([] if has_cold or has_test else whole.tolist())
        ends_cold = bool(split.cold_N[whole[-1]]) and (part == "test" or not has_test)
        assert (user in users) == ends_cold
        if ends_cold:
            index = users.index(user)
            assert split.eval_set.histories[index].tolist() == whole[:-1].tolist()
            assert split.cold_items[split.target_indices_U[index]] == whole[-1] == split.eval_set.targets_U[index]
            assert split.another_cold_U[index] == bool(split.cold_N[whole[:-1]].any())
            assert split.cold_items[split.seen_UC()[index]].tolist() == [row for row in whole[:-1] if split.cold_N[row]]
    assert split.report.test_users == len(users) > 10
    assert split.report.test_users_with_another_cold_item == split.another_cold_U.sum() > 0
    assert split.report.train_interactions == len(split.train.items_E) > 0


def test_the_age_is_the_column_or_else_the_first_interaction():
    with_column, without = cold_split(shop(), share=0.2), cold_split(shop(first_review=False), share=0.2)
    assert (with_column.report.age, without.report.age) == ("first_review", "first interaction")
    assert with_column.cold_items.tolist() == without.cold_items.tolist()


def test_test_interactions_change_no_sid_and_no_weight():
    """Whatever users with a cold item took, and which cold item they end in: split, SIDs and weights stay bit for bit."""
    log = shop()
    split = cold_split(log, share=0.2)
    rng = np.random.default_rng(3)
    items_E = log.histories.items_E.copy()
    held_E = ~np.isin(log.histories.users_E, np.flatnonzero(split.train.lengths_U))
    items_E[held_E] = rng.integers(0, 48, held_E.sum())
    ends = log.histories.indptr_U1[1:][split.eval_set.users] - 1
    items_E[ends] = rng.choice(split.cold_items, len(ends))
    histories = Histories(indptr_U1=log.histories.indptr_U1, items_E=items_E, times_E=log.histories.times_E)
    other = cold_split(dataclasses.replace(log, histories=histories), share=0.2)
    assert (other.eval_set.targets_U != split.eval_set.targets_U).any()

    def learnt(histories: Histories) -> tuple[np.ndarray, np.ndarray]:
        sids = fit_sids(log.items, histories, quantiser=QuantiserConfig(codebook_sizes=(8, 8))).table.codes
        model = fit_dense(histories, text_vectors(log.items, ("title",), dims=16, seed=0), DenseRecipe(epochs=1, negatives=8))
        return sids, np.concatenate([weight.detach().numpy().ravel() for weight in model.parameters()])

    for first, second in zip(learnt(split.train), learnt(other.train), strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.isin(split.train.items_E, split.cold_items).any()
