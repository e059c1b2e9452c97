"""Shared by all tests: no deadlines (the machines are shared and noisy), the same examples every time, kernels never stale."""

import ast
import gc
import hashlib
import logging
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("shared-machine", deadline=None, derandomize=True)
settings.load_profile("shared-machine")

# numba's cache looks at the file of a compiled function and not at the files of the functions that it calls: after an edit of
# one of those it would go on with the old code. One cache for each state of the compiled code (read when numba is first
# imported); words are no part of that state.
_ROOT = Path(__file__).parent.parent
_STATE = hashlib.blake2b(digest_size=8)
for _path in sorted((_ROOT / "leafbeam").rglob("*.py")):
    _source = _path.read_text(encoding="utf-8")
    if "njit" in _source:
        _tree = ast.parse(_source)
        for _node in ast.walk(_tree):
            if isinstance(_node, ast.Expr) and isinstance(_node.value, ast.Constant):
                _node.value.value = ""
        _STATE.update(ast.dump(_tree).encode())
os.environ["NUMBA_CACHE_DIR"] = str(_ROOT / ".pytest_cache" / f"numba-{_STATE.hexdigest()}")

# Workers begin with the same kernels: each is compiled by one of them.
if "PYTEST_XDIST_WORKER" in os.environ:
    from tests.compilations import compile_once

    compile_once()

# Two workers share the machine: more threads than cores only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton's kernels run under its interpreter here, GPU or not (read when a kernel's file is first imported).
os.environ["TRITON_INTERPRET"] = "1"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files whose tests are all slow where slow tests are not run: importing what they import takes seconds."""
    if collection_path.suffix != ".py" or "not slow" not in config.option.markexpr:
        return None
    text = collection_path.read_text(encoding="utf-8")
    return True if "\npytestmark = pytest.mark.slow\n" in text or "\npytestmark = [\n    pytest.mark.slow,\n" in text else None


def pytest_collection_finish() -> None:
    """Keep what was imported out of full garbage collections, which otherwise take a tenth of the tests' time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # DuckDB counts what is left of it at the end of a process


@pytest.fixture(autouse=True)
def root_log_as_before() -> Generator[None]:
    """A command sets up the log of its process: one that runs in this process does so for its own test alone."""
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in before:
            root.removeHandler(handler)


@pytest.fixture
def poison() -> Generator[None]:
    """What a kernel does not write is NaN, or very large."""
    from benchmarks.gpu.timing import poisoned

    with poisoned():
        yield


@pytest.fixture(scope="module")
def quick_compilation() -> Generator[None]:
    """Compiled with less care, in half the time; what is compiled for speed is tested where that matters."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
