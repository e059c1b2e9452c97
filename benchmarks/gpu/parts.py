"""Every Triton kernel on a GPU: parity first, at real sizes, then its time. Under 8 minutes in all.

Each part runs in a process of its own, because a kernel that fails leaves the device unusable for what follows in the same one.
A failure becomes a row. Rows are appended to results/gpu.jsonl, costs of attention beside it. Needs torch, triton and
what the core needs (numpy, numba, safetensors); nothing has to be installed: `PYTHONPATH=. python -m benchmarks.gpu.parts` in a
checkout.

Without a CUDA device it says so and exits with 2.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu import attention as gpu_attention
from benchmarks.gpu import decode as gpu_decode
from benchmarks.gpu import head as gpu_head
from benchmarks.gpu import language as gpu_language
from benchmarks.gpu import splits as gpu_splits
from benchmarks.gpu import step as gpu_step
from benchmarks.gpu.timing import Measured, ceilings
from benchmarks.rows import append_row

__all__ = ["SECONDS", "lines", "main", "part"]

# Seconds of each part, and 15 more for the measurement that runs then. The others are compared with the first.
SECONDS = {"ceilings": 25, "attention": 50, "splits": 45, "head": 70, "language": 30, "decode": 50, "step": 100}


def main(as_json: bool) -> None:
    """Run all parts on the first CUDA device, or exit with 2."""
    if not torch.cuda.is_available():
        print("no CUDA device here: `make gpu` measures on a GPU only; nothing was measured", file=sys.stderr)
        raise SystemExit(2)
    roofs = {"copy_bytes_a_second": 4e12, "bf16_operations_a_second": 7.5e14}  # until they are measured, of an H200
    device = {"device": torch.cuda.get_device_name(), "triton": _triton_version(), "cuda": torch.version.cuda}
    for name, seconds in SECONDS.items():
        for parameters, measured in lines(name, roofs, seconds):
            if name == "ceilings":
                roofs |= {key: value for key, value in measured.items() if key in roofs}
            row = append_row("gpu", parameters, {**measured, **device})
            print(json.dumps(row) if as_json else f"{parameters}\n  {json.dumps(measured)}", flush=True)


def lines(name: str, roofs: dict[str, float], seconds: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows that a part prints, and one more if it did not finish."""
    command = [sys.executable, "-m", "benchmarks.gpu.parts", name, json.dumps(roofs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 15, check=False)
        output, error = done.stdout, f"exit {done.returncode}: {done.stderr[-1500:]}" if done.returncode else ""
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
        error = f"stopped after {seconds + 15} s"
    for line in output.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            yield row["parameters"], row["measured"]
    if error:
        yield {"what": name}, {"failed": error}


def part(name: str, device: torch.device, roofs: dict[str, float], seconds: float) -> Measured:
    """The rows of one part."""
    bandwidth, operations = roofs["copy_bytes_a_second"], roofs["bf16_operations_a_second"]
    if name == "ceilings":
        yield {"what": "ceilings"}, ceilings(device)
    elif name == "attention":
        yield from gpu_attention.runs(device, bandwidth, operations, seconds)
    elif name == "splits":
        yield from gpu_splits.runs(device, seconds)
    elif name == "head":
        yield from gpu_head.runs(device, bandwidth, seconds)
    elif name == "language":
        yield from gpu_language.runs(device, bandwidth, seconds)
    elif name == "decode":
        yield from gpu_decode.runs(device, seconds)
    else:
        yield from gpu_step.runs(device, bandwidth, seconds)


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        main(as_json=True)
    else:
        for parameters, measured in part(sys.argv[1], torch.device("cuda"), json.loads(sys.argv[2]), SECONDS[sys.argv[1]]):
            print(json.dumps({"parameters": parameters, "measured": measured}), flush=True)
