"""Lets a worker of texts go on when a test says so."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from leafbeam.text.run import TextBatch, TextRun
from leafbeam.text.stepwise_run import StepwiseRun


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
