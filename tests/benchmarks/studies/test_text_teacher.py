"""A teacher over text: what it draws and asks for, and that no interaction of a new item is in what a model learns from."""

import numpy as np
import pytest

from benchmarks.studies.cold_split import ColdSplit, cold_split
from benchmarks.studies.retriever import DenseRetriever
from benchmarks.studies.text_teacher import TeacherRecipe, TextTeacher, with_pseudo_histories
from leafbeam.retrieve import ItemMemory
from leafbeam.train.teacher import MemoryTeacher
from tests.fixtures.logs import shop

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def split() -> ColdSplit:
    return cold_split(shop(), share=0.2)


def retriever(num_items: int) -> DenseRetriever:
    return DenseRetriever(np.random.default_rng(4).standard_normal((num_items, 8)).astype(np.float32))


def teacher_of(split: ColdSplit, recipe: TeacherRecipe, others: MemoryTeacher | None = None) -> TextTeacher:
    return TextTeacher(retriever(len(split.cold_N)), split.cold_items, others, recipe)


def test_pseudo_histories_are_beginnings_of_training_histories_and_end_in_a_new_item(split: ColdSplit) -> None:
    recipe = TeacherRecipe(copies=3)
    found = with_pseudo_histories(split.train, teacher_of(split, recipe), recipe, seed=1)
    users = np.flatnonzero(split.train.lengths_U)
    assert len(found) == len(split.train) + 3 * len(users)
    for user in range(len(split.train)):
        np.testing.assert_array_equal(found[user], split.train[user])
    lengths = set()
    for number, user in enumerate(np.tile(users, 3).tolist(), len(split.train)):
        *before, drawn = found[number].tolist()
        assert before == split.train[user][: len(before)].tolist()
        assert len(before) >= 1
        assert split.cold_N[drawn]
        lengths.add((len(before), len(split.train[user])))
    assert any(part < whole for part, whole in lengths)
    assert any(part == whole for part, whole in lengths)
    again = with_pseudo_histories(split.train, teacher_of(split, recipe), recipe, seed=1)
    np.testing.assert_array_equal(found.items_E, again.items_E)


def test_new_items_are_drawn_as_often_as_the_retriever_expects_them(split: ColdSplit) -> None:
    recipe = TeacherRecipe(copies=60, sharpness=3.0)
    teacher = teacher_of(split, recipe)
    found = with_pseudo_histories(split.train, teacher, recipe, seed=2)
    rows = np.arange(len(split.train), len(found))
    pseudo = found.select(rows)
    before_E = np.ones(len(pseudo.items_E), np.bool_)
    before_E[pseudo.indptr_U1[1:] - 1] = False
    expected_C = teacher.probabilities(pseudo.filter(before_E)).mean(axis=0)
    drawn_C = np.bincount(np.searchsorted(split.cold_items, pseudo.items_E[~before_E]), minlength=len(expected_C)) / len(rows)
    np.testing.assert_allclose(drawn_C, expected_C, atol=4 * np.sqrt(expected_C.max() / len(rows)))
    assert expected_C.max() > 2 * expected_C.min()


def test_soft_targets_are_the_retrievers_after_a_pseudo_history_and_the_others_elsewhere(split: ColdSplit) -> None:
    memory = ItemMemory.fit(np.arange(len(split.cold_N)), split.train.indptr_U1, split.train.items_E)
    others = MemoryTeacher(memory, split.train, num_targets=3)
    teacher = teacher_of(split, TeacherRecipe(soft_items=5), others)
    user = int(np.flatnonzero(split.train.lengths_U >= 3)[0])
    warm = split.train[user][:3]
    windows = np.stack([warm, np.append(warm[:2], split.cold_items[1])])
    items_PR, weights_PR = teacher.targets(windows)
    expected = others.targets(windows)
    assert items_PR.shape == weights_PR.shape == (6, 5)
    np.testing.assert_array_equal(items_PR[:5, :3], expected.items_PR[:5])
    np.testing.assert_array_equal(weights_PR[:5, :3], expected.weights_PR[:5])
    before = split.train.select(np.array([user])).filter(np.arange(split.train.lengths_U[user]) < 2)
    best = np.argsort(-teacher.probabilities(before)[0])[:5]
    np.testing.assert_array_equal(items_PR[5], split.cold_items[best])
    assert weights_PR[5].sum() == pytest.approx(1)
    later = teacher.targets(windows, first=2)
    np.testing.assert_array_equal(later.items_PR, items_PR[[2, 5]])
