"""`leafbeam doctor` tells what is there, what is missing and what is wrong, whatever is installed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from leafbeam import __version__
from leafbeam.cli import app, self_test
from leafbeam.cli.doctor import Finding, machine_findings
from leafbeam.extras import EXTRAS
from leafbeam.machine import Machine
from tests.fixtures.command_line import BLOCK

CORE_ALONE = (
    BLOCK
    + """
import importlib.metadata, importlib.util
find, metadata = importlib.util.find_spec, importlib.metadata.version
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in blocked else find(name, *rest)
def version(name):
    if name.replace("-", "_") in blocked or name in ("scikit-learn", "opentelemetry-sdk"):
        raise importlib.metadata.PackageNotFoundError(name)
    return metadata(name)
importlib.metadata.version = version
from typer.testing import CliRunner
from leafbeam.cli import app
result = CliRunner().invoke(app, ["doctor", "--json"])
print(json.dumps([result.exit_code, result.stdout]))
"""
)


def findings(*words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *words])
    return result.exit_code, json.loads(result.stdout)


def test_the_report_of_this_machine_has_versions_extras_cores_and_memory() -> None:
    exit_code, report = findings("--no-self-test")
    assert (exit_code, report["ok"], report["version"]) == (0, True, __version__)
    found = {(one["area"], one["name"]): one for one in report["findings"]}
    assert {("versions", name) for name in ("leafbeam", "Python", "numpy", "numba", "llvmlite", "safetensors")} <= set(found)
    assert {name for area, name in found if area == "extras"} == set(EXTRAS.values())
    assert {"cores", "threads", "BLAS of numpy", "memory", "open files", "kernels"} <= {
        name for area, name in found if area == "machine"
    }
    assert str(os.cpu_count()) in found["machine", "cores"]["value"]
    assert not [one for one in report["findings"] if one["area"] == "self-test"]


def test_the_report_for_people_names_everything_once() -> None:
    shown = CliRunner().invoke(app, ["doctor", "--no-self-test"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    assert "Nothing is wrong." in shown.stdout
    assert all(name in shown.stdout for name in ("leafbeam", "numba", "torch", "cores", "memory"))


@pytest.mark.slow
def test_with_the_core_and_the_command_line_alone_torch_is_reported_as_absent() -> None:
    blocked = sorted({*EXTRAS, "jax", "triton"} - {"rich", "typer"})
    done = subprocess.run([sys.executable, "-c", CORE_ALONE, json.dumps(blocked)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    exit_code, printed = json.loads(done.stdout.splitlines()[-1])
    report = json.loads(printed)
    assert (exit_code, report["ok"]) == (0, True), [one for one in report["findings"] if one["status"] == "wrong"]
    found = {(one["area"], one["name"]): one for one in report["findings"]}
    assert found["extras", "torch"]["status"] == found["devices", "torch"]["status"] == "absent"
    assert "pip install 'leafbeam[torch]'" in found["devices", "torch"]["mend"]
    assert [name for area, name in found if area == "self-test"] == ["cpu", "triton"]
    assert found["self-test", "cpu"]["status"] == "ok"


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference", "static"])
def test_each_backend_agrees_with_the_enumeration(backend: str) -> None:
    pytest.importorskip("torch")
    assert self_test.test_backend(backend, "cpu") is None


def test_wrong_scores_and_wrong_items_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = self_test.item_scores
    monkeypatch.setattr(self_test, "item_scores", lambda codes, tables: right(codes, tables) + 0.01)
    assert "scores are wrong by up to 0.01" in str(self_test.test_backend("cpu", "cpu"))
    monkeypatch.undo()
    monkeypatch.setattr("leafbeam.index.Trie.filter", lambda index, mask: None)
    assert "items, but" in str(self_test.test_backend("cpu", "cpu"))


PYTHON = sys.executable


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """What runs in place of Python with the self-test."""
    path = tmp_path / "python"
    path.write_text(f"#!{PYTHON}\nimport json, os, signal, sys, time\n{code}")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_a_backend_that_crashes_or_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = 'print(json.dumps({"backend": "cpu", "seconds": 1.0, "problem": None}), flush=True)\n'
    program(tmp_path, monkeypatch, first + 'print("no CUDA", file=sys.stderr); os.kill(os.getpid(), signal.SIGKILL)')
    assert [one.problem for one in self_test.run_in_a_process(("cpu", "torch", "static"))] == [None, "no CUDA", "no CUDA"]
    program(tmp_path, monkeypatch, first + "time.sleep(600)")
    assert [one.problem for one in self_test.run_in_a_process(("cpu", "torch"), timeout_s=3.0)] == [
        None,
        "no answer within 3 s",
    ]


def test_what_is_wrong_makes_the_exit_code_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "sys.exit(3)")
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "160"})
    assert result.exit_code == 1
    assert "exit code 3" in result.stdout
    assert "report this: python -m leafbeam.cli.self_test" in result.stdout
    assert "Nothing is wrong" not in result.stdout


def machine(root: Path, files: dict[str, str]) -> Machine:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return Machine.this(root)


def test_limits_of_control_groups_are_read(tmp_path: Path) -> None:
    meminfo = {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable: 8000 kB\nHugePages_Total: 0\n"}
    second = meminfo | {
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/container/memory.max": "4096000\n",
    }
    found = machine(tmp_path / "2", second)
    assert (found.quota, found.memory_limit, found.memory, found.available) == (1.5, 4_096_000, 16_384_000, 8_192_000)
    assert found.usable_cores == 1
    used = {"memory.current": "3000000\n", "memory.stat": "anon 7\ninactive_file 500000\n"}
    used = {f"sys/fs/cgroup/pod/container/{name}": text for name, text in used.items()}
    assert machine(tmp_path / "used", second | used).available == 1_596_000
    first = meminfo | {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n1:name=systemd:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "1000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
    }
    found = machine(tmp_path / "1", first)
    assert (found.quota, found.memory_limit) == (2.0, 1_000_000)


@pytest.mark.parametrize(
    "content", ["", "max max max", "0 0", "-1 100000", "x y", "9" * 5000 + " 1", "\udcff\udcff 1", "\0 \0"]
)
def test_files_that_make_no_sense_are_no_limits(tmp_path: Path, content: str) -> None:
    names = ("proc/meminfo", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/memory.max")
    found = machine(tmp_path, dict.fromkeys(names, content) | {"proc/self/cgroup": f"0::/\n{content}\n::\n"})
    assert found.usable_cores >= 1
    assert found.memory is None
    assert machine(tmp_path / "nothing", {}).quota is None


def test_advice_follows_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    small = Machine(cores=8, allowed_cores=8, quota=2.0, memory=8 << 30, available=1 << 20, memory_limit=None, open_files=256)
    advice = {one.name: one.mend for one in machine_findings(small) if one.status == "advice"}
    assert set(advice) >= {"threads", "memory", "open files"}
    assert "--threads 2" in advice["threads"]
    large = replace(small, quota=None, available=4 << 30, open_files=65_536)
    assert not {"threads", "memory", "open files"} & {one.name for one in machine_findings(large) if one.status == "advice"}
    assert Finding(area="a", name="b", value="c").status == "ok"


def test_a_torch_without_sgemm_is_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("leafbeam.ops.linear.blas.is_available", lambda: False)
    exit_code, report = findings("--no-self-test")
    (advice,) = [one for one in report["findings"] if one["name"] == "fused layers"]
    assert (exit_code, advice["status"]) == (0, "advice")
    assert "sgemm" in advice["value"]


def test_a_run_shows_what_a_server_would_choose(run: Path) -> None:
    exit_code, report = findings("--no-self-test", "--run", str(run))
    assert exit_code == 0
    tuning = {one["name"]: one["value"] for one in report["findings"] if one["area"] == "tuning"}
    assert set(tuning) == {"threads", "precision", "products"}
    assert tuning["precision"] == "float32"


def test_a_run_that_does_not_exist_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--no-self-test", "--run", str(tmp_path / "nothing")])
    assert result.exit_code != 0
    assert "there is no run" in f"{result.output}{result.stderr}"
