"""A server that runs beside a test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from leafbeam.serve import Server


@contextmanager
def thread(engine, **options) -> Iterator[Server]:
    """A server in a thread of this process. engine: or None, with `text`."""
    if engine is not None:
        engine.warm_up()  # the first compile of the kernels may take longer than the wait below
    lines: list[str] = []
    ready = threading.Event()
    server = Server(engine, port=0, grace_s=20, **options, on_ready=lambda line: (lines.append(line), ready.set()))
    runner = threading.Thread(target=server.run)
    runner.start()
    try:
        assert ready.wait(20 if engine is not None else 300)  # a language model warms up in the server's thread
        assert server.url in lines[0]
        yield server
    finally:
        server.stop()
        runner.join(20)
        assert not runner.is_alive()
