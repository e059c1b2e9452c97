"""Every exact peer offers what the oracle allows, on the whole parity grid; how the inexact ones fail it is asserted."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.peers import static
from benchmarks.peers.cpu_trie import CpuTrie
from benchmarks.peers.hash_bitmap import HashBitmap, expected_rate
from benchmarks.peers.marisa import MarisaTrie
from benchmarks.peers.peer import Offers, Peer, Selection, extend, root, select
from benchmarks.peers.ppv import Ppv
from benchmarks.peers.static_matrix import matrix_nbytes, matrix_of_codes
from benchmarks.workloads import DISTRIBUTIONS, random_codes
from leafbeam import Trie
from leafbeam.errors import ArgumentError
from leafbeam.ops.constrain.static.matrix import TransitionMatrix
from tests.fixtures.grid import CASES, Case, TableModel
from tests.parity.oracle import search

pytestmark = pytest.mark.slow

Sid = tuple[int, ...]


class JaxAsTorch:
    """A JAX peer behind the torch protocol. Shapes are padded to a few sizes, so that the grid compiles few functions."""

    exact = True
    nbytes = 0

    def __init__(self, table: np.ndarray, size: int) -> None:
        import jax

        from benchmarks.peers.static_jax import StaticJax

        self.size = 128 if size <= 128 else 1024 if size <= 1024 else 2**17
        matrix = matrix_of(table, self.size)
        edges = np.zeros((2**15, 2), np.int32)
        edges[: len(matrix.edges_E2)] = matrix.edges_E2
        rows = np.full(2**15, matrix.indptr_S1[-1])
        rows[: len(matrix.indptr_S1)] = matrix.indptr_S1
        widths, nodes = (min(1024, self.size),) * len(table), (0,) * (len(table) + 1)
        padded = dataclasses.replace(matrix, edges_E2=edges, indptr_S1=rows, max_branches=widths, first_node=nodes)
        self.peer = StaticJax.of(padded)
        self.mask = jax.jit(StaticJax.mask_step, static_argnums=1)

    def root(self, batch_size: int) -> Any:
        return 0, self.peer.root(batch_size)

    def mask_step(self, state: Any, log_p_BKV: torch.Tensor) -> tuple[Any, Offers]:
        level, node_BK = state
        size, beams = log_p_BKV.shape[2], log_p_BKV.shape[1]
        padded = np.full((1, 64, self.size), -np.inf, np.float32)
        padded[:, :beams, :size] = log_p_BKV.numpy()
        nodes = np.zeros((1, 64), np.int32)
        nodes[:, :beams] = node_BK
        pending, offers = self.mask(self.peer, level, nodes, padded)
        log_p_BKF = torch.tensor(np.asarray(offers.log_p_BKF)[:, :beams])
        if offers.code_BKF is None:
            return (level, pending), Offers(log_p_BKF=log_p_BKF[..., :size])
        return (level, pending), Offers(
            log_p_BKF=log_p_BKF, code_BKF=torch.tensor(np.asarray(offers.code_BKF)[:, :beams]).long().clamp(max=size - 1)
        )

    def advance(self, pending: Any, best: Selection) -> Any:
        from benchmarks.peers.jax_rounds import JaxSelection

        level, inner = pending
        names = ("scores_BK", "parent_BK", "slot_BK", "code_BK")
        padded = {name: np.zeros((1, 64), np.float32 if name == "scores_BK" else np.int32) for name in names}
        for name, array in padded.items():
            array[:, : best.code_BK.shape[1]] = getattr(best, name).numpy()
        node_BK = advance_jax(self.peer, level, inner, JaxSelection(**padded))
        return level + 1, np.asarray(node_BK)[:, : best.code_BK.shape[1]]


def advance_jax(peer: Any, level: int, pending: Any, best: Any) -> Any:
    import jax

    return jax.jit(type(peer).advance, static_argnums=1)(peer, level, pending, best)


def matrix_of(table: np.ndarray, size: int, dense_levels: int = 2) -> TransitionMatrix:
    # Two dense levels of 70,000 codes would take 20 GB.
    return TransitionMatrix.of_sorted(table, (size,) * len(table), 1 if size > 1000 else dense_levels)


def nodes_of(table: np.ndarray) -> list[int]:
    return [len(np.unique(table[: level + 1], axis=1).T) for level in range(len(table))]


PEERS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "static": lambda table, size: static.StaticPeer.of(matrix_of(table, size)),
    "static-one-dense-level": lambda table, size: static.StaticPeer.of(matrix_of(table, size, 1)),
    "static-no-dense-level": lambda table, size: static.StaticPeer.of(
        TransitionMatrix.of_sorted(table, (size,) * len(table), 0)
    ),
    "static-scatter": lambda table, size: static.StaticPeer.of(matrix_of(table, size), scatter=True),
    "static-jax": JaxAsTorch,
    "cpu-trie": lambda table, _: CpuTrie.of_sorted(table, nodes_of(table)),
    "ppv-exact": lambda table, _: Ppv.of_sorted(table),
    "marisa-trie": lambda table, _: MarisaTrie.of_sorted(table),
}


@dataclass
class Differences:
    """Legal codes that were not offered, illegal ones that were, and how many of each there were to get wrong."""

    lost: int = 0
    wrong: int = 0
    legal: int = 0
    illegal: int = 0


def allowed_sids(case: Case, request: int) -> list[Sid]:
    rng = np.random.default_rng([request, 99])
    keep = np.ones(len(case.codes), np.bool_) if case.share is None else rng.random(len(case.codes)) < case.share
    keep[rng.integers(0, len(case.codes), case.denied) if case.denied else []] = False
    return sorted({tuple(sid) for sid in case.codes[keep].tolist()})


def table_of(sids: list[Sid], levels: int) -> np.ndarray:
    """One row a level."""
    dtype = np.int16 if max((code for sid in sids for code in sid), default=0) < 2**15 - 1 else np.int32
    return np.ascontiguousarray(np.array(sids, dtype).reshape(-1, levels).T)


def log_softmax(logits_of: Callable[[int, Sid], np.ndarray], level: int, prefixes: list[Sid], size: int) -> torch.Tensor:
    """[1, K, V], padded with -inf to one codebook size for all levels; a row of nothing but -inf stays so."""
    padded = np.full((1, len(prefixes), size), -np.inf, np.float32)
    for row, prefix in enumerate(prefixes):
        values = logits_of(level, prefix)
        padded[0, row, : len(values)] = values
    return torch.log_softmax(torch.from_numpy(padded), dim=-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)


@dataclass(frozen=True)
class Truth:
    """One request of a case: its SIDs, and for each round the log-probabilities, what is legal, and the oracle's beams."""

    sids: list[Sid]
    table: np.ndarray
    log_p: list[torch.Tensor]
    legal: list[torch.Tensor]
    beams: list[list[tuple[float, int, Sid]]]


