"""How an engine runs: the dials of `leafbeam serve`, and the switches of the ablation."""

import math
from dataclasses import dataclass, fields

from leafbeam.engine.capacity import Capacity
from leafbeam.errors import ArgumentError

__all__ = ["Settings"]

_MAY_BE_0 = ("wait_s", "prompt_store_mb")
_BATCH_SHARE = 0.5  # of the objective: who comes while a batch of that length runs can still be answered by the next


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Sizes, times and switches of an engine. Everything has a default that suits a small model on a CPU.

    num_beams: the width of requests that name none.
    workers: threads that run batches, each on its own, over one copy of the weights.
    max_batch, max_batch_tokens, max_beam_rows: the capacity of one batch (see Capacity).
    max_queue: requests that may wait; one more is refused.
    slo_s: the objective, from submission to answer. It is the deadline of requests that bring none, and half of it is the most
        that a batch may take. None: no objective; timeout_s is the deadline.
    timeout_s: the deadline without an objective.
    wait_s: how long a batch may wait for company while a worker is idle; 0 runs what is there.
    watchdog_s: a batch that runs for longer is lost: its requests are refused, and the engine is not ready until it ends.
    host_threads: threads that turn what was found into answers, beside the workers.
    prompt_store_mb: megabytes for the keys and values of prompts seen lately, so that a user who comes back with a longer
        history is read from where the last one ended (float32 models on a CPU). 0: none.
    graphs: whole decodes are captured as CUDA graphs at the start, for num_beams and scoring "full", and batches that fit one
        are replayed (see Graphs); for models on a CUDA device. graph_mb: megabytes that they may take, of all workers.

    batching, overlap, predict: False runs one request at a time, does the host's work in the workers, and refuses nothing for
        what the step-time model says.

    Raises ArgumentError for values that cannot be meant.
    """

    num_beams: int = 20
    workers: int = 1
    max_batch: int = 16
    max_batch_tokens: int = 32_768
    max_beam_rows: int = 8_192
    max_queue: int = 256
    slo_s: float | None = None
    timeout_s: float = 10.0
    wait_s: float = 0.0
    watchdog_s: float = 30.0
    host_threads: int = 2
    prompt_store_mb: int = 0
    graphs: bool = False
    graph_mb: int = 1024
    batching: bool = True
    overlap: bool = True
    predict: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value == 0 and field.name in _MAY_BE_0:
                continue
            if field.type is int and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ArgumentError(f"{field.name} has to be a whole number of at least 1, not {value!r}")
            if field.type is float and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ArgumentError(f"{field.name} has to be a number of seconds above 0, not {value!r}")
        if self.slo_s is not None and not 0 < self.slo_s < math.inf:
            raise ArgumentError(f"slo_s has to be a number of seconds above 0, or None, not {self.slo_s!r}")
        if self.wait_s >= self.deadline_s:
            raise ArgumentError(f"wait_s={self.wait_s:g} leaves nothing of the deadline of {self.deadline_s:g} s to run in")

    @property
    def capacity(self) -> Capacity:
        """The most that one batch holds."""
        requests = self.max_batch if self.batching else 1
        return Capacity(requests=requests, tokens=self.max_batch_tokens, beam_rows=self.max_beam_rows)

    @property
    def deadline_s(self) -> float:
        """How soon a request that brings no deadline has to be answered."""
        return self.timeout_s if self.slo_s is None else self.slo_s

    @property
    def batch_s(self) -> float:
        """How long a batch of several requests may be expected to take."""
        return math.inf if self.slo_s is None else _BATCH_SHARE * self.slo_s
