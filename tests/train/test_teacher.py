"""GraphTeacher against a plain computation of the same targets, and the loss that uses them."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from leafbeam.model import new_model
from leafbeam.retrieve.transitions import MemoryConfig
from leafbeam.train import Budget, Histories, Recipe
from leafbeam.train.teacher import GraphTeacher
from leafbeam.train.trainer import Trainer


def histories(seed: int = 0, users: int = 30, items: int = 12) -> Histories:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, users)
    return Histories(
        indptr_U1=np.append(0, lengths.cumsum()),
        items_E=rng.integers(0, items, lengths.sum()),
        times_E=np.arange(lengths.sum()),
    )


def plain_targets(log: Histories, window: list[int], position: int, config: MemoryConfig) -> dict[int, float]:
    """The weights of the items at one position, in the words of the class's pseudo-code."""
    counts: defaultdict[tuple[int, int], float] = defaultdict(float)
    for user in range(len(log)):
        row = log.items_E[log.indptr_U1[user] : log.indptr_U1[user + 1]].tolist()
        for at, item in enumerate(row):
            for distance in range(1, config.distances + 1):
                if at + distance < len(row):
                    weight = config.distance_decay ** (distance - 1)
                    counts[item, row[at + distance]] += weight
                    counts[row[at + distance], item] += config.reverse * weight
    target = window[position]
    weights: defaultdict[int, float] = defaultdict(float)
    for back in range(min(config.history, position)):
        newest = window[position - 1 - back]
        own = config.distance_decay**back if back < config.distances else 0.0
        row = {item: count - own * (item == target) for (first, item), count in counts.items() if first == newest}
        total = sum(count for (first, _), count in counts.items() if first == newest) - own
        if total > 1e-4:
            for item, count in row.items():
                if count > 1e-4:
                    weights[item] += config.history_decay**back * count / total
    return {item: weight for item, weight in weights.items() if item not in window[:position]}


@pytest.mark.parametrize("first", [0, 3])
def test_targets_are_the_counts_without_the_pair_to_be_predicted_and_without_seen_items(first: int):
    log, config = histories(), MemoryConfig()
    teacher = GraphTeacher(log, 12, num_targets=12, config=config)
    windows = np.stack([log.items_E[start : start + 5] for start in log.indptr_U1[:-1][np.diff(log.indptr_U1) >= 5]])
    found = teacher.targets(windows, first)
    assert found.items_PR.shape == (len(windows) * (5 - first), 12)
    for number, window in enumerate(windows.tolist()):
        for position in range(first, 5):
            row = number * (5 - first) + position - first
            expected = plain_targets(log, window, position, config)
            assert (found.weights_PR[row] > 0).sum() == len(expected)
            for item, weight in zip(found.items_PR[row].tolist(), found.weights_PR[row].tolist(), strict=True):
                if weight > 0:
                    assert weight == pytest.approx(expected[item] / sum(expected.values()), rel=1e-4)
            assert (np.diff(found.weights_PR[row]) <= 0).all()


def test_only_the_largest_targets_are_kept_and_sum_to_one():
    log = histories(users=200)
    some, all_ = (GraphTeacher(log, 12, num_targets=count).targets(log.items_E[None, :6]) for count in (2, 12))
    sums = some.weights_PR.sum(axis=1)
    np.testing.assert_allclose(sums[all_.weights_PR.sum(axis=1) > 0], 1, rtol=1e-5)
    for few, many in zip(some.items_PR[1:], all_.items_PR[1:], strict=True):
        assert few.tolist() == many[:2].tolist()


def loss_of(recipe: Recipe, log: Histories, codes: np.ndarray, sizes: tuple[int, ...]) -> tuple[float, torch.Tensor, Trainer]:
    vocabulary = recipe.vocabulary(sizes)
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(0))
    trainer = Trainer(model, log, codes, recipe)
    items = torch.as_tensor(log.items_E[None, :6], dtype=torch.int64)
    return trainer.loss(items).item(), items, trainer


def test_the_loss_is_the_cross_entropy_with_the_mixed_target():
    log, sizes = histories(users=100), (4, 4)
    codes = np.stack(np.divmod(np.arange(12), 4), axis=1)
    recipe = Recipe(
        budget=Budget(steps=1), precision="fp32", dropout=0.0, label_smoothing=0.0, graph_weight=0.5, graph_items=12
    )
    found, items, trainer = loss_of(recipe, log, codes, sizes)
    hard, _, _ = loss_of(replace(recipe, graph_weight=0.0), log, codes, sizes)
    assert found != pytest.approx(hard, rel=1e-4)
    targets = GraphTeacher(log, 12, num_targets=12).targets(items.numpy())
    tokens = trainer.model.vocabulary.tokens(codes)
    prompt = torch.as_tensor(np.append(trainer.model.vocabulary.bos, tokens[items[0]].reshape(-1)[:-1]))[None]
    hidden = trainer.model(prompt, dropout=torch.Generator())[0].reshape(6, 2, -1)
    expected = 0.0
    for position, item in enumerate(items[0].tolist()):
        row = zip(targets.items_PR[position].tolist(), targets.weights_PR[position].tolist(), strict=True)
        weights = {item: weight for item, weight in row if weight > 0}
        for level in range(2):
            logp = trainer.model.head(hidden[position, level], level).log_softmax(0).tolist()
            same = {i: w for i, w in weights.items() if tuple(codes[i, :level]) == tuple(codes[item, :level])}
            mass = sum(same.values())
            soft = -sum(w / mass * logp[codes[i, level]] for i, w in same.items()) if mass else 0.0
            share = 0.5 * mass
            expected += ((1 - share) * -logp[codes[item, level]] + share * soft) / 6
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_recipe_of_before_the_teacher_has_no_graph_weight():
    text = Recipe().to_json()
    assert Recipe.from_json(text).graph_weight > 0
    assert Recipe.from_json(text.replace('"graph_weight": 0.6, ', "")).graph_weight == 0
