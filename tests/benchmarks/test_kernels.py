"""Benchmarks of the parts run small, check parity and say what they chose; legal sets are what they are called."""

from itertools import product

import numpy as np
import pytest
import torch

from benchmarks.micro import attention, head, hf, index, language, retrieve, updates
from benchmarks.micro.step import L, V
from benchmarks.peers.cpu_trie import CpuTrie
from benchmarks.peers.masked_search import Masked, masked_search
from benchmarks.peers.python_trie import PythonTrie
from benchmarks.peers.unconstrained import Unconstrained
from benchmarks.workloads import DISTRIBUTIONS, random_chunk
from leafbeam import Trie
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


def test_retrieve_runs_small() -> None:
    rows = list(retrieve.runs(quick=True))
    assert [parameters["beams"] for parameters, _ in rows] == [20, 50]
    for _, measured in rows:
        assert 32 < measured["bytes_per_item"] < 400
        assert measured["memory_us"]["p50"] < measured["model_us"]["p50"] * 10
        assert measured["fused_over_model_p50"] > 0


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_updates_run_small(monkeypatch: pytest.MonkeyPatch, distribution: str) -> None:
    monkeypatch.setattr(updates, "LARGE_DELTA", 3_000)
    parameters, measured = updates.measure(distribution, 5_000, seconds=0.4, repeats=1)
    assert parameters["num_items"] == 5_000
    assert set(measured) == {"visible_ms", "search", "sustained"}
    assert measured["visible_ms"]["synced"]["dead_in_base"] == 3_000
    assert measured["sustained"]["delta_rows"] == 50 * 5
    assert measured["sustained"]["changes_per_second"] <= 1000  # the feed is paced, and may fall behind


def test_a_feed_begins_again_where_it_began() -> None:
    feed = updates.Feed.of(np.random.default_rng(0), "uniform", 2_000)
    first, second = feed.again(), feed.again()
    for part in (first, second):
        codes, ids = part.take(10)
        np.testing.assert_array_equal(codes, feed.codes[2_000:2_010])
        assert np.isin(ids, feed.ids[:2_000]).sum() == 0
        assert np.isin(part.victims(10), feed.ids[:2_000]).all()


SIZES, BEAMS = (4, 3, 5), 60  # as many beams as SIDs, so that only the mask can lose one
RNG = np.random.default_rng(0)
LOGITS = {
    prefix: torch.tensor(RNG.normal(size=SIZES[level]), dtype=torch.float32)
    for level in range(3)
    for prefix in product(*(range(size) for size in SIZES[:level]))
}
ALLOWED = np.array(sorted(product(*map(range, SIZES))))[np.sort(RNG.choice(60, 12, replace=False))]
EXACT = CpuTrie.of_sorted(np.ascontiguousarray(ALLOWED.T), [4, 12, 12])


class Model:
    """Logits that depend on the whole prefix."""

    def __init__(self) -> None:
        self.prefixes: list[tuple[int, ...]] = []

    def __call__(self, codes: torch.Tensor | None, parents: torch.Tensor | None) -> torch.Tensor:
        if codes is None or parents is None:
            self.prefixes = [()]
            return LOGITS[()][None]
        chosen = zip(parents[0].tolist(), codes[0].tolist(), strict=True)
        self.prefixes = [(*self.prefixes[parent], code) for parent, code in chosen]
        return torch.stack([LOGITS[prefix] for prefix in self.prefixes])[None]


def score(sid: tuple[int, ...]) -> float:
    return sum(float(torch.log_softmax(LOGITS[sid[:level]], 0)[code]) for level, code in enumerate(sid))


def answers(method: Masked, num_beams: int = BEAMS) -> dict[tuple[int, ...], float]:
    codes_BKL, scores_BK = masked_search(method, Model(), batch_size=1, num_levels=3, num_beams=num_beams)
    return {
        tuple(sid): total for sid, total in zip(codes_BKL[0].tolist(), scores_BK[0].tolist(), strict=True) if total > -np.inf
    }


@pytest.mark.parametrize("when", ["before", "after", "last"])
def test_with_enough_beams_every_mask_finds_the_allowed_and_nothing_else(when):
    found = answers(Masked(peer=EXACT, when=when))
    assert found == pytest.approx({tuple(sid): score(tuple(sid)) for sid in ALLOWED.tolist()}, abs=1e-5)


def test_without_a_mask_all_sids_are_found():
    assert len(answers(Masked(peer=Unconstrained(), when="never"))) == 60


def test_with_few_beams_a_late_mask_loses_answers_and_an_early_one_does_not():
    num_beams = 4
    before, after, last = (answers(Masked(peer=EXACT, when=when), num_beams) for when in ("before", "after", "last"))
    allowed = {tuple(sid) for sid in ALLOWED.tolist()}
    assert len(before) == num_beams
    assert len(after) < num_beams
    assert allowed >= before.keys() | after.keys() | last.keys()
