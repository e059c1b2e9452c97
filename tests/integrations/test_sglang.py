"""Beams over a real SGLang equal those in this process on the same checkpoint.

It needs SGLang in an environment of its own: LEAFBEAM_SGLANG_PYTHON names that environment's interpreter.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam.errors import InferenceError
from leafbeam.integrations.logprob_search import LogprobBeamSearch
from leafbeam.integrations.sglang import SglangServer

from .inference_server import LocalModel
from .tiny import Kind, Model, Shop, prompts, tiny_qwen3

INTERPRETER = os.environ.get("LEAFBEAM_SGLANG_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INTERPRETER, reason="LEAFBEAM_SGLANG_PYTHON names no interpreter that has SGLang"),
]
LENGTHS = (10, 16, 3)
PROMPTS = [row[-length:] for row, length in zip(prompts(LENGTHS)["input_ids"].tolist(), LENGTHS, strict=True)]
_OPTIONS = ("--skip-tokenizer-init", "--skip-server-warmup", "--dtype", "float32", "--max-total-tokens", "4096")
_ON_CPU = ("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch")


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_qwen3()


@pytest.fixture(scope="module")
def url(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(directory)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [INTERPRETER, "-m", "sglang.launch_server", "--model-path", str(directory), "--port", str(port)]
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    with open(directory / "log", "w") as log:
        child = subprocess.Popen(
            [*words, *_OPTIONS, *_ON_CPU], stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        give_up = time.monotonic() + 300
        while "ready to roll" not in (directory / "log").read_text():
            assert child.poll() is None, (directory / "log").read_text()[-3000:]
            assert time.monotonic() < give_up
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.parametrize("kind", ["trie", "version"])
@pytest.mark.parametrize("scoring", ["vocabulary", "full", "allowed"])
def test_a_search_over_sglang_equals_one_in_process(url: str, model: Model, kind: Kind, scoring: Any) -> None:
    """G7: the client is tested against SGLang itself."""
    shop = Shop(kind)
    arguments: dict[str, Any] = {"filters": [shop.filter(0.3), None, shop.filter(0.02)], "deny": [None, [5, 6], [9]]}
    options: dict[str, Any] = {"code_tokens": shop.tokens, "num_beams": 12, "scoring": scoring}
    expected = LogprobBeamSearch(shop.index, LocalModel(model), **options).run(PROMPTS, **arguments)
    with SglangServer(url) as remote:
        found = LogprobBeamSearch(shop.index, remote, **options).run(PROMPTS, **arguments)
    np.testing.assert_array_equal(found.num_valid, expected.num_valid)
    np.testing.assert_allclose(found.scores, expected.scores, atol=2e-5)
    for ours, theirs in zip(found.item_ids, expected.item_ids, strict=True):
        assert len(set(ours.tolist()) & set(theirs.tolist())) >= len(theirs) - 1


def test_many_prompts_are_asked_in_parts(url: str, model: Model) -> None:
    shop, many = Shop(), prompts([10] * 70)["input_ids"].tolist()
    with SglangServer(url) as remote:
        found = LogprobBeamSearch(shop.index, remote, code_tokens=shop.tokens, num_beams=12).run(many)
    assert found.num_valid.tolist() == [12] * 70


def test_a_prompt_that_is_too_long_is_an_error_in_the_servers_words(url: str) -> None:
    shop = Shop()
    with SglangServer(url) as remote, pytest.raises(InferenceError, match="longer than the model's context length"):
        LogprobBeamSearch(shop.index, remote, code_tokens=shop.tokens, num_beams=12).run([[5] * 500, [6] * 10])
