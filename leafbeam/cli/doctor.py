"""`leafbeam doctor`: what is installed, what the machine allows, whether every backend searches right, and what to mend."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from leafbeam import __version__, engine
from leafbeam.cli.console import stdout, working
from leafbeam.cli.options import option
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import counted
from leafbeam.extras import EXTRAS, require
from leafbeam.machine import Machine

Status = Literal["ok", "absent", "advice", "wrong"]
_PYTHON = ((3, 11), (3, 14))  # the first, and the first that is not supported
_CORE = ("numpy", "numba", "llvmlite", "safetensors")
_DISTRIBUTIONS = {
    "adbc_driver_postgresql": "adbc-driver-postgresql",
    "opentelemetry": "opentelemetry-sdk",
    "sklearn": "scikit-learn",
}
_MIN_OPEN_FILES, _MIN_FREE_BYTES = 4096, 1 << 30
_COLORS = {"ok": "green", "absent": "dim", "advice": "yellow", "wrong": "bold red"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report. status: "absent" is an optional part that is not installed; "wrong" makes the exit code 1."""

    area: str
    name: str
    status: Status = "ok"
    value: str
    mend: str = ""


def doctor(
    as_json: Annotated[bool, option("--json", "Print one JSON object.")] = False,
    no_test: Annotated[bool, option("--no-self-test", "Do not run the test searches.")] = False,
    run: Annotated[
        Path | None,
        option("--run", "A run directory. The settings that a server of its model would choose on this machine are shown too."),
    ] = None,
) -> None:
    """Check the installation and the machine, and search on every backend that is installed.

    The exit code is 1 if something is wrong. A machine's first run compiles kernels, which can take a minute.
    """
    findings = [*_packages(), *machine_findings(Machine.this()), *_devices()]
    if not no_test:
        with working("searching on every backend; a machine's first run compiles kernels for up to a minute"):
            findings += _self_test()
    if run is not None:
        with working("measuring what suits the model"):
            findings += _tuning(run)
    problems = [finding for finding in findings if finding.status == "wrong"]
    if as_json:
        print(json.dumps({"ok": not problems, "version": __version__, "findings": [asdict(finding) for finding in findings]}))
    else:
        _show(findings)
    if problems:
        raise typer.Exit(1)


def _packages() -> Iterator[Finding]:
    """Yield the versions of leafbeam, Python and packages, and which extras are complete."""
    python = platform.python_version()
    supported = _PYTHON[0] <= sys.version_info[:2] < _PYTHON[1]
    yield Finding(area="versions", name="leafbeam", value=f"{__version__} in {Path(__file__).parents[1]}")
    yield Finding(
        area="versions",
        name="Python",
        status="ok" if supported else "wrong",
        value=f"{python}, {platform.platform()}",
        mend="" if supported else "use Python 3.11, 3.12 or 3.13",
    )
    for name in _CORE:
        version = _version_of(name)
        mend = "" if version else f"pip install --force-reinstall leafbeam: {name} is one of its dependencies"
        yield Finding(area="versions", name=name, status="ok" if version else "wrong", value=version or "missing", mend=mend)
    for extra in sorted(set(EXTRAS.values())):
        modules = [name for name, of_extra in EXTRAS.items() if of_extra == extra]
        versions = {name: _version_of(name) for name in modules}
        missing = [name for name, version in versions.items() if version is None]
        shown = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
        mend = f"pip install 'leafbeam[{extra}]', if you need it" if missing else ""
        yield Finding(area="extras", name=extra, status="absent" if missing else "ok", value=shown, mend=mend)


def _version_of(module: str) -> str | None:
    """Return the installed version of a package by its import name, which is not imported; None where it is missing."""
    try:
        return importlib.metadata.version(_DISTRIBUTIONS.get(module, module.replace("_", "-")))
    except importlib.metadata.PackageNotFoundError:
        return None


def machine_findings(machine: Machine) -> Iterator[Finding]:
    """Yield cores, threads, memory, files, and where kernels are kept."""
    quota = "" if machine.quota is None else f", the control group allows {machine.quota:g}"
    yield Finding(area="machine", name="cores", value=f"{machine.cores}, of which {machine.allowed_cores} may be used{quota}")
    threads, usable = os.environ.get("OMP_NUM_THREADS", ""), machine.usable_cores
    num_threads = int(threads) if threads.isdigit() else machine.allowed_cores
    yield Finding(
        area="machine",
        name="threads",
        status="ok" if num_threads <= usable else "advice",
        value=f"{num_threads} (OMP_NUM_THREADS={threads or 'not set'})",
        mend=""
        if num_threads <= usable
        else f"leafbeam serve --threads {usable}, or OMP_NUM_THREADS={usable}: more threads wait for cores",
    )
    yield Finding(area="machine", name="BLAS of numpy", value=_blas())
    sizes = {"in all": machine.memory, "available": machine.available, "at most here": machine.memory_limit}
    limit = machine.memory_limit if machine.memory_limit is not None else machine.memory
    free = min((size for size in (machine.available, limit) if size is not None), default=None)
    scarce = free is not None and free < _MIN_FREE_BYTES
    yield Finding(
        area="machine",
        name="memory",
        status="advice" if scarce else "ok",
        value=", ".join(f"{_gigabytes(size)} {name}" for name, size in sizes.items()),
        mend="less than 1 GB is available: leafbeam inspect --plan says what an index needs" if scarce else "",
    )
    files = machine.open_files
    few = 0 <= files < _MIN_OPEN_FILES
    yield Finding(
        area="machine",
        name="open files",
        status="advice" if few else "ok",
        value=f"{files:,}",
        mend=f"ulimit -n {_MIN_OPEN_FILES}: a server needs an open file for each connection" if few else "",
    )
    yield _kernels()