@cache
def truth(name: str, request: int) -> Truth:
    case, size = CASES[name], max(CASES[name].sizes)
    sids, model = allowed_sids(case, request), TableModel(case, request)
    found = Truth(sids, table_of(sids, len(case.sizes)), [], [], search(sids, model.logits, case.widths, "full"))
    prefixes: list[Sid] = [()]
    for level, beams in enumerate(found.beams):
        if not prefixes:
            break
        found.log_p.append(log_softmax(model.logits, level, prefixes, size))
        legal = torch.zeros(1, len(prefixes), size, dtype=torch.bool)
        after = {sid[: level + 1] for sid in sids}
        for row, prefix in enumerate(prefixes):
            legal[0, row, [longer[-1] for longer in after if longer[:-1] == prefix]] = True
        found.legal.append(legal)
        prefixes = [prefix for _, _, prefix in beams]
    return found


def compare(peer: Peer, of: Truth) -> Differences:
    """Follow the oracle's beams; at each step compare what the peer offers with what is legal, value for value."""
    found = Differences()
    state = peer.root(1)
    for log_p, legal, beams in zip(of.log_p, of.legal, of.beams, strict=False):
        pending, offers = peer.mask_step(state, log_p)
        size = log_p.shape[2]
        offered = torch.full_like(log_p, -torch.inf)
        codes = torch.arange(size).expand(log_p.shape) if offers.code_BKF is None else offers.code_BKF
        real = offers.log_p_BKF > -torch.inf
        rows = torch.arange(log_p.shape[1])[None, :, None].expand(codes.shape)
        offered[0, rows[real], codes[real]] = offers.log_p_BKF[real]
        assert int(real.sum()) == int((offered > -torch.inf).sum())  # nothing is offered twice
        possible = log_p > -torch.inf
        is_offered, is_legal = offered > -torch.inf, legal & possible
        found.lost += int((is_legal & ~is_offered).sum())
        found.wrong += int((~legal & is_offered).sum())
        found.legal += int(is_legal.sum())
        found.illegal += int((~legal & possible).sum())
        torch.testing.assert_close(offered[is_legal & is_offered], log_p[is_legal & is_offered], rtol=0, atol=0)
        parent, code = torch.tensor([[p for _, p, _ in beams]]), torch.tensor([[sid[-1] for _, _, sid in beams]])
        if not beams:
            break
        slot = (codes[0, parent[0]] == code[0, :, None]) & real[0, parent[0]]
        if not slot.any(dim=1).all():
            break  # an inexact peer cannot follow
        scores = torch.tensor([[score for score, _, _ in beams]]).float()
        best = Selection(scores_BK=scores, parent_BK=parent, slot_BK=slot.byte().argmax(dim=1)[None], code_BK=code)
        state = peer.advance(pending, best)
    return found


