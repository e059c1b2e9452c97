"""The training data: the split of a log, the batches of its histories, and a loss over drawn codes."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from leafbeam.errors import ArgumentError, DataError
from leafbeam.train import Histories, LogRules, cut_in_time, leave_one_out, load_log, log_from_tables
from leafbeam.train.batches import Batches
from leafbeam.train.losses import SampledLevel, full_loss, soft_loss


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


DATA = Path(os.environ.get("LEAFBEAM_DATA", Path(__file__).parents[3] / "shared" / "data"))


def log_of(histories: list[list[int]], times: list[list[int]] | None = None):
    times = [list(range(len(items))) for items in histories] if times is None else times
    rows = [(user, item, time) for user, items in enumerate(histories) for item, time in zip(items, times[user], strict=True)]
    names = "user_id", "item_id", "timestamp"
    table = pa.table({name: [row[number] for row in rows] for number, name in enumerate(names)})
    return log_from_tables(table, rules=LogRules(order="file"))


def test_the_last_item_is_the_test_and_the_one_before_it_validates():
    log = log_of([[10, 11, 12, 13], [12, 11, 10]])
    split = leave_one_out(log)
    assert [log.item_ids[split.train[user]].tolist() for user in range(2)] == [[10, 11], [12]]
    assert log.item_ids[split.valid_U].tolist() == [12, 11]
    assert log.item_ids[split.test_U].tolist() == [13, 10]
    assert [log.item_ids[split.before_test[user]].tolist() for user in range(2)] == [[10, 11, 12], [12, 11]]


def test_users_of_one_or_two_interactions_train_and_are_not_evaluated():
    split = leave_one_out(log_of([[1], [1, 2, 3], [2, 3]]))
    assert split.valid_U.tolist()[::2] == split.test_U.tolist()[::2] == [-1, -1]
    assert split.train.lengths_U.tolist() == [1, 1, 2]
    assert split.before_test.lengths_U.tolist() == [1, 2, 2]
    assert split.test_users().tolist() == split.valid_users().tolist() == [1]
    assert (split.report.users_too_short, split.report.users_evaluated) == (2, 1)


def test_only_short_users_leave_nothing_to_evaluate():
    split = leave_one_out(log_of([[1, 2], [3]]))
    assert len(split.test_users()) == 0
    assert split.before_test.items_E.tolist() == split.train.items_E.tolist()


def test_the_parts_together_are_the_log_with_its_times():
    rng = np.random.default_rng(1)
    log = log_of([rng.integers(0, 30, rng.integers(1, 9)).tolist() for _ in range(200)])
    split = leave_one_out(log)
    before = split.before_test
    for user in range(log.num_users):
        whole = log.histories[user].tolist()
        last = [split.test_U[user]] if split.test_U[user] >= 0 else []
        assert before[user].tolist() + last == whole
        start, stop = before.indptr_U1[user : user + 2]
        position = log.histories.indptr_U1[user]
        assert before.times_E[start:stop].tolist() == log.histories.times_E[position : position + stop - start].tolist()


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_a_cut_in_time_trains_on_nothing_that_comes_later(seed: int, share: float):
    rng = np.random.default_rng(seed)
    users = [rng.integers(0, 30, rng.integers(1, 9)).tolist() for _ in range(100)]
    times = [np.sort(rng.integers(0, 1000, len(items))).tolist() for items in users]
    log = log_of(users, times)
    split = cut_in_time(log, share=share)
    every = np.sort(log.histories.times_E)
    first, second = (every[int(np.ceil((1 - part) * (len(every) - 1)))] for part in (2 * share, share))
    for user in range(log.num_users):
        own = range(*log.histories.indptr_U1[user : user + 2].tolist())
        at = {item: log.histories.times_E[item] for item in own}
        items = log.histories.items_E
        assert split.train[user].tolist() == [items[one] for one in own if at[one] < first]
        assert split.before_test[user].tolist() == [items[one] for one in own if at[one] < second]
        between, after = (
            [items[one] for one in own if first <= at[one] < second],
            [items[one] for one in own if at[one] >= second],
        )
        assert split.valid_U[user] == (between[0] if between and len(split.train[user]) else -1)
        assert split.test_U[user] == (after[0] if after and len(split.before_test[user]) else -1)
    assert split.report.users_evaluated == len(split.test_users()) > 0
    assert split.report.train_interactions == (every < first).sum()
    assert split.with_valid().train is split.before_test


@pytest.mark.parametrize(
    ("times", "share"), [([[5, 5, 5], [5, 5]], 0.1), ([[9, 5, 1], [1, 2]], 0.1), ([[1, 2, 3], [4, 5]], 0.5)]
)
def test_times_that_leave_no_cut_are_refused(times: list[list[int]], share: float):
    with pytest.raises(ArgumentError, match="expected"):
        cut_in_time(log_of([[1, 2, 3], [2, 3]], times), share=share)


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
    log = load_log(DATA / "amazon_toys", rules=LogRules(order="file"))
    assert log.report.users_out_of_order == 8


ITEMS, PREFIXES, CODES, WIDTH = 90, 12, 70, 16


def codes() -> np.ndarray:
    """Items of 12 prefixes, whose last codes differ within a prefix."""
    rng = np.random.default_rng(0)
    rows = [
        np.column_stack([np.full(count, prefix), rng.permutation(CODES)[:count]])
        for prefix, count in enumerate(np.bincount(rng.integers(0, PREFIXES, ITEMS), minlength=PREFIXES))
    ]
    return np.concatenate(rows)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(20, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(CODES, WIDTH, generator=generator, requires_grad=True)
    items = torch.randint(ITEMS, (20,), generator=generator)
    return hidden, weight, items, torch.from_numpy(codes())[items, 1]


def test_with_all_codes_drawn_it_is_the_full_loss_with_the_same_gradients():
    hidden, weight, items, targets = batch()
    sampled = SampledLevel(codes(), CODES, drawn=CODES, device=torch.device("cpu"))
    loss = sampled.loss(hidden, weight, items, torch.Generator().manual_seed(0))
    full = full_loss((hidden @ weight.T).log_softmax(1), targets, label_smoothing=0.0)
    torch.testing.assert_close(loss, full, rtol=1e-5, atol=1e-6)
    expected = torch.autograd.grad(full.mean(), [hidden, weight])
    for a, b in zip(torch.autograd.grad(loss.mean(), [hidden, weight]), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_mean_of_many_samples_is_near_the_full_loss():
    hidden, weight, items, targets = batch()
    weight = weight.detach() * 0.3  # a large logit that is rarely drawn would make the mean converge slowly
    sampled, draws = SampledLevel(codes(), CODES, drawn=20, device=torch.device("cpu")), torch.Generator().manual_seed(0)
    losses = [sampled.loss(hidden, weight, items, draws).mean().item() for _ in range(300)]
    assert np.std(losses) > 0
    full = full_loss((hidden @ weight.T).log_softmax(1), targets, label_smoothing=0.0).mean().item()
    assert np.mean(losses) == pytest.approx(full, rel=0.03)


def test_a_soft_target_is_the_weighted_cross_entropy_of_its_codes():
    hidden, weight, _, targets = batch()
    soft = torch.stack((targets, (targets + 1) % CODES), 1)
    weights = torch.tensor([[0.7, 0.3]]).expand(20, 2)
    found = soft_loss((hidden @ weight.T).log_softmax(1), soft, weights)
    parts = [full_loss((hidden @ weight.T).log_softmax(1), soft[:, column], label_smoothing=0.0) for column in range(2)]
    torch.testing.assert_close(found, 0.7 * parts[0] + 0.3 * parts[1])
