"""The benchmarks of head and attention run small, check parity and say what they chose; legal sets are what they are called."""

import numpy as np
import pytest
import torch

from benchmarks.micro import attention, head, language
from leafbeam.automata import Automaton
from leafbeam.ops.head import HeadCosts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("distribution", ["uniform", "zipf", "clustered"])
def test_legal_sets_have_the_size_and_the_shape_they_are_called_by(distribution: str) -> None:
    legal = head.draw_legal_codes(np.random.default_rng(0), distribution, 6, 8192, 300)
    assert np.diff(legal.indptr_R1).tolist() == [300] * 6
    different = len(np.unique(legal.code_C))
    blocks = len(np.unique(legal.code_C // 256))
    assert (different < 1400) == (distribution == "zipf")
    assert (blocks <= 12) == (distribution == "clustered")


def test_bench_head_runs_small() -> None:
    rows = list(head.runs(True))
    assert [parameters["what"] for parameters, _ in rows] == ["rows"] * 3 + ["curve", "choice", "trie"]
    for cell in rows[0][1]["cells"]:
        assert cell["chosen"] in {"gather", "tokens", "blocks", "dense"}
        for way, times in cell["ms"].items():
            assert cell["dense_over"][way] == pytest.approx(cell["dense_ms"] / times["p50"], rel=0.01, abs=0.06)
    assert len(rows[3][1]["points"]) == 9
    assert rows[4][1]["worst_over_dense"] == max(cell["over_dense"] for cell in rows[4][1]["cells"])


def test_bench_attention_runs_small_and_counts_what_xgr_counts() -> None:
    (_, measured), (parameters, counted) = attention.runs(True)
    times = measured["us"]
    assert measured["per_beam_over_shared"] == pytest.approx(times["per_beam"]["p50"] / times["shared"]["p50"], abs=0.006)
    assert measured["bytes"]["shared"] < measured["bytes"]["tree"] < measured["bytes"]["per_beam"]
    assert parameters["beams"] == 512
    assert counted["bytes"]["per_beam"] == pytest.approx(59e9, rel=0.01)
    assert counted["bytes"]["shared_prompt_alone"] == pytest.approx(0.115e9, rel=0.01)


def test_a_mask_over_all_logits_finds_what_legal_codes_alone_find(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = [b"a", b"b", None, b"ab", *[b"x"] * 40]
    monkeypatch.setattr(language, "SIZE", len(vocabulary))
    weight = np.random.default_rng(0).standard_normal((len(vocabulary), 8), np.float32)
    for pattern in ("(ab|b){1,20}", "a{3}|b", "[abx]*"):
        measured = language._measure(Automaton.from_regex(pattern, vocabulary), weight, HeadCosts(), repeats=1)
        assert set(measured["over_legal"]) == {"all", "mask"}  # that the scores are equal is asserted before
    scores, rounds = language.masked_search(
        Automaton.from_choices(["b"], vocabulary), language._model(8, 0), torch.from_numpy(weight)
    )
    assert (scores == 0).sum() == 1  # among legal tokens it is certain, twice
    assert rounds == 2