# The peers add masks of the lowest float32 up to -inf, as their papers do.
FINITE = [name for name, case in CASES.items() if not case.lowest]


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("name", FINITE)
def test_every_exact_peer_offers_what_the_oracle_allows(name: str, kind: str) -> None:
    for request in (1, 2):
        of = truth(name, request)
        peer = PEERS[kind](of.table, max(CASES[name].sizes))
        assert peer.exact
        found = compare(peer, of)
        assert (found.lost, found.wrong) == (0, 0)
        assert (found.legal > 0) == (len(of.sids) > 0)


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("name", [name for name in FINITE if not CASES[name].ties and not CASES[name].minus_infinity])
def test_every_exact_peer_gives_the_beams_of_the_oracle(name: str, kind: str) -> None:
    case = CASES[name]
    of, model, size = truth(name, 1), TableModel(case, 1), max(case.sizes)
    peer = PEERS[kind](of.table, size)
    beams, prefixes = root(peer, 1), [()]
    for level, width in enumerate(case.widths):
        beams = extend(peer, beams, log_softmax(model.logits, level, prefixes, size), width)
        taken = zip(beams.parent_BK[0].tolist(), beams.code_BK[0].tolist(), strict=True)
        # A dead beam goes on with codes that no codebook may have: its logits are anything.
        prefixes = [(*prefixes[parent], min(code, case.sizes[level] - 1)) for parent, code in taken]
    expected = of.beams[-1]
    alive = int((beams.scores_BK[0] > -torch.inf).sum())
    assert prefixes[:alive] == [prefix for _, _, prefix in expected]
    np.testing.assert_allclose(beams.scores_BK[0, :alive], [score for score, _, _ in expected], rtol=1e-5, atol=2e-5)


def test_ppv_approximate_loses_legal_codes_beyond_the_50_best_logits_and_allows_no_wrong_one() -> None:
    of = truth("wide-level", 1)
    found = compare(Ppv.of_sorted(of.table, num_candidates=50), of)
    assert found.wrong == 0
    assert found.lost > found.legal / 2


