import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from leafbeam.errors import ArgumentError, CheckpointError, CodesError, ItemIdError, TrainingError
from leafbeam.model import Transformer, Vocabulary
from leafbeam.semid import SidTable
from leafbeam.train import (
    Budget,
    Checkpoint,
    Recipe,
    Trainer,
    TrainOptions,
    TrainStats,
    codes_of_log,
    leave_one_out,
    train,
)
from leafbeam.train import trainer as trainer_module
from leafbeam.train.trainer import AVERAGE_POWER
from tests.train.small_trainer import SIZES, TINY, all_codes, log_of, same, sids_of, trainer_of, walks, weights_of

ARCHITECTURES = pytest.mark.parametrize("architecture", ["decoder-only", "item-history"])


@ARCHITECTURES
def test_a_log_that_can_be_learned_is_learned(architecture: str):
    recipe = dataclasses.replace(TINY, budget=Budget(steps=150), hidden_size=32, dropout=0.0, label_smoothing=0.0)
    recipe = dataclasses.replace(recipe, architecture=architecture)  # pyright: ignore[reportArgumentType]
    history: list[TrainStats] = []
    trainer = trainer_of(recipe)
    trainer.run(progress=history.append)
    assert history[0].loss == pytest.approx(np.log(SIZES).sum(), rel=0.05)
    assert history[-1].loss < 0.6 * history[0].loss  # the first item of a walk cannot be foreseen
    codes = all_codes()
    tokens_BT, _ = trainer.model.vocabulary.prompts([codes[[item, item + 1]] for item in range(30)])
    with torch.inference_mode():
        hidden_BTD = trainer.model(torch.as_tensor(tokens_BT))
        first_code = trainer.model.head(hidden_BTD[:, -1], 0).argmax(-1)
    assert (first_code.numpy() == codes[2:32, 0]).mean() > 0.7  # a guess is right in 1 of 4
    assert not trainer.model.training


@ARCHITECTURES
def test_the_loss_is_each_levels_own_cross_entropy_given_what_came_before(architecture: str):
    trainer = trainer_of(dataclasses.replace(TINY, dropout=0.0, architecture=architecture))
    items_BT = torch.tensor([[3, 17, 5], [0, 39, 21]])
    model, codes = trainer.model.eval(), all_codes()
    nats = []
    for items in items_BT.tolist():
        for position in range(3):
            for level in range(3):
                before = [model.vocabulary.bos, *model.vocabulary.tokens(codes[items[: position + 1]]).reshape(-1)]
                hidden = model(torch.tensor([before[: 1 + 3 * position + level]]))[0, -1]
                log_p = torch.log_softmax(model.head(hidden, level).double(), -1)
                right = codes[items[position], level]
                nats.append(-0.95 * log_p[right] - 0.05 * log_p.mean())
    by_hand = torch.stack(nats).sum() / items_BT.numel()
    assert trainer.loss(items_BT).item() == pytest.approx(by_hand.item(), rel=1e-5)


ENCODER_DECODER = dataclasses.replace(TINY, architecture="encoder-decoder", max_items=4, num_key_value_heads=2)
EXPERTS = dataclasses.replace(ENCODER_DECODER, num_experts=3, num_experts_per_tok=2)
ITEM_HISTORY = dataclasses.replace(TINY, architecture="item-history")


@pytest.mark.parametrize(
    ("recipe", "stop"),
    [(TINY, 1), (TINY, 5), (TINY, 11), (ENCODER_DECODER, 4), (EXPERTS, 4), (ITEM_HISTORY, 4)],
    ids=["1", "5", "11", "encoder-decoder", "experts", "item-history"],
)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, recipe: Recipe, stop: int):
    whole = trainer_of(recipe)
    whole.run()
    begun = trainer_of(recipe)
    for _ in range(stop):
        begun.step()
    begun.checkpoint().save(tmp_path / "checkpoint")
    resumed = trainer_of(recipe)
    resumed.resume(Checkpoint.load(tmp_path / "checkpoint"))
    resumed.run()
    assert same(weights_of(whole.model), weights_of(resumed.model))
    assert dataclasses.replace(whole.state, seconds=0) == dataclasses.replace(resumed.state, seconds=0)
    assert same(dict(whole.checkpoint().tensors), dict(resumed.checkpoint().tensors))


