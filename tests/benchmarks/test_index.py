"""The builds that are measured: chunks are the same whenever asked for, and what is built of them is checked."""

import numpy as np
import pytest

from benchmarks.micro import index
from benchmarks.micro.step import L, V
from benchmarks.workloads import DISTRIBUTIONS, random_chunk
from leafbeam import Trie

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("memory_limit", [40_000, 4 << 30])
def test_a_build_of_chunks_is_checked_and_says_what_it_cost(
    distribution: str, memory_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_CHUNK", 1000)
    measured = index._build_chunks(distribution, 4321, memory_limit, seed=3)
    chunks = [random_chunk(distribution, min(1000, 4321 - begin), V, L, 3, begin) for begin in range(0, 4321, 1000)]
    trie = Trie.build(np.concatenate(chunks), [V] * L)
    assert measured["bytes_per_item"] == round(trie.bytes_per_item, 2)
    assert measured["packed_bytes_per_item"] == round(trie.packed().bytes_per_item, 2)
    assert measured["leafbeam_s"] == pytest.approx(measured["adding_s"] + measured["finishing_s"], abs=0.011)
