"""The peers are right before they are measured, and rows say what was measured."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.micro import filters, post_filter, step
from benchmarks.peers import static
from benchmarks.peers.peer import extend, root
from benchmarks.peers.static_matrix import matrix_of_codes
from benchmarks.rows import append_row, interleaved, spread
from benchmarks.serving import scale
from benchmarks.workloads import DISTRIBUTIONS, random_codes, random_logits
from leafbeam import Trie
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.cpu import step as cpu


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_static_gives_the_same_beams_where_it_is_exact(distribution: str) -> None:
    rng = np.random.default_rng(0)
    size, levels, beams = 40, 5, 12
    codes = random_codes(rng, distribution, 20_000, size, levels)
    trie, peer = Trie.build(codes, [size] * levels), static.StaticPeer.of(matrix_of_codes(codes, [size] * levels))
    arrays = cpu.bind(trie)
    allowed = cpu.bind_filters(arrays, request_filters(trie, 3, None, None))
    state = root(peer, 3)
    lo, hi = np.zeros((1, 3, 1), np.int64), np.full((1, 3, 1), trie.num_leaves)
    scores = np.zeros((3, 1), np.float32)
    for level in range(levels):
        logits = random_logits(rng, 3, lo.shape[2], size)
        ours = cpu.step(arrays, level, Beams.start(lo, hi, scores), logits, allowed, num_beams=beams, scoring="full")
        state = extend(peer, state, torch.from_numpy(logits), beams)
        np.testing.assert_allclose(ours.scores, state.scores_BK.numpy(), atol=1e-4)
        assert (ours.code == state.code_BK.numpy()).mean() > 0.97
        assert (ours.parent == state.parent_BK.numpy()).mean() > 0.97
        lo, hi, scores = ours.lo, ours.hi, ours.scores


def test_zipf_is_skewed_and_uniform_is_not() -> None:
    rng = np.random.default_rng(0)
    zipf = np.bincount(random_codes(rng, "zipf", 50_000, 100, 1)[:, 0], minlength=100)
    uniform = np.bincount(random_codes(rng, "uniform", 50_000, 100, 1)[:, 0], minlength=100)
    assert zipf[0] / zipf[9] == pytest.approx(10, rel=0.15)
    assert uniform.max() / uniform.min() < 1.5


def test_a_row_says_what_was_measured_where_and_from_which_commit(tmp_path: Path) -> None:
    append_row("x", {"n": 1}, {"us": 2.0}, tmp_path)
    append_row("x", {"n": 2}, {"us": 3.0}, tmp_path)
    first, second = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert (first["parameters"], second["measured"]) == ({"n": 1}, {"us": 3.0})
    assert {"commit", "machine", "versions", "time"} <= set(first)


def test_runs_take_turns() -> None:
    order: list[str] = []
    seconds = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b"] * 3
    assert spread([1e-6, 2e-6, 3e-6])["p50"] == 2.0
    assert set(seconds) == {"a", "b"}


@pytest.mark.slow
def test_the_benchmarks_run_small(monkeypatch: pytest.MonkeyPatch) -> None:
    _, measured = step.measure("zipf", 4000, repeats=1)
    steps = measured["step_us"]
    for name, peer in (("static", "static_torch"), ("static_lean", "static_torch_lean"), ("unconstrained", "unconstrained")):
        ratio = steps[peer]["p50"] / steps["leafbeam"]["p50"]
        assert measured[f"{name}_over_leafbeam"] == pytest.approx(ratio, abs=0.006), name
    assert all(len(levels) == step.L for levels in measured["by_level_us"].values())
    assert measured["index_bytes_per_item"]["leafbeam"] < measured["index_bytes_per_item"]["static"]
    _, measured = filters.measure("uniform", 4000, repeats=1)
    assert set(measured["over_unfiltered"]) == {"0.5", "0.1", "0.01", "0.0001"}
    _, measured = scale.measure("zipf", 4000, repeats=1, small=500)
    steps = measured["step_us"]
    assert measured["large_over_small"] == pytest.approx(steps["large full"]["p50"] / steps["small full"]["p50"], abs=6e-4)
    assert set(measured["step_us"]) == {"small full", "small allowed", "large full", "large allowed"}
    _, measured = filters.measure_rules("zipf", 5000, repeats=1)
    assert set(measured["rules"]) == set(filters.RULES)


def test_a_rule_in_the_search_leaves_as_many_answers_as_the_rule_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_filter, "B", 2)
    _, measured = post_filter.measure("zipf", 3000)
    asked, answers = measured["asked"], measured["answers"]
    assert [answers[share]["leafbeam"] for share in ("0.5", "0.1")] == [asked, asked]
    assert 0 < answers["0.001"]["leafbeam"] < 12  # of 3,000 items about 3
    for counts in answers.values():
        assert counts["post_filter"] <= counts["post_filter_oversampled"] <= counts["leafbeam"]
    assert answers["0.1"]["post_filter"] < asked / 4
