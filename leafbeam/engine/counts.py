"""Counters of requests and batches by reason: one table for the engine and for the metrics of the server."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter: its description, the label its reasons go under, and the reasons reported as 0 before they occur."""

    help: str
    label: str
    reasons: tuple[str, ...]


# Every submitted request is counted once, under one of the first five.
COUNTERS: Mapping[str, Counter] = {
    "refused": Counter(
        "Requests rejected before they were queued",
        "reason",
        (
            "over_a_limit",
            "over_capacity",
            "deadline_past",
            "deadline_unreachable",
            "queue_full",
            "draining",
            "wedged",
            "device_lost",
            "unknown_rule",
            "item_ids",
            "body",
            "body_too_long",
            "body_too_slow",
        ),
    ),
    "shed": Counter("Requests dropped while queued or running", "reason", ("late", "draining", "wedged")),
    "cancelled": Counter("Requests cancelled by the client", "while", ("waiting", "running")),
    "failed": Counter("Requests whose batch failed", "reason", ("error", "out_of_memory", "device_lost")),
    "answered": Counter("Requests answered, before or after their deadline", "when", ("in_time", "late")),
    "batches": Counter("Batches, by the reason they were closed", "closed", ("full", "quota", "slack", "idle", "ending")),
    "graphs": Counter(
        "Passes of batches replayed as a CUDA graph, and why others were not",
        "how",
        ("replayed", "no_bucket", "no_room", "version", "failed", "not_captured"),
    ),
    "batch_faults": Counter(
        "Faults of batches", "kind", ("error", "out_of_memory", "device_lost", "split", "wedged", "abandoned", "slow")
    ),
}


class Counts:
    """The counters of one engine. Thread-safe.

    >>> counts = Counts(); counts.add("refused", "queue_full"); counts.of("refused")["queue_full"]
    1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {name: dict.fromkeys(counter.reasons, 0) for name, counter in COUNTERS.items()}

    def add(self, counter: str, reason: str, number: int = 1) -> None:
        """Increase a counter."""
        with self._lock:
            by_reason = self._counts[counter]
            by_reason[reason] = by_reason.get(reason, 0) + number

    def of(self, counter: str) -> dict[str, int]:
        """Return a copy of a counter's values by reason."""
        with self._lock:
            return dict(self._counts[counter])
