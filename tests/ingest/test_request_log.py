"""The log of requests: what is in it survives a crash at any moment, and it does not grow for ever."""

from pathlib import Path
from typing import Any

import pytest

from leafbeam.errors import ConflictError, LogError
from leafbeam.ingest.request_log import RequestLog
from leafbeam.live import RequestKey, disk
from tests.ingest.shop import Crash, raising


def add(log: RequestLog, number: int, *, applied: bool = True) -> None:
    request = RequestKey(key=f"k{number}", digest=f"d{number}")
    log.append(request, {"answer": number}, {"operation": "delete", "item_ids": [number]})
    if applied:
        log.applied()


def answers(log: RequestLog, count: int) -> list[Any]:
    return [log.find(RequestKey(key=f"k{number}", digest=f"d{number}")) for number in range(count)]


def test_answers_and_a_change_that_is_not_made_come_back(tmp_path: Path):
    with RequestLog.open(tmp_path) as log:
        add(log, 0)
        add(log, 1, applied=False)
    with RequestLog.open(tmp_path) as log:
        assert answers(log, 3) == [{"answer": 0}, {"answer": 1}, None]
        assert log.pending == {"operation": "delete", "item_ids": [1]}
        with pytest.raises(ConflictError):
            log.find(RequestKey(key="k0", digest="other"))
        log.applied()
        log.append(None, {}, {"operation": "put"})
    with RequestLog.open(tmp_path) as log:
        assert log.pending == {"operation": "put"}


def test_a_change_that_can_never_be_made_is_forgotten_with_its_request(tmp_path: Path):
    with RequestLog.open(tmp_path) as log:
        add(log, 0)
        add(log, 1, applied=False)
        log.rejected()
        assert answers(log, 2) == [{"answer": 0}, None]
        log.append(None, {}, {"operation": "put"})
        log.rejected()
    for _ in range(2):
        with RequestLog.open(tmp_path) as log:
            assert log.pending is None
            assert answers(log, 2) == [{"answer": 0}, None]


def test_a_long_log_begins_anew_with_the_newest_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leafbeam.ingest.request_log._MAX_BYTES", 2000)
    monkeypatch.setattr("leafbeam.live.journal.MAX_KNOWN", 5)
    with RequestLog.open(tmp_path) as log:
        for number in range(100):
            add(log, number)
            files = sorted(tmp_path.iterdir())
            assert len(files) == 1
            assert files[0].stat().st_size < 3000
    with RequestLog.open(tmp_path) as log:
        assert answers(log, 100) == [None] * 95 + [{"answer": number} for number in range(95, 100)]


def test_a_crash_while_a_log_begins_anew_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leafbeam.ingest.request_log._MAX_BYTES", 1)
    for step, name in enumerate(("create", "rename", "sync_path", "remove")):
        folder = tmp_path / name
        folder.mkdir()
        with RequestLog.open(folder) as log:
            add(log, 0)

            with monkeypatch.context() as patch, pytest.raises(Crash):  # noqa: PT012
                patch.setattr(disk, name, raising(Crash()))
                add(log, 1)
        with RequestLog.open(folder) as log:
            assert answers(log, 2) == [{"answer": 0}, {"answer": 1}], step
            assert log.pending is None
            add(log, 2)
            assert len([path for path in folder.iterdir() if path.suffix == ".log"]) == 1


def test_a_record_that_is_no_request_is_named(tmp_path: Path):
    with RequestLog.open(tmp_path) as log:
        log._log.append(b'{"change": 3}')
    for _ in range(2):  # the first attempt leaves no lock behind
        with pytest.raises(LogError, match=r"record 2 of .* cannot be read"):
            RequestLog.open(tmp_path)
