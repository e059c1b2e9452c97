"""Whole texts beside peers: all write what leafbeam writes, and a peer that is not there is a row."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benchmarks.peers.vllm_cpu import ENVIRONMENT, vllm_engine
from benchmarks.serving import language

PEERS = [peer for peers in language.PEERS for peer in peers]


@contextmanager
def two_engines(checkpoint: Path, environment: Path) -> Generator[language.Engines]:
    vllm = partial(vllm_engine, checkpoint, threads=1, max_tokens=256, cache_gib=1, limit_s=300, environment=environment)
    with vllm() as engine, vllm(dtype="bfloat16") as narrow:
        yield engine, narrow


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
    with two_engines(checkpoint, environment) as engines:
        measured = language.compare(checkpoint, engines, 2, repeats=1)
    found = measured["engines"]
    assert [found[name]["status"] for name in PEERS] == ["ok"] * 3 + (["ok"] if is_there else ["missing"]) * 2
    assert all(found[name]["constraint_ms"] > 0 for name in PEERS[:3])
    assert measured["over_leafbeam"]["leafbeam"] == 1.0
    calls = measured["calls"]
    assert calls["leafbeam"]["model_calls"] < calls["leafbeam"]["tokens"]
    assert calls["leafbeam retokenized"]["model_calls"] <= calls["leafbeam"]["model_calls"]


@pytest.mark.slow
def test_a_peer_that_writes_another_text_stops_the_benchmark(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language._Ways, "_transformers", lambda self, kind, dtype, prompts: [[1_000]] * len(prompts))
    with two_engines(checkpoint, tmp_path) as engines, pytest.raises(AssertionError, match="transformers xgrammar wrote"):
        language.compare(checkpoint, engines, 1, repeats=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_illegal_text_of_a_peer_that_rounds_is_a_row(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_engines(checkpoint, tmp_path) as engines:
        is_narrow = {id(engines[0]): False, id(engines[1]): True}
        monkeypatch.setattr(
            language._Ways,
            "_vllm",
            lambda self, engine, prompts: [[1_000]] * len(prompts) if is_narrow[id(engine)] else self.all["leafbeam"](prompts),
        )
        measured = language.compare(checkpoint, engines, 1, repeats=1)
    assert measured["engines"]["vllm xgrammar bfloat16"]["status"] == "failed"
    assert "1000" in measured["engines"]["vllm xgrammar bfloat16"]["reason"]
    assert measured["over_leafbeam"]["vllm xgrammar bfloat16"] == "failed"
    assert measured["engines"]["vllm xgrammar"]["status"] == "ok"
