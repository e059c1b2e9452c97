"""Whole texts beside peers: all write what leafbeam writes, and a peer that is not there is a row."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.vllm_cpu import ENVIRONMENT, VllmSettings, vllm_engine
from benchmarks.serving import language

pytestmark = pytest.mark.slow

PEERS = [peer for peers in language.PEERS for peer in peers]


@contextmanager
def two_engines(checkpoint: Path, environment: Path) -> Generator[language.Engines]:
    settings = VllmSettings(threads=1)
    vllm = partial(
        vllm_engine, checkpoint, settings=settings, max_tokens=256, cache_gib=1, limit_s=300, environment=environment
    )
    with vllm() as engine, vllm(dtype="bfloat16") as narrow:
        yield engine, narrow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "model"
    language.make_checkpoint(path, language.TINY)
    return path


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


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("near", "is_tie"), [(1e9, True), (1e-9, False)])
def test_another_text_is_a_tie_or_an_error(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: float, is_tie: bool
) -> None:
    with two_engines(checkpoint, tmp_path) as engines:

        def other(self: Any, engine: Any, prompts: language.Prompts) -> list[list[int]]:
            return self.all["leafbeam retokenized"](prompts)  # whole texts, and not those that greedy search writes

        monkeypatch.setattr(language._Ways, "_vllm", other)
        monkeypatch.setattr(language, "_NEAR", near)
        if is_tie:
            measured = language.compare(checkpoint, engines, 2, repeats=1)
            assert measured["engines"]["vllm xgrammar"]["near_ties"] > 0
        else:
            with pytest.raises(AssertionError, match=r"vllm xgrammar wrote .* apart"):
                language.compare(checkpoint, engines, 2, repeats=1)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("narrow", [True, pytest.param(False, marks=pytest.mark.full)])
def test_an_illegal_text_of_a_peer_is_a_row(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    with two_engines(checkpoint, tmp_path) as engines:

        def illegal(self: Any, engine: Any, prompts: language.Prompts) -> list[list[int]]:
            return [[1_000]] * len(prompts) if engine is engines[narrow] else self.all["leafbeam"](prompts)

        monkeypatch.setattr(language._Ways, "_vllm", illegal)
        measured = language.compare(checkpoint, engines, 1, repeats=1)
    wrong, right = ("vllm xgrammar bfloat16", "vllm xgrammar")[:: 1 if narrow else -1]
    assert measured["engines"][wrong]["status"] == measured["over_leafbeam"][wrong] == "failed"
    assert "1000" in measured["engines"][wrong]["reason"]
    assert measured["engines"][right]["status"] == "ok"