def test_an_interrupted_run_leaves_a_checkpoint_that_ends_with_the_same_bits(tmp_path: Path):
    whole = trainer_of()
    whole.run()

    def stop(stats: TrainStats) -> None:
        if stats.step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer_of().run(progress=stop, checkpoint=tmp_path / "checkpoint")
    resumed = trainer_of()
    resumed.resume(Checkpoint.load(tmp_path / "checkpoint"))
    assert resumed.state.step == 7
    resumed.run()
    assert same(weights_of(whole.model), weights_of(resumed.model))


def test_an_interrupt_in_the_middle_of_an_update_keeps_the_checkpoint_before_it(tmp_path: Path):
    trainer = trainer_of()
    for _ in range(4):
        trainer.step()
    trainer.checkpoint().save(tmp_path / "checkpoint")

    def interrupted(loss: float) -> None:
        raise KeyboardInterrupt

    trainer._advance = interrupted  # the weights are new, the state is not
    with pytest.raises(KeyboardInterrupt):
        trainer.run(checkpoint=tmp_path / "checkpoint")
    resumed, whole = trainer_of(), trainer_of()
    resumed.resume(Checkpoint.load(tmp_path / "checkpoint"))
    for run in (resumed, whole):
        run.run()
    assert same(weights_of(resumed.model), weights_of(whole.model))


def test_bf16_trains_to_about_the_loss_of_fp32_and_keeps_fp32_weights(tmp_path: Path):
    fp32, bf16 = trainer_of(), trainer_of(dataclasses.replace(TINY, precision="bf16"))
    for trainer in (fp32, bf16):
        trainer.run()
    assert bf16.state.loss != fp32.state.loss
    assert bf16.state.loss == pytest.approx(fp32.state.loss, rel=0.02)
    assert {weight.dtype for weight in bf16.model.parameters()} == {torch.float32}


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    first, second, other = trainer_of(), trainer_of(), trainer_of(dataclasses.replace(TINY, seed=1))
    torch.manual_seed(123)
    first.run()
    torch.rand(7)
    second.run()
    other.run()
    assert same(weights_of(first.model), weights_of(second.model))
    assert not same(weights_of(first.model), weights_of(other.model))


def test_training_leaves_torchs_global_generator_alone():
    before = torch.get_rng_state()
    trainer_of().run()
    assert torch.equal(before, torch.get_rng_state())


def test_an_update_uses_the_recipes_threads_and_restores_the_number(monkeypatch: pytest.MonkeyPatch):
    before, seen = torch.get_num_threads(), []
    trainer = trainer_of(dataclasses.replace(TINY, threads=before + 1, budget=Budget(steps=2)))
    measured = trainer.loss
    monkeypatch.setattr(trainer, "loss", lambda *args: seen.append(torch.get_num_threads()) or measured(*args))
    trainer.run()
    assert seen == [before + 1] * 2
    assert torch.get_num_threads() == before


def test_a_budget_in_minutes_follows_the_clock_and_ends_on_time():
    now = [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    history: list[TrainStats] = []
    recipe = dataclasses.replace(TINY, budget=Budget(minutes=0.5))
    trainer = trainer_of(recipe, clock=clock)
    trainer.run(progress=history.append)
    assert 30 <= history[-1].seconds <= 31
    assert history[-1].share == 1
    rates = [stats.learning_rate for stats in history]
    peak = int(np.argmax(rates))
    assert peak <= 0.1 * len(rates)
    assert rates[peak] == pytest.approx(recipe.learning_rate, rel=0.01)
    assert rates[-1] < 0.01 * recipe.learning_rate
    assert all(np.diff(rates[peak:]) <= 0)
    assert history[len(history) // 2].remaining_s == pytest.approx(15, abs=1)


def test_a_budget_in_epochs_reads_the_log_that_many_times():
    trainer = trainer_of(dataclasses.replace(TINY, budget=Budget(epochs=2)))
    trainer.run()
    assert (trainer.state.epoch, trainer.state.batch) == (2, 0)


@pytest.mark.parametrize("budget", [{}, {"steps": 0}, {"minutes": -1.0}, {"steps": 5, "epochs": 1.0}, {"epochs": float("nan")}])
def test_an_invalid_budget_is_refused(budget: dict[str, float]):
    with pytest.raises(ArgumentError):
        Budget(**budget)


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"dropout": 1.0},
        {"batch_tokens": 0},
        {"betas": (0.9, 1.0)},
        {"betas": (0.9,)},
        {"precision": "fp8"},
        {"num_key_value_heads": 3},
        {"seed": -1},
        {"max_items": True},
    ],
)
def test_a_recipe_out_of_range_is_refused(wrong: dict[str, object]):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Recipe(**wrong)


