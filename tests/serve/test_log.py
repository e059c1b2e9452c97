"""The log of a real server: lines of JSON, and no history, user or key in any of them unless they are asked for."""

import json
import logging
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from leafbeam.errors import ItemIdError, LogError
from leafbeam.serve.keys import add_key
from leafbeam.serve.log_format import LogFormatter

RECOMMEND = "/v1/recommend"
HISTORY, DENIED, USER = 1057, 1058, "user-5417"

# A server at level DEBUG whose engine, handlers and keys fail when a test says so, with what was asked in the message.
PROGRAM = """
import json, logging, sys
from pathlib import Path
from leafbeam.engine import CatalogFiles
from leafbeam.engine.decoder import Decoder
from leafbeam.serve import ServerConfig, serve
from leafbeam.serve.log_format import configure_log
import leafbeam.serve.engine_routes as items

log_format, requests, keys, *files = sys.argv[1:]
configure_log(log_format, values=requests == "histories", level=logging.DEBUG)
logging.getLogger("numba").setLevel(logging.WARNING)
run, answer = Decoder.run, items.recommend_answer
secret, user = [1050 + 7, 1050 + 8], f"user-{5410 + 7}"  # in no line of this text, which a traceback quotes from Python 3.13 on

def broken_run(self, batch, *on_pass):
    if batch[0].request.num_items == 7:
        raise KeyError(f"{batch[0].request.user} {batch[0].request.history}")
    return run(self, batch, *on_pass)

def broken_answer(result, explain):
    if result.num_history_used == 2:
        try:
            raise ValueError(f"history {secret} of {user}")
        except ValueError as error:
            raise AssertionError(f"{user} again") from error
    return answer(result, explain=explain)

Decoder.run, items.recommend_answer = broken_run, broken_answer
model, index, catalog, rules = files
catalog = CatalogFiles(index=index, catalog=catalog, rules=rules)
serve(model, catalog, config=ServerConfig(port=0, keys=Path(keys), log_requests=requests))
"""


