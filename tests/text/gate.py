"""Lets a worker of texts go on when a test says so."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from leafbeam.text import TextGenerator
from leafbeam.text.run import TextBatch, TextRun
from leafbeam.text.stepwise_run import StepwiseRun
from leafbeam.text.worker import TextWorker
from tests.fixtures.texts import request, running


class Gate:
    """Lets the worker call the model when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.waiting = threading.Event(), threading.Event()
        for kind in (TextRun, StepwiseRun):
            monkeypatch.setattr(kind, "advance", self._gated(kind.advance))

    def _gated(self, advance: Callable[[Any], bool]) -> Callable[[TextBatch], bool]:
        def gated(run: TextBatch) -> bool:
            self.waiting.set()
            assert self.open.wait(30)
            return advance(run)

        return gated


@contextmanager
def gathering(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[TextWorker, Callable[[], None]]]:
    """A worker that a first job keeps busy until the second value is called: what is submitted before is one batch."""
    gate = Gate(monkeypatch)

    def let_go() -> None:
        gate.open.set()
        assert first.texts.result(30)

    with running(generator, max_batches=1) as worker:
        first = worker.submit([request(generator, max_tokens=1)])
        assert gate.waiting.wait(20)
        yield worker, let_go