def test_a_hash_bitmap_loses_no_code_and_allows_wrong_ones_at_about_the_rate_that_it_is_filled() -> None:
    of = truth("wide-level", 1)
    peer = HashBitmap.of_sorted(of.table, num_bits=2**12)
    found = compare(peer, of)
    assert found.lost == 0
    filled = np.unpackbits(peer.bytes_W.numpy()).mean()
    assert 0.5 < filled < 0.95
    assert found.wrong / found.illegal == pytest.approx(filled, abs=0.08)  # of some hundred probes


def test_a_bitmap_allows_the_share_of_wrong_codes_that_its_prefixes_set_of_its_bits() -> None:
    codes = random_codes(np.random.default_rng(3), "uniform", 20_000, 256, 4)
    table = np.ascontiguousarray(np.unique(codes, axis=0).astype(np.int16).T)
    expected = expected_rate(sum(nodes_of(table)), 2**18)
    assert 0.1 < expected < 0.3
    peer = HashBitmap.of_sorted(table, num_bits=2**18)
    assert np.unpackbits(peer.bytes_W.numpy()).mean() == pytest.approx(expected, rel=0.03)
    unknown = torch.from_numpy(np.random.default_rng(4).integers(0, 2**32, (1, 500)))  # hashes of prefixes that nothing has
    _, offers = peer.mask_step(unknown, torch.zeros(1, 500, 256))
    assert float((offers.log_p_BKF == 0).float().mean()) == pytest.approx(expected, rel=0.05)


def test_two_percent_of_wrong_codes_need_a_fifth_of_the_prefixes_that_the_papers_table_has() -> None:
    levels = [2048, 2048**2 * (1 - np.exp(-20e6 / 2048**2)), *[20e6] * 6]  # 2 x 10^7 uniform SIDs
    assert expected_rate(sum(levels)) == pytest.approx(0.109, abs=0.001)
    assert expected_rate(2.3e7) == pytest.approx(0.021, abs=0.0005)


def jax_forms(table: np.ndarray) -> dict[str, tuple[Any, Any]]:
    from benchmarks.peers.baselines_jax import HashBitmapJax, PpvJax, columns_of

    bitmap = HashBitmap.of_sorted(table, num_bits=2**14)
    return {
        "ppv-exact": (Ppv.of_sorted(table), PpvJax(columns=columns_of(table))),
        "ppv-approximate": (
            Ppv.of_sorted(table, num_candidates=50),
            PpvJax(columns=columns_of(table), num_candidates=50),
        ),
        "hash-bitmap": (bitmap, HashBitmapJax.of(bitmap)),
    }


