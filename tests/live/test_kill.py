"""After `kill -9` at any moment a live index holds every acknowledged change, and at most the one that was under way."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(("sync", "kills"), [("sync", 100), pytest.param("nosync", 150, marks=pytest.mark.slow)])
def test_every_acknowledged_change_survives_a_killed_writer(sync: str, kills: int) -> None:
    # What a killed process leaves is the page cache's, the same on any file system; in memory nobody waits for a busy disk.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        command = [sys.executable, "-m", "tests.live.kill_writer", folder, sync, str(kills), "1"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    totals = json.loads(run.stdout)
    assert totals["kills"] == kills
    assert totals["acknowledged"] > kills
    assert totals["compacted"] > kills // 20
    assert totals["files_left"] > 0  # some died between two files
    assert totals["truncated"] > 0  # and some in the middle of a record
    assert totals["before_open"] > 0
