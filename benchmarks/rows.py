"""One JSON line for each benchmark run: what was measured, on what, from which commit, beside how much other load.

Documents refuse a row of a tree with changes, and a timed one of a machine of which other programs used a quarter, unless
somebody marked it: `"marked": "reason"`, written into the row by hand and shown beside its numbers. Rows of counts or of
bytes have `"timed": false`. Older rows lack some fields. Without `dirty`, a + behind the commit says that the tree had changes;
without `timed` they count as timed; without `others` the load, which the benchmark is part of, must not exceed the cores.
`"superseded": "reason"`, written by hand, refuses a row of code that has since changed what it measures.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import machine

__all__ = [
    "RESULTS",
    "Row",
    "append_row",
    "interleaved",
    "keep_row",
    "make_row",
    "moments",
    "read_rows",
    "refusal",
    "spread",
    "version_of",
]

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


def interleaved(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each run, interleaved, so that noise of the machine hits all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def spread(seconds: Sequence[float], unit: float = 1e-6) -> dict[str, float]:
    """p20, p50 and p80 in the given unit (default microseconds)."""
    p20, p50, p80 = np.percentile(np.asarray(seconds) / unit, [20, 50, 80])
    return {"p20": round(float(p20), 2), "p50": round(float(p50), 2), "p80": round(float(p80), 2)}


def moments(seconds: Sequence[float], unit: float = 1e-6) -> dict[str, float]:
    """Mean and standard deviation in the given unit (default microseconds), as papers print them."""
    values = np.asarray(seconds) / unit
    return {"mean": round(float(values.mean()), 2), "sd": round(float(values.std()), 2)}


def make_row(name: str, parameters: dict[str, Any], measured: dict[str, Any], *, timed: bool = True) -> Row:
    """What was measured, on what, from which commit. timed: whether other load on the machine changes it."""
    commit, dirty = _commit()
    return {
        "bench": name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "dirty": dirty,
        "machine": machine(),
        "versions": {package: version_of(package) for package in ("python", "numpy", "numba", "torch", "jax", "marisa-trie")},
        "timed": timed,
        "parameters": parameters,
        "measured": measured,
    }


def append_row(
    name: str, parameters: dict[str, Any], measured: dict[str, Any], folder: Path = RESULTS, *, timed: bool = True
) -> Row:
    """Append one row to `results/NAME.jsonl` and return it."""
    row = make_row(name, parameters, measured, timed=timed)
    keep_row(name, row, folder)
    return row


def keep_row(name: str, row: Row, folder: Path = RESULTS) -> None:
    """Append a row to `results/NAME.jsonl`, with a warning on stderr if documents refuse it."""
    reason = refusal(row)
    if reason:
        print(f"warning: `make figures` refuses this row of {name}: {reason}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(name: str, folder: Path = RESULTS) -> list[Row]:
    """The rows of `results/NAME.jsonl`, oldest first; none where there is no such file."""
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def refusal(row: Row) -> str:
    """Why documents refuse a row, or "". A row without a load passes; documents say that none was recorded."""
    if reason := row.get("superseded"):
        return f"superseded: {reason}"
    if row.get("marked"):
        return ""
    commit, machine = row["commit"], row["machine"]
    if commit == "unknown" or row.get("dirty", commit.endswith("+")):
        return f"the tree had changes that commit {commit} lacks"
    load, others, cores = (machine.get(name) for name in ("load", "others", "cores"))
    if not row.get("timed", True) or cores is None:
        return ""
    if others is not None:
        return f"other programs used {others} of {cores} cores" if others > cores / 4 else ""
    return f"the load was {load} on {cores} cores" if load is not None and load > cores else ""


def _commit() -> tuple[str, bool]:
    """The short commit, and whether the tree differs from it."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results"], cwd=here.parent, check=False
        ).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True
    return head.stdout.strip(), bool(changed)


def version_of(package: str) -> str:
    """The version of an installed package, or "absent"."""
    if package == "python":
        return platform.python_version()
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
