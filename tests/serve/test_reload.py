"""A reload over HTTP changes the next answer, or says why it did not."""

import duckdb
from starlette.testclient import TestClient

from leafbeam.serve import Metrics, create_app
from tests.serve.metric_of import metric

URL = "/v1/recommend"


def test_a_reload_changes_the_next_answer_and_a_bad_one_is_counted(shop):
    engine = shop.engine()
    metrics = Metrics(engine)
    with TestClient(create_app(engine, metrics)) as client:
        body = {"rules": ["cheap"], "num_items": 100}
        assert set(client.post(URL, json=body).json()["item_ids"]) == shop.allowed(["cheap"], [])
        with duckdb.connect(str(shop.files[2])) as connection:
            connection.execute("UPDATE items SET price = 39 - price")
        assert engine.catalog is not None
        metrics.observe_reload(engine.catalog.reload())
        answer = client.post(URL, json=body).json()
        assert set(answer["item_ids"]) == shop.allowed([], []) - shop.allowed(["cheap"], [])
        assert answer["rules_generation"] == 2
        shop.files[3].write_text("[rules]\ncheap = 'no_such_column'\n")
        metrics.observe_reload(engine.catalog.reload())
        assert client.post(URL, json=body).json()["item_ids"] == answer["item_ids"]
        assert metric(client, 'leafbeam_rule_failed{rule="cheap"}') == 1
        assert metric(client, 'leafbeam_rule_reloads_total{outcome="ok"}') == 1
        assert metric(client, 'leafbeam_rule_reloads_total{outcome="failed"}') == 1


def test_a_deleted_row_is_not_answered_after_a_reload_and_a_new_one_is_named(shop):
    engine = shop.engine()
    with TestClient(create_app(engine)) as client:
        body = {"num_items": 100, "num_beams": 100}
        assert set(client.post(URL, json=body).json()["item_ids"]) == shop.allowed([], [])
        with duckdb.connect(str(shop.files[2])) as connection:
            connection.execute("DELETE FROM items WHERE item_id < 1010; INSERT INTO items VALUES (77, 'new', 1, 1)")
        assert engine.catalog is not None
        assert "1 item of the table is not in the index (such as 77)" in str(engine.catalog.reload())
        for fields in ({}, {"deny_item_ids": [1010]}, {"rules": ["cheap"]}):
            answer = client.post(URL, json=body | fields).json()
            expected = shop.allowed(fields.get("rules", []), fields.get("deny_item_ids", []))
            assert set(answer["item_ids"]) == expected - set(range(1010))
        assert client.post(URL, json={"history": [1000]}).json()["num_history_used"] == 1  # still known to the model
