"""A search on every backend of a package, compared with an enumeration of all items: `python -m leafbeam.cli.self_test cpu`.

It runs in a process of its own, so that one that hangs or crashes is a finding of `leafbeam doctor` and not its end.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import counted

_SIZES = (16, 24, 8)
_NUM_ITEMS = 300
_TOLERANCE = 1e-3  # of a sum of three log probabilities in float32


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """One backend: the seconds that building and searching took, or what is wrong."""

    backend: str
    seconds: float
    problem: str | None


def run_in_a_process(backends: tuple[str, ...], device: str = "cpu", timeout_s: float = 180.0) -> list[SelfTest]:
    """Test backends, one after the other, in another process; its end or silence is the problem of those that are left."""
    command = [sys.executable, "-m", "leafbeam.cli.self_test", device, *backends]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s)
        lines, problem = done.stdout.splitlines(), (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except subprocess.TimeoutExpired as error:
        lines = (error.stdout or b"").decode(errors="replace").splitlines()
        problem = f"no answer within {timeout_s:g} s"
    results = [SelfTest(**json.loads(line)) for line in lines if line.startswith('{"backend"')]
    seconds = time.perf_counter() - began
    return results + [SelfTest(backend=name, seconds=seconds, problem=problem) for name in backends[len(results) :]]


def test_backend(backend: str, device: str) -> str | None:
    """Return what is wrong with the answers of a backend: with all items as beams, each allowed one must have its score."""
    from leafbeam import BeamSearch, Trie

    rng = np.random.default_rng(7)
    codes_NL = np.stack([rng.integers(0, size, _NUM_ITEMS) for size in _SIZES], axis=1)
    tables = [rng.normal(size=(before, size)) for before, size in zip((1, *_SIZES), _SIZES, strict=False)]
    index = Trie.build(codes_NL, _SIZES, item_ids=np.arange(_NUM_ITEMS))
    allowed_BN = np.ones((2, _NUM_ITEMS), np.bool_)
    filters = None
    if backend != "static":  # which has none
        allowed_BN[0] = rng.random(_NUM_ITEMS) < 0.3
        filters = [index.filter(allowed_BN[0]), None]
    on = "auto" if backend in ("cpu", "jax") else device
    search = BeamSearch(index, num_beams=_NUM_ITEMS, backend=backend, device=on)
    result = search.run(_Model(tables, backend, device), batch_size=2, filters=filters)
    expected_N = item_scores(codes_NL, tables)
    for row, allowed_N in enumerate(allowed_BN):
        count = int(result.num_valid[row])
        item_ids, scores = np.asarray(result.item_ids[row][:count]), np.asarray(result.scores[row, :count])
        if sorted(item_ids.tolist()) != np.flatnonzero(allowed_N).tolist():
            return f"it returned {counted(count, 'item')}, but {int(allowed_N.sum())} are allowed"
        if (error := float(np.abs(scores - expected_N[item_ids]).max(initial=0.0))) > _TOLERANCE:
            return f"scores are wrong by up to {error:.3g}"
    return None


class _Model:
    """Logits that depend on the level and the code before, as arrays of the backend's kind."""

    def __init__(self, tables: list[NDArray[np.float64]], backend: str, device: str) -> None:
        self._tables, self._level = tables, 0
        if backend == "cpu":
            self._convert: Callable[[NDArray[np.float32]], object] = np.asarray
        elif backend == "jax":
            import jax.numpy

            self._convert = jax.numpy.asarray
        else:
            import torch

            self._convert = lambda array: torch.as_tensor(array, device=device)  # pyright: ignore[reportUnknownLambdaType]

    def __call__(self, codes_BK: object, parents_BK: object) -> object:
        from leafbeam.ops.backend import to_numpy

        table = self._tables[self._level].astype(np.float32)
        self._level += 1
        return self._convert(np.repeat(table, 2, axis=0) if codes_BK is None else table[to_numpy(codes_BK)])


def item_scores(codes_NL: NDArray[np.int64], tables: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the log probability of every item, without a search."""
    before_N, scores_N = np.zeros(len(codes_NL), np.int64), np.zeros(len(codes_NL))
    for table, codes_N in zip(tables, codes_NL.T, strict=True):
        log_softmax = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
        scores_N += log_softmax[before_N, codes_N]
        before_N = codes_N
    return scores_N


if __name__ == "__main__":
    for name in sys.argv[2:]:
        start = time.perf_counter()
        try:
            fault = test_backend(name, sys.argv[1])
        except Exception as error:
            fault = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        print(json.dumps({"backend": name, "seconds": time.perf_counter() - start, "problem": fault}), flush=True)
