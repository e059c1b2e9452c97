"""One grid for every backend: the same catalogs, filters and ties, against the float64 oracle."""

from __future__ import annotations

from itertools import product

import pytest

from tests.fixtures.grid import CASES, SCORINGS, SHAPES, check_case

BACKENDS = ("cpu", "reference", "torch")
# Where no two beams tie: elsewhere rounding decides, which with boosts depends on the order of sums.
BOOSTED = [name for name in CASES if not name.startswith("ties")]
# Short ranges, listed ranges and masks, shared SIDs, excluded codes, scores at the lowest number.
SAMPLE = [
    "skewed-filter-0.5",
    "duplicate-sids",
    "few-items-all-masked",
    "codes-that-the-model-excludes",
    "odd-codebooks",
    "wide-level-skewed-filtered",
    "wide-listing",
    "codebook-over-65536",
]
# All of it, of which the quick tests take the kernels of the CPU under both scorings, and the others under one.
GRID = [
    pytest.param(*cell, marks=pytest.mark.slow if cell[3] != "cpu" and cell[2] == "allowed" else ())
    for cell in product(CASES, SHAPES, SCORINGS, BACKENDS)
]


@pytest.mark.parametrize(("name", "shape", "scoring", "backend"), GRID)
def test_every_backend_gives_the_beams_of_the_oracle(name: str, shape: str, backend: str, scoring: str) -> None:
    check_case(name, shape, backend, scoring)


@pytest.mark.parametrize(("shape", "backend"), [("whole", "cpu"), ("changed-packed", "cpu"), ("changed", "torch")])
@pytest.mark.parametrize("name", [*SAMPLE, "ties-filtered", "growing-widths"])
def test_probabilities_over_the_whole_vocabulary_give_the_beams_of_the_oracle(name: str, shape: str, backend: str) -> None:
    check_case(name, shape, backend, "vocabulary")


@pytest.mark.full
@pytest.mark.parametrize("backend", [*BACKENDS, "jax"])
@pytest.mark.parametrize("boosted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BOOSTED)
def test_probabilities_over_the_whole_vocabulary_on_the_whole_grid(name: str, shape: str, backend: str, boosted: bool) -> None:
    pytest.importorskip("torch" if backend in BACKENDS else backend)
    check_case(name, shape, backend, "vocabulary", boosted=boosted)


@pytest.mark.full
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_jax_gives_the_beams_of_the_oracle(name: str, shape: str, scoring: str) -> None:
    pytest.importorskip("jax")
    check_case(name, shape, "jax", scoring)


@pytest.mark.parametrize(("shape", "scoring"), [("whole", "full"), ("changed-packed", "allowed")])
@pytest.mark.parametrize("name", SAMPLE)
def test_boosts_on_torch_give_the_beams_of_the_oracle(name: str, shape: str, scoring: str) -> None:
    check_case(name, shape, "torch", scoring, boosted=True)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("name", "shape"), [("skewed-filter-0.5", "whole"), ("duplicate-sids", "changed")])
def test_boosts_give_the_beams_of_the_oracle(name: str, shape: str, backend: str) -> None:
    check_case(name, shape, backend, "full", boosted=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_boosts_on_packed_codes_below_others_that_are_not_give_the_beams_of_the_oracle(name: str) -> None:
    check_case(name, "changed-packed", "cpu", "allowed", boosted=True)


@pytest.mark.full
@pytest.mark.parametrize("backend", [*BACKENDS, "jax"])
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BOOSTED)
def test_boosts_give_the_beams_of_the_oracle_on_the_whole_grid(name: str, shape: str, backend: str, scoring: str) -> None:
    pytest.importorskip("torch" if backend in BACKENDS else backend)
    check_case(name, shape, backend, scoring, boosted=True)
