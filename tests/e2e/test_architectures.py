"""The whole path with models of other architectures: trained, evaluated, inspected, asked, served."""

from pathlib import Path

import pytest

from leafbeam.demo.processes import running_server
from leafbeam.model import EncoderDecoder, Transformer, load_model
from tests.fixtures.command_line import call, succeed

pytestmark = pytest.mark.slow
KINDS = {"encoder-decoder": ("--set", "num_experts=4"), "item-history": ("--set", "num_users=20")}


@pytest.fixture(scope="module", params=KINDS)
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    run = tmp_path_factory.mktemp("run")
    succeed("make-shop", "--out", run, "--items", "120", "--users", "150")
    succeed("fit-sids", "--data", run, "--run", run, "--codebooks", "16,16")
    words = ("--layers", "1", "--width", "32", "--architecture", request.param, *KINDS[request.param])
    succeed("train", "--run", run, "--steps", "25", *words)
    succeed("build", "--run", run)
    return run


def test_it_is_of_its_architecture(run: Path):
    model, shown = load_model(run / "model"), succeed("inspect", run)
    assert "25 steps" in shown
    if isinstance(model, EncoderDecoder):
        assert model.config.num_experts == 4
        assert all(words in shown for words in ("num_decoder_layers", "num_experts"))
    else:
        assert isinstance(model, Transformer)
        assert (model.config.item_history, model.vocabulary.num_users) == (True, 20)
        assert "item-history" in shown


def test_evaluate_and_recommend_read_it(run: Path):
    assert "Recall" in succeed("evaluate", "--run", run, "--users", "40", "--unconstrained", "10")
    assert "of the model's items proved to be its best" in succeed(
        "recommend", "--run", run, "--user", "U001", "--rules", "in_stock"
    )


def test_words_that_cannot_be_meant_are_refused(run: Path):
    refused = " ".join(call("train", "--run", run, "--architecture", "rnn").stderr.replace("│", " ").split())
    assert "'rnn' is not one of 'decoder-only', 'encoder-decoder', 'item-history'" in refused
    assert "only the architecture" in call("train", "--run", run, "--set", "num_experts=2").stderr


def test_the_server_answers_with_it(run: Path):
    with running_server(run) as server:
        answer = server.request("/v1/recommend", {"history": ["P001", "P002"], "num_items": 5, "rules": ["in_stock"]})
    assert answer.status == 200
    assert len(answer.body["item_ids"]) == 5
