"""`GET /v1/users/{user}`: what a user of a log of interactions took."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from leafbeam.client import Client
from leafbeam.errors import DataError, NotFoundError
from leafbeam.serve import ServerConfig, create_app
from tests.serve.running import thread

TAKEN = {7: [1003, 1001], 4711: [1002]}


def log_at(path: Path, users: dict[Any, list[int]]) -> Path:
    rows = [(user, item, time) for user, items in users.items() for time, item in enumerate(items)]
    columns = dict(zip(("user_id", "item_id", "timestamp"), map(list, zip(*reversed(rows), strict=True)), strict=True))
    pq.write_table(pa.table(columns), path)
    return path


def test_the_items_of_a_user_come_oldest_first(first_shop: Any, tmp_path: Path) -> None:
    with thread(first_shop.engine(), users=log_at(tmp_path / "log.parquet", TAKEN)) as server, Client(server.url) as client:
        assert {user: list(client.get_user(str(user)).history) for user in TAKEN} == TAKEN
        for unknown in ("9", "07", "seven", "7/8", "9" * 40):
            with pytest.raises(NotFoundError) as refused:
                client.get_user(unknown)
            assert "4711" not in str(refused.value)  # the ids of other users stay here


def test_a_user_may_be_any_text(first_shop: Any, tmp_path: Path) -> None:
    taken = {"a/b": [1001], "é ?#": [1002], "7": [1003]}
    with thread(first_shop.engine(), users=log_at(tmp_path / "log.parquet", taken)) as server, Client(server.url) as client:
        assert {user: list(client.get_user(user).history) for user in taken} == taken


def test_without_a_log_there_is_no_such_route(first_shop: Any) -> None:
    with TestClient(create_app(first_shop.engine())) as client:
        assert client.get("/v1/users/7").status_code == 404
        assert "/v1/users/{user}" not in client.get("/openapi.json").json()["paths"]


def test_a_table_without_users_is_named_at_the_start(first_shop: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"who": [1], "item_id": [2], "timestamp": [3]}), tmp_path / "log.parquet")
    with pytest.raises(DataError, match="user_id"):
        create_app(first_shop.engine(), config=ServerConfig(users=tmp_path / "log.parquet"))
