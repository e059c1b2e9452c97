"""ServerConfig: all settings of a server, in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

# These modules import nothing heavy, because the command line reads its options from them even if it does not serve.
from leafbeam.catalog.durations import MAX_RULE_S, parse_duration
from leafbeam.engine.settings import Limits, Settings
from leafbeam.errors import ArgumentError
from leafbeam.serve.exposure import ConnectionLimits, Exposure
from leafbeam.serve.feed_config import FeedConfig
from leafbeam.serve.keys import KeyFile
from leafbeam.text.settings import TextSettings

if TYPE_CHECKING:
    from leafbeam.serve.observation import Observation

LogRequests = Literal["off", "on", "histories"]
MAX_HTTP_WORKERS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """All settings of a server, as `leafbeam serve --config` reads them.

    Args:
        run: The run directory. The default is `runs/shop`, or no run if text_model is set.
        text_model: The directory of a language model that generates text, beside the run or without one.
        host: The address to listen on.
        port: The port to listen on; 0 takes a free port.
        device: The device of the model: cpu, cuda, cuda:1 and so on.
        verify: If false, the index is loaded without checks, and a damaged index gives wrong items or a crash.
        learn: If true, interactions sent to POST /v1/interactions are counted in the item memory.
        users: A table of interactions with the columns user_id, item_id and timestamp. Clients may then look up what a user
            took, and the page offers it.
        changes: The clients that may change the catalog of a server without keys: programs on this machine (auto), everyone
            (on), or no client (off).
        snapshot: The directory of another server's snapshot, from which a run without changes begins.
        refresh: The interval at which rules without an interval of their own are evaluated again, such as 60s. Without it,
            they are evaluated again at SIGHUP only.
        rule_timeout_s: The longest time, in seconds, that one evaluation of a rule may take.
        keys: A file of keys, made by `leafbeam keys`. If it is set, clients must send one of these keys.
        key_rate: The number of requests a second that a key may send if the file gives it no rate of its own; further
            requests get 429.
        http_workers: The number of processes that handle HTTP; with 0, the engine's process handles it.
        max_body_bytes: The largest body of a request, in bytes; a larger one gets 413.
        max_batch_bytes: The largest batch of items, in bytes; a larger one gets 413.
        max_body_s: The number of seconds in which a request's body must arrive; after that the request gets 408.
        answer_s: The number of seconds after which a request without an answer gets 503, whatever its deadline is.
        grace_s: The number of seconds that running requests have to finish after SIGTERM.
        log_format: The format of the log: lines of text, or one JSON object a line.
        log_requests: Whether a line is logged for each request: off, on, or histories, which adds the user and the history.
        traces: The address of an OTLP collector for OpenTelemetry traces. The default is the value of
            OTEL_EXPORTER_OTLP_ENDPOINT.
        rules: Additional rules, as SQL expressions by name. The name "NAME@60s" gives the rule an interval.
        engine: The sizes, times and memory of the engine.
        limits: The upper bounds of one request.
        connections: The limits of what clients may send and hold open.
        exposure: TLS, and access from pages of other sites and from other machines.
        feed: The source that the items follow: a Kafka topic, a Delta or Iceberg table or a PostgreSQL publication.
        texts: The limits of requests for text.

    Raises:
        ArgumentError: For a value out of range.
    """

    run: Path | None = None
    text_model: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "cpu"
    verify: bool = True
    learn: bool = False
    users: Path | None = None
    changes: Literal["auto", "on", "off"] = "auto"
    snapshot: Path | None = None
    refresh: str | None = None
    rule_timeout_s: float = 60.0
    keys: Path | None = None
    key_rate: float | None = None
    http_workers: int = 0
    max_body_bytes: int = 1 << 20
    max_batch_bytes: int = 8 << 20
    max_body_s: float = 10.0
    answer_s: float = 60.0
    grace_s: float = 30.0
    log_format: Literal["text", "json"] = "text"
    log_requests: LogRequests = "off"
    traces: str | None = None
    rules: Mapping[str, str] = field(default_factory=dict[str, str])
    engine: Settings = field(default_factory=Settings)
    limits: Limits = field(default_factory=Limits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    exposure: Exposure = field(default_factory=Exposure)
    feed: FeedConfig = field(default_factory=FeedConfig)
    texts: TextSettings = field(default_factory=TextSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ArgumentError(f"port must be from 0 (any free port) to 65535, not {self.port}")
        if self.key_rate is not None and self.keys is None:
            raise ArgumentError("key_rate needs keys, because it is a rate of each key: set keys too, or remove key_rate")
        for name in ("max_body_bytes", "max_batch_bytes", "max_body_s", "answer_s"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be above 0, not {getattr(self, name)!r}")
        if not 0 <= self.http_workers <= MAX_HTTP_WORKERS:
            raise ArgumentError(
                f"http_workers must be from 0 (this process answers alone) to {MAX_HTTP_WORKERS}, not {self.http_workers}"
            )
        if not 0 < self.rule_timeout_s <= MAX_RULE_S:
            raise ArgumentError(f"rule_timeout_s={self.rule_timeout_s!r}: expected seconds, above 0 and up to a day")
        if self.refresh is not None:
            parse_duration(self.refresh, "refresh")
        if not self.grace_s >= 0:
            raise ArgumentError(f"grace_s must be 0 or more seconds, not {self.grace_s!r}")

    def key_file(self) -> KeyFile | None:
        """Return the keys of clients, or None if they need none. Raises what `KeyFile` raises."""
        return None if self.keys is None else KeyFile(self.keys, rate=self.key_rate)

    def observation(self) -> "Observation":
        """Return the settings of logging and tracing requests."""
        from leafbeam.serve.observation import Observation, traces_from_environment

        tracer = None
        if self.traces is not None or traces_from_environment():
            from leafbeam.serve.traces import Traces  # needs the extra

            tracer = Traces.to(self.traces)
        return Observation(log=self.log_requests, traces=tracer)