def test_a_recipe_survives_json():
    recipe = dataclasses.replace(TINY, betas=(0.8, 0.9))
    assert Recipe.from_json(recipe.to_json()) == recipe
    with pytest.raises(CheckpointError):
        Recipe.from_json('{"budget": 3}')


def test_a_loss_that_is_not_a_number_is_a_named_error_and_changes_nothing():
    trainer = trainer_of()
    trainer.step()
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = float("nan")
    before = weights_of(trainer.model)
    with pytest.raises(TrainingError, match=r"at step 1 the loss is nan.*learning_rate"):
        trainer.step()
    after = weights_of(trainer.model)
    assert all(torch.equal(before[name].nan_to_num(7), after[name].nan_to_num(7)) for name in before)
    assert trainer.state.step == 1


def test_the_best_weights_of_a_validation_are_kept_and_survive_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer_module, "VALIDATION_STEPS", 1)
    recipe = dataclasses.replace(TINY, validations=3)
    answers = iter([0.2, 0.5, 0.1])
    seen: list[dict[str, torch.Tensor]] = []

    def validate(model: Transformer) -> float:
        assert not model.training
        seen.append(weights_of(model))
        return next(answers)

    trainer = trainer_of(recipe, validate=validate)
    while len(seen) < 2:
        before = trainer.share
        trainer.step()
        trainer._validate_if_due(before)
    trainer.checkpoint().save(tmp_path / "checkpoint")
    resumed = trainer_of(recipe, validate=validate)
    resumed.resume(Checkpoint.load(tmp_path / "checkpoint"))
    resumed.run()
    assert len(seen) == 3
    assert same(weights_of(resumed.model), seen[1])
    assert resumed.state.best_recall == 0.5


def test_sids_that_do_not_fit_are_refused():
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model = Transformer(TINY.model_config(vocabulary), vocabulary)
    with pytest.raises(CodesError, match="item row 39, but only 30"):
        Trainer(model, walks(60), all_codes()[:30], TINY)
    with pytest.raises(CodesError):
        Trainer(model, walks(60), all_codes((5, 4, 2)), TINY)


def test_held_out_items_never_reach_the_weights(tmp_path: Path):
    items = [f"i{number:02}" for number in range(20)]
    trained = [[items[(user + step) % 14] for step in range(2 + user % 4)] for user in range(16)]
    everything = [[*items]]  # one user whose last two do not matter: it fixes the order of the items in both logs
    one = log_of(everything + [[*history, "i14", "i15"] for history in trained])
    two = log_of(everything + [[*history, "i16", "i17"] for history in trained])
    splits = [leave_one_out(log) for log in (one, two)]
    assert (splits[0].test_U != splits[1].test_U).sum() == len(trained)
    models = [train(log, split, sids_of(items), TINY) for log, split in zip((one, two), splits, strict=True)]
    assert same(weights_of(models[0]), weights_of(models[1]))


def test_train_writes_a_model_that_loads_and_resumes_where_it_stopped(tmp_path: Path):
    items = [f"i{number:02}" for number in range(20)]
    log = log_of([[items[(user + step) % 20] for step in range(3 + user % 5)] for user in range(40)])
    split, sids = leave_one_out(log), sids_of(items)
    whole = train(log, split, sids, TINY)

    def stop(stats: TrainStats) -> None:
        if stats.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(log, split, sids, TINY, tmp_path, options=TrainOptions(progress=stop))
    steps: list[int] = []
    model = train(
        log, split, sids, TINY, tmp_path, options=TrainOptions(resume=True, progress=lambda stats: steps.append(stats.step))
    )
    assert steps == list(range(6, 13))
    assert same(weights_of(whole), weights_of(model))
    read = Transformer.from_pretrained(tmp_path / "model")
    assert same(weights_of(read), weights_of(model))
    assert read.vocabulary == model.vocabulary
    train(log, split, sids, dataclasses.replace(TINY, seed=5, budget=Budget(steps=1)), tmp_path)
    assert Checkpoint.load(tmp_path / "checkpoint").recipe.seed == 5  # nothing of the former run is left to go on with


