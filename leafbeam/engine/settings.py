"""How an engine runs."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from leafbeam.engine.capacity import Capacity
from leafbeam.errors import ArgumentError

Precision = Literal["float32", "bfloat16"]

_MAY_BE_0 = ("wait_s", "prompt_store_mb", "widest_beams")
_BATCH_SHARE = 0.5  # of slo_s: a request that arrives while such a batch runs can still be answered by the next


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Sizes, times and switches of an engine. The defaults suit a small model on a CPU.

    Args:
        num_beams: Beams of requests that name none.
        widest_beams: The most beams to which a search is widened, on all levels but the last. Where these have no more allowed
            prefixes, it keeps all of them and its answer is exact (see Result.exact). Else, with scoring "full", it has
            num_beams divided by the share of the items that the rules allow. 0: searches are never widened, nor are those
            with graphs.
        workers: Threads that run batches, over one copy of the weights; on CUDA each has its own stream.
        threads: Threads of the matrix products of each worker. Without a value the warm-up measures, up to torch's number
            divided by workers.
        precision: Precision of the layers' matrix products and prompts' attention, of a float32 model on a CPU. bfloat16 is
            measured before the first batch, and taken if it is faster; /readyz says how answers differ.
        max_batch: Requests in one batch, at most.
        max_batch_tokens: Prompt tokens in one batch, padded to its longest, at most; a longer prompt gets 422.
        max_beam_rows: Requests times beams in one batch, at most; at least limits.max_beams.
        max_queue: Requests that may wait; one more gets 429.
        slo_s: The latency objective, in seconds from arrival to answer: the deadline of requests without one, and half of it
            bounds the predicted duration of a batch.
        timeout_s: The deadline, in seconds, of requests without one, if there is no objective.
        wait_s: Seconds that a batch may wait for more requests while a worker is idle.
        watchdog_s: Seconds after which a batch counts as hung: its requests fail, and the engine is not ready until it ends.
        host_threads: Threads that build results beside the workers.
        prompt_store_mb: Megabytes of keys and values of recent prompts, reused by longer prompts that begin with them (float32
            models on a CPU).
        graphs: Capture whole searches as CUDA graphs at the start, for num_beams and both scorings, and replay them.
        graph_mb: Megabytes for the graphs of all workers.
        attention_costs: A file that `make gpu` wrote on this GPU: how graphs split their attention, in place of estimates.
        batching: False runs one request at a time, for ablation.
        overlap: False builds results in the workers, for ablation.
        predict: False rejects nothing for its predicted latency, for ablation.

    Raises:
        ArgumentError: For a value out of range.
    """

    num_beams: int = 20
    widest_beams: int = 128
    workers: int = 1
    threads: int | None = None
    precision: Precision = "float32"
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
    attention_costs: Path | None = None
    batching: bool = True
    overlap: bool = True
    predict: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_0 = field.name in _MAY_BE_0
            if value == 0 and may_be_0:
                continue
            is_integer = field.type is int or (field.name == "threads" and value is not None)
            if is_integer and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ArgumentError(f"{field.name} must be an integer of at least {0 if may_be_0 else 1}, not {value!r}")
            if field.type is float and not (isinstance(value, int | float) and 0 < value < math.inf):
                least = "0 or more seconds" if may_be_0 else "a number of seconds above 0"
                raise ArgumentError(f"{field.name} must be {least}, not {value!r}")
        slo_s: Any = self.slo_s
        if slo_s is not None and not (isinstance(slo_s, int | float) and 0 < slo_s < math.inf):
            raise ArgumentError(f"slo_s must be a number of seconds above 0, or None, not {self.slo_s!r}")
        if self.attention_costs is not None and not self.graphs:
            raise ArgumentError("attention_costs are of captured graphs: set graphs to True, or leave the costs out")
        if self.precision not in get_args(Precision):
            raise ArgumentError(f"precision must be one of {', '.join(get_args(Precision))}, not {self.precision!r}")
        if self.wait_s >= self.deadline_s:
            raise ArgumentError(f"wait_s={self.wait_s:g} must be below the deadline of {self.deadline_s:g} s")

    @property
    def capacity(self) -> Capacity:
        """The most that one batch holds."""
        requests = self.max_batch if self.batching else 1
        return Capacity(requests=requests, tokens=self.max_batch_tokens, beam_rows=self.max_beam_rows)

    @property
    def deadline_s(self) -> float:
        """Seconds to answer a request without a deadline of its own."""
        return self.timeout_s if self.slo_s is None else self.slo_s

    @property
    def max_batch_s(self) -> float:
        """Predicted seconds that a batch of several requests may take."""
        return math.inf if self.slo_s is None else _BATCH_SHARE * self.slo_s
