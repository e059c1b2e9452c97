"""The CPU step stops early: rows, chunks and children that cannot win are not looked at. What is left is a full sort's.

A case is a round over the nodes of a two-level index: P beams, one for each code of level 0, in any order. Every row scored
alone, with room for all of its children, leaves nothing to terminate early; all of them sorted are the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from leafbeam.errors import LogitsError
from leafbeam.index import Segment, Trie, Version
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.cpu import step as cpu

NOTHING = -np.inf
DRAWS = 12  # of logits and beam scores for each index and filter


@dataclass(frozen=True, kw_only=True)
class Round:
    """P beams over an index; legal_PV: bool, the codes that beam p may take, found without an index."""

    version: Version
    requests: Any
    lo_SP: np.ndarray
    hi_SP: np.ndarray
    legal_PV: np.ndarray

    @property
    def size(self) -> int:
        return self.legal_PV.shape[1]

    def step(self, scores_P: np.ndarray, logits_PV: np.ndarray, num_beams: int, scoring: Any, alone: bool = False) -> Beams:
        """The round as one request of P rows; alone: as P requests of one row each."""
        shape = (len(scores_P), 1) if alone else (1, len(scores_P))
        arrays = cpu.bind(self.version)
        return cpu.step(
            arrays,
            1,
            Beams.start(
                np.ascontiguousarray(self.lo_SP.reshape(-1, *shape)),
                np.ascontiguousarray(self.hi_SP.reshape(-1, *shape)),
                scores_P.reshape(shape),
            ),
            logits_PV.reshape(*shape, self.size),
            cpu.bind_filters(arrays, self.requests * shape[0]),
            num_beams=num_beams,
            scoring=scoring,
        )


def drawn_round(rng: np.random.Generator) -> Round:
    beams = int(rng.integers(1, 12))
    size = int(rng.choice([1, 2, 5, 31, 64, 65, 200, 700]))
    most = beams * size
    num_items = int(rng.integers(1, 2 + int(most * rng.choice([0.1, 0.7, 3.0]))))
    codes = np.stack([rng.integers(0, beams, num_items), rng.integers(0, size, num_items)], axis=1)
    num_base = num_items if rng.random() < 0.6 else max(1, num_items * 3 // 4)
    packed = bool(rng.integers(2)) and (
        size <= 256 or num_base == num_items
    )  # a kernel is compiled for each pair of code types
    tries = [Trie.build(codes[:num_base], (beams, size), np.arange(num_base), packed=packed)]
    if num_base < num_items:
        tries.append(Trie.build(codes[num_base:], (beams, size), np.arange(num_base, num_items)))
    version = Version(segments=tuple(Segment(trie=trie) for trie in tries))
    allowed = np.ones(num_items, np.bool_) if rng.random() < 0.5 else rng.random(num_items) < rng.choice([0.02, 0.5, 0.95])
    chosen = None if allowed.all() else version.filter_of([tries[0].filter(allowed[:num_base]), *_rest(tries, allowed)])
    denied = rng.choice(num_items, min(num_items, 5)) if rng.random() < 0.3 else np.empty(0, np.int64)
    requests = request_filters(version, 1, chosen, [denied.tolist()])
    allowed[denied] = False
    order = rng.permutation(beams)
    firsts = [[int(np.searchsorted(_column(trie), code)) for code in range(beams + 1)] for trie in tries]
    lo_SP, hi_SP = (np.array([[first[code + end] for code in order] for first in firsts], np.int64) for end in (0, 1))
    legal_CV = np.zeros((beams, size), np.bool_)
    legal_CV[codes[allowed, 0], codes[allowed, 1]] = True
    return Round(version=version, requests=requests, lo_SP=lo_SP, hi_SP=hi_SP, legal_PV=legal_CV[order])


def _rest(tries: list[Trie], allowed: np.ndarray) -> list[Any]:
    return [trie.filter(allowed[-trie.num_items :]) for trie in tries[1:]]


def _column(trie: Trie) -> np.ndarray:
    return trie.codes_at(np.arange(trie.num_leaves))[:, 0]


def drawn_values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of which many are equal, or nearly, or -inf."""
    kind = rng.choice(["equal", "few", "near", "spread", "steep", "huge"])
    values = {
        "equal": np.zeros(shape),
        "few": rng.integers(0, 3, shape) * 1.0,
        "near": rng.integers(0, 4, shape) * 1e-7,
        "spread": rng.normal(size=shape),
        "steep": rng.normal(size=shape) * 40,
        "huge": rng.integers(-2, 3, shape) * 1e4,
    }[str(kind)].astype(np.float32)
    values[rng.random(shape) < rng.choice([0.0, 0.0, 0.2, 0.9, 1.0], p=[0.4, 0.2, 0.2, 0.15, 0.05])] = NOTHING
    return values


