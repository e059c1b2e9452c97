"""Interactions over HTTP reach the item memory."""

import numpy as np
from starlette.testclient import TestClient

from leafbeam.engine import CatalogFiles, Engine
from leafbeam.retrieve import ItemMemory, MemoryConfig
from leafbeam.serve import create_app

LOCAL = "http://127.0.0.1"


def test_interactions_are_counted_and_their_mistakes_are_named(first_shop, tmp_path):
    ids = list(first_shop.item_ids)
    plain = MemoryConfig(shrinkage=0.0)
    ItemMemory.fit(ids, np.array([0, 2]), np.array([0, 1]), config=plain).save(tmp_path / "memory.leafbeam")
    model, index, catalog, rules = first_shop.files
    files = CatalogFiles(index=index, catalog=catalog, rules=rules, memory=tmp_path / "memory.leafbeam", learn=True)
    with Engine.load(model, files) as engine:
        client = TestClient(create_app(engine), base_url=LOCAL)
        assert "/v1/interactions" in client.get("/openapi.json").json()["paths"]
        wanted = {"history": [1005], "channel": "memory", "rules": ["cheap"]}
        before = client.post("/v1/recommend", json=wanted).json()
        assert {reason["channel"] for reason in before["reasons"]} == {"popular"}  # nothing follows 1005 yet
        events = [{"history": [1005], "item_id": 1042}, {"history": [1005], "item_id": 1030}, {"item_id": 7}]
        assert client.post("/v1/interactions", json={"interactions": events}).json() == {"pairs": 2}
        answer = client.post("/v1/recommend", json=wanted).json()
        learnt = [number for number, reason in enumerate(answer["reasons"]) if reason["channel"] != "popular"]
        assert learnt == [0]
        assert answer["item_ids"][0] == 1042  # 1030 is not cheap
        assert answer["reasons"][0] == {"channel": "transition", "item_id": 1005, "score": 1.0}
        for body in (
            {},
            {"interactions": [{"history": [1]}]},
            {"interactions": [{"item_id": "x", "history": [1]}]},
            {"interactions": 3},
        ):
            response = client.post("/v1/interactions", json=body)
            assert response.status_code == 422, body
            assert response.json()["error"]["message"]
    with first_shop.engine() as engine:
        client = TestClient(create_app(engine), base_url=LOCAL)
        response = client.post("/v1/interactions", json={"interactions": []})
        assert response.status_code == 422
        assert "--learn" in response.json()["error"]["message"]
        assert "/v1/interactions" not in client.get("/openapi.json").json()["paths"]
