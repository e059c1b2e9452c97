"""Models that wait or fail, so that a test can look at what an engine does meanwhile. The model itself is the real one."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

Sent = TypeVar("Sent")


class _Rounds:
    """A model's rounds, with something before each."""

    def __init__(self, rounds: Any, before_round: Callable[[], None]) -> None:
        self._rounds, self._before_round = rounds, before_round

    def step_fn(self, codes_BK: Any = None, parents_BK: Any = None) -> Any:
        self._before_round()
        return self._rounds.step_fn(codes_BK, parents_BK)

    def suffix_fn(self, codes_BKT: Any, parents_BK: Any) -> Any:
        self._before_round()
        return self._rounds.suffix_fn(codes_BKT, parents_BK)


@contextmanager
def interrupted(
    model: Any, before_prompts: Callable[[int], None] = lambda requests: None, before_round: Callable[[], None] = lambda: None
) -> Generator[None]:
    """While open, something happens before the prompts of a batch (of so many requests) and before each of its rounds."""
    start = model.start

    def started(tokens_BT: Any, lengths_B: Any = None, **options: Any) -> _Rounds:
        before_prompts(len(tokens_BT))
        return _Rounds(start(tokens_BT, lengths_B, **options), before_round)

    model.start = started
    try:
        yield
    finally:
        model.start = start


@contextmanager
def held(model: Any) -> Generator[threading.Event]:
    """While open, batches wait before their prompts; the event is set once one does. Closing lets them go on."""
    began, go = threading.Event(), threading.Event()

    def wait(requests: int) -> None:
        began.set()
        assert go.wait(20)

    with interrupted(model, wait):
        try:
            yield began
        finally:
            go.set()


@contextmanager
def busy(model: Any, send: Callable[[], Sent]) -> Generator[Sent]:
    """While open, the batch of what was sent waits before its prompts, so that what is sent meanwhile waits for it."""
    with held(model) as began:
        sent = send()
        assert began.wait(60)
        yield sent
