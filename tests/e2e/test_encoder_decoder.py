"""The whole path with an encoder-decoder with experts: trained, resumed, evaluated, inspected, asked, served."""

from pathlib import Path

import pytest

from leafbeam.demo.processes import running_server
from leafbeam.model import EncoderDecoder, load_model
from tests.fixtures.command_line import call, succeed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    succeed("make-shop", "--out", run, "--items", "120", "--users", "150")
    succeed("fit-sids", "--data", run, "--run", run, "--codebooks", "16,16")
    words = ("--layers", "1", "--width", "32", "--architecture", "encoder-decoder", "--set", "num_experts=4")
    succeed("train", "--run", run, "--steps", "25", *words)
    succeed("build", "--run", run)
    return run


def test_it_is_an_encoder_decoder_with_experts(run: Path):
    model = load_model(run / "model")
    assert isinstance(model, EncoderDecoder)
    assert model.config.num_experts == 4
    shown = succeed("inspect", run)
    assert all(words in shown for words in ("num_decoder_layers", "num_experts", "25 steps"))


def test_evaluate_and_recommend_read_it(run: Path):
    assert "Recall" in succeed("evaluate", "--run", run, "--users", "40", "--unconstrained", "10")
    assert "of the model's items proved to be its best" in succeed(
        "recommend", "--run", run, "--user", "U001", "--rules", "in_stock"
    )


def test_words_that_cannot_be_meant_are_refused(run: Path):
    refused = " ".join(call("train", "--run", run, "--architecture", "rnn").stderr.replace("│", " ").split())
    assert "'rnn' is not one of 'decoder-only', 'encoder-decoder'" in refused
    assert "only the architecture" in call("train", "--run", run, "--set", "num_experts=2").stderr


def test_the_server_answers_with_it(run: Path):
    with running_server(run) as server:
        answer = server.request("/v1/recommend", {"history": ["P001", "P002"], "num_items": 5, "rules": ["in_stock"]})
    assert answer.status == 200
    assert len(answer.body["item_ids"]) == 5
