"""Beams and samples over a real vLLM, in `.venv-peers` (`make peers`), equal leafbeam's own on the same checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.vllm_cpu import ENVIRONMENT, VllmSettings, vllm_server, write_tokenizer
from leafbeam import BeamSearch
from leafbeam.errors import InferenceError
from leafbeam.index import Version
from leafbeam.integrations.logprob_search import LogprobBeamSearch
from leafbeam.integrations.logprobs import TokenQuery
from leafbeam.integrations.vllm import VllmServer

from .inference_server import LocalModel, log_probabilities
from .tiny import EOS, WORDS, Kind, Model, Shop, prompts, step_fn_of, tiny_qwen3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ENVIRONMENT.exists(), reason=".venv-peers is not there: `make peers` creates it"),
]
ROOT = Path(__file__).parents[2]
LENGTHS = (70, 40, 7)
INPUTS = prompts(LENGTHS)
PROMPTS = [row[-length:] for row, length in zip(INPUTS["input_ids"].tolist(), LENGTHS, strict=True)]


@pytest.fixture(scope="module")
def model() -> Model:
    """Heads of 32: vLLM's attention on a CPU has none smaller."""
    return tiny_qwen3(hidden=64)


@pytest.fixture(scope="module")
def checkpoint(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(path)
    write_tokenizer(path)
    (path / "prompts.json").write_text(json.dumps(PROMPTS))
    return path


@pytest.fixture(scope="module")
def answers(checkpoint: Path) -> dict[str, Any]:
    words = [str(ENVIRONMENT / "bin" / "python"), "-m", "tests.integrations.vllm_child", str(checkpoint)]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


def assert_same(items: list[list[int]], scores: list[list[float]], wanted: Any) -> None:
    assert [len(ids) for ids in items] == wanted.num_valid.tolist()
    for row, (ids, values) in enumerate(zip(items, scores, strict=True)):
        valid = int(wanted.num_valid[row])
        np.testing.assert_allclose(values, wanted.scores[row, :valid], atol=1e-3)
        cut = min(values, default=0.0) + 2e-3 if valid == wanted.scores.shape[1] else -np.inf
        clear = wanted.scores[row, :valid] > cut
        assert set(wanted.item_ids[row][clear].tolist()) <= set(ids)


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
@pytest.mark.parametrize("kind", ["trie", "version"])
def test_beams_over_vllm_equal_beam_search_on_the_checkpoint(
    model: Model, answers: dict[str, Any], kind: Kind, scoring: Any
) -> None:
    shop = Shop(kind)
    options: dict[str, Any] = {"filters": [shop.filter(0.3), None, shop.filter(0.02)], "deny": [[1, 2], None, [9]]}
    if scoring == "vocabulary":
        search = LogprobBeamSearch(shop.index, LocalModel(model), code_tokens=shop.tokens, num_beams=12)
        wanted: Any = search.run(PROMPTS, **options)
    else:
        wanted = BeamSearch(shop.index, 12, scoring).run(step_fn_of(model, INPUTS, shop.tokens), 3, **options)
    found = answers[f"{kind}/{scoring}"]
    assert_same(found["item_ids"], found["scores"], wanted)


@pytest.mark.parametrize("way", ["whole", "sliced", "mixed"])
def test_wide_and_narrow_queries_of_one_batch_are_answered(model: Model, answers: dict[str, Any], way: str) -> None:
    first, narrow, *others = answers[way]
    wanted = log_probabilities(model, PROMPTS)
    np.testing.assert_allclose(np.array([first, *others]), wanted, atol=1e-3)
    np.testing.assert_allclose(narrow, wanted[0][[5, 3]], atol=1e-3)


def test_prompts_that_vllm_would_refuse_fail_alone(model: Model, answers: dict[str, Any]) -> None:
    long, unknown, answered = answers["refused"]
    assert "129 tokens: the engine reads at most 128" in long
    assert "160 tokens, and none 160" in unknown
    np.testing.assert_allclose(answered, log_probabilities(model, [PROMPTS[1]])[0][[5]], atol=1e-3)


def test_samples_are_allowed_items_for_requests_that_ask_for_them(answers: dict[str, Any]) -> None:
    random, greedy = answers["samples"]
    live = Version.of(Shop("version").index)
    third, few = set(range(6, 300, 3)), {9, 12}
    for turn in (random, greedy):
        everything, by_rule, by_two, denied, text = turn
        for tokens, items in [*everything, *by_rule, *by_two, *denied]:
            assert items, tokens
            assert live.knows(items).all()
        assert {item for _, items in by_rule for item in items} <= third
        assert {item for _, items in by_two for item in items} <= few
        assert 1 not in {item for _, items in denied for item in items}
        assert any(not items for _, items in text) or turn is greedy
    assert len({tuple(tokens) for tokens, _ in random[0]}) > 3


def test_greedy_samples_equal_a_search_with_one_beam(model: Model, answers: dict[str, Any]) -> None:
    shop = Shop("version")
    inputs = prompts(LENGTHS)
    wanted = BeamSearch(shop.index, 1).run(step_fn_of(model, inputs, shop.tokens), 3)
    (tokens, items), *_ = answers["samples"][1][0]
    assert int(wanted.item_ids[0][0]) in items
    assert tokens == [int(table[code]) for table, code in zip(shop.tokens, wanted.codes[0, 0], strict=True)]


def test_requests_that_mean_nothing_are_refused_and_the_engine_goes_on(answers: dict[str, Any]) -> None:
    assert "'nope'" in answers["rule"]
    assert "leafbeam_rule is not an argument" in answers["argument"]
    assert "expected a list" in answers["type"]
    assert answers["nothing"] == [EOS]


# The server.


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        with vllm_server(checkpoint, settings=VllmSettings(threads=1), max_tokens=128) as url:
            yield url.removesuffix("/v1/completions")


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
def test_beams_over_its_server_equal_beam_search(model: Model, server: str, scoring: Any) -> None:
    shop = Shop("version")
    options: dict[str, Any] = {"filters": [shop.filter(0.3), None, shop.filter(0.02)], "deny": [[1, 2], None, [9]]}
    engine = LocalModel(model)
    wanted = LogprobBeamSearch(shop.index, engine, code_tokens=shop.tokens, num_beams=12, scoring=scoring).run(
        PROMPTS, **options
    )
    with VllmServer(server, model="model") as client:
        search = LogprobBeamSearch(shop.index, client, code_tokens=shop.tokens, num_beams=12, scoring=scoring)
        found = search.run(PROMPTS, **options)
    scores = [row[:valid].tolist() for row, valid in zip(found.scores, found.num_valid, strict=True)]
    assert_same([ids.tolist() for ids in found.item_ids], scores, wanted)


def test_its_server_answers_wide_queries_and_refuses_long_prompts(model: Model, server: str) -> None:
    queries = [TokenQuery(prefix=PROMPTS[0], tokens_C=np.arange(WORDS)), TokenQuery(prefix=[1] * 500, tokens_C=np.array([5]))]
    with VllmServer(server, model="model") as client:
        (wide,) = client.logprobs(queries[:1])
        (refused,) = client.logprobs(queries[1:])
    np.testing.assert_allclose(np.asarray(wide), log_probabilities(model, PROMPTS[:1])[0], atol=1e-3)
    assert isinstance(refused, InferenceError)
    assert refused.reason == "refused"
    with VllmServer(server, model="another") as client:
        (unknown,) = client.logprobs(queries[:1])
    assert isinstance(unknown, InferenceError)
    assert "another" in str(unknown)
