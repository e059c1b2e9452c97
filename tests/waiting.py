"""Models that wait, so that a test can look at what stands in the queue meanwhile."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from pleach.model import Transformer


@contextmanager
def held(model: Transformer) -> Generator[threading.Event]:
    """While open, the model's forward passes wait; the event is set once one does. Closing lets them go on."""
    began, go = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        began.set()
        assert go.wait(20)

    hook = model.model.register_forward_pre_hook(wait)
    try:
        yield began
    finally:
        hook.remove()
        go.set()