def scored_whole(one: Round, scores_P: np.ndarray, logits_PV: np.ndarray, scoring: str) -> np.ndarray:
    """float32 (P, V): the score of every candidate, -inf where there is none; each row was scored by itself."""
    alone = one.step(scores_P, logits_PV, one.size, scoring, alone=True)
    scores_PV = np.full(logits_PV.shape, NOTHING, np.float32)
    parent, slot = np.nonzero(alone.scores > NOTHING)
    scores_PV[parent, alone.code[parent, slot]] = alone.scores[parent, slot]
    assert np.array_equal(scores_PV > NOTHING, one.legal_PV & (logits_PV > NOTHING) & (scores_P > NOTHING)[:, None])
    among = logits_PV.astype(np.float64) if scoring == "full" else np.where(one.legal_PV, logits_PV, NOTHING).astype(np.float64)
    top = np.maximum(among.max(axis=1, keepdims=True), -1e30)
    lse = np.log(np.maximum(np.exp(among - top).sum(axis=1, keepdims=True), 1e-30))
    expected = scores_P[:, None] + (logits_PV - top - lse)
    there = scores_PV > NOTHING
    np.testing.assert_allclose(scores_PV[there], expected[there], rtol=1e-5, atol=2e-3 if abs(top).max() > 1e3 else 1e-5)
    return scores_PV


@pytest.mark.parametrize("seed", range(64))
def test_the_best_of_a_round_are_the_first_of_a_full_sort(seed: int) -> None:
    rng = np.random.default_rng([seed, 2026])
    one = drawn_round(rng)
    beams = len(one.legal_PV)
    for _ in range(DRAWS):
        logits_PV = drawn_values(rng, (beams, one.size))
        scores_P = np.minimum(drawn_values(rng, (beams,)), 0)  # log-probabilities
        for scoring in ("full", "allowed"):
            scores_PV = scored_whole(one, scores_P, logits_PV, scoring)
            total = int((scores_PV > NOTHING).sum())
            truth = np.argsort(-scores_PV, axis=None, kind="stable")[:total]  # flat, so (parent, code) breaks ties
            for num_beams in {1, int(rng.integers(1, 40)), max(1, total), total + 7}:
                found = one.step(scores_P, logits_PV, num_beams, scoring)
                count = min(num_beams, total)
                assert found.num_valid.tolist() == [count]
                parent, code = np.divmod(truth[:count], one.size)
                assert found.parent[0].tolist() == [*parent.tolist(), *[0] * (num_beams - count)]
                assert found.code[0].tolist() == [*code.tolist(), *[0] * (num_beams - count)]
                assert found.scores[0, :count].tolist() == scores_PV[parent, code].tolist()
                assert (found.scores[0, count:] == NOTHING).all()
                check_ranges(one, found, parent, code)


def check_ranges(one: Round, found: Beams, parent: np.ndarray, code: np.ndarray) -> None:
    """The ranges of a beam are the leaves of its parent's range that have its code, and it has one somewhere."""
    count = len(code)
    lo_SK, hi_SK = found.lo[:, 0], found.hi[:, 0]
    assert not lo_SK[:, count:].any()
    assert not hi_SK[:, count:].any()
    assert (hi_SK > lo_SK)[:, :count].any(axis=0).all()
    for s, segment in enumerate(one.version.segments):
        codes_M2 = segment.trie.codes_at(np.arange(segment.trie.num_leaves))
        for k in np.flatnonzero(hi_SK[s] > lo_SK[s])[:20]:  # of thousands, some
            first, last = one.lo_SP[s, parent[k]], one.hi_SP[s, parent[k]]
            own = first + np.flatnonzero(codes_M2[first:last, 1] == code[k])
            assert own.tolist() == [*range(lo_SK[s, k], hi_SK[s, k])]


def test_a_row_that_cannot_win_is_not_read() -> None:
    codes = np.array([(parent, code) for parent in range(3) for code in range(10)])
    trie = Trie.build(codes, (3, 10))
    firsts = np.array([[0, 10, 20]])
    requests = request_filters(trie, 1, None, None)
    legal_PV = np.ones((3, 10), np.bool_)
    one = Round(version=Version.of(trie), requests=requests, lo_SP=firsts, hi_SP=firsts + 10, legal_PV=legal_PV)
    logits_PV = np.zeros((3, 10), np.float32)
    logits_PV[2] = np.nan
    scores_P = np.array([0.0, -1.0, -50.0], np.float32)
    assert one.step(scores_P, logits_PV, 20, "full").parent[0].tolist() == [0] * 10 + [1] * 10
    with pytest.raises(LogitsError, match="beam 2"):
        one.step(scores_P, logits_PV, 21, "full")


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_a_certain_code_is_found_by_one_beam(scoring: str) -> None:
    trie = Trie.build(np.arange(10)[:, None], (10,))
    logits_BKV = np.zeros((1, 1, 10), np.float32)
    logits_BKV[0, 0, 3] = 100  # its log-probability is 0 in float32
    arrays, requests = cpu.bind(trie), request_filters(trie, 1, None, None)
    lo, hi = np.zeros((1, 1, 1), np.int64), np.full((1, 1, 1), 10)
    given: Any = arrays, 0, Beams.start(lo, hi, np.zeros((1, 1), np.float32)), logits_BKV, cpu.bind_filters(arrays, requests)
    found = cpu.step(*given, num_beams=1, scoring=scoring)
    assert (found.num_valid.tolist(), found.code.tolist(), found.scores.tolist()) == ([1], [[3]], [[0.0]])
