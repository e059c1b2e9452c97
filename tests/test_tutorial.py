"""The tutorial, run as a reader runs it: its files are saved, its commands run in one shell, its answers obey its rules."""

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
NEXT = "=== next command ==="


def script(port: int) -> str:
    """The page's blocks in order as one shell script; training takes seconds, and the server a free port."""
    parts = ["set -eu"]
    for language, text in BLOCKS:
        if language in ("python", "toml"):
            name = re.match(r"# (\S+)\n", text)
            assert name, f"a block of {language} begins with `# FILE`: {text[:60]}"
            parts.append(f"cat > {name[1]} <<'END OF FILE'\n{text}END OF FILE")
        elif text.startswith("leafbeam serve"):  # in a terminal of its own
            parts += [
                f"{text.strip()} > server.log &",
                "server=$!",
                "until curl -sf localhost:8000/readyz; do kill -0 $server; sleep 0.2; done",
            ]
        elif language == "bash" and not text.startswith("pip install"):
            parts += [f"printf '\\n%s\\n' '{NEXT}'", text]
    whole = "\n".join(parts)
    assert "--minutes 1\n" in whole
    whole += "\nkill $server\nwait $server || true\n"
    whole = whole.replace("--minutes 1\n", "--minutes 0.1\n").replace("--users 1000", "--users 50 --unconstrained 50")
    return whole.replace("localhost:8000", f"localhost:{port}").replace("--port 8000", f"--port {port}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl"))), reason="the tutorial needs bash and curl")
def test_the_tutorial_ends_with_answers_that_obey_its_rules(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, words in (("python", ""), ("leafbeam", "-m leafbeam")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    words = ["bash", "-c", script(free_port())]
    child = subprocess.Popen(
        words,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=500)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # the server, where a command before its end failed
    assert child.returncode == 0, output
    assert "leaked" not in output
    outputs = output.split(NEXT)[1:]

    with (tmp_path / "cooking" / "recipes.csv").open(newline="") as file:
        recipes = {int(row["recipe"]): row for row in csv.DictReader(file)}
    vegetarian = {number for number, row in recipes.items() if row["vegetarian"] == "True"}
    quick = {number for number, row in recipes.items() if int(row["minutes"]) <= 30}
    slow = {number for number, row in recipes.items() if int(row["minutes"]) >= 90} | {900}
    for shown in ("3,000 users, 288 items, 26,818 interactions", "288 SIDs of 64 x 288"):
        assert shown in PAGE
        assert shown in outputs[1]
    assert f"rule vegetarian: {len(vegetarian):,} items" in outputs[3]
    assert f"rule quick: {len(quick):,} items" in outputs[3]
    answers = [json.loads(line) for line in output.splitlines() if line.startswith('{"item_ids"')]
    assert [answer["num_valid"] for answer in answers] == [3, 3]
    assert set(answers[0]["item_ids"]) <= vegetarian & quick
    assert set(answers[1]["item_ids"]) <= (vegetarian | {900}) & slow
    assert f'"num_items":{len(slow) - 1},' in output  # of the rule, before the item
    assert '{"inserted":1,' in output


def test_what_the_tutorial_shows_is_what_its_log_gives() -> None:
    """Figures of the page that no training changes."""
    for shown in ("288 recipes", "3,000 cooks", "rule vegetarian: 144 items", "rule quick: 68 items"):
        assert shown in PAGE
    assert len(re.findall(r"\w+", PAGE)) > 300
    assert len(PAGE.split()) <= 1_200
