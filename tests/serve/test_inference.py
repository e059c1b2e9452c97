"""The Open Inference Protocol over the same engine: what `/v1/recommend` answers, as tensors, and errors as it has them."""

from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from leafbeam.index import Trie
from leafbeam.model import load_model
from leafbeam.serve import Access, KeyFile, create_app
from leafbeam.serve.keys import add_key
from tests.serve.metric_of import metric

INFER = "/v2/models/items/infer"


def tensor(name: str, values: list[Any], datatype: str = "BYTES", shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "shape": [len(values)] if shape is None else shape, "datatype": datatype, "data": values}


def body(history: list[Any], *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    kind = "INT64" if history and isinstance(history[0], int) else "BYTES"
    return {"inputs": [tensor("history", history, kind), *more], **fields}


def outputs(answer: Any) -> dict[str, list[Any]]:
    assert answer.status_code == 200, answer.text
    return {one["name"]: one["data"] for one in answer.json()["outputs"]}


def test_the_server_and_the_model_describe_themselves(client: TestClient) -> None:
    assert client.get("/v2").json()["name"] == "leafbeam"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/items/ready").json() == {"name": "items", "ready": True}
    model = client.get("/v2/models/items").json()
    assert [one["name"] for one in model["inputs"]] == ["history", "deny_item_ids", "rules"]
    assert {one["name"]: (one["datatype"], one["shape"]) for one in model["outputs"]} == {
        "item_ids": ("BYTES", [-1]),
        "scores": ("FP32", [-1]),
    }
    for path in ("/v2/models/other", "/v2/models/other/ready", "/v2/nothing"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert isinstance(answer.json()["error"], str)
    assert isinstance(client.get(INFER).json()["error"], str)  # 405


@pytest.mark.parametrize("history", [[], [1003], [1003, 1050, 77]])
def test_answers_are_those_of_recommend(client: TestClient, history: list[int]) -> None:
    fields = {"num_items": 7, "num_beams": 40, "scoring": "allowed", "keep_history": True, "filter": "cheap - none"}
    plain = client.post(
        "/v1/recommend", json={"history": history, "rules": ["in_stock"], "deny_item_ids": [1001], **fields}
    ).json()
    texts = [str(item) for item in history]
    requests = [
        body(history, tensor("rules", ["in_stock"]), tensor("deny_item_ids", [1001], "INT64"), parameters=fields),
        body(texts, tensor("deny_item_ids", ["1001"]), parameters={"rules": "in_stock", "binary_data_output": False, **fields}),
        {
            "id": "7",
            "inputs": [tensor("history", [texts], shape=[1, len(texts)]), tensor("deny_item_ids", ["1001"], shape=[1, 1])],
            "parameters": {"rules": "in_stock,", **fields},
        },
    ]
    for request in requests:
        answer = client.post(INFER, json=request)
        found = outputs(answer)
        assert found["item_ids"] == [str(item) for item in plain["item_ids"]]
        assert found["scores"] == plain["scores"]
        content = answer.json()
        assert (content["model_name"], content["model_version"]) == ("items", plain["index_version"])
        assert content.get("id") == request.get("id")
        assert content["parameters"] == {"num_ignored_history": len(plain["ignored_history"]), "num_ignored_deny": 0}
        shape = [1, plain["num_valid"]] if "id" in request else [plain["num_valid"]]
        assert [one["shape"] for one in content["outputs"]] == [shape, shape]


def test_outputs_are_those_that_were_asked_for(client: TestClient) -> None:
    assert list(outputs(client.post(INFER, json=body([], outputs=[{"name": "scores"}])))) == ["scores"]
    named = [{"name": "item_ids", "parameters": {"binary_data": False}}, {"name": "item_ids"}]
    assert list(outputs(client.post(INFER, json=body([], outputs=named)))) == ["item_ids"]


def test_the_rules_that_left_no_item_are_named(client: TestClient) -> None:
    """A3: as a parameter of the answer, which holds no lists."""
    answer = client.post(INFER, json=body([1003], parameters={"rules": "in_stock", "filter": "cheap - cheap"})).json()
    assert answer["outputs"][0]["data"] == []
    assert answer["parameters"]["empty_rules"] == "cheap - cheap"


def test_ids_of_text_are_sent_as_they_are(first_shop: Any) -> None:
    names = [f"item {number}" for number in range(20)] + ["7"]
    codes = np.random.default_rng(0).integers(0, 8, (21, 2))
    index = Trie.build(codes, (8, 16), item_ids=names)
    from leafbeam.engine import Engine

    with TestClient(create_app(Engine(load_model(first_shop.files[0]), index))) as client:
        plain = client.post("/v1/recommend", json={"history": ["7", "item 3"]}).json()
        assert plain["num_history_used"] == 2
        assert outputs(client.post(INFER, json=body(["7", "item 3"])))["item_ids"] == plain["item_ids"]


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({}, 422, "inputs"),
        ({"inputs": []}, 422, "expected `history`"),
        (body([], tensor("x", [])), 422, "'x' is no input"),
        (body([], tensor("history", [])), 422, "'history' is there twice"),
        ({"inputs": [tensor("history", ["1"], shape=[2])]}, 422, "has 1 values, but the shape [2]"),
        ({"inputs": [tensor("history", [["1"], ["2"]], shape=[2, 1])]}, 422, "expected [n] or [1, n], one history a request"),
        ({"inputs": [tensor("history", [["1"]], shape=[1])]}, 422, "data of another type than BYTES"),
        ({"inputs": [tensor("history", [1])]}, 422, "data of another type than BYTES"),
        ({"inputs": [tensor("history", [1], "FP32")]}, 422, "the datatype 'FP32'"),
        ({"inputs": [tensor("history", [1 << 70], "INT64")]}, 422, "inputs[0].data[0]"),
        (body([], tensor("rules", [1], "INT64")), 422, "the datatype 'INT64'"),
        (body([], tensor("rules", ["cheap"]), parameters={"rules": "cheap"}), 422, "rules: expected names with commas"),
        (body([], parameters={"history": "1"}), 422, "history is an input"),
        (body([], parameters={"rules": ["cheap"]}), 422, "parameters"),
        (body([], parameters={"rules": 3}), 422, "rules: expected names with commas"),
        (body([], parameters={"rules": "no_rule"}), 422, "no_rule"),
        (body([], parameters={"num_items": "3"}), 422, "num_items"),
        (body([], parameters={"num_items": 0}), 422, "num_items"),
        (body([], parameters={"explain": True}), 422, "explain"),
        (body([], parameters={"colour": 1}), 422, "colour"),
        (body([], parameters={"deadline_ms": 0.001}), 429, "deadline"),
        (body([], parameters={"binary_data_output": True}), 422, "binary_data=False"),
        ({"inputs": [tensor("history", []) | {"parameters": {"binary_data_size": 3}}]}, 422, "binary_data=False"),
        (body([], outputs=[{"name": "scores", "parameters": {"binary_data": True}}]), 422, "binary_data=False"),
        (body([], outputs=[{"name": "sids"}]), 422, "'sids' is no output"),
        (body([], extra=1), 422, "extra"),
    ],
    ids=range(26),
)
def test_a_wrong_request_is_a_named_error(client: TestClient, request_: Any, status: int, message: str) -> None:
    answer = client.post(INFER, content=msgspec.json.encode(request_), headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]
    assert ("retry-after" in answer.headers) == (status == 429)


