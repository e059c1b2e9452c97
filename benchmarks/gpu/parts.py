"""The product on a GPU, part by part: parity first, at real sizes, then times. No part takes more than 8 minutes.

    python -m benchmarks.gpu.parts list            what there is, and how long it takes at most; needs no GPU
    python -m benchmarks.gpu.parts step jax        these parts; without names, all of them

Each part runs in a process of its own, because a kernel that fails leaves the device unusable for what follows in the same one.
A row is appended to results/gpu.jsonl when it is measured, so a part that dies or is stopped loses nothing of what it had; its
failure becomes a row too. Costs of attention go to a file beside it. First the checks of the kernels' parts run side by side,
so that kernels are compiled on all cores.

Kernels need torch, triton and what the core needs (numpy, numba, safetensors); `jax` needs JAX for CUDA, and the parts of the
server need what `leafbeam serve` needs. `PYTHONPATH=. python -m benchmarks.gpu.parts` runs in a checkout without installing it.

Without a CUDA device it says so and exits with 2.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from benchmarks.gpu.timing import Measured, ceilings
from benchmarks.rows import append_row

__all__ = ["COMPILING", "GRACE", "KERNELS", "PARTS", "Part", "compile_all", "lines", "main", "part", "printed_rows", "table"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Measurements that run in one process, for so many seconds, and GRACE more for the one that runs then.

    goal: the times that are wanted, if there are any.
    """

    seconds: int
    about: str
    goal: str = ""


GRACE = 10
COMPILING = 105  # seconds in which kernels are compiled for all of KERNELS at once
ROOFS = {"copy_bytes_a_second": 4e12, "bf16_operations_a_second": 7.5e14}  # until they are measured, of an H200
KERNELS = ("attention", "head", "language", "decode", "step")
_SERVER = (
    "`leafbeam serve` over HTTP, random weights of {}: 50 to 512 beams, 1,000 and 5,000 tokens, 1 and 8 at once, rates, memory"
)
PARTS = {
    "ceilings": Part(seconds=15, about="bytes a second of a copy, operations a second of a matrix product"),
    "attention": Part(
        seconds=40, about="attention of many beams: parity, then beside cascades and trees that torch can express"
    ),
    "splits": Part(
        seconds=35,
        about="in how many parts and launches a prompt is read; fits the costs of attention",
    ),
    "head": Part(seconds=50, about="logits of legal codes alone: parity, then beside a library's product"),
    "language": Part(seconds=25, about="rounds over automata: parity, then times"),
    "decode": Part(seconds=60, about="whole decodes captured as graphs: parity, then beside launches; two workers"),
    "step": Part(
        seconds=95,
        about="the constrained round: parity, then up to 10^8 items, beside STATIC in torch",
        goal="12 µs at 2 x 70 beams, 140 µs at 64 x 512",
    ),
    "static": Part(
        seconds=460, about="the round beside STATIC through torch.compile, up to 10^8 items, without rules, 1 and 64 rules"
    ),
    "jax": Part(
        seconds=460, about="the round and the whole search in JAX beside STATIC in JAX, on the same GPU, with XLA and Pallas"
    ),
    "sweeps": Part(seconds=300, about="the round by codes of a level (256 to 65,536) and by requests (1 to 256)"),
    "experts": Part(seconds=120, about="OneRec's shape, an encoder-decoder with experts, captured"),
    "shapes": Part(seconds=460, about="whole decodes without HTTP at Qwen3-0.6B, 1.7B, 4B and OneRec-1.7B: times, memory"),
    "fp8": Part(seconds=460, about="products of float8: parity, Recall@10 of the demo's model, whole decodes beside bfloat16"),
    "server-0.6B": Part(seconds=460, about=_SERVER.format("Qwen3-0.6B")),
    "server-1.7B": Part(
        seconds=460,
        about=_SERVER.format("Qwen3-1.7B"),
        goal="at 256 beams 12 ms after 1,000 tokens, 30 ms after 5,000",
    ),
    "server-4B": Part(seconds=460, about=_SERVER.format("Qwen3-4B")),
    "server-OneRec": Part(seconds=460, about=_SERVER.format("OneRec-1.7B")),
}
_SERVED = {"server-0.6B": "Qwen3-0.6B", "server-1.7B": "Qwen3-1.7B", "server-4B": "Qwen3-4B", "server-OneRec": "OneRec-1.7B"}


def main(names: Sequence[str]) -> None:
    """Run parts on the first CUDA device, all without names; or exit with 2."""
    if unknown := [name for name in names if name not in PARTS]:
        print(f"no part is called {unknown[0]!r}: parts are {', '.join(PARTS)}", file=sys.stderr)
        raise SystemExit(2)
    if not torch.cuda.is_available():
        print("no CUDA device here: `make gpu` measures on a GPU only; nothing was measured", file=sys.stderr)
        raise SystemExit(2)
    roofs, chosen = dict(ROOFS), list(names or PARTS)
    compile_all([name for name in chosen if name in KERNELS])
    device = {"device": torch.cuda.get_device_name(), "triton": _triton_version(), "cuda": torch.version.cuda}
    for name in chosen:
        for parameters, measured in lines(name, roofs, PARTS[name].seconds):
            if name == "ceilings":
                roofs |= {key: value for key, value in measured.items() if key in roofs}
            print(json.dumps(append_row("gpu", parameters, {**measured, **device})), flush=True)


