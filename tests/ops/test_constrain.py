"""The step's own promises, beyond the parity grid: precision, bad logits, wide levels, ragged children."""

import tracemalloc

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.decode.results import root_ranges
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.index import Segment, Version
from leafbeam.ops import backend as backends
from leafbeam.ops.constrain import Beams, Scoring, reference, request_filters
from leafbeam.ops.constrain.cpu import step as cpu
from leafbeam.ops.constrain.cpu.logsumexp import CHUNK, chunk_maxima, sum_exp
from leafbeam.ops.constrain.cpu.topk import Candidates, compact, key_of, score_of


@numba.njit
def maxima(row, chunks):  # parts of kernels are called by kernels alone
    return chunk_maxima(row, chunks)


@numba.njit
def sum_of(row, top):
    return sum_exp(row, top)


@numba.njit
def packed(score, arrival):
    return key_of(score, arrival)


@numba.njit
def score_in(key):
    return score_of(key)


@numba.njit
def compacted(candidates, count, k):
    return compact(candidates, count, k)


@pytest.mark.parametrize("size", [1, 2, 7, 63, 64, 65, 1000, 2048, 32_768])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 1000.0])
def test_log_sum_exp_agrees_with_float64(size: int, scale: float) -> None:
    row = (np.random.default_rng(size).normal(size=size) * scale).astype(np.float32)
    chunks = np.full(size // CHUNK + 1, np.nan, np.float32)
    top = maxima(row, chunks)
    assert top == row.max()
    parts = [row[i : i + CHUNK].max() for i in range(0, size, CHUNK)]
    assert chunks[: len(parts)].tolist() == parts
    exact = np.exp(row.astype(np.float64) - float(top)).sum()
    assert sum_of(row, top) == pytest.approx(exact, rel=5e-6)
    assert sum_of(row, top) >= 1.0  # so that no log-probability exceeds 0


def test_sum_exp_ignores_minus_infinity_and_shows_nan() -> None:
    row = np.array([0.0, -np.inf, 1.0], np.float32)
    assert sum_of(row, np.float32(1.0)) == pytest.approx(1 + np.exp(-1), rel=1e-6)
    for size in (1, 64, 100):
        row = np.zeros(size, np.float32)
        row[size // 2] = np.nan
        assert np.isnan(sum_of(row, np.float32(0.0)))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_keys_sort_by_score_then_arrival(scores: list[float]) -> None:
    values = np.array(scores, np.float32)
    keys = [int(packed(score, np.int64(arrival))) for arrival, score in enumerate(values)]
    expected = sorted(range(len(scores)), key=lambda i: (-values[i], i))
    assert sorted(range(len(scores)), key=lambda i: -keys[i]) == expected
    assert all(score_in(np.uint64(key)) == value for key, value in zip(keys, values, strict=True))


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(0, 200), st.integers(0, 2**32))
def test_compact_keeps_the_best_in_their_order(k: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = k + extra
    scores = rng.integers(0, 12, count).astype(np.float32)  # many ties
    keys = np.array([packed(score, np.int64(i)) for i, score in enumerate(scores)], np.uint64)
    parents, codes, places = np.arange(count), np.arange(count) * 2, np.arange(count) * 3
    candidates = Candidates(keys=keys, scratch=np.empty(count, np.uint64), parents=parents, codes=codes, indices=places)
    threshold = compacted(candidates, count, k)
    kept = np.sort(np.lexsort((np.arange(count), -scores))[:k])
    assert parents[:k].tolist() == kept.tolist()
    assert codes[:k].tolist() == (kept * 2).tolist()
    assert places[:k].tolist() == (kept * 3).tolist()
    assert threshold == np.sort(scores)[::-1][k - 1]


@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_are_named_with_request_and_beam(name: str, scoring: str, poison: float) -> None:
    trie = Trie.build(np.arange(10)[:, None], [10])
    _, ops = backends.load(name)
    arrays = ops.bind(trie)
    filters = ops.bind_filters(arrays, request_filters(trie, 2, None, None))
    logits = np.zeros((2, 1, 10), np.float32)
    logits[1, 0, 3] = poison
    state = (np.zeros((1, 2, 1), np.int64), np.full((1, 2, 1), 10), np.zeros((2, 1), np.float32), logits)
    if name == "reference":
        state = tuple(torch.from_numpy(array) for array in state)
    *ranges, logits = state
    with pytest.raises(LogitsError, match="request 1, beam 0 at level 0 hold NaN or \\+inf"):
        ops.step(arrays, 0, Beams.start(*ranges), logits, filters, num_beams=3, scoring=scoring)


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([None, 0.01, 0.3, 0.9]),
    st.booleans(),
    st.sampled_from([0, 1, 20]),
)
def test_children_are_the_same_on_both_backends(
    seed: int, skewed: bool, share: float | None, deny: bool, num_delta: int
) -> None:
    rng = np.random.default_rng(seed)
    num_base = int(rng.integers(1, 300))
    codes = np.stack([rng.geometric(0.3, num_base + num_delta) - 1 for _ in range(3)], 1).clip(0, 8)
    if not skewed:
        codes = rng.integers(0, 9, codes.shape)
    ids = np.arange(len(codes)) * 3
    base = Trie.build(codes[:num_base], [9] * 3, ids[:num_base])
    segments = [Segment(trie=base, live=base.filter(rng.random(num_base) < 0.9) if seed % 2 else None)]
    if num_delta:
        segments.append(Segment(trie=Trie.build(codes[num_base:], [9] * 3, ids[num_base:])))
    version = Version(segments=tuple(segments))
    masks = [rng.random(one.trie.num_items) < (share or 0) for one in segments]
    parts = [one.trie.filter(mask) for one, mask in zip(segments, masks, strict=True)]
    chosen = None if share is None else version.filter_of(parts)
    denied = [rng.choice(ids, 6).tolist()] * 2 if deny else None
    requests = request_filters(version, 2, chosen, denied)
    on_cpu, on_torch = cpu.bind(version), reference.bind(version)
    lo, hi = root_ranges(version, requests)
    for level in range(3):
        ours = cpu.children(on_cpu, level, lo, hi, cpu.bind_filters(on_cpu, requests))
        truth = reference.children(
            on_torch, level, torch.from_numpy(lo), torch.from_numpy(hi), reference.bind_filters(on_torch, requests)
        )
        for mine, expected in zip(ours, truth, strict=True):
            assert mine.tolist() == expected.tolist()
        row_ptr, _, child_lo, child_hi = ours
        width = int(np.diff(row_ptr).reshape(2, -1).sum(axis=1).max(initial=1))
        lo, hi = np.zeros((2, len(segments), 2, width), np.int64)
        half = len(row_ptr) // 2
        for request in range(2):
            begin, end = row_ptr[request * half], row_ptr[(request + 1) * half]
            lo[:, request, : end - begin], hi[:, request, : end - begin] = child_lo[:, begin:end], child_hi[:, begin:end]


def test_a_very_wide_level_with_very_many_beams(  # the scan, the compaction and the sort at sizes that the grid does not reach
) -> None:
    rng = np.random.default_rng(3)
    codes = np.stack([rng.integers(0, 4, 60_000), rng.integers(0, 5000, 60_000)], axis=1)
    trie = Trie.build(codes, [4, 5000])
    logits = rng.normal(size=(1, 4, 5000)).astype(np.float32)
    lo, hi = np.zeros((1, 1, 4), np.int64), np.zeros((1, 1, 4), np.int64)
    firsts = np.flatnonzero(np.diff(trie.codes_at(np.arange(trie.num_leaves))[:, 0], prepend=-1))
    lo[0, 0], hi[0, 0] = firsts, [*firsts[1:], trie.num_leaves]
    scores = np.array([[0.0, -0.1, -0.2, -0.3]], np.float32)
    for chosen in (None, trie.filter(rng.random(60_000) < 0.5), trie.filter(rng.random(60_000) < 0.02)):
        requests = request_filters(trie, 1, chosen, None)
        on_cpu, on_torch = cpu.bind(trie), reference.bind(trie)
        for num_beams in (1, 50, 3000):
            ours = cpu.step(
                on_cpu,
                1,
                Beams.start(lo, hi, scores),
                logits,
                cpu.bind_filters(on_cpu, requests),
                num_beams=num_beams,
                scoring="full",
            )
            *ranges, logits_BKV = [torch.from_numpy(array) for array in (lo, hi, scores, logits)]
            truth = reference.step(
                on_torch,
                1,
                Beams.start(*ranges),
                logits_BKV,
                reference.bind_filters(on_torch, requests),
                num_beams=num_beams,
                scoring="full",
            )
            np.testing.assert_allclose(ours.scores, truth.scores.numpy(), atol=1e-5)
            same = ours.code == truth.code.numpy()
            assert same.mean() > 0.995  # two scores may round differently where they are equal to the last bit


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected 'auto', 'cpu', 'jax', 'triton', 'torch', 'static' or 'reference'"):
        backends.load("cuda-fast")


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_a_warm_round_allocates_its_answer_and_no_more_for_wide_levels(scoring: Scoring) -> None:
    rng = np.random.default_rng(0)
    sizes = (32_768, 64)
    trie = Trie.build(np.stack([rng.integers(0, size, 50_000) for size in sizes], 1), list(sizes))
    arrays = cpu.bind(trie)
    filters = cpu.bind_filters(arrays, request_filters(trie, 2, None, None))
    logits_BKV = rng.standard_normal((2, 1, sizes[0])).astype(np.float32)
    lo_SBK = np.zeros((1, 2, 1), np.int64)
    beams = Beams.start(lo_SBK, lo_SBK + trie.num_leaves, np.zeros((2, 1), np.float32))

    def step() -> None:
        cpu.step(arrays, 0, beams, logits_BKV, filters, num_beams=20, scoring=scoring)

    step()
    tracemalloc.start()
    try:
        step()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000
