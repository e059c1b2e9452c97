"""The Python trie answers as tries do, and the benchmark runs and asserts parity."""

import pytest

from benchmarks.micro import hf
from benchmarks.peers.python_trie import PythonTrie

pytestmark = pytest.mark.slow


def test_the_python_trie_lists_what_follows_a_prefix() -> None:
    trie = PythonTrie([[1, 2, 3], [1, 2, 4], [5, 6, 7]])
    assert [trie.get(prefix) for prefix in ([], [1], [1, 2], [1, 2, 3], [9], [1, 9, 9])] == [[1, 5], [2], [3, 4], [], [], []]


def test_the_benchmark_runs_small() -> None:
    parameters, measured = hf.measure("zipf", 600, levels=3, size=32, batch_size=2, repeats=1)
    assert (parameters["B"], parameters["L"]) == (2, 3)
    times = measured["processor_us"]
    ratio = times["python_trie"]["p50"] / times["leafbeam"]["p50"]
    assert measured["python_trie_over_leafbeam"]["leafbeam"] == pytest.approx(ratio, abs=0.06)
    assert set(measured["generate_ms"]) == {*measured["processor_us"], "unconstrained"}
