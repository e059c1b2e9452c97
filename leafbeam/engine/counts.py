"""What happened to requests and batches, by reason."""

import threading
from collections.abc import Mapping

__all__ = ["KINDS", "Counts"]

# Every kind of event and the reasons that are counted from the start, so that a graph shows a 0 before the first.
KINDS: Mapping[str, tuple[str, ...]] = {
    "refused": (
        "over_a_limit",
        "over_capacity",
        "deadline_past",
        "deadline_unreachable",
        "queue_full",
        "draining",
        "wedged",
        "unknown_rule",
        "item_ids",
        "body",
        "body_too_long",
        "body_too_slow",
    ),
    "shed": ("late", "draining", "wedged"),
    "cancelled": ("waiting", "running"),
    "failed": ("error", "out_of_memory"),
    "answered": ("in_time", "late"),
    "batches": ("full", "quota", "slack", "idle", "ending"),
    "graphs": ("replayed", "no_bucket", "no_room", "version"),
    "batch_faults": ("error", "out_of_memory", "split", "wedged", "abandoned"),
}


class Counts:
    """Counters that any thread may raise.

    Every request that is submitted ends up in one of the first five kinds, once.

    refused: requests that never waited. shed: those that did and were given up. cancelled: those that nobody waits for any
    more. failed: those whose batch failed. answered: the rest. batches: by what closed them. graphs: batches that a graph ran,
    and why others were run without one; none are counted where there are no graphs. batch_faults: what went wrong.

    >>> counts = Counts(); counts.add("refused", "queue_full"); counts.of("refused")["queue_full"]
    1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {kind: dict.fromkeys(reasons, 0) for kind, reasons in KINDS.items()}

    def add(self, kind: str, reason: str, number: int = 1) -> None:
        with self._lock:
            found = self._counts[kind]
            found[reason] = found.get(reason, 0) + number

    def of(self, kind: str) -> dict[str, int]:
        """Reason -> how often, at this moment."""
        with self._lock:
            return dict(self._counts[kind])

    def total(self, kind: str) -> int:
        return sum(self.of(kind).values())
