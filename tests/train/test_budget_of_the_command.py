"""L6: a budget in minutes pays for everything that training needs, by a clock that moves with the work that is done."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leafbeam.cli.train import Stopwatch
from leafbeam.index import Trie
from leafbeam.model import AnyModel
from leafbeam.retrieve import ItemMemory
from leafbeam.semid import SidTable
from leafbeam.train import (
    Budget,
    InteractionLog,
    Split,
    TrainOptions,
    TrainStats,
    evaluation,
    fusion,
    leave_one_out,
    run,
    train,
)
from leafbeam.train.evaluation import EvaluationSet, Validation, fit_fusion
from leafbeam.train.fusion import fit_memory, tune_memory
from tests.fixtures.clocks import Clock
from tests.train.small_trainer import SIZES, TINY, all_codes, log_of


class WorkClock(Clock):
    """Seconds that pass with the work that is counted."""

    def wrap(self, function: Callable[..., object], seconds: Callable[..., float]) -> Callable[..., object]:
        """Return a function that takes `seconds` of its arguments."""

        def timed(*arguments: object, **options: object) -> object:
            self.now += seconds(*arguments, **options)
            return function(*arguments, **options)

        return timed


def test_a_stopwatch_lists_the_steps_of_a_command_and_counts_the_one_that_runs() -> None:
    """L6: what makes a command longer than its minutes is said."""
    clock = WorkClock()
    watch = Stopwatch(clock)
    for step, seconds in (("modules", 3.0), ("log", 0.4), ("training", 41.7)):
        clock.now += seconds
        assert watch.end(step) == pytest.approx(seconds)
    clock.now += 5
    assert (str(watch), watch.total) == ("modules 3 s, log 0 s, training 42 s", pytest.approx(50.1))


@pytest.fixture(scope="module")
def log() -> InteractionLog:
    items = [f"i{number:02}" for number in range(40)]
    return log_of([[items[(user + step) % 40] for step in range(4 + user % 5)] for user in range(700)])


@pytest.fixture(scope="module")
def split(log: InteractionLog) -> Split:
    return leave_one_out(log)


@pytest.fixture(scope="module")
def memory(log: InteractionLog, split: Split) -> ItemMemory:
    return fit_memory(log, split.train, ())


@pytest.mark.parametrize(
    ("budget", "seconds", "expected"),
    [
        (Budget(minutes=1), 12, Budget(minutes=0.8)),
        (Budget(minutes=1), 45, Budget(minutes=0.5)),
        (Budget(minutes=10), 1e6, Budget(minutes=5)),
        (Budget(minutes=2), 0, Budget(minutes=2)),
        (Budget(steps=5), 1e6, Budget(steps=5)),
        (Budget(epochs=0.5), 30, Budget(epochs=0.5)),
    ],
)
def test_other_work_shortens_minutes_by_half_at_most_and_no_other_budget(
    budget: Budget, seconds: float, expected: Budget
) -> None:
    """L6: `train --minutes 1` took 98 s."""
    assert budget.less(seconds) == expected


@pytest.mark.parametrize(
    ("user_s", "seconds", "expected"),
    [
        (0.0, None, [700] * 9),  # all users, the nine rankings of a memory without texts
        (0.0001, 60.0, [1, 200, *[700] * 9]),
        (0.001, 5.2, [1, 200, *[384] * 9]),  # fewer users
        (0.1, 50.0, [1, 200, 200, 200]),  # the fewest, and fewer settings
        (9.0, 6.0, [1, 200, 200]),  # the first ranking, without which nothing can be compared
    ],
)
def test_the_choice_of_the_memorys_settings_ends_in_its_time(
    split: Split, memory: ItemMemory, monkeypatch: pytest.MonkeyPatch, user_s: float, seconds: float | None, expected: list[int]
) -> None:
    """L6: thirteen rankings of 4,000 users took half a minute, whatever the minutes."""
    clock, users = WorkClock(), []

    def cost(scores: object, histories: object, targets_U: np.ndarray, **_: object) -> float:
        users.append(len(targets_U))
        return user_s * len(targets_U)

    monkeypatch.setattr(fusion, "rank_targets", clock.wrap(fusion.rank_targets, cost))
    tune_memory(memory, split, seconds=seconds, clock=clock)
    assert users == expected


@pytest.fixture(scope="module")
def sids(log: InteractionLog) -> SidTable:
    return SidTable(item_ids=log.item_ids, codes=all_codes()[: log.num_items], codebook_sizes=SIZES)


@pytest.fixture(scope="module")
def model(log: InteractionLog, split: Split, sids: SidTable) -> AnyModel:
    return train(log, split, sids, replace(TINY, budget=Budget(steps=1)))


@pytest.mark.parametrize(
    ("batch_s", "seconds", "expected"),
    [(1.0, None, 6), (1.0, 3.0, 3), (1.0, 2.5, 3), (4.0, 3.0, 1), (1.0, 0.0, 1), (0.1, 9.0, 6)],
)
def test_the_weight_of_the_memory_is_learnt_from_the_batches_that_its_time_allows(
    log: InteractionLog,
    split: Split,
    sids: SidTable,
    model: AnyModel,
    memory: ItemMemory,
    monkeypatch: pytest.MonkeyPatch,
    batch_s: float,
    seconds: float | None,
    expected: int,
) -> None:
    """L6: the last step of the command has an end of its own, too."""
    clock, batches = WorkClock(), []
    search = evaluation._Evaluator.run_batch
    monkeypatch.setattr(evaluation._Evaluator, "run_batch", clock.wrap(search, lambda *_, **__: batches.append(1) or batch_s))
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    fusions = fit_fusion(model, trie, log, split, memory, seconds=seconds, clock=clock)
    assert len(batches) == expected
    assert fusions.kept != fusions.removed


@pytest.mark.parametrize(
    ("user_s", "seconds", "expected"),
    [
        (0.01, None, [300]),
        (0.0, 6.0, [1, 200, 300]),
        (0.01, 6.0, [1, 200, 300]),
        (0.01, 4.295, [1, 200, 228]),  # as many users as the rest of the seconds allows
        (0.1, 6.0, [1, 200]),  # the fewest; their ranking is that of the estimate
        (9.0, 0.0, [1, 200]),
    ],
)
def test_baselines_rank_as_many_users_as_their_time_allows(
    log: InteractionLog,
    split: Split,
    sids: SidTable,
    monkeypatch: pytest.MonkeyPatch,
    user_s: float,
    seconds: float | None,
    expected: list[int],
) -> None:
    """L6: the baselines of 2,000 users took as long for one minute as for an hour."""
    clock, users = WorkClock(), []

    def cost(scores: object, *, targets_U: np.ndarray, **_: object) -> float:
        users.append(len(targets_U))
        return user_s * len(targets_U)

    monkeypatch.setattr(evaluation, "rank_targets", clock.wrap(evaluation.rank_targets, cost))
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    validation = Validation(trie, log, split, max_items=6, sample=300, seconds=seconds, clock=clock)
    assert users == expected
    monkeypatch.undo()
    assert validation.recalls == Validation(trie, log, split, max_items=6, sample=expected[-1]).recalls


@pytest.mark.parametrize(
    ("reserved_s", "user_s", "teacher_s", "validation_s", "expected"),
    [
        (0.0, 0.0, 0.0, 0.0, 60.0),
        (9.0, 0.01, 4.0, 3.0, 38.0),  # 501 rankings of users, the batch of the estimate, and the last validation
        (9.0, 0.1, 0.0, 0.0, 30.9),  # 201 rankings
        (50.0, 0.01, 4.0, 3.0, 30.0),  # half of the minutes
    ],
)
def test_minutes_pay_for_baselines_preparations_and_the_last_validation(
    log: InteractionLog,
    split: Split,
    sids: SidTable,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    reserved_s: float,
    user_s: float,
    teacher_s: float,
    validation_s: float,
    expected: float,
) -> None:
    """L6: `train --minutes 1` ends after about a minute, baselines, soft targets and validation included."""
    clock, history = WorkClock(), []
    ranked = clock.wrap(evaluation.rank_targets, lambda *_, targets_U, **__: user_s * len(targets_U))
    monkeypatch.setattr(evaluation, "rank_targets", ranked)
    monkeypatch.setattr(run, "MemoryTeacher", clock.wrap(run.MemoryTeacher, lambda *_, **__: teacher_s))
    batch = evaluation._Evaluator.run_batch
    monkeypatch.setattr(
        evaluation._Evaluator,
        "run_batch",
        clock.wrap(batch, lambda _, indices, **__: validation_s / 3 if len(indices) > 1 else 0.0),
    )

    def tick(stats: TrainStats) -> None:
        history.append(stats)
        clock.now += 0.5

    recipe = replace(TINY, budget=Budget(minutes=1), validations=1, validation_users=300, teacher_weight=0.1)  # three batches
    options = {"progress": tick, "reserved_s": reserved_s, "clock": clock}
    train(log, split, sids, recipe, tmp_path, TrainOptions(**options))
    assert history[-1].share == 1
    assert history[-1].seconds == pytest.approx(expected, abs=1)
    assert clock.now + reserved_s <= max(60, 30 + reserved_s + 501 * user_s + teacher_s + 2 * validation_s) + 2


def test_the_estimate_of_a_validation_is_that_of_a_batch_after_the_kernels_are_compiled(
    log: InteractionLog, split: Split, sids: SidTable, model: AnyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6: compiling is paid once, so the reserve for the last validation leaves it out."""
    clock, sizes = WorkClock(), []
    search = evaluation._Evaluator.run_batch

    def cost(_: object, indices: np.ndarray, **__: object) -> float:
        sizes.append(len(indices))
        return 30.0 if len(sizes) == 1 else 0.01 * len(indices)

    monkeypatch.setattr(evaluation._Evaluator, "run_batch", clock.wrap(search, cost))
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    validation = Validation(trie, log, split, max_items=6, sample=384)
    assert validation.warm_up(model, clock) == pytest.approx(3.84)
    assert sizes == [1, 128]
    assert len(EvaluationSet.from_split(split, "valid").users) == 700


def test_steps_are_as_many_whatever_else_takes_time(log: InteractionLog, split: Split, sids: SidTable) -> None:
    """L6: only minutes are shared; steps and epochs give the same weights on every run."""
    clock, history = WorkClock(), []
    train(
        log,
        split,
        sids,
        replace(TINY, budget=Budget(steps=4)),
        options=TrainOptions(progress=history.append, reserved_s=1e9, clock=clock),
    )
    assert [stats.step for stats in history] == [1, 2, 3, 4]
