"""`leafbeam serve`: its options reach the server and the engine."""

import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import leafbeam.serve
from leafbeam.cli import app
from leafbeam.cli.run import RunDirectory
from leafbeam.engine import Settings
from leafbeam.ops.attention.costs import AttentionCosts


@pytest.fixture
def serve_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs `leafbeam serve` on a run with empty files and returns the arguments that the server gets."""
    here = RunDirectory(tmp_path)
    for path in (here.model, here.trie, here.catalog, here.rules):
        path.touch()
    received: dict[str, Any] = {}
    monkeypatch.setattr(leafbeam.serve, "serve", lambda *files, **options: received.update(options, files=files))
    monkeypatch.setattr("leafbeam.cli.serve.require_device", lambda device: None)
    before = signal.getsignal(signal.SIGHUP)

    def call(*words: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["serve", "--run", str(tmp_path), *words])
        assert result.exit_code == 0, result.output
        return received

    yield call
    signal.signal(signal.SIGHUP, before)


def test_the_prompt_store_is_sized_in_megabytes(serve_with: Any):
    assert serve_with()["settings"].prompt_store_mb == 0
    assert serve_with("--prompt-store-mb", "64")["settings"].prompt_store_mb == 64


def test_graphs_are_off_by_default_and_have_a_memory_limit(serve_with: Any):
    assert not serve_with()["settings"].graphs
    settings = serve_with("--device", "cuda", "--graphs", "--graph-mb", "512")["settings"]
    assert (settings.graphs, settings.graph_mb) == (True, 512)


def test_costs_of_attention_are_read_from_a_file(serve_with: Any, tmp_path: Path):
    path, costs = tmp_path / "costs.json", AttentionCosts(wave=1.0, device="a GPU")
    costs.save(path)
    settings = serve_with("--device", "cuda", "--graphs", "--attention-costs", str(path))["settings"]
    assert settings.attention_costs == costs


def test_ablation_switches_are_settings_and_no_options():
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "100"}).stdout
    assert not [name for name in ("batching", "overlap", "predict") if f"--{name}" in shown or f"--no-{name}" in shown]
    assert {"batching", "overlap", "predict"} <= {field.name for field in fields(Settings)}


def test_products_are_in_float32_unless_told_otherwise(serve_with: Any, tmp_path: Path):
    assert serve_with()["settings"].precision == "float32"
    assert serve_with("--precision", "bfloat16")["settings"].precision == "bfloat16"
    for words, message in (
        (("--precision", "half"), "is not one of"),
        (("--precision", "bfloat16"), "--precision goes with --run"),
        (("--learn",), "--learn goes with --run"),
        (("--rule", "cheap=price <"), "--rule goes with --run"),
        (("--port", "1", "--widest-beams", "128"), "--widest-beams goes with --run"),
    ):
        result = CliRunner().invoke(app, ["serve", "--text-model", str(tmp_path), *words], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert message in result.stderr


def test_options_reach_the_engine_in_its_own_units(serve_with: Any):
    received = serve_with("--slo-ms", "200", "--wait-ms", "5", "--max-body-kb", "2", "--max-beams", "64")
    settings = received["settings"]
    assert (settings.slo_s, settings.wait_s) == (0.2, 0.005)
    assert (received["limits"].max_beams, received["limits"].max_items, received["max_body_bytes"]) == (64, 64, 2048)


def test_http_has_processes_of_its_own_where_it_is_asked_for(serve_with: Any):
    assert serve_with()["http_workers"] == 0
    assert serve_with("--http-workers", "2")["http_workers"] == 2


def test_the_index_is_verified_unless_told_otherwise(serve_with: Any):
    assert serve_with()["files"][1].verify
    assert not serve_with("--no-verify")["files"][1].verify
