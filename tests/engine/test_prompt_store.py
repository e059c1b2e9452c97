"""Prompts kept between requests, over HTTP, with metrics."""

import pytest
from starlette.testclient import TestClient

from leafbeam.engine import Engine, Settings
from leafbeam.serve import create_app

URL = "/v1/recommend"
HISTORY = [f"é{i}" for i in range(9)]


def metric(client: TestClient, name: str) -> float:
    line = next(line for line in client.get("/metrics").text.splitlines() if line.startswith(name + " "))
    return float(line.rsplit(" ", 1)[1])


def counted(client: TestClient) -> tuple[float, float, float]:
    """(hits, misses, tokens saved) so far; the warm-up has some of its own."""
    hits, misses, tokens = (metric(client, f"leafbeam_prompt_store_{name}_total") for name in ("hits", "misses", "tokens"))
    return hits, misses, tokens


def test_a_history_that_grows_is_a_hit_and_a_strangers_is_a_miss(shop, catalog, engine):
    keeping = Engine(shop.model, catalog, settings=Settings(prompt_store_mb=1))
    seen = []
    with TestClient(create_app(keeping)) as client, TestClient(create_app(engine)) as plain:
        before = counted(client)
        for history in (HISTORY[:4], HISTORY[:6], HISTORY, HISTORY[:6][::-1]):
            body = {"history": history, "rules": ["cheap"], "num_items": 5}
            kept, read = client.post(URL, json=body).json(), plain.post(URL, json=body).json()
            assert kept["item_ids"] == read["item_ids"]
            assert kept["scores"] == pytest.approx(read["scores"], abs=1e-5)
            seen.append(tuple(now - then for now, then in zip(counted(client), before, strict=True)))
        assert 0 < metric(client, "leafbeam_prompt_store_bytes") <= 1 << 20
    # A prompt is bos and three codes an item: of the second, 4 items are known, of the third, 6.
    assert [hits for hits, _, _ in seen] == [0, 1, 2, 2]
    assert [misses for _, misses, _ in seen] == [1, 1, 1, 2]
    assert [tokens for _, _, tokens in seen] == [0, 13, 13 + 19, 13 + 19]


def test_without_a_store_nothing_is_said_of_one(engine):
    with TestClient(create_app(engine)) as client:
        assert "prompt_store" not in client.get("/metrics").text
