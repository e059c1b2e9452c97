"""ServerConfig: all settings of a server, in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

# Modules that import nothing heavy: the command line reads options from these classes before it knows whether to serve.
from leafbeam.engine.limits import Limits
from leafbeam.engine.settings import Settings
from leafbeam.errors import ArgumentError
from leafbeam.serve.connection_limits import ConnectionLimits
from leafbeam.serve.exposure import Exposure
from leafbeam.serve.keys import KeyFile
from leafbeam.text.settings import TextSettings

if TYPE_CHECKING:
    from leafbeam.serve.observation import Observation

LogRequests = Literal["off", "on", "histories"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """All settings of a server, as `leafbeam serve --config` reads them.

    Args:
        run: The run directory; `runs/shop`, or none with text_model alone.
        text_model: A Qwen3 directory to serve texts of, beside the run or alone.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        device: Device of the model: cpu, cuda, cuda:1 and so on.
        verify: False trusts the index: damage gives wrong items or a crash.
        learn: Count interactions of POST /v1/interactions.
        changes: Who may change the catalog of a server without keys: programs on this machine (auto), everyone (on),
            or none (off).
        refresh: Interval of rules that name none, such as 60s. Without one they are evaluated again at SIGHUP.
        rule_timeout_s: Seconds of one evaluation of a rule, at most.
        keys: A file of keys (`leafbeam keys`), of which clients then need one.
        key_rate: Requests a second of keys that name no rate; more get 429.
        http_workers: Processes for HTTP; 0: the engine's own.
        max_body_bytes: Bytes of a request's body; more get 413.
        max_batch_bytes: Bytes of a batch of items; more get 413.
        max_body_s: Seconds until a body is there; then 408.
        answer_s: A request without an answer after so many seconds gets 503, whatever its deadline.
        grace_s: Seconds in which running requests are answered at SIGTERM.
        log_format: Lines of the log.
        log_requests: A line for each request: on; histories, with user and history.
        traces: Address of an OTLP collector for OpenTelemetry traces; by default that of OTEL_EXPORTER_OTLP_ENDPOINT.
        rules: Rules beside those of the run, by name, in SQL; "NAME@60s" has an interval.
        engine: Batches, beams, threads and memory.
        limits: Upper bounds of one request.
        connections: What one client may send and hold open.
        exposure: TLS, pages of other sites, other machines.
        texts: How texts are served.

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
    changes: Literal["auto", "on", "off"] = "auto"
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
    texts: TextSettings = field(default_factory=TextSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ArgumentError(f"port must be from 0 (any free port) to 65535, not {self.port}")
        if self.key_rate is not None and self.keys is None:
            raise ArgumentError("key_rate goes with keys: it is the rate of each key")
        for name in ("max_body_bytes", "max_batch_bytes", "max_body_s", "answer_s"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be above 0, not {getattr(self, name)!r}")
        if not self.grace_s >= 0:
            raise ArgumentError(f"grace_s must be 0 or more seconds, not {self.grace_s!r}")

    def key_file(self) -> KeyFile | None:
        """Return the clients' keys. Raises what `KeyFile` raises."""
        return None if self.keys is None else KeyFile(self.keys, rate=self.key_rate)

    def observation(self) -> "Observation":
        """Return which requests are logged and traced."""
        from leafbeam.serve.observation import Observation, traces_from_environment

        tracer = None
        if self.traces is not None or traces_from_environment():
            from leafbeam.serve.traces import Traces  # needs the extra

            tracer = Traces.to(self.traces)
        return Observation(log=self.log_requests, traces=tracer)
