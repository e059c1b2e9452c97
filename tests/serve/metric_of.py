"""Reads the server's own metrics."""

from typing import Any


def metric(client: Any, name: str) -> float:
    """The value of a series as Prometheus reads it, from an httpx or a test client."""
    line = next(line for line in client.get("/metrics").text.splitlines() if line.startswith(name + " "))
    return float(line.rsplit(" ", 1)[1])