def lines_of(shop: Any, log_format: str, requests: str) -> tuple[list[str], str]:
    """What a server logs of requests of all kinds and outcomes, and the key that they were sent with."""
    keys = shop.directory / "keys.json"
    key = add_key(keys, "shop", "admin")
    command = [sys.executable, "-c", PROGRAM, log_format, requests, str(keys), *map(str, shop.files)]
    with (
        open(shop.directory / "log", "w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("leafbeam serves"), (shop.directory / "log").read_text()
            url = next(word for word in line.split() if word.startswith("http://"))
            with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=20) as client:
                send_requests(client)
        finally:
            server.terminate()
            server.wait(20)
        return (shop.directory / "log").read_text().splitlines(), key


def send_requests(client: httpx.Client) -> None:
    body = {"history": [HISTORY], "user": USER, "deny_item_ids": [DENIED]}
    answers = [
        (client.post(RECOMMEND, json=body, headers={"x-request-id": "r-200"}), 200),
        (client.post(RECOMMEND, json={**body, "num_items": 7}), 500),
        (client.post(RECOMMEND, json={**body, "history": [HISTORY, DENIED]}, headers={"x-request-id": "r-500"}), 500),
        (client.post(RECOMMEND, json={**body, "rules": [f"of {USER}"]}), 422),
        (client.post(RECOMMEND, json={**body, "history": [USER]}), 422),
        (client.post(RECOMMEND, content=json.dumps(body)[:-1], headers={"content-type": "application/json"}), 400),
        (client.post(RECOMMEND, json={**body, "deadline_ms": 1e-6}), 429),
        (client.post("/v1/completions", json={"model": "items", "prompt": [HISTORY], "user": USER}), 200),
        (client.post("/v1/interactions", json={"interactions": [{"history": [HISTORY], "item_id": DENIED}]}), 422),
        (client.get(f"/{USER}%0Aforged: line"), 404),
        (client.get("/healthz"), 200),
        (client.post(RECOMMEND, json=body, headers={"authorization": "Bearer wrong-key-of-user-5417"}), 401),
    ]
    assert [answer.status_code for answer, _ in answers] == [status for _, status in answers]


@pytest.fixture(scope="module")
def json_log(first_shop: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """The lines of `--log-format json --log-requests on`, and the key."""
    return lines_of(copied(first_shop, tmp_path_factory.mktemp("json")), "json", "on")


def copied(shop: Any, directory: Path) -> Any:
    shutil.copytree(shop.directory, directory, dirs_exist_ok=True)
    return replace(shop, directory=directory)


@pytest.mark.parametrize("requests", [pytest.param("off", marks=pytest.mark.slow), "on"])
def test_no_line_at_any_level_holds_a_history_a_user_or_a_key(shop: Any, json_log: Any, requests: str) -> None:
    lines, key = json_log if requests == "on" else lines_of(shop, "text", requests)
    log = "\n".join(lines)
    assert "KeyError" in log
    assert "AssertionError" in log
    for secret in (str(HISTORY), str(DENIED), USER, key, "wrong-key", "forged"):
        assert secret not in log, secret
    assert ("/healthz" in log, "POST /v1/recommend 200" in log) == (False, requests == "on")


def test_each_line_is_an_object_and_each_request_has_one(json_log: Any) -> None:
    lines = [json.loads(line) for line in json_log[0]]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    requests = [line for line in lines if line["logger"] == "leafbeam.requests"]
    assert [line["status"] for line in requests] == [200, 500, 500, 422, 422, 400, 429, 200, 422, 404, 401]
    assert [line["route"] for line in requests[-2:]] == ["unknown", RECOMMEND], "also of a request without a valid key"
    first = requests[0]
    assert (first["method"], first["route"], first["request_id"], first["num_valid"]) == ("POST", RECOMMEND, "r-200", 10)
    assert first["ms"] > 0
    failed = [line for line in lines if line["level"] == "ERROR" and line.get("request_id") == "r-500"]
    assert len(failed) == 1
    assert "broken_answer" in failed[0]["exception"]
    assert "caused by:" in failed[0]["exception"]


@pytest.mark.slow
def test_histories_are_logged_if_asked_for(shop: Any) -> None:
    lines = [json.loads(line) for line in lines_of(shop, "json", "histories")[0]]
    answered = next(line for line in lines if line.get("request_id") == "r-200")
    assert (answered["history"], answered["user"]) == ([HISTORY], USER)
    assert any(f"history [{HISTORY}, {DENIED}] of {USER}" in line.get("exception", "") for line in lines)


def record_of(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except Exception:
        return logging.LogRecord("leafbeam", logging.ERROR, "x.py", 1, "it failed", (), sys.exc_info())


def test_messages_of_the_system_are_printed_and_those_of_requests_not() -> None:
    formatter = LogFormatter(as_json=True)
    for error in (LogError("the disk is full"), OSError(28, "No space"), MemoryError("30 GB"), RuntimeError("CUDA error")):
        assert str(error) in json.loads(formatter.format(record_of(error)))["exception"]
    for error in (ItemIdError("no item 1057"), KeyError("1057"), ExceptionGroup("1057", [ValueError("1057")])):
        line = json.loads(formatter.format(record_of(error)))
        assert "1057" not in line["exception"]
        assert type(error).__qualname__ in line["exception"]


def test_another_handlers_text_of_an_exception_is_not_reused() -> None:
    record = record_of(KeyError("1057"))
    assert "1057" in logging.Formatter().format(record)
    assert "1057" not in LogFormatter(as_json=False).format(record)


def test_a_value_in_a_message_forges_no_line_of_text() -> None:
    value = "x\n12:00:00 INFO all is well\r\x1b[2K\x9b2K"
    record = logging.LogRecord("a", logging.WARNING, "x.py", 1, "cannot convert %s", (value,), None)
    first, second = LogFormatter(as_json=False).format(record).split("\n")
    assert first.endswith("WARNING cannot convert x")
    assert second == r"  12:00:00 INFO all is well\x0d\x1b[2K\x9b2K"


def test_lines_that_json_cannot_hold_are_written_all_the_same() -> None:
    record = logging.LogRecord("a", logging.INFO, "x.py", 1, "half \ud800 \n\x00 %s", (Path("p"),), None)
    record.fields = {"path": Path("p")}
    line = LogFormatter(as_json=True).format(record)
    assert "\n" not in line
    assert json.loads(line)["path"] == "p"
