"""Whole texts beside peers: all write what leafbeam writes, and a peer that is not there is a row."""

from pathlib import Path

import pytest

from benchmarks.peers.vllm_cpu import ENVIRONMENT, vllm_engine
from benchmarks.serving import language

PEERS = ("transformers xgrammar", "transformers outlines-core", "vllm xgrammar")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "model"
    language.make_checkpoint(path, language.TINY)
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of torch.compile, which outlines-core's kernel uses
@pytest.mark.parametrize("is_there", [False, True])
def test_peers_write_the_same_text(checkpoint: Path, tmp_path: Path, is_there: bool) -> None:
    if is_there and not ENVIRONMENT.exists():
        pytest.skip(".venv-peers is not there: `make peers` creates it")
    environment = ENVIRONMENT if is_there else tmp_path
    with vllm_engine(checkpoint, threads=1, max_tokens=256, limit_s=300, environment=environment) as engine:
        measured = language.compare(checkpoint, engine, 2, repeats=1)
    engines = measured["engines"]
    assert [engines[name]["status"] for name in PEERS] == ["ok", "ok", "ok" if is_there else "missing"]
    assert all(engines[name]["constraint_ms"] > 0 for name in PEERS[:2])
    assert measured["over_leafbeam"]["leafbeam"] == 1.0
    calls = measured["calls"]
    assert calls["leafbeam"]["model_calls"] < calls["leafbeam"]["tokens"]
    assert calls["leafbeam retokenized"]["model_calls"] <= calls["leafbeam"]["model_calls"]


@pytest.mark.slow
def test_a_peer_that_writes_another_text_stops_the_benchmark(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language._Ways, "_transformers", lambda self, kind, prompts: [[1_000]] * len(prompts))
    with (
        vllm_engine(checkpoint, threads=1, max_tokens=256, limit_s=300, environment=tmp_path) as engine,
        pytest.raises(AssertionError, match="transformers xgrammar wrote"),
    ):
        language.compare(checkpoint, engine, 1, repeats=1)
