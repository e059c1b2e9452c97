"""The plan of full runs names commands that exist, goes on after failures, and says what it leaves out."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from benchmarks import plan
from benchmarks.__main__ import app
from benchmarks.plan import Part, chosen, measured_since, parts_of, run_parts
from benchmarks.rows import read_rows

_SCRIPT = """
import os, sys
open(sys.argv[1], "w").close()
{"ok": lambda: 0, "bad": lambda: sys.exit(2), "big": lambda: os.kill(os.getpid(), 9)}[sys.argv[1]]()
"""


@pytest.mark.slow
def test_every_part_is_a_command_with_these_options():
    for part in parts_of([Path("DATA")]):
        result = CliRunner().invoke(app, [part.words[0], "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0
        assert all(word in result.stdout for word in (*part.words, "--json") if word.startswith("--"))
    names = [part.name for part in parts_of([Path("a/one"), Path("a/two")])]
    assert len(set(names)) == len(names)
    assert "tiger-table-1 --data two --epochs 12 --teacher text" in names
    assert not any("--data" in part.words for part in parts_of())


def test_parts_that_fail_or_take_too_long_stop_none_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = tmp_path / "benchmarks" / "__main__.py"
    script.parent.mkdir()
    (script.parent / "__init__.py").touch()
    script.write_text(_SCRIPT)
    monkeypatch.setattr(plan, "_ROOT", tmp_path)
    said: list[str] = []
    parts = [Part(words=(name,), minutes=minutes) for name, minutes in (("bad", 1), ("big", 1), ("long", 50), ("ok", 1))]
    began = datetime.now(UTC)
    outcomes = run_parts(parts, said.append, minutes=20, folder=tmp_path / "results")
    assert [one.status for one in outcomes] == ["failed", "failed", "skipped", "measured"]
    assert "exit status 2" in outcomes[0].reason
    assert "out of memory" in outcomes[1].reason
    assert "takes 50 of 20 minutes left" in outcomes[2].reason
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "benchmarks", "big", "ok", "results"]
    assert any(line.startswith("long: skipped") for line in said)
    kept = {row["parameters"]["part"]: row["measured"] for row in read_rows("parts", tmp_path / "results")}
    assert list(kept) == ["bad", "big", "ok"]
    assert kept["bad"]["status"] == "failed"
    assert "exit status 2" in kept["bad"]["reason"]
    assert measured_since(began, tmp_path / "results") == {"ok"}
    assert not measured_since(began + timedelta(days=1), tmp_path / "results")
    assert not measured_since(began, tmp_path / "absent")


@pytest.mark.slow
def test_a_run_that_is_ended_ends_its_part():
    words = [sys.executable, "-m", "benchmarks", "reproduce", "memory"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "memory: about 3 minutes\n"
        process = psutil.Process(run.pid)
        while not (parts := process.children()):  # without a pause: it is ended while it starts its part
            pass
        run.terminate()
        assert run.wait(60) == 128 + signal.SIGTERM
    _, left = psutil.wait_procs(parts, 10)
    assert all(part.status() == psutil.STATUS_ZOMBIE for part in left)  # where nobody waits for orphans


def test_names_choose_and_unknown_ones_are_refused():
    assert {part.words[0] for part in chosen(parts_of(), ["serve", "memory"])} == {"serve", "memory"}
    for name in ("production --part http", "production --part large"):  # not the part in bfloat16 too
        assert [part.name for part in chosen(parts_of(), [name])] == [name]
    assert len(chosen(parts_of(), ["production"])) == 10
    assert len(chosen(parts_of([Path("one")]), ["static-table-3 --data one --sids kmeans"])) == 3
    assert not chosen(parts_of(), ["serv", "production --part h"])
    result = CliRunner().invoke(app, ["reproduce", "static-table-1", "--dry-run"])
    assert "25 min  static-table-1" in result.stdout
    assert "tiger" not in result.stdout
    for words, message in ((["nope"], "nope: expected the first words of a part"), (["tiger-table-1"], "expected --data DIR")):
        result = CliRunner().invoke(app, ["reproduce", *words])
        assert result.exit_code != 0
        assert message in result.output