@pytest.mark.parametrize("kind", ["ppv-exact", "ppv-approximate", "hash-bitmap"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_baseline_in_jax_keeps_the_beams_that_it_keeps_in_torch(distribution: str, kind: str) -> None:
    from benchmarks.peers import jax_rounds

    rng = np.random.default_rng(3)
    table = np.ascontiguousarray(np.unique(random_codes(rng, distribution, 3_000, 300, 4), axis=0).astype(np.int16).T)
    in_torch, in_jax = jax_forms(table)[kind]
    mine, theirs = jax_rounds.root(in_jax, 2), root(in_torch, 2)
    for level in range(4):
        logits = rng.standard_normal((2, 70 if level else 1, 300), np.float32)
        theirs = extend(in_torch, theirs, torch.from_numpy(logits[:, : theirs.scores_BK.shape[1]]), 70)
        mine = jax_rounds.extend(in_jax, level, mine, logits, 70)
        alive = theirs.scores_BK.numpy() > -np.inf
        np.testing.assert_allclose(np.asarray(mine.scores_BK), theirs.scores_BK.numpy(), rtol=1e-5, atol=1e-5)
        for name in ("parent_BK", "code_BK"):
            np.testing.assert_array_equal(np.asarray(getattr(mine, name))[alive], getattr(theirs, name).numpy()[alive])


def test_a_directory_that_is_no_checkout_of_static_is_named(tmp_path: Path) -> None:
    from benchmarks.peers.static_public import PublicStatic

    with pytest.raises(ArgumentError, match=r"csr_utils\.py is not there: --static takes a checkout of github\.com/youtube/"):
        PublicStatic.load(tmp_path)


@pytest.mark.skipif("STATIC_CHECKOUT" not in os.environ, reason="STATIC_CHECKOUT names no checkout of STATIC's code")
def test_the_public_code_of_static_finds_what_our_form_of_it_finds() -> None:
    from benchmarks.micro import static_public
    from benchmarks.static.catalog import Shape

    public = static_public.PublicStatic.load(Path(os.environ["STATIC_CHECKOUT"]))
    _, measured = static_public.measure(Shape(distribution="zipf", num_items=3_000), public, 1)  # asserts equal SIDs
    assert measured["found"]["public_static_jax"] == measured["found"]["public_cpu_trie_jax"] == 1
    assert set(measured["public_over_ours"]) == {"static_jax", "ppv_exact_jax", "ppv_approximate_jax", "hash_bitmap_jax"}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_static_is_the_same_from_codes_and_from_sorted_codes(distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    codes = random_codes(rng, distribution, 20_000, 30, 5)
    theirs = matrix_of_codes(codes, (30,) * 5)
    monkeypatch.setattr("leafbeam.ops.constrain.static.matrix._CHUNK", 1000)
    ours = TransitionMatrix.of_sorted(np.ascontiguousarray(np.unique(codes, axis=0).astype(np.int16).T), (30,) * 5)
    assert ours.max_branches == theirs.max_branches
    for name in ("edges_E2", "indptr_S1", "node_of_P"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for mask, other in zip(ours.masks, theirs.masks, strict=True):
        np.testing.assert_array_equal(mask, other)
    assert ours.nbytes == static.StaticPeer.of(ours).nbytes
    trie = Trie.build(codes, [30] * 5)
    nodes = [level.num_nodes for level in trie.levels]
    assert matrix_nbytes(nodes, (30,) * 5) == pytest.approx(ours.nbytes, rel=0.01)


def test_the_shared_selection_gives_the_same_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    log_p, scores = torch.randn(2, 5, 300, generator=generator), torch.randn(2, 5, generator=generator)
    codes = torch.randint(0, 9999, (2, 5, 300), generator=generator)
    for offers in (Offers(log_p_BKF=log_p), Offers(log_p_BKF=log_p, code_BKF=codes)):
        flat = select(scores, offers, 20)
        monkeypatch.setattr("benchmarks.peers.peer._FLAT_CANDIDATES", 0)
        rows_first = select(scores, offers, 20)
        monkeypatch.undo()
        for name in ("scores_BK", "parent_BK", "slot_BK", "code_BK"):
            torch.testing.assert_close(getattr(flat, name), getattr(rows_first, name), rtol=0, atol=0)
        picked = log_p[0, flat.parent_BK[0], flat.slot_BK[0]] + scores[0, flat.parent_BK[0]]
        torch.testing.assert_close(picked, flat.scores_BK[0])


def test_jax_and_torch_select_alike() -> None:
    import jax.numpy as jnp

    from benchmarks.peers import jax_rounds

    rng = np.random.default_rng(1)
    log_p, scores = rng.standard_normal((2, 4, 50), np.float32), rng.standard_normal((2, 4), np.float32)
    ours = select(torch.from_numpy(scores), Offers(log_p_BKF=torch.from_numpy(log_p)), 9)
    theirs = jax_rounds.select(jnp.asarray(scores), jax_rounds.JaxOffers(log_p_BKF=jnp.asarray(log_p)), 9)
    for name in ("scores_BK", "parent_BK", "slot_BK", "code_BK"):
        np.testing.assert_array_equal(getattr(ours, name).numpy(), np.asarray(getattr(theirs, name)))
