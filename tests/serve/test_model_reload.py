"""Another model is loaded beside the one that is served: later requests have its answers, and no failure changes anything."""

import gc
import json
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient

from leafbeam.engine import Engine, Request, Settings
from leafbeam.errors import ConflictError
from leafbeam.model import Vocabulary, load_model
from leafbeam.serve import Metrics, Server, create_app
from tests.fixtures.servers import LOCAL
from tests.fixtures.shops import small_model
from tests.serve.conftest import SIZES, Shop
from tests.serve.metric_of import metric
from tests.waiting import held

URL, PATIENCE = "/v1/model/reload", 60
HISTORY = (1003, 1017, 1050)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another model for the shop's items."""
    model = small_model(Vocabulary(codebook_sizes=SIZES), seed=9, max_position_embeddings=64, initializer_range=0.5)
    model.save_pretrained(tmp_path / "other")
    return tmp_path / "other"


def answers_of(shop: Shop, model: Path) -> Any:
    """The answer of a server that never had another model."""
    with Engine.load(model, shop.files[1]) as engine:
        result = engine.recommend(Request(history=HISTORY, num_items=5))
    return list(result.item_ids), pytest.approx(list(result.scores), abs=1e-5)


def ask(client: TestClient) -> tuple[list[int], list[float]]:
    answer = client.post("/v1/recommend", json={"history": HISTORY, "num_items": 5}).json()
    return answer["item_ids"], answer["scores"]


def test_later_requests_have_the_answers_of_the_new_model(shop: Shop, other: Path):
    engine = shop.engine()
    metrics = Metrics(engine)
    with TestClient(create_app(engine, metrics), base_url=LOCAL) as client:
        before = client.get("/readyz").json()["model_version"]
        assert ask(client) == answers_of(shop, shop.files[0])
        answer = client.post(URL, json={"directory": str(other)})
        assert answer.status_code == 200
        after = client.get("/readyz").json()["model_version"]
        assert (answer.json()["previous_version"], answer.json()["model_version"]) == (before, after)
        assert before != after
        assert ask(client) == answers_of(shop, other)
        assert metric(client, f'leafbeam_model_info{{version="{after}"}}') == 1
        assert metric(client, 'leafbeam_model_loads_total{outcome="ok"}') == 1
        again = client.post(URL, json={})  # the directory of the model that is served now
        assert again.json()["previous_version"] == again.json()["model_version"] == after


def test_a_request_has_the_model_of_its_arrival(shop: Shop, other: Path):
    """Two models are in the queue at once, and each batch has one of them."""
    old, new = (answers_of(shop, model) for model in (shop.files[0], other))
    engine = shop.engine(settings=Settings(wait_s=0.0, slo_s=PATIENCE))
    request = Request(history=HISTORY, num_items=5)
    with engine:
        replaced = weakref.ref(engine.model)
        with held(engine.model) as began:
            early = [engine.submit(request)]
            assert began.wait(PATIENCE)
            early += [engine.submit(request) for _ in range(3)]  # they wait for the first
            with ThreadPoolExecutor(1) as thread:
                version = thread.submit(engine.load_model, other).result(PATIENCE)
            assert engine.model_version == version
            late = [engine.submit(request) for _ in range(4)]
        results = [future.result(PATIENCE) for future in (*early, *late)]
        for result, expected in zip(results, [old] * 4 + [new] * 4, strict=True):
            assert (list(result.item_ids), list(result.scores)) == expected
        assert results[3].batch_size <= 3
        assert results[7].batch_size <= 4
        del early, late, results, result
        gc.collect()
        assert replaced() is None, "the model that was replaced is still in memory"


