"""Workers on a GPU: each runs its batches in a CUDA stream of its own. torch.cuda is replaced by what notes who called it."""

import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from leafbeam.engine import Engine, Request, Settings
from leafbeam.engine import engine as engine_module
from leafbeam.engine.worker import worker_stream
from tests.waiting import interrupted

PATIENCE = 20


class Streams(threading.local):
    """The stand-in's streams: which of them a thread is in."""

    current: int | None = None
    made = 0

    def new(self, device: torch.device):
        Streams.made += 1
        return lambda number=Streams.made: self.opened(number)

    @contextmanager
    def opened(self, number: int) -> Generator[None]:
        assert self.current is None
        self.current = number
        try:
            yield
        finally:
            self.current = None


def test_a_stream_is_made_once_after_the_weights_and_opened_for_each_batch(monkeypatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: told.append(f"stream on {device}") or "own")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: told.append(f"wait for {device}"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: told.append(f"open {stream}") or nullcontext())
    stream = worker_stream(torch.device("cuda:1"))
    for _ in range(2):
        with stream():
            told.append("batch")
    assert told == ["stream on cuda:1", "wait for cuda:1", "open own", "batch", "open own", "batch"]


def test_on_a_cpu_there_are_no_streams(monkeypatch) -> None:
    monkeypatch.delattr(torch.cuda, "Stream")
    with worker_stream(torch.device("cpu"))():
        pass


def test_batches_of_two_workers_run_at_once_each_in_its_own_stream(shop, monkeypatch) -> None:
    streams, met, seen = Streams(), threading.Barrier(2, timeout=PATIENCE), list[tuple[str, int | None]]()
    monkeypatch.setattr(engine_module, "worker_stream", streams.new)

    def note(requests: int) -> None:
        seen.append((threading.current_thread().name, streams.current))
        met.wait()  # both batches run

    requests = [Request(num_beams=beams, num_items=3) for beams in (5, 6, 7, 8)]  # of other beams: a batch of its own each
    with Engine(shop.model, shop.trie, settings=Settings(workers=2)) as engine:
        alone = [result.item_ids for result in engine.recommend(requests)]
        with interrupted(shop.model, note):
            found = [[engine.submit(request) for request in pair] for pair in (requests[:2], requests[2:])]
            assert [one.result(PATIENCE).item_ids for pair in found for one in pair] == alone
    assert len(seen) == 4
    assert len({thread for thread, _ in seen}) == len(set(seen)) == 2
    assert None not in {stream for _, stream in seen}
    assert len({stream for _, stream in seen}) == 2


def test_a_batch_that_fails_leaves_its_stream(shop, monkeypatch) -> None:
    streams = Streams()
    monkeypatch.setattr(engine_module, "worker_stream", streams.new)
    calls: list[int | None] = []

    def fail(requests: int) -> None:
        calls.append(streams.current)
        if len(calls) == 1:
            raise ZeroDivisionError

    with Engine(shop.model, shop.trie) as engine, interrupted(shop.model, fail):
        with pytest.raises(ZeroDivisionError):
            engine.submit(Request()).result(PATIENCE)
        assert engine.submit(Request()).result(PATIENCE).num_valid == 10
    assert calls[0] is not None
    assert calls == [calls[0]] * 2
