"""The scratch space of a round on the CPU: no row writes past it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leafbeam import Trie
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.cpu import step as cpu

_MARK = 77


class Guarded:
    """Gives arrays that are followed by marks."""

    def __init__(self) -> None:
        self.flat: list[np.ndarray] = []

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        size = int(np.prod(shape))
        flat = np.full(size + 4096, _MARK, dtype)
        self.flat.append(flat[size:])
        return flat[:size].reshape(shape)


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
@pytest.mark.parametrize("num_items", [1, 150, 2048])
def test_a_row_in_which_every_code_is_likely_stays_in_its_space(scoring: Any, num_items: int) -> None:
    codes = np.random.default_rng(0).permutation(2048)[:num_items, None]
    trie = Trie.build(codes, [2048])
    guarded: Any = Guarded()
    arrays = replace(cpu.bind(trie), scratch=guarded)
    filters = cpu.bind_filters(arrays, request_filters(trie, 1, None, None))
    ends = np.full((1, 1, 1), trie.num_leaves)
    start = Beams.start(ends * 0, ends, np.zeros((1, 1), np.float32))
    logits = np.zeros((1, 1, 2048 + (scoring == "vocabulary")), np.float32)
    best = cpu.step(arrays, 0, start, logits, filters, num_beams=5, scoring=scoring)
    assert best.code[0, : best.num_valid[0]].tolist() == np.sort(codes[:, 0])[:5].tolist()
    assert guarded.flat
    assert all((marks == _MARK).all() for marks in guarded.flat)
