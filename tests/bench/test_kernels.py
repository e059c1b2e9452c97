"""The benchmarks of head and attention run small, check parity and say what they chose; legal sets are what they are called."""

import numpy as np
import pytest

from pleach import Trie
from pleach.bench import attention, forced, head, reordering


@pytest.mark.parametrize("distribution", ["uniform", "zipf", "clustered"])
def test_legal_sets_have_the_size_and_the_shape_they_are_called_by(distribution: str) -> None:
    states = head.legal_states(np.random.default_rng(0), distribution, 6, 8192, 300)
    assert np.diff(states.row_R1).tolist() == [300] * 6
    different = len(np.unique(states.code_C))
    blocks = len(np.unique(states.code_C // 256))
    assert (different < 1400) == (distribution == "zipf")
    assert (blocks <= 12) == (distribution == "clustered")


def test_bench_head_runs_small() -> None:
    rows = list(head.runs(True))
    assert [parameters["what"] for parameters, _ in rows] == ["rows"] * 3 + ["curve", "choice"]
    assert all(cell["dense_over"]["gather"] > 0 for cell in rows[0][1]["cells"])
    assert len(rows[3][1]["points"]) == 9
    assert rows[4][1]["worst_over_dense"] > 0


def test_bench_attention_runs_small_and_counts_what_xgr_counts() -> None:
    (_, measured), (parameters, counted) = attention.runs(True)
    assert measured["per_beam_over_shared"] > 0
    assert parameters["beams"] == 512
    assert counted["bytes"]["per_beam"] == pytest.approx(59e9, rel=0.01)
    assert counted["bytes"]["shared_prompt_alone"] == pytest.approx(0.115e9, rel=0.01)


def test_clustered_tokens_of_the_first_set_are_one_run_and_unused_ones_are_last() -> None:
    rng = np.random.default_rng(3)
    legal = rng.random((9, 500)) < 0.1
    place = reordering.clustered(legal)
    assert sorted(place) == list(range(500))
    assert sorted(place[legal[0]]) == list(range(legal[0].sum()))
    assert place[~legal.any(0)].min() == legal.any(0).sum()
    rows = [np.flatnonzero(legal[0])]
    assert reordering.share_of_blocks(rows, place, 10) < reordering.share_of_blocks(rows, np.arange(500), 10)


def test_nodes_below_ranges_are_the_prefixes_that_stand_there() -> None:
    rng = np.random.default_rng(0)
    codes = np.unique(rng.integers(0, 5, (300, 4)), axis=0)
    trie = Trie.build(codes, [5] * 4)
    lo, hi = np.array([0, 10, 11, 40, 0]), np.array([4, 11, 30, 40, 4])
    for level in (1, 2, 3):
        ranges = zip(lo, hi, strict=True)
        expected = sum(len({tuple(row[: t + 1]) for row in codes[a:b]}) for a, b in ranges for t in range(level, 3))
        assert forced._nodes_below(trie, lo, hi, level) == expected


def test_later_starts_need_more_passes_and_forced_leaves_read_what_rounds_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced, "V", 16)
    trie = Trie.build(np.random.default_rng(1).integers(0, 16, (4000, 8)), [16] * 8)
    found = forced.leaves_left(trie, 4)["at_most"]
    passes = [one["passes_alone"] for one in found.values()]
    assert passes == sorted(passes, reverse=True)
    assert found["1"]["codes_read"] == (forced.L - 1) * forced.K
    assert passes[0] < forced.L
