"""After `kill -9` at any moment a server has every acknowledged batch, and retries change nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.full)])
def test_every_acknowledged_batch_survives_a_killed_server(shop, kills: int) -> None:
    command = [sys.executable, "-m", "tests.serve.kill_server", str(shop.directory), str(kills), "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    totals = json.loads(run.stdout.splitlines()[-1])
    assert totals["kills"] == kills
    assert totals["acknowledged"] >= kills
    assert totals["retries"] > kills // 2
    if kills >= 100:
        assert totals["made_before_the_answer"] > 0
        assert totals["not_made"] > 0
