"""Keeps the programs few that a process of the whole parity grid holds, which compiles thousands."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_MAPS = Path("/proc/self/maps")  # of Linux alone
_MAX_MAPS = 20_000


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Forget what JAX has compiled before there is too much: XLA aborts a process once the system maps no more for it."""
    yield
    jax = sys.modules.get("jax")
    if jax is not None and _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MAX_MAPS:
        jax.clear_caches()
