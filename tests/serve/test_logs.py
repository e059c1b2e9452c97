"""Logs as JSON: a line for each request, and nothing of its body."""

import json
import logging
from typing import Any

from starlette.testclient import TestClient

from leafbeam.serve import create_app
from leafbeam.serve.logs import JsonFormatter


def test_each_request_is_a_line_without_its_history(first_shop: Any, caplog: Any) -> None:
    with first_shop.engine() as engine, caplog.at_level(logging.INFO, "leafbeam.requests"):
        client = TestClient(create_app(engine, log_requests=True))
        client.post("/v1/recommend", json={"history": [1003], "user": 424242}, headers={"x-request-id": "a-1"})
        client.get("/v1/items/%0A%7B", params={"query": "secret"})
        client.put("/v1/items", json={"item_id": 1003})
        lines = [JsonFormatter().format(record) for record in caplog.records if record.name == "leafbeam.requests"]
        quiet = TestClient(create_app(first_shop.engine()))
        assert quiet.get("/healthz").status_code == 200
    first, second, third = map(json.loads, lines)
    assert {name: first[name] for name in ("method", "path", "status", "request_id", "level")} == {
        "method": "POST", "path": "/v1/recommend", "status": 200, "request_id": "a-1", "level": "INFO",
    }  # fmt: skip
    assert first["ms"] > 0
    assert first["time"].endswith("+00:00")
    assert (second["path"], second["status"], third["status"]) == ("/v1/items/\n{", 404, 403)
    assert not any(word in line for line in lines for word in ("1003", "424242", "secret", "\n"))


def test_an_error_is_one_line_with_its_traceback() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.getLogger("x").makeRecord("x", logging.ERROR, "f", 1, "it %s", ("failed",), (type(error), error, None))
    line = JsonFormatter().format(record)
    assert "\n" not in line
    content = json.loads(line)
    assert (content["message"], content["level"], "ValueError: two" in content["error"]) == ("it failed", "ERROR", True)
