"""Every Triton kernel on a GPU: parity first, at real sizes, then its time. Under 8 minutes in all.

Checks first run side by side, so that kernels are compiled on all cores. Then each part runs in a process of its own, because a
kernel that fails leaves the device unusable for what follows in the same one. A failure becomes a row. Rows are appended to
results/gpu.jsonl, costs of attention beside it. Needs torch, triton and what the core needs (numpy, numba, safetensors);
nothing has to be installed: `PYTHONPATH=. python -m benchmarks.gpu.parts` in a checkout.

Without a CUDA device it says so and exits with 2.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
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

__all__ = ["COMPILING", "GRACE", "SECONDS", "compile_all", "lines", "main", "part"]

# Seconds of each part, and GRACE more for the measurement that runs then. The others are compared with the first.
SECONDS = {"ceilings": 15, "attention": 30, "splits": 35, "head": 40, "language": 25, "decode": 60, "step": 95}
GRACE = 10
ROOFS = {"copy_bytes_a_second": 4e12, "bf16_operations_a_second": 7.5e14}  # until they are measured, of an H200
COMPILING = 105  # seconds in which kernels are compiled for all parts at once


def main(as_json: bool) -> None:
    """Run all parts on the first CUDA device, or exit with 2."""
    if not torch.cuda.is_available():
        print("no CUDA device here: `make gpu` measures on a GPU only; nothing was measured", file=sys.stderr)
        raise SystemExit(2)
    roofs = dict(ROOFS)
    compile_all()
    device = {"device": torch.cuda.get_device_name(), "triton": _triton_version(), "cuda": torch.version.cuda}
    for name, seconds in SECONDS.items():
        for parameters, measured in lines(name, roofs, seconds):
            if name == "ceilings":
                roofs |= {key: value for key, value in measured.items() if key in roofs}
            row = append_row("gpu", parameters, {**measured, **device})
            print(json.dumps(row) if as_json else f"{parameters}\n  {json.dumps(measured)}", flush=True)


def compile_all() -> None:
    """Run the checks of all parts side by side, untimed: Triton and numba keep what they compile, and parts find it there."""
    command = [sys.executable, "-m", "benchmarks.gpu.parts"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    until = time.monotonic() + COMPILING
    running = [subprocess.Popen([*command, name, "{}", "0"], **quiet) for name in SECONDS if name not in ("ceilings", "splits")]
    for process in running:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def lines(name: str, roofs: dict[str, float], seconds: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows that a part prints, and one more if it did not finish."""
    command = [sys.executable, "-m", "benchmarks.gpu.parts", name, json.dumps(roofs), str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE, check=False)
        output, error = done.stdout, f"exit {done.returncode}: {done.stderr[-1500:]}" if done.returncode else ""
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
        error = f"stopped after {seconds + GRACE} s"
    for line in output.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            yield row["parameters"], row["measured"]
    if error:
        yield {"what": name}, {"failed": error}


def part(name: str, device: torch.device, roofs: dict[str, float], seconds: float) -> Measured:
    """The rows of one part."""
    roofs = {**ROOFS, **roofs}
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
    elif name == "step":
        yield from gpu_step.runs(device, bandwidth, seconds)
    else:
        raise ValueError(f"no part is called {name!r}: parts are {', '.join(SECONDS)}")


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        main(as_json=True)
    else:
        for parameters, measured in part(sys.argv[1], torch.device("cuda"), json.loads(sys.argv[2]), float(sys.argv[3])):
            print(json.dumps({"parameters": parameters, "measured": measured}), flush=True)
