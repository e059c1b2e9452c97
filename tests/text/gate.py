"""Lets a worker of texts go on when a test says so."""

import threading

import pytest

from leafbeam.text.run import TextRun


class Gate:
    """Lets the worker call the model when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.waiting = threading.Event(), threading.Event()
        advance = TextRun.advance

        def gated(run: TextRun) -> bool:
            self.waiting.set()
            assert self.open.wait(30)
            return advance(run)

        monkeypatch.setattr(TextRun, "advance", gated)