def table() -> str:
    """The parts, how long each takes at most, and what it measures."""
    width = max(map(len, PARTS))
    rows = [
        f"{name:<{width}}  {(part.seconds + GRACE) / 60:>4.1f} min  {part.about}{part.goal and f'; goal: {part.goal}'}"
        for name, part in PARTS.items()
    ]
    whole = (COMPILING + sum(part.seconds + GRACE for part in PARTS.values())) / 60
    return "\n".join([*rows, f'all parts take at most {whole:.0f} minutes; make gpu PARTS="NAME NAME" runs some of them'])


def compile_all(names: Sequence[str]) -> None:
    """Run the checks of these parts side by side, untimed: Triton and numba keep what they compile, and parts find it there."""
    command = [sys.executable, "-m", "benchmarks.gpu.parts", "--part"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    until = time.monotonic() + COMPILING
    running = [subprocess.Popen([*command, name, "{}", "0"], **quiet) for name in names]
    for process in running:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def lines(name: str, roofs: dict[str, float], seconds: float) -> Measured:
    """The rows that a part prints, and one more if it did not finish."""
    command = [sys.executable, "-m", "benchmarks.gpu.parts", "--part", name, json.dumps(roofs), str(seconds)]
    return printed_rows(command, name, seconds + GRACE)


def printed_rows(command: Sequence[str], name: str, limit_s: float) -> Measured:
    """The rows that a process prints, each when it is printed; it is stopped at the limit, with all that it started."""
    stopped = threading.Event()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process,
    ):

        def stop() -> None:
            stopped.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    row = json.loads(line)
                    yield row["parameters"], row["measured"]
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                stop()
                process.wait()
        errors.seek(0)
        if stopped.is_set():
            yield {"what": name}, {"failed": f"stopped after {limit_s:.0f} s"}
        elif code:
            yield {"what": name}, {"failed": f"exit {code}: {errors.read()[-1500:]}"}


def part(name: str, device: torch.device, roofs: dict[str, float], seconds: float) -> Measured:
    """The rows of one part. Modules are imported by the parts that need them, because some need more packages."""
    if name not in PARTS:
        raise ValueError(f"no part is called {name!r}: parts are {', '.join(PARTS)}")
    roofs = {**ROOFS, **roofs}
    bandwidth, operations = roofs["copy_bytes_a_second"], roofs["bf16_operations_a_second"]
    if name == "ceilings":
        yield {"what": "ceilings"}, ceilings(device)
    elif name == "jax":
        yield from _jax(seconds)
    elif name in _SERVED:
        server = import_module("benchmarks.gpu.server")
        yield from server.runs(device, server.SHAPES[_SERVED[name]], seconds)
    elif name in ("sweeps", "experts"):
        module, arguments = ("step", (bandwidth, seconds)) if name == "sweeps" else ("shapes", (seconds,))
        yield from getattr(import_module(f"benchmarks.gpu.{module}"), name)(device, *arguments)
    else:
        before = {"attention": (bandwidth, operations), "head": (bandwidth,), "language": (bandwidth,), "step": (bandwidth,)}
        yield from import_module(f"benchmarks.gpu.{name}").runs(device, *before.get(name, ()), seconds)


def _jax(seconds: float) -> Measured:
    """Rows of `python -m benchmarks jax` on JAX's own device, which has to be the GPU."""
    jax_rounds = import_module("benchmarks.micro.jax")
    devices = import_module("jax").devices()
    if devices[0].platform == "cpu":
        yield {"what": "jax"}, {"failed": "JAX sees no GPU: install jax[cuda12]"}
        return
    until = time.monotonic() + seconds
    for num_items in (1_000_000, 20_000_000, 100_000_000):
        parameters = {"what": "jax", "distribution": "uniform", "num_items": num_items}
        if until - time.monotonic() < 60 + num_items / 4e5:  # compiling, then drawing, sorting and laying out
            yield parameters, {"left_out": f"{until - time.monotonic():.0f} s were left of {seconds:.0f}"}
            continue
        found, measured = jax_rounds.measure("uniform", num_items, repeats=50)
        yield {"what": "jax"} | found, measured


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        for parameters, measured in part(sys.argv[2], torch.device("cuda"), json.loads(sys.argv[3]), float(sys.argv[4])):
            print(json.dumps({"parameters": parameters, "measured": measured}), flush=True)
    elif sys.argv[1:] == ["list"]:
        print(table())
    else:
        main(sys.argv[1:])
