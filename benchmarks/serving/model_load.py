"""From files to the first logits: seconds and memory of `load_for_decoding`, beside `from_pretrained` of transformers.

Each load has a process of its own, and its files are in the system's cache. Imports do not count. Both run one prompt after
loading, because files that are mapped are read then. Memory is that of the process beyond its imports: at the end, and at most.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.failure import PeerFailure
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.production import Architecture, large_run, name_of
from benchmarks.serving.turns import THREADS, Runs

__all__ = ["loads", "runs"]

_CODE = """
import json, resource, sys, time
import psutil, torch
{imports}
torch.set_num_threads({threads})
prompt, process = torch.tensor([list(range(1, 34))]), psutil.Process()
before, began = process.memory_info().rss, time.perf_counter()
model = {load}
loaded = time.perf_counter()
{run}
found = {{"load_s": loaded - began, "first_s": time.perf_counter() - began}}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
found |= {{"bytes": process.memory_info().rss - before, "peak_bytes": peak - before}}
print(json.dumps(found))
"""
_WAYS = {
    "leafbeam": {
        "imports": "from leafbeam.model.loading import load_for_decoding",
        "load": "load_for_decoding(sys.argv[1])",
        "run": "model.start(prompt).step_fn()",
    },
    "transformers": {
        "imports": "from transformers import AutoModelForCausalLM",
        "load": "AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)",
        "run": "with torch.inference_mode(): model(prompt, logits_to_keep=1)",
    },
}


def runs(quick: bool, architecture: Architecture = "qwen3") -> Runs:
    """One row, of the large model of `production`."""
    run = large_run(LoadRun.demo(quick), architecture, quick=quick)
    weights = sum(file.stat().st_size for file in (run.path / "model").glob("*.safetensors"))
    parameters = {"what": "load", "model": name_of(architecture), **run.shape, "threads": THREADS, "file_bytes": weights}
    yield parameters, loads(run.path / "model", repeats=2 if quick else 7)


def loads(directory: Path, repeats: int) -> dict[str, Any]:
    """The medians of both ways, which take turns; the first turn warms up."""
    turns = [{name: _load(way, directory) for name, way in _WAYS.items()} for _ in range(1 + repeats)][1:]
    found = {name: {key: statistics.median(turn[name][key] for turn in turns) for key in turns[0][name]} for name in _WAYS}
    ours, theirs = found["leafbeam"], found["transformers"]
    return {**found, "over_leafbeam": {key: round(theirs[key] / ours[key], 3) for key in ours}}


def _load(way: dict[str, str], directory: Path) -> dict[str, float]:
    command = [sys.executable, "-c", _CODE.format(threads=THREADS, **way), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=False)
    if done.returncode:
        raise PeerFailure("failed", done.stderr[-500:])
    return json.loads(done.stdout.splitlines()[-1])