def test_codes_follow_the_logs_order_and_a_missing_sid_is_named():
    log = log_of([["b", "a", "c"]])
    sids = sids_of(["c", "x", "a", "b"])
    codes = codes_of_log(log, sids)
    for item, code in zip(log.item_ids, codes, strict=True):
        assert (code == sids.codes[list(sids.item_ids).index(item)]).all()
    with pytest.raises(ItemIdError, match=r"1 of the log's 3 items .* 'b'"):
        codes_of_log(log, sids_of(["a", "c"]))
    with pytest.raises(ItemIdError):
        codes_of_log(log, SidTable(item_ids=np.array([1, 2, 3]), codes=all_codes()[:3], codebook_sizes=SIZES))


@pytest.mark.parametrize(("last", "kept"), [(0.291, 12), (0.288, 8), (0.31, 12)])
def test_of_recalls_that_differ_by_noise_the_last_weights_win(monkeypatch: pytest.MonkeyPatch, last: float, kept: int):
    monkeypatch.setattr(trainer_module, "VALIDATION_STEPS", 1)
    values = iter([0.1, 0.3, last])
    recipe = dataclasses.replace(TINY, budget=Budget(steps=12), validations=3, validation_users=2000)
    trainer = trainer_of(recipe, validate=lambda model: next(values))
    trainer.run()
    assert trainer.state.best_step == kept  # a standard error of 0.3 on 2,000 users: 0.010


def test_a_finished_run_continues_with_a_larger_budget_at_its_learning_rate(tmp_path: Path):
    trainer_of().run(checkpoint=tmp_path / "checkpoint")
    larger = dataclasses.replace(TINY, budget=Budget(steps=30))
    resumed = trainer_of(larger)
    resumed.resume(Checkpoint.load(tmp_path / "checkpoint"))
    assert (resumed.state.step, resumed.share) == (12, 0.4)
    assert resumed.step().learning_rate == larger.learning_rate_at(0.4)
    resumed.run()
    assert resumed.state.step == 30
    again = trainer_of()  # the budget of before is used up
    again.resume(Checkpoint.load(tmp_path / "checkpoint"))
    assert again.ended


def test_what_is_kept_is_the_average_of_the_last_weights():
    trainer, history = trainer_of(), [weights_of(trainer_of().model)]
    while not trainer.ended:
        trainer.step()
        history.append(weights_of(trainer.model))
    expected = history[0]
    for step, weights in enumerate(history[1:], 1):
        share = 1 - (1 - 1 / step) ** AVERAGE_POWER
        expected = {name: expected[name] + share * (weights[name] - expected[name]) for name in expected}
    trainer.run()
    for name, weight in weights_of(trainer.model).items():
        torch.testing.assert_close(weight, expected[name])
        assert not torch.equal(weight, history[-1][name])


def test_validations_are_spread_over_the_budget_and_cost_a_twentieth_of_its_minutes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer_module, "VALIDATION_STEPS", 10)
    now = [0.0]

    def measured(cost_s: float, tick_s: float) -> list[float]:
        times: list[float] = []

        def clock() -> float:
            now[0] += tick_s
            return now[0]

        def validate(model: Transformer) -> float:
            now[0] += cost_s
            times.append(trainer.share)
            return len(times)

        recipe = dataclasses.replace(TINY, budget=Budget(minutes=1), validations=10)
        trainer = trainer_of(recipe, validate=validate, clock=clock)
        trainer.run()
        return times

    np.testing.assert_allclose(measured(0.01, 0.3), np.arange(1, 11) / 10, atol=0.02)
    times = measured(1.5, 1.0)
    assert 2 <= len(times) <= 4
    assert times[-1] == 1
    monkeypatch.setattr(trainer_module, "VALIDATION_STEPS", 10**6)
    assert measured(0.01, 1.0) == [1.0]


def test_a_split_with_its_validation_items_trains_on_them_and_never_on_the_test():
    items = [f"i{number:02}" for number in range(20)]
    log = log_of([[items[(user + step) % 20] for step in range(3 + user % 5)] for user in range(30)])
    split = leave_one_out(log).with_valid()
    assert (split.train.lengths_U == log.histories.lengths_U - 1).all()
    assert len(split.valid_users()) == 0
    assert split.before_test.items_E.tolist() == split.train.items_E.tolist()
    assert (split.report.valid_interactions, split.report.train_interactions) == (0, len(split.train.items_E))
    seen: list[float] = []
    train(log, split, sids_of(items), TINY, options=TrainOptions(on_baselines=lambda recalls: seen.append(1)))
    assert not seen  # without validation items nothing is validated
