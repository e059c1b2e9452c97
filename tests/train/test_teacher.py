"""MemoryTeacher against a plain computation of the same targets, and the loss that uses them."""

import json
from collections import defaultdict
from math import expm1, log1p

import numpy as np
import pytest
import torch

from leafbeam.errors import CheckpointError
from leafbeam.model import new_model
from leafbeam.retrieve import ItemMemory, MemoryConfig, kernels
from leafbeam.train import Architecture, Budget, Histories, Recipe
from leafbeam.train.prediction import predict
from leafbeam.train.teacher import MemoryTeacher
from leafbeam.train.trainer import Trainer


def histories(seed: int = 0, users: int = 30, items: int = 12) -> Histories:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, users)
    return Histories(
        indptr_U1=np.append(0, lengths.cumsum()),
        items_E=rng.integers(0, items, lengths.sum()),
        times_E=np.arange(lengths.sum()),
    )


WORDS = [f"{'red' if item % 2 else 'blue'} {('shoe', 'boot', 'hat')[item % 3]} {item // 6}a" for item in range(12)]


def memory_of(log: Histories, config: MemoryConfig | None = None) -> ItemMemory:
    return ItemMemory.fit(np.arange(12), log.indptr_U1, log.items_E, texts=WORDS, config=config)


def plain_targets(log: Histories, window: list[int], position: int, memory: ItemMemory, *, texts: bool) -> dict[int, float]:
    """The weights of the items at one position, in the words of the class's pseudo-code."""
    config, words, counts = memory.config, memory.texts, defaultdict[tuple[int, int], float](float)
    for user in range(len(log)):
        row = log.items_E[log.indptr_U1[user] : log.indptr_U1[user + 1]].tolist()
        for at, item in enumerate(row):
            for distance in range(1, config.distances + 1):
                if at + distance < len(row):
                    weight = config.distance_decay ** (distance - 1)
                    counts[item, row[at + distance]] += weight
                    counts[row[at + distance], item] += config.reverse * weight
    target = window[position]
    scores: defaultdict[int, float] = defaultdict(float)
    for back in range(min(config.history, position)):
        newest, decay = window[position - 1 - back], config.history_decay**back
        own = config.distance_decay**back if back < config.distances else 0.0
        row = {item: count for (first, item), count in counts.items() if first == newest}
        largest = log1p(max(row.values(), default=0.0))
        for item, count in row.items():
            left = count - own * (item == target)
            if left > 1e-4:
                scores[item] += decay * log1p(left) / (config.shrinkage + largest)
        everything = np.arange(12)
        cosines = kernels.cosines(words.indptr_N1, words.terms_C, words.weights_C, np.array([newest]), everything)[0]
        for item in everything[(cosines > 0) & (everything != newest) & texts].tolist():
            scores[item] += decay * config.text_weight * float(cosines[item])
    if target in window[:position]:
        return {}
    return {item: expm1(5 * score) for item, score in scores.items() if item not in window[:position]}


@pytest.mark.parametrize(("first", "texts"), [(0, True), (3, True), (0, False)])
def test_targets_are_the_memorys_scores_without_the_pair_to_be_predicted_and_without_seen_items(first: int, texts: bool):
    log = histories()
    memory = memory_of(log)
    teacher = MemoryTeacher(memory, log, num_targets=12, texts=texts)
    windows = np.stack([log.items_E[start : start + 5] for start in log.indptr_U1[:-1][np.diff(log.indptr_U1) >= 5]])
    found = teacher.targets(windows, first)
    assert found.items_PR.shape == (len(windows) * (5 - first), 12)
    for number, window in enumerate(windows.tolist()):
        for position in range(first, 5):
            row = number * (5 - first) + position - first
            expected = plain_targets(log, window, position, memory, texts=texts)
            assert (found.weights_PR[row] > 0).sum() == len(expected)
            for item, weight in zip(found.items_PR[row].tolist(), found.weights_PR[row].tolist(), strict=True):
                if weight > 0:
                    assert weight == pytest.approx(expected[item] / sum(expected.values()), rel=1e-3)
            assert (np.diff(found.weights_PR[row]) <= 0).all()


def test_a_pair_that_only_the_history_itself_has_is_not_taught():
    log = Histories(indptr_U1=np.array([0, 2, 4]), items_E=np.array([0, 1, 0, 2]), times_E=np.arange(4))
    memory = ItemMemory.fit(np.arange(3), log.indptr_U1, log.items_E, config=MemoryConfig(reverse=0.0))
    found = MemoryTeacher(memory, log, num_targets=3).targets(np.array([[0, 1]]))
    assert found.items_PR[1, 0] == 2
    assert found.weights_PR[1].tolist() == [1, 0, 0]