def test_a_body_that_is_none_is_a_named_error(client: TestClient) -> None:
    answers = [
        client.post(INFER, content=b"{", headers={"content-type": "application/json"}),
        client.post(INFER, content=b"{}", headers={"content-type": "application/octet-stream"}),
        client.post(INFER, content=b"{}xx", headers={"inference-header-content-length": "2"}),
        client.post(INFER, json={"inputs": [], "id": "x" * (2 << 20)}),
    ]
    assert [answer.status_code for answer in answers] == [400, 422, 422, 413]
    assert all(isinstance(answer.json()["error"], str) for answer in answers)


def test_requests_are_counted_as_those_of_recommend(client: TestClient) -> None:
    def count(outcome: str) -> float:
        return metric(client, f'leafbeam_requests_total{{outcome="{outcome}"}}')

    ok, refused = count("ok"), count("refused")
    outputs(client.post(INFER, json=body([])))
    client.post(INFER, json={})
    assert (count("ok"), count("refused")) == (ok + 1, refused + 1)


def test_keys_are_asked_for_but_not_by_probes(first_shop: Any, tmp_path: Any) -> None:
    key = add_key(tmp_path / "keys.json", "reader", "read")
    app = create_app(first_shop.engine(), access=Access(keys=KeyFile(tmp_path / "keys.json")))
    with TestClient(app) as client:
        assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200
        for answer in (client.get("/v2/models/items"), client.post(INFER, json=body([]))):
            assert answer.status_code == 401
            assert isinstance(answer.json()["error"], str)
        client.headers["authorization"] = f"Bearer {key}"
        assert outputs(client.post(INFER, json=body([])))["item_ids"]


def test_a_server_that_is_not_ready_says_so(first_shop: Any) -> None:
    client = TestClient(create_app(first_shop.engine()))  # its engine was not started
    for path, content in (
        ("/v2/health/ready", {"ready": False}),
        ("/v2/models/items/ready", {"name": "items", "ready": False}),
    ):
        answer = client.get(path)
        assert (answer.status_code, answer.json()) == (503, content)
    answer = client.post(INFER, json=body([]))
    assert (answer.status_code, isinstance(answer.json()["error"], str)) == (503, True)
    assert client.get("/v2/health/live").status_code == 200
