import numpy as np
import pytest

from leafbeam.errors import ArgumentError, DataError
from leafbeam.train import Histories
from leafbeam.train.batches import Batches


def histories_of(lengths: list[int]) -> Histories:
    indptr_U1 = np.concatenate([[0], np.cumsum(lengths)])
    return Histories(indptr_U1=indptr_U1, items_E=np.arange(indptr_U1[-1]), times_E=np.zeros(indptr_U1[-1], np.int64))


def batches_of(lengths: list[int], **settings: int) -> Batches:
    return Batches(
        histories=histories_of(lengths), **{"max_items": 4, "num_levels": 3, "batch_tokens": 60, "seed": 1} | settings
    )


def test_an_epoch_reads_every_short_history_once_and_whole():
    lengths = [1, 2, 2, 5, 3, 5, 4]
    read = sorted(tuple(row) for batch in batches_of(lengths).epoch(0) for row in batch.tolist())
    histories = histories_of(lengths)
    assert read == sorted(tuple(histories[user].tolist()) for user in range(len(lengths)))


def test_a_long_history_is_cut_into_windows_that_make_every_item_a_target():
    rng = np.random.default_rng(0)
    for epoch in range(20):
        lengths = [*rng.integers(0, 40, 30).tolist(), 1]
        windows = [row for batch in batches_of(lengths).epoch(epoch) for row in batch]
        histories = histories_of(lengths)
        targets = {int(item) for window in windows for item in window[1:]}
        firsts = {int(window[0]) for window in windows}
        for user in range(len(histories)):
            assert set(histories[user][1:].tolist()) <= targets
            assert set(histories[user][:1].tolist()) <= firsts
        assert all(2 <= len(window) <= 5 or len(window) == 1 for window in windows)
        assert all((np.diff(window) == 1).all() for window in windows)  # never across two users' histories
        users_W = [np.unique(histories.users_E[window]) for window in windows]
        assert all(len(users) == 1 for users in users_W)


def test_the_cuts_change_from_epoch_to_epoch():
    batches = batches_of([40])
    cuts = {tuple(sorted(int(row[0]) for batch in batches.epoch(epoch) for row in batch)) for epoch in range(12)}
    assert len(cuts) > 2


def test_a_batch_holds_one_length_and_about_batch_tokens():
    for batch in batches_of([4] * 50 + [2] * 50).epoch(3):
        assert batch.size * 3 <= 60
    assert max(batch.shape[0] for batch in batches_of([4] * 50, batch_tokens=1).epoch(0)) == 1


def test_the_order_follows_from_the_seed_and_the_epoch_alone():
    lengths = [3] * 40 + [5] * 20 + [17]

    def order(seed: int, epoch: int) -> list[list[list[int]]]:
        return [batch.tolist() for batch in batches_of(lengths, seed=seed).epoch(epoch)]

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_nothing_to_train_on_is_a_named_error():
    with pytest.raises(DataError, match="every history is empty"):
        batches_of([0, 0])
    with pytest.raises(ArgumentError, match="batch_tokens"):
        batches_of([3], batch_tokens=0)
