"""STATIC in torch: the parity grid without filters, any number of dense levels, its arrays, what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.peers.static_matrix import matrix_nbytes, matrix_of_codes
from leafbeam import BeamSearch, Trie
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.index import Segment, Version
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.static import step as static_torch
from tests.fixtures import grid
from tests.ops import rounds

UNFILTERED = [name for name, case in grid.CASES.items() if case.share is None and not case.denied and not case.lowest]


@pytest.mark.parametrize("scoring", grid.SCORINGS)
@pytest.mark.parametrize("shape", ["whole", "whole-packed"])
@pytest.mark.parametrize("name", UNFILTERED)
def test_the_parity_grid_without_filters(name: str, shape: str, scoring: str) -> None:
    grid.check_case(name, shape, "static", scoring)


def compare(trie: Trie, dense_levels: int, scoring: Any, widths: tuple[int, ...]) -> None:
    rng, version = np.random.default_rng(5), Version.of(trie)
    requests = request_filters(version, 2, None, None)
    arrays = static_torch.bind(version, dense_levels=dense_levels)
    filters = static_torch.bind_filters(arrays, requests)
    rounds.compare(
        lambda level, beams, logits, **settings: static_torch.step(arrays, level, beams, logits, filters, **settings),
        version,
        requests,
        lambda shape: rng.normal(size=shape).astype(np.float32),
        widths,
        scoring,
    )


@pytest.mark.parametrize("num_items", [0, 1, 300])
@pytest.mark.parametrize("dense_levels", [0, 1, 2, 3, 9])
def test_any_number_of_dense_levels_gives_the_same_beams(dense_levels: int, num_items: int) -> None:
    sizes = (5, 13, 7)
    codes = np.stack([np.random.default_rng(1).integers(0, size, num_items) for size in sizes], axis=1)
    trie = Trie.build(codes, sizes)
    for scoring in ("full", "allowed"):
        compare(trie, dense_levels, scoring, (4, 90, 6))


def test_the_arrays_of_figure_1() -> None:
    codes = np.array([[3, 1, 3], [1, 2, 1], [3, 1, 2], [1, 2, 1]])
    matrix = matrix_of_codes(codes, (4, 4, 4), dense_levels=0)
    assert matrix.indptr_S1.tolist() == [0, 0, 2, 3, 4, 5, 7]  # node 1 is the root, as in the paper's state 0 of Figure 1
    assert matrix.edges_E2[:7].tolist() == [[1, 2], [3, 3], [2, 4], [1, 5], [1, 6], [2, 7], [3, 8]]
    assert matrix.max_branches == (2, 1, 2)
    dense = matrix_of_codes(codes, (4, 4, 4), dense_levels=2)
    assert [mask.tolist() for mask in dense.masks] == [[[0b1010]], [[0], [0b0100], [0], [0b0010]]]
    assert dense.node_of_P is not None
    assert np.flatnonzero(dense.node_of_P).tolist() == [4 + 2, 12 + 1]
    assert dense.edges_E2[:3].tolist() == [[1, 3], [2, 4], [3, 5]]


def test_nbytes_counts_what_is_allocated_and_follows_the_memory_model() -> None:
    rng = np.random.default_rng(2)
    trie = Trie.build(rng.integers(0, 64, (20_000, 4)), (64,) * 4)
    arrays = static_torch.bind(trie)
    tensors = {
        id(tensor): tensor.nbytes
        for level in arrays.levels
        for name, tensor in vars(level).items()
        if hasattr(tensor, "nbytes") and not name.startswith(("leaves", "prefixes"))
    }
    assert arrays.nbytes == sum(tensors.values())
    nodes = [level.num_nodes for level in trie.levels]
    model = (1 / 8 + 4) * 64**2 + 12 * sum(nodes[2:])  # Appendix B: 12 bytes a node of a sparse level
    assert matrix_nbytes(nodes, trie.codebook_sizes) == pytest.approx(arrays.nbytes, rel=0.01)
    assert 0.6 * model < arrays.nbytes < 1.05 * model
    assert arrays.mapping_nbytes < 0.5 * arrays.nbytes


def test_chunks_give_the_same_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.random.default_rng(3).geometric(0.2, (5_000, 4)) % 20
    whole = matrix_of_codes(codes, (20,) * 4, 1)
    monkeypatch.setattr("leafbeam.ops.constrain.static.matrix._CHUNK", 97)
    chunked = matrix_of_codes(codes, (20,) * 4, 1)
    assert whole.max_branches == chunked.max_branches
    np.testing.assert_array_equal(whole.edges_E2, chunked.edges_E2)
    np.testing.assert_array_equal(whole.indptr_S1, chunked.indptr_S1)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_are_named_with_request_and_beam(poison: float) -> None:
    trie = Trie.build(np.arange(10)[:, None], [10])
    arrays = static_torch.bind(trie)
    logits = np.zeros((2, 1, 10), np.float32)
    logits[1, 0, 3] = poison
    root = Beams.start(np.zeros((1, 2, 1), np.int64), np.full((1, 2, 1), 10), np.zeros((2, 1), np.float32))
    with pytest.raises(LogitsError, match="request 1, beam 0 at level 0 hold NaN or \\+inf"):
        static_torch.step(arrays, 0, root, logits, None, num_beams=2, scoring="full")


def test_a_filter_or_a_denied_item_is_refused() -> None:
    trie = Trie.build([[0, 1], [1, 0]], (2, 2), ["a", "b"])
    search = BeamSearch(trie, num_beams=2, backend="static")

    def step_fn(codes: Any, parents: Any) -> np.ndarray:
        return np.zeros((1, 2) if codes is None else (1, codes.shape[1], 2), np.float32)

    assert sorted(search.run(step_fn, deny=[["unknown"]]).item_ids[0].tolist()) == ["a", "b"]
    for arguments in ({"filters": trie.filter(item_ids=["a"])}, {"deny": [["a"]]}):
        with pytest.raises(ArgumentError, match="request 0 has a filter or denied items: backend 'static' cannot filter"):
            search.run(step_fn, **arguments)


def test_a_delta_and_deleted_items_are_refused() -> None:
    trie = Trie.build([[0, 1], [1, 0]], (2, 2))
    for segments in ([Segment(trie=trie), Segment(trie=trie)], [Segment(trie=trie, live=trie.filter(np.array([True, False])))]):
        with pytest.raises(ArgumentError, match="delta segment or deleted items"):
            static_torch.bind(Version(segments=tuple(segments)))


def test_dense_levels_that_do_not_fit_are_refused() -> None:
    trie = Trie.build([[0, 1]], (70_000, 70_000))
    with pytest.raises(ArgumentError, match="2 dense levels of codebooks \\(70000, 70000\\) would need 4,900,000,000 entries"):
        static_torch.bind(trie)
    assert static_torch.bind(trie, dense_levels=1).nbytes < 400_000
    with pytest.raises(ArgumentError, match="dense_levels is -1"):
        static_torch.bind(trie, dense_levels=-1)
