"""Fusion scores equal its formula, and its weights recover those that generated the data."""

import numpy as np
import pytest

from leafbeam.errors import ArgumentError, IndexFileError
from leafbeam.retrieve import Beams, Example, Fusion, Fusions, ItemMemory, features
from leafbeam.retrieve.fusion import MemoryScores

MEMORY = MemoryScores(
    np.array([0.5, 0, 0, 1, 0], np.float32),
    np.array([0, 0.25, -0.1, 0, 0], np.float32),
    np.array([True, True, True, True, True]),
)


def test_every_item_of_either_channel_is_scored_by_its_features():
    fusion = Fusion(transition=2.0, text=4.0, log_prob=0.5, found=1.0, seen=-8.0)
    beams = Beams(np.array([4, 0]), np.array([-1.0, -3.0], np.float32))
    scores = fusion.scores(*features(MEMORY, beams, np.array([3, -1])))
    # log probabilities are those above the last beam's, less 1: 3 for item 4, 1 for item 0
    assert scores.tolist() == [1.0 + 0.5 + 1.0, 1.0, -np.inf, 2.0 - 8.0, 1.5 + 1.0]


def test_a_model_counts_a_quarter_for_new_items_with_texts():
    memory = ItemMemory.fit(["a", "b", "new", "bare"], np.array([0, 2]), np.array([0, 1]), texts=["red", "tea", "red", ""])
    beams = memory.beams(["new", "bare", "a"], np.array([-1.0, -2.0, -3.0], np.float32))
    nothing = MemoryScores(np.zeros(4, np.float32), np.zeros(4, np.float32), np.ones(4, np.bool_))
    found = features(nothing, beams, np.empty(0, np.int64))
    assert Fusion(log_prob=1.0, found=2.0).scores(*found).tolist() == [3.0, -np.inf, 5.0 / 4, 4.0]
    memory.observe(["a"], "new")
    assert memory.beams(["new"], np.zeros(1, np.float32)).new_k == [False]
    memory.insert(["late"], texts=["tea"])
    assert memory.beams(["late", "new", "b"], np.zeros(3, np.float32)).new_k.tolist() == [True, False, False]


def test_without_beams_or_memory_the_other_channel_is_left():
    fusion, none = Fusion(), Beams(np.empty(0, np.int64), np.empty(0, np.float32))
    nothing = MemoryScores(np.zeros(5, np.float32), np.zeros(5, np.float32), np.ones(5, np.bool_))
    alone = fusion.scores(*features(MEMORY, none, np.empty(0, np.int64)))
    assert np.isfinite(alone).tolist() == [True, True, False, True, False]
    beams = Beams(np.array([2, 1]), np.array([-1.0, -2.0], np.float32))
    order = np.argsort(-fusion.scores(*features(nothing, beams, np.empty(0, np.int64))))
    assert order[:2].tolist() == [2, 1]


def test_fit_recovers_the_weights_that_made_the_choices():
    rng = np.random.default_rng(0)
    truth = np.array([1.0, 3.0, 0.5, -1.0, -2.0])
    examples: list[Example] = []
    for _ in range(3000):
        x = np.concatenate([rng.random((3, 8)), rng.random((2, 8)) < 0.4]).astype(np.float32)
        utility = truth @ x + rng.gumbel(size=8)  # the softmax's noise
        examples.append(Example(x, int(utility.argmax())))
    fusion = Fusion.fit(examples)
    found = [fusion.transition, fusion.text, fusion.log_prob, fusion.found, fusion.seen]
    assert np.abs(np.array(found) - truth).max() < 0.3


def test_few_examples_change_little_and_none_nothing():
    assert Fusion.fit([]) == Fusion()
    example = Example(np.eye(5, 3, dtype=np.float32), 0)
    assert abs(Fusion.fit([example]).transition - Fusion().transition) < 0.2


def test_a_memory_keeps_its_fusion_and_damaged_weights_are_refused(tmp_path):
    memory = ItemMemory.fit(["a", "b"], np.array([0, 2]), np.array([0, 1]))
    memory.fusion = Fusions(removed=Fusion(seen=-3.0))
    memory.save(tmp_path / "memory")
    assert ItemMemory.load(tmp_path / "memory").fusion == memory.fusion
    data = (tmp_path / "memory").read_bytes()
    (tmp_path / "memory").write_bytes(data.replace(b'\\"seen\\": -3.0', b'\\"seen\\": NaN '))
    with pytest.raises(IndexFileError):
        ItemMemory.load(tmp_path / "memory")
    with pytest.raises(ArgumentError, match="finite"):
        Fusion(seen=float("inf"))
