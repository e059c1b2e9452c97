"""What the soak over HTTP has found: how requests ended, what was wrong or is missing, and the memory of each process."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.resident import growth_bytes, resident_bytes

__all__ = ["ENDS", "HttpOutcome"]

ENDS = ("answered", "refused", "left", "broken", "lost")  # each request comes to one of these
_MIN_SAMPLES = 20  # of an HTTP process whose growth is told
_TOLD = 5  # problems in a row


@dataclass(kw_only=True)
class HttpOutcome:
    """How the requests of a soak ended, and what else was found.

    ended: left is hung up by the client; broken, the connection ended after an HTTP process had been killed; lost, anything but
    these, an answer, or a refusal with a name. wrong: answers that were right at no moment, refusals without cause, threads of
    the soak that ended. missing: acknowledged changes that are not there at the end. problems: all of these in words.
    seconds: of the load. restarts: of HTTP processes, as the server counts them. core_bytes, http_bytes: resident, sampled all
    the time, of the server and of each HTTP process since it began.
    """

    seconds: float = 0.0
    ended: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    changes: int = 0
    wrong: int = 0
    missing: int = 0
    problems: list[str] = field(default_factory=list)
    kills: int = 0
    restarts: int = 0
    read_back: int = 0
    core_bytes: list[int] = field(default_factory=list)
    http_bytes: dict[int, list[int]] = field(default_factory=dict)
    last_kill: float = -math.inf
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, how: str, problem: str | None = None, *, reason: str | None = None) -> None:
        """Count a request. problem: what was wrong with its answer or refusal, or why it is lost. reason: of a refusal."""
        with self.lock:
            self.ended[how] += 1
            if reason is not None:
                self.refused[reason] += 1
            if problem is not None:
                self.problems.append(problem)
                self.wrong += how != "lost"

    def add_wrong(self, problem: str) -> None:
        """Something else went wrong."""
        with self.lock:
            self.wrong += 1
            self.problems.append(problem)

    def add_missing(self, problems: list[str]) -> None:
        """Changes are not there."""
        with self.lock:
            self.missing += len(problems)
            self.problems += problems

    def weigh(self, server: int, processes: Iterable[int]) -> None:
        """Sample the memory of the server's process and of these of HTTP."""
        self.core_bytes.append(resident_bytes(server)[0])
        for process in processes:
            self.http_bytes.setdefault(process, []).append(resident_bytes(process)[0])

    @property
    def http_growth(self) -> float | None:
        """The largest growth in bytes of an HTTP process that lived long enough; None if none did."""
        growths = [growth_bytes(samples) for samples in self.http_bytes.values() if len(samples) >= _MIN_SAMPLES]
        return max(growths, default=None)

    def row(self) -> dict[str, Any]:
        core, http = growth_bytes(self.core_bytes), self.http_growth
        return {
            "minutes": round(self.seconds / 60, 1),
            "asked": self.ended.total(),
            **{how: self.ended[how] for how in ENDS},
            "reasons": dict(self.refused),
            "wrong": self.wrong,
            "changes": self.changes,
            "missing": self.missing,
            "read_back": self.read_back,
            "kills": self.kills,
            "restarts": self.restarts,
            "resident_mb": {
                "core": round(self.core_bytes[-1] / 1e6, 1),
                "http": round(max(samples[-1] for samples in self.http_bytes.values()) / 1e6, 1),
            },
            "growth_mb": {"core": round(core / 1e6, 2), "http": None if http is None else round(http / 1e6, 2)},
            **({"problems": self.problems[:_TOLD]} if self.problems else {}),
        }
