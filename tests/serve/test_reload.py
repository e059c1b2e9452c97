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
