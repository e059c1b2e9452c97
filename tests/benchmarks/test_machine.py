"""What a row says of other programs."""

import subprocess
import sys

import pytest

from benchmarks import machine as module
from benchmarks.machine import Usage, machine, used

_WORK = "import time\nwhile time.process_time() < 0.6: pass\n"


def test_children_are_the_benchmarks_own_and_orphans_are_not() -> None:
    before = used()
    subprocess.run([sys.executable, "-c", _WORK], check=True)
    between = used()
    assert between.own - before.own >= 0.5
    # The shell ends before its child, which no descendant of this process waits for.
    orphan = subprocess.run(
        ["sh", "-c", f"{sys.executable} -c '{_WORK}print(1)' | cat & echo"], stdout=subprocess.PIPE, check=True
    )
    assert orphan.stdout.strip() == b"1"
    after = used()
    assert after.own - between.own < 0.4
    if after.cores == 0:
        pytest.skip("this system does not count the seconds of its cores")
    assert after.cores - between.cores >= 0.3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
def test_adopted_orphans_are_the_benchmarks_own() -> None:
    code = f"""
import subprocess, sys
from benchmarks.machine import adopt_orphans, used
adopt_orphans()
before = used()
words = ["sh", "-c", '"$0" -c "$1" &', sys.executable, {_WORK!r}]
subprocess.run(words, stdout=subprocess.PIPE, check=True)
print(used().own - before.own)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(found.stdout) >= 0.5, found


def test_others_are_what_the_cores_did_beyond_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "begin", lambda: Usage(100.0, 50.0, 20.0))
    monkeypatch.setattr(module, "used", lambda: Usage(110.0, 65.0, 30.0))
    assert machine()["others"] == 0.5
    for unknown in (Usage(100.5, 65.0, 30.0), Usage(110.0, 50.0, 30.0)):
        monkeypatch.setattr(module, "used", lambda now=unknown: now)
        assert "others" not in machine()
    monkeypatch.setattr(module, "begin", lambda: None)
    assert "others" not in machine()
