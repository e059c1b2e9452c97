"""Settings: the sizes, times and switches of an engine."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, cast

from leafbeam.engine.batcher import Capacity
from leafbeam.errors import ArgumentError, RequestError, check_choice, check_whole, counted, short_repr
from leafbeam.precision import Precision

if TYPE_CHECKING:
    from leafbeam.engine.request import Request

_MAY_BE_0 = ("wait_s", "prompt_store_mb")
_TYPICAL_BEAMS = 20
_CAPTURED_WIDTHS = (64, 256)
_BATCH_SHARE = 0.5  # of slo_s, so that a request that arrives during a batch can still be answered by the next one


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Sizes, times and switches of an engine. The defaults suit a small model on a CPU.

    Args:
        num_beams: The number of beams of requests that do not choose one. By default such requests get answers that are proved
            to be the best allowed lists, with as many beams as each proof needs.
        max_rows: The largest number of beams that a proof may keep at a level. More prove more answers and
            take longer.
        workers: The number of threads that run batches; they share one copy of the weights. On a GPU their
            batches take turns.
        threads: The number of CPU threads that each worker uses for matrix products. By default the warm-up measures the best
            number, up to torch's number of threads divided by workers.
        precision: The precision of the layers' matrix products. bfloat16 and int8 are for float32 models on a CPU, and used
            if a measurement finds them faster; fp8 is for GPUs. /readyz says how far answers differ.
        max_batch: The largest number of requests in one batch.
        max_batch_tokens: The largest number of prompt tokens in one batch, where each prompt counts as long as the longest; a
            prompt that is longer than this gets 422. Of a model with item_history, each item counts, not its tokens.
        max_beam_rows: The largest product of requests and beams in one batch; it must be at least limits.max_beams.
        max_queue: The number of requests that may wait; further requests get 429.
        slo_s: The latency objective: the seconds from arrival to answer. It is the deadline of requests without one, and
            batches of several requests are formed so that they are predicted to take at most half of it.
        timeout_s: The deadline, in seconds, of requests without one if slo_s is not set.
        wait_s: The number of seconds that a batch may wait for more requests while a worker is idle.
        watchdog_s: The number of seconds after which a batch counts as hung: its requests fail, and the engine is not ready
            until the batch ends.
        host_threads: The number of threads that build results beside the workers.
        prompt_store_mb: The megabytes in which keys and values of recent prompts are stored, for longer prompts that begin
            with the same tokens (float32 models on a CPU only).
        graphs: If true, whole searches are captured as CUDA graphs at the start, for the scorings "full" and "allowed", and
            replayed for requests. They have num_beams beams; if that is not set, they have 64, 256 and max_rows, and a proof
            goes on with the next larger one. The default is true on a GPU: if nothing can be captured there, the log and
            /readyz say why, and batches run without graphs. An explicit true makes that an error.
        graph_mb: The megabytes that the graphs may take together. The narrowest are captured first.
        filter_mb: The megabytes of rules' bitmaps that stay on a GPU, in each copy of the index there. Those used longest ago
            are dropped, and sent again when they are used.
        widths_file: A file in which the engine keeps how many beams the proofs of recent requests needed, so that an engine
            that starts later need not learn it again. It is read at the start and written at the end.
        attention_costs: A file that `make gpu` wrote on this GPU. It has measured costs, by which graphs split their
            attention; without it the costs are estimated.
        batching: If false, requests run one at a time. This is for experiments.
        overlap: If false, the workers themselves build results. This is for experiments.
        predict: If false, no request is rejected because of its predicted latency. This is for experiments.

    Raises:
        ArgumentError: For a value out of range.
    """

    num_beams: int | None = None
    max_rows: int = 512
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
    graphs: bool | None = None
    graph_mb: int = 1024
    filter_mb: int = 1024
    widths_file: Path | None = None
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
            is_integer = field.type is int or (field.name in ("threads", "num_beams") and value is not None)
            if is_integer and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ArgumentError(f"{field.name} must be an integer of at least {0 if may_be_0 else 1}, not {value!r}")
            if field.type is float and not (isinstance(value, int | float) and 0 < value < math.inf):
                bound = "0 or more seconds" if may_be_0 else "a number of seconds above 0"
                raise ArgumentError(f"{field.name} must be {bound}, not {value!r}")
        slo_s = cast("object", self.slo_s)
        if slo_s is not None and not (isinstance(slo_s, int | float) and 0 < slo_s < math.inf):
            raise ArgumentError(f"slo_s must be a number of seconds above 0, or None, not {self.slo_s!r}")
        if self.attention_costs is not None and self.graphs is False:
            raise ArgumentError("attention_costs is used only with graphs: remove attention_costs, or graphs=false")
        check_choice("precision", self.precision, Precision)
        if self.wait_s >= self.deadline_s:
            raise ArgumentError(f"wait_s={self.wait_s:g} must be below the deadline of {self.deadline_s:g} s")

    @property
    def beams(self) -> int:
        """Return the number of beams of a typical search, and of items that the model adds to a fused ranking."""
        return self.num_beams or _TYPICAL_BEAMS

    @property
    def captured_widths(self) -> tuple[int, ...]:
        """Return the numbers of beams of captured searches, ascending."""
        if self.num_beams is not None:
            return (self.num_beams,)
        return tuple(sorted({min(width, self.max_rows) for width in (*_CAPTURED_WIDTHS, self.max_rows)}))

    @property
    def capacity(self) -> Capacity:
        """Return the largest numbers of requests, tokens and rows that one batch holds."""
        requests = self.max_batch if self.batching else 1
        return Capacity(requests=requests, tokens=self.max_batch_tokens, beam_rows=self.max_beam_rows)

    @property
    def deadline_s(self) -> float:
        """Return the number of seconds in which a request without a deadline of its own must be answered."""
        return self.timeout_s if self.slo_s is None else self.slo_s

    @property
    def max_batch_s(self) -> float:
        """Return the largest number of seconds that a batch of several requests may be predicted to take."""
        return math.inf if self.slo_s is None else _BATCH_SHARE * self.slo_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Upper bounds of one request. A request beyond a bound is rejected, never shortened.

    Args:
        max_items: The largest number of items that a request may ask for.
        max_beams: The largest number of beams that a request may ask for; it must be at least max_items.
        max_history: The largest number of ids in the history of a request, including unknown ones.
        max_deny: The largest number of ids that a request may exclude, including unknown ones.
        max_rules: The largest number of rules that a request may name.
        max_deadline_s: The longest deadline of a request, in seconds.
    """

    max_items: int = 256
    max_beams: int = 512
    max_history: int = 2048
    max_deny: int = 10_000
    max_rules: int = 16
    max_deadline_s: int = 60

    def __post_init__(self) -> None:
        check_whole(**{limit.name: getattr(self, limit.name) for limit in fields(self)})
        if self.max_items > self.max_beams:
            raise ArgumentError(
                f"max_items={self.max_items} needs at least as many beams, but max_beams={self.max_beams}: raise max_beams"
            )

    def check(self, request: "Request") -> None:
        """Check a request against the limits.

        Raises:
            RequestError: If the request is beyond a limit, or is not a Request.
        """
        from leafbeam.engine.request import Request  # loads numpy, which the settings of a command do without

        if not isinstance(request, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"expected a Request, such as Request(history=('i1',)), got {type(request).__name__}")
        if request.deadline_s is not None:
            if request.deadline_s <= 0:
                message = f"the deadline passed {-request.deadline_s:g} s before the request arrived: allow more time"
                raise RequestError(message, reason="deadline_past")
            if request.deadline_s > self.max_deadline_s:
                raise RequestError(f"a deadline may be up to {self.max_deadline_s:g} s away, not {request.deadline_s:g} s")
        counts = ("num_items", request.num_items, self.max_items), ("num_beams", request.num_beams or 1, self.max_beams)
        for name, value, limit in counts:
            if value > limit:
                hint = f"raise the server's limits.max_{name.removeprefix('num_')} to allow more"
                raise RequestError(f"{name} must be from 1 to {limit:,}, not {short_repr(value)}: {hint}")
        for name, values, limit in (
            ("history", request.history, self.max_history),
            ("deny_item_ids", request.deny_item_ids, self.max_deny),
            ("rules", request.rules, self.max_rules),
        ):
            if len(values) > limit:
                raise RequestError(f"{name} may hold up to {counted(limit, 'entry', 'entries')}, not {len(values):,}")
