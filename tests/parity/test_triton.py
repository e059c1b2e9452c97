"""The Triton kernels of the constrained step, under the interpreter, on cases of the parity grid; and compiled for a GPU.

The interpreter takes a tenth of a second for a program, so `make test` takes every other
case of a sample with fewer beams; `make check-full` runs the whole grid.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam import Trie
from leafbeam.decode.results import root_ranges
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.index import Filter, Version
from leafbeam.ops.constrain import Beams, reference, request_filters
from leafbeam.ops.constrain.cpu import step as cpu
from leafbeam.ops.constrain.triton import step as triton
from leafbeam.ops.packed_inputs import PackedInputs
from tests.fixtures.grid import CASES, LISTED, SCORINGS, SHAPES, Catalog, check_case

pytestmark = pytest.mark.usefixtures("poison")

# (case, shape of the catalog, scoring, beams at most): every layout, filters, denied items, ties, one and two segments.
SAMPLE = [
    ("empty-index", "whole", "full", 3),
    ("one-item", "changed", "allowed", 3),
    ("duplicate-sids", "whole", "full", 5),
    ("all-on-one-leaf", "changed", "full", 2),
    ("uniform-filter-0.1", "changed-packed", "full", 3),
    ("uniform-filter-0.5", "whole", "allowed", 4),
    ("skewed-filter-0.01", "whole-packed", "full", 4),
    ("skewed-filter-0.5", "changed", "allowed", 3),
    ("ties", "whole", "full", 5),
    ("ties-filtered", "changed", "full", 4),
    ("codes-that-the-model-excludes", "whole", "allowed", 4),
    ("few-items-all-masked", "whole", "full", 4),
    ("one-level", "whole-packed", "full", 20),
    ("odd-codebooks", "whole", "full", 3),
    ("wide-level", "whole", "full", 20),
    ("wide-level-skewed-filtered", "whole-packed", "allowed", 20),
    ("codebook-over-65536", "changed-packed", "full", 4),
    ("skewed-filter-0.5", "changed-packed", "vocabulary", 3),
    ("wide-level", "whole", "vocabulary", 8),
]


@pytest.mark.parametrize(
    ("name", "shape", "scoring", "max_beams"),
    [case if row % 2 == 0 else pytest.param(*case, marks=pytest.mark.slow) for row, case in enumerate(SAMPLE)],
)
def test_the_interpreted_kernels_give_the_beams_of_the_oracle(name: str, shape: str, scoring: str, max_beams: int) -> None:
    check_case(name, shape, "triton", scoring, num_requests=1, max_beams=max_beams)


@pytest.mark.parametrize(
    ("name", "shape", "scoring", "max_beams"),
    [("skewed-filter-0.5", "changed", "full", 3), ("duplicate-sids", "whole-packed", "allowed", 4)],
)
def test_boosts_in_the_interpreted_kernels_give_the_beams_of_the_oracle(
    name: str, shape: str, scoring: str, max_beams: int
) -> None:
    check_case(name, shape, "triton", scoring, num_requests=2, max_beams=max_beams, boosted=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape", "scoring", "max_beams"), [case for case in SAMPLE if not case[0].startswith("ties")])
def test_boosts_on_every_layout_in_the_interpreted_kernels(name: str, shape: str, scoring: str, max_beams: int) -> None:
    check_case(name, shape, "triton", scoring, num_requests=1, max_beams=max_beams, boosted=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"), [("duplicate-sids", "whole"), ("uniform-filter-0.5", "changed"), ("odd-codebooks", "whole-packed")]
)
def test_listed_rounds_of_the_head_give_the_beams_of_the_oracle(name: str, shape: str) -> None:
    head = [torch.eye(size) for size in CASES[name].sizes]
    check_case(name, shape, "triton", "allowed", num_requests=1, max_beams=4, head=head, costs=LISTED["gather"])


@pytest.mark.full
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_the_whole_grid_under_the_interpreter(name: str, shape: str, scoring: str) -> None:
    check_case(name, shape, "triton", scoring)


def two_rounds(version: Version, requests: list[Filter], size: int, beams: int) -> list[Any]:
    """The beams after the first round on the CPU, for the second to start from, and its logits."""
    rng = np.random.default_rng(7)
    arrays = cpu.bind(version)
    bound = cpu.bind_filters(arrays, requests)
    lo, hi = root_ranges(version, requests)
    first = rng.standard_normal((len(requests), 1, size), np.float32)
    scores = np.zeros((len(requests), 1), np.float32)
    found = cpu.step(arrays, 0, Beams.start(lo, hi, scores), first, bound, num_beams=beams, scoring="full")
    return [found, rng.standard_normal((len(requests), beams, size), np.float32)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["whole", "changed-packed"])
def test_different_filters_in_one_batch_and_beams_that_share_a_threshold(shape: str) -> None:
    case = CASES["wide-level"]
    catalog = Catalog.of(replace(case, sizes=(40, 40, 4), codes=case.codes % [40, 40, 4]), shape)
    version = Version.of(catalog.index)
    ids = list(catalog.sids)
    requests = request_filters(version, 3, [None, catalog.filter(ids[::3]), catalog.filter([])], [ids[:5], None, None])
    given = two_rounds(version, requests, 40, 4)
    found = {}
    for backend in (cpu, triton):
        arrays = backend.bind(version)
        bound = backend.bind_filters(arrays, requests)
        for _ in range(2):  # the second finds what the first left behind
            found[backend] = backend.step(arrays, 1, *given, bound, num_beams=4, scoring="full")
    ours, theirs = found[triton], found[cpu]
    for name in ("num_valid", "parent", "code", "lo", "hi"):
        assert np.array_equal(getattr(ours, name).numpy(), getattr(theirs, name)), name
    np.testing.assert_allclose(ours.scores.numpy(), theirs.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["whole", "whole-packed", "changed", "changed-packed"])
def test_children_are_the_references(shape: str) -> None:
    case = CASES["uniform-filter-0.5"]
    catalog = Catalog.of(case, shape)
    version = Version.of(catalog.index)
    ids = list(catalog.sids)
    requests = request_filters(version, 2, [None, catalog.filter(ids[::2])], [None, ids[:9]])
    beams, _ = two_rounds(version, requests, case.sizes[0], 3)
    for level, (lo_SBK, hi_SBK) in enumerate([root_ranges(version, requests), (beams.lo, beams.hi)]):
        expected = reference.children(
            (arrays := reference.bind(version)),
            level,
            torch.from_numpy(lo_SBK),
            torch.from_numpy(hi_SBK),
            reference.bind_filters(arrays, requests),
        )
        ours = triton.bind(version)
        found = triton.children(ours, level, lo_SBK, hi_SBK, triton.bind_filters(ours, requests))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_poisoned_row_is_named_and_the_next_round_is_clean(scoring: str, poison: float) -> None:
    trie = Trie.build([[0, 1], [1, 0], [2, 2]], [3, 3])
    arrays = triton.bind(trie)
    bound = triton.bind_filters(arrays, request_filters(trie, 2, None, None))
    logits = np.zeros((2, 1, 3), np.float32)
    logits[1, 0, 2] = poison
    root = Beams.start(np.zeros((1, 2, 1), np.int64), np.full((1, 2, 1), 3), np.zeros((2, 1), np.float32))
    with np.errstate(invalid="ignore"), pytest.raises(LogitsError, match="request 1, beam 0"):
        triton.step(arrays, 0, root, logits, bound, num_beams=2, scoring=scoring)
    found = triton.step(arrays, 0, root, np.zeros_like(logits), bound, num_beams=2, scoring=scoring)
    assert found.code.tolist() == [[0, 1], [0, 1]]


def test_filters_of_another_batch_take_the_place_of_the_last() -> None:
    trie = Trie.build(np.arange(60)[:, None] % 60, [60])
    arrays = triton.bind(trie)
    none, some = request_filters(trie, 1, None, None), request_filters(trie, 1, trie.filter(np.arange(60) > 55), [[57, 58]])
    inputs = PackedInputs(triton.FilterArrays.shapes(1, 1, 4), arrays.device)
    bound = triton.FilterArrays.of(inputs.tensors, inputs.host, filtered=True)
    root = Beams.start(np.zeros((1, 1, 1), np.int64), np.full((1, 1, 1), 60), np.zeros((1, 1), np.float32))
    logits = np.zeros((1, 1, 60), np.float32)
    for filters, expected in ((none, 20), (some, 2), (none, 20)):
        assert triton.stage_filters(arrays, bound, filters)
        inputs.send()
        found = triton.step(arrays, 0, root, logits, bound, num_beams=20, scoring="full")
        assert int(found.num_valid[0]) == expected
    assert not triton.stage_filters(arrays, bound, request_filters(trie, 1, None, [list(range(9))]))
    assert not triton.stage_filters(arrays, bound, request_filters(trie, 2, None, None))


def test_what_the_kernels_cannot_do_is_refused_before_a_launch() -> None:
    trie = Trie.build([[0], [1]], [2])
    arrays = triton.bind(trie)
    bound = triton.bind_filters(arrays, request_filters(trie, 1, None, None))
    root = Beams.start(np.zeros((1, 1, 1), np.int64), np.full((1, 1, 1), 2), np.zeros((1, 1), np.float32))
    with pytest.raises(ArgumentError, match="num_beams is 9000"):
        triton.step(arrays, 0, root, np.zeros((1, 1, 2), np.float32), bound, num_beams=9000, scoring="full")
    with pytest.raises(LogitsError, match="expected"):
        triton.step(arrays, 0, root, np.zeros((1, 1, 3), np.float32), bound, num_beams=2, scoring="full")
    two = Beams.start(np.zeros((1, 2, 1), np.int64), np.full((1, 2, 1), 2), np.zeros((2, 1), np.float32))
    with pytest.raises(ArgumentError, match="one for each request"):
        triton.step(arrays, 0, two, np.zeros((2, 1, 2), np.float32), bound, num_beams=2, scoring="full")


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu_without_one() -> None:
    script = Path(__file__).parent.parent / "ops" / "compile_kernels.py"
    cache = Path(__file__).parents[2] / ".pytest_cache" / "triton"
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, str(script), "constrain", "automata", "head", "attention", "linear"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "automaton_request_kernel" in done.stdout
    assert "suffix_kernel" in done.stdout
    assert "round_kernel" in done.stdout
