"""One grid for every backend: the same catalogs, filters and ties, against the float64 oracle."""

from __future__ import annotations

import pytest

from tests.fixtures.grid import CASES, SCORINGS, SHAPES, check_case

BACKENDS = ("cpu", "reference", "torch")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_every_backend_gives_the_beams_of_the_oracle(name: str, shape: str, backend: str, scoring: str) -> None:
    check_case(name, shape, backend, scoring)


@pytest.mark.full
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_jax_gives_the_beams_of_the_oracle(name: str, shape: str, scoring: str) -> None:
    pytest.importorskip("jax")
    check_case(name, shape, "jax", scoring)
