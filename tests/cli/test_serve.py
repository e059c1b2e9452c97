"""What `leafbeam serve` hands on of its options."""

import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import leafbeam.serve
from leafbeam.cli import app
from leafbeam.cli.run import RunDirectory


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A call of `leafbeam serve` on a run whose files are all there -> what the server was asked for."""
    here = RunDirectory(tmp_path)
    for path in (here.model, here.trie, here.catalog, here.rules):
        path.touch()
    taken: dict[str, Any] = {}
    monkeypatch.setattr(leafbeam.serve, "serve", lambda *files, **dials: taken.update(dials, files=files))
    before = signal.getsignal(signal.SIGHUP)

    def call(*words: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["serve", "--run", str(tmp_path), *words])
        assert result.exit_code == 0, result.output
        return taken

    yield call
    signal.signal(signal.SIGHUP, before)


def test_a_store_of_prompts_is_asked_for_in_megabytes(asked: Any):
    assert asked()["settings"].prompt_store_mb == 0
    assert asked("--prompt-store-mb", "64")["settings"].prompt_store_mb == 64


def test_graphs_are_asked_for_with_what_they_may_take(asked: Any):
    assert not asked()["settings"].graphs
    settings = asked("--device", "cuda", "--graphs", "--graph-mb", "512")["settings"]
    assert (settings.graphs, settings.graph_mb) == (True, 512)


def test_dials_reach_the_engine_in_its_own_units(asked: Any):
    given = asked("--slo-ms", "200", "--wait-ms", "5", "--max-body-kb", "2", "--no-overlap", "--max-beams", "64")
    settings = given["settings"]
    assert (settings.slo_s, settings.wait_s, settings.overlap, settings.batching) == (0.2, 0.005, False, True)
    assert (given["limits"].max_beams, given["limits"].max_items, given["max_body_bytes"]) == (64, 64, 2048)