def _kernels() -> Finding:
    """Return whether compiled kernels can be stored."""
    if importlib.util.find_spec("numba") is None:
        return Finding(area="machine", name="kernels", status="wrong", value="numba is missing", mend="pip install leafbeam")
    from leafbeam.jit import kernel_directory

    directory = Path(kernel_directory())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        mend = "name a directory that this user may write: NUMBA_CACHE_DIR=/var/cache/leafbeam; or every start compiles again"
        return Finding(area="machine", name="kernels", status="advice", value=f"{directory}: {error.strerror}", mend=mend)
    value = f"{directory}, {_gigabytes(shutil.disk_usage(directory).free)} free"
    return Finding(area="machine", name="kernels", value=value)


def _blas() -> str:
    try:
        import numpy as np

        numpy_build: object = np.show_config(mode="dicts")
        blas = numpy_build["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas['version']}"
    except (ImportError, KeyError, TypeError):
        return "unknown"


def _devices() -> Iterator[Finding]:
    """Yield the GPUs that torch sees. torch is imported here, so that a broken one is a finding."""
    has_nvidia = Path("/dev/nvidiactl").exists()
    if importlib.util.find_spec("torch") is None:
        mend = "pip install 'leafbeam[torch]', for models and GPUs"
        yield Finding(area="devices", name="torch", status="absent", value="not installed", mend=mend)
        return
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        mend = "install torch again: pip install --force-reinstall 'leafbeam[torch]'"
        yield Finding(area="devices", name="torch", status="wrong", value=f"cannot be imported: {error}", mend=mend)
        return
    cuda = torch.version.cuda
    yield Finding(
        area="devices",
        name="torch",
        value=f"{torch.__version__}, {counted(torch.get_num_threads(), 'thread')}, {torch.backends.cpu.get_cpu_capability()}",
    )
    from leafbeam.ops.linear import blas  # imports torch

    if not blas.is_available():
        mend = "torch's package for Linux on x86 has one: small models answer faster with it"
        yield Finding(area="devices", name="fused layers", status="advice", value="torch exports no sgemm", mend=mend)
    if cuda is not None and torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            value = f"{gpu.name}, {_gigabytes(gpu.total_memory)}, sm_{gpu.major}{gpu.minor}, CUDA {cuda}"
            yield Finding(area="devices", name=f"cuda:{number}", value=value)
    elif has_nvidia:
        mend = "install a build of torch with CUDA" if cuda is None else "look at nvidia-smi: torch cannot use the driver"
        yield Finding(area="devices", name="GPU", status="wrong", value="there is one, which torch does not see", mend=mend)
    else:
        yield Finding(area="devices", name="GPU", status="absent", value="none")


def _self_test() -> Iterator[Finding]:
    """Yield a search on each backend that is installed, compared with an enumeration of all items."""
    groups: list[tuple[str, ...]] = [("cpu",)]
    if importlib.util.find_spec("torch") is not None:
        groups.append(("torch", "reference", "static"))
    if importlib.util.find_spec("jax") is not None:
        groups.append(("jax",))
    for backends in groups:
        yield from _tested(backends, "cpu")
    if importlib.util.find_spec("triton") is not None and _has_cuda():
        yield from _tested(("triton",), "cuda")
    else:
        yield Finding(area="self-test", name="triton", status="absent", value="needs triton, and a GPU that torch sees")


def _tuning(run: Path) -> Iterator[Finding]:
    """Return the lines in which a run's engine says what it measured and chose before its first batch."""
    paths = RunDirectory(run)
    paths.check("model", "trie")
    require("`leafbeam doctor --run`", "duckdb", "pyarrow", "torch")

    with closing(engine.Engine.load(paths.model, engine.CatalogFiles(index=paths.index))) as loaded:
        loaded.warm_up()
        for name, words in loaded.tuning.lines().items():
            yield Finding(area="tuning", name=name, value=words)


def _tested(backends: tuple[str, ...], device: str) -> Iterator[Finding]:
    from leafbeam.cli.self_test import run_in_a_process  # imports numpy

    for result in run_in_a_process(backends, device):
        value = f"agrees with an enumeration of all items ({result.seconds:.1f} s)"
        if result.problem is None:
            yield Finding(area="self-test", name=result.backend, value=value)
        else:
            mend = f"use another backend, and report this: python -m leafbeam.cli.self_test {device} {result.backend}"
            yield Finding(area="self-test", name=result.backend, status="wrong", value=result.problem, mend=mend)


def _has_cuda() -> bool:
    torch: object = sys.modules.get("torch")
    return torch is not None and torch.version.cuda is not None and torch.cuda.is_available()


def _gigabytes(size: int | None) -> str:
    return "unlimited" if size is None else f"{size / 1e9:.1f} GB"


def _show(findings: list[Finding]) -> None:
    table = Table("", "", "", "", show_header=False, box=None, pad_edge=False)
    for before, finding in zip([None, *findings], findings, strict=False):
        area = finding.area if before is None or before.area != finding.area else ""
        table.add_row(area, finding.name, f"[{_COLORS[finding.status]}]{finding.status}[/]", finding.value)
    stdout().print(table)
    mends = [finding for finding in findings if finding.mend and finding.status in ("advice", "wrong")]
    for finding in mends:
        stdout().print(f"[{_COLORS[finding.status]}]{finding.status}[/]: {finding.name}: {finding.mend}", soft_wrap=True)
    if not any(finding.status == "wrong" for finding in findings):
        stdout().print("Nothing is wrong.")
