"""Leave-one-out: what is held out is the end of each history, and only for users who keep something to predict from."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from leafbeam.train import leave_one_out, load_log, log_from_tables

DATA = Path(os.environ.get("LEAFBEAM_DATA", Path(__file__).parents[3] / "shared" / "data"))


def log_of(histories: list[list[int]]):
    users = [user for user, items in enumerate(histories) for _ in items]
    times = [time for items in histories for time in range(len(items))]
    return log_from_tables(pa.table({"user_id": users, "item_id": [i for h in histories for i in h], "timestamp": times}))


def test_the_last_item_is_the_test_and_the_one_before_it_validates():
    log = log_of([[10, 11, 12, 13], [12, 11, 10]])
    split = leave_one_out(log)
    assert [log.item_ids[split.train[user]].tolist() for user in range(2)] == [[10, 11], [12]]
    assert log.item_ids[split.valid_U].tolist() == [12, 11]
    assert log.item_ids[split.test_U].tolist() == [13, 10]
    assert [log.item_ids[split.before_test()[user]].tolist() for user in range(2)] == [[10, 11, 12], [12, 11]]


def test_users_of_one_or_two_interactions_train_and_are_not_evaluated():
    split = leave_one_out(log_of([[1], [1, 2, 3], [2, 3]]))
    assert split.valid_U.tolist()[::2] == split.test_U.tolist()[::2] == [-1, -1]
    assert split.train.lengths_U.tolist() == [1, 1, 2]
    assert split.before_test().lengths_U.tolist() == [1, 2, 2]
    assert split.test_users().tolist() == split.valid_users().tolist() == [1]
    assert (split.report.users_too_short, split.report.users_evaluated) == (2, 1)


def test_only_short_users_leave_nothing_to_evaluate():
    split = leave_one_out(log_of([[1, 2], [3]]))
    assert len(split.test_users()) == 0
    assert split.before_test().items_E.tolist() == split.train.items_E.tolist()


def test_the_parts_together_are_the_log_with_its_times():
    rng = np.random.default_rng(1)
    log = log_of([rng.integers(0, 30, rng.integers(1, 9)).tolist() for _ in range(200)])
    split = leave_one_out(log)
    before = split.before_test()
    for user in range(log.num_users):
        whole = log.histories[user].tolist()
        last = [split.test_U[user]] if split.test_U[user] >= 0 else []
        assert before[user].tolist() + last == whole
        start, stop = before.indptr_U1[user : user + 2]
        position = log.histories.indptr_U1[user]
        assert before.times_E[start:stop].tolist() == log.histories.times_E[position : position + stop - start].tolist()


@pytest.mark.data
def test_beauty_has_the_published_counts():
    if not (DATA / "amazon_beauty").is_dir():
        pytest.skip("amazon_beauty is not beside the checkout, and LEAFBEAM_DATA does not name it")
    log = load_log(DATA / "amazon_beauty")
    assert (log.num_users, log.num_items, log.report.interactions) == (22_363, 12_101, 198_502)
    report = leave_one_out(log).report
    assert (report.users_too_short, report.train_interactions) == (0, 198_502 - 2 * 22_363)


@pytest.mark.data
def test_ambiguous_times_of_toys_are_counted_and_can_be_left_in_the_files_order():
    if not (DATA / "amazon_toys").is_dir():
        pytest.skip("amazon_toys is not beside the checkout, and LEAFBEAM_DATA does not name it")
    log = load_log(DATA / "amazon_toys", order="file")
    assert log.report.users_out_of_order == 8