def test_only_the_largest_targets_are_kept_and_sum_to_one():
    log = histories(users=200)
    memory = memory_of(log)
    some, all_ = (MemoryTeacher(memory, log, num_targets=count).targets(log.items_E[None, :6]) for count in (2, 12))
    sums = some.weights_PR.sum(axis=1)
    np.testing.assert_allclose(sums[all_.weights_PR.sum(axis=1) > 0], 1, rtol=1e-5)
    for few, many in zip(some.items_PR[1:], all_.items_PR[1:], strict=True):
        assert few.tolist() == many[:2].tolist()


@pytest.mark.parametrize("architecture", ["decoder-only", "item-history", "encoder-decoder"])
def test_the_mean_loss_is_the_cross_entropy_with_the_mixed_target(architecture: Architecture):
    """Codes after the first of other items are expected from prompts that end in these items."""
    log, sizes = histories(users=100), (3, 2, 4)
    codes = np.stack(np.unravel_index(np.arange(0, 24, 2), sizes), axis=1)
    recipe = Recipe(
        budget=Budget(steps=1),
        precision="fp32",
        dropout=0.0,
        label_smoothing=0.0,
        teacher_weight=0.5,
        architecture=architecture,
    )
    vocabulary = recipe.vocabulary(sizes)
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # so that items differ
    starts = [start for start in log.indptr_U1[:-1].tolist() if len(set(log.items_E[start : start + 5].tolist())) == 5]
    trainer, window = Trainer(model, log, codes, recipe), log.items_E[starts[0] : starts[0] + 5].tolist()
    trainer.teacher = teacher = MemoryTeacher(memory_of(log), log, num_targets=12)
    tokens_NL, draws = torch.as_tensor(vocabulary.tokens(codes)), torch.Generator().manual_seed(0)

    def losses_of(before: list[int], item: int) -> list[float]:
        """The losses of an item's codes, from a prompt that ends in the item."""
        tokens_BTL = tokens_NL[torch.tensor([[*before, item]])]
        hidden_LD = predict(model, tokens_BTL, draws, None).hidden_BPLD[0, -1]
        return [-model.head(row_D, level).log_softmax(0)[codes[item, level]].item() for level, row_D in enumerate(hidden_LD)]

    positions = [4] if architecture == "encoder-decoder" else range(5)
    expected, found = 0.0, teacher.targets(np.array([window]))
    for position in positions:
        before, target = window[:position], sum(losses_of(window[:position], window[position]))
        row = zip(found.items_PR[position].tolist(), found.weights_PR[position].tolist(), strict=True)
        known = [(item, weight) for item, weight in row if weight > 0]
        taught = sum(weight * sum(losses_of(before, item)) for item, weight in known)
        expected += (0.5 * target + 0.5 * taught if known else target) / len(positions)
    with torch.no_grad():
        losses = [trainer.loss(torch.tensor([window])).item() for _ in range(400)]
    assert np.std(losses) > 0
    assert np.mean(losses) == pytest.approx(expected, abs=4 * float(np.std(losses)) / 20)


def test_items_of_one_code_are_taught_too():
    log, recipe = histories(users=100), Recipe(budget=Budget(steps=2), precision="fp32", teacher_weight=0.5)
    vocabulary = recipe.vocabulary((12,))
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(0))
    trainer = Trainer(model, log, np.arange(12)[:, None], recipe)
    items, losses = torch.as_tensor(log.items_E[None, :5], dtype=torch.int64), []
    for trainer.teacher in (None, MemoryTeacher(memory_of(log), log, num_targets=12)):
        losses.append(trainer.loss(items).item())
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)


def test_a_recipe_of_before_the_teacher_has_no_teacher_weight():
    settings = json.loads(Recipe().to_json())
    assert Recipe.from_json(json.dumps(settings)).teacher_weight > 0
    del settings["teacher_weight"]
    assert Recipe.from_json(json.dumps(settings)).teacher_weight == 0


def test_a_recipe_with_the_teacher_of_before_is_refused():
    settings = json.loads(Recipe().to_json()) | {"graph_weight": 0.6}
    with pytest.raises(CheckpointError, match=r"graph_weight.*train again"):
        Recipe.from_json(json.dumps(settings))