def damage(directory: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a directory of a model useless, and return what the server then says."""
    weights = directory / "model.safetensors"
    if how == "other codebooks":
        small_model(Vocabulary(codebook_sizes=(8, 8)), max_position_embeddings=64).save_pretrained(directory)
        return "the model's codebooks are (8, 8), but the index has (8, 16)"
    if how == "no memory":
        monkeypatch.setattr("leafbeam.model.weights.free_memory", lambda device: 1000)
        return "GiB are free on cpu"
    if how == "half of the file":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        return "model.safetensors"
    if how == "missing":
        shutil.rmtree(directory)
        return "is not a directory"
    (directory / "leafbeam.sha256").unlink()
    tensors = load_file(weights)
    if how == "NaN":
        tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], torch.nan)
        message = "values that are not finite"
    else:  # finite, but not their products
        tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], 3e38)
        tensors["model.embed_tokens.weight"] *= 100
        message = "hold NaN or +inf"
    save_file(tensors, weights)
    return message


@pytest.mark.parametrize("how", ["other codebooks", "no memory", "half of the file", "missing", "NaN", "overflow"])
def test_a_model_that_cannot_be_served_changes_nothing(shop: Shop, other: Path, how: str, monkeypatch: pytest.MonkeyPatch):
    engine = shop.engine()
    metrics = Metrics(engine)
    with TestClient(create_app(engine, metrics), base_url=LOCAL) as client:
        before, version = ask(client), engine.model_version
        message = damage(other, how, monkeypatch)
        answer = client.post(URL, json={"directory": str(other)})
        assert answer.status_code == 422, answer.text
        assert message in answer.json()["error"]["message"]
        assert answer.json()["error"]["message"].endswith("the server keeps the former model")
        assert (ask(client), engine.model_version) == (before, version)
        assert metric(client, 'leafbeam_model_loads_total{outcome="failed"}') == 1
        monkeypatch.undo()
        assert client.post(URL, json={}).status_code == 200


def test_one_model_is_loaded_at_a_time(shop: Shop, other: Path, monkeypatch: pytest.MonkeyPatch):
    began, ends = threading.Event(), threading.Event()

    def load(*words: Any, **options: Any) -> Any:
        began.set()
        assert ends.wait(PATIENCE)
        return load_model(other, dtype=torch.float32)

    with shop.engine() as engine, ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr("leafbeam.engine.engine.load_for_decoding", load)
        first = thread.submit(engine.load_model, other)
        assert began.wait(PATIENCE)
        with pytest.raises(ConflictError, match="another model is being loaded"):
            engine.load_model(other)
        ends.set()
        assert first.result(PATIENCE) == engine.model_version


def test_sighup_loads_a_model_whose_files_have_changed(shop: Shop, other: Path, caplog: pytest.LogCaptureFixture):
    server = Server(shop.engine())
    engine = server.engine
    assert engine is not None
    with engine:
        first, model = engine.model_version, engine.model
        server.reload()
        assert engine.model is model, "files that are the same are not loaded again"
        shutil.copytree(other, shop.files[0], dirs_exist_ok=True)
        server.reload()
        assert engine.model_version not in (None, first)
        result = engine.submit(Request(history=HISTORY, num_items=5)).result(PATIENCE)
        assert (list(result.item_ids), list(result.scores)) == answers_of(shop, other)
        config = json.loads((shop.files[0] / "config.json").read_text())
        (shop.files[0] / "leafbeam.sha256").write_text("")
        (shop.files[0] / "config.json").write_text(json.dumps(config | {"hidden_size": 24}))
        second = engine.model_version
        assert server.reload() is not None, "the rules are evaluated all the same"
        assert engine.model_version == second
        assert "the model could not be loaded again: the server keeps the former one" in caplog.text
    server._socket.close()


def test_a_model_made_in_memory_needs_a_directory(shop: Shop, other: Path):
    from leafbeam.index import Trie

    model = small_model(Vocabulary(codebook_sizes=SIZES), seed=2, max_position_embeddings=64)
    with TestClient(create_app(Engine(model, Trie.load(shop.files[1]))), base_url=LOCAL) as client:
        assert client.get("/readyz").json()["model_version"] is None
        refused = client.post(URL, json={})
        assert refused.status_code == 422
        assert "the model was made in memory" in refused.json()["error"]["message"]
        assert client.post(URL, json={"directory": str(other)}).status_code == 200
        assert client.post(URL, json={"path": "x"}).status_code == 422
