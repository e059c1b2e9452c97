"""Traces of requests for OpenTelemetry: a span for each, and one for each of its stages."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from leafbeam.errors import ArgumentError
from leafbeam.extras import optional_imports
from leafbeam.serve.observation import Answered, Exchange

with optional_imports("a server with traces", "otel"):
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_CLOSE_S = 5.0


class Traces:
    """The spans of a server's requests, which a thread of their own exports in batches.

    A span continues the trace of the request's `traceparent`. Its attributes are the route, the status, the request's id and
    counts, but never a history, a user, an item or a key. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and
    OTEL_BSP_* are read as OpenTelemetry specifies them. `Traces.to` makes them for a collector.

    Args:
        exporter: Sends the spans.

    Examples:
        >>> create_app(engine, observation=Observation(traces=Traces.to("http://localhost:4318")))     # doctest: +SKIP
    """

    def __init__(self, exporter: SpanExporter) -> None:
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "leafbeam"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("leafbeam")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str | None) -> "Traces":
        """Return traces for a collector that takes OTLP over HTTP; the first export connects to it.

        Args:
            endpoint: The collector's address; if it has no path, `/v1/traces` is added. None takes the environment variable
                OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT.

        Raises:
            ArgumentError: If the address is invalid.
            MissingExtraError: If OpenTelemetry is not installed.
        """
        return cls(OTLPSpanExporter(endpoint=None if endpoint is None else _traces_url(endpoint)))

    def start(self, scope: Scope) -> Span:
        """Return the span of a request that begins now."""
        context = self._propagator.extract(dict(Headers(scope=scope)))
        return self._tracer.start_span("request", context, SpanKind.SERVER)

    def end(self, span: Span, exchange: Exchange) -> None:
        """End a request's span, with the stages of its answer."""
        if span.is_recording():  # it is sampled
            span.update_name(f"{exchange.method} {exchange.route}")
            span.set_attributes(
                {
                    "http.request.method": exchange.method,
                    "http.route": exchange.route,
                    "http.response.status_code": exchange.status,
                    "leafbeam.request_id": exchange.request_id,
                }
            )
            if exchange.status >= 500:
                span.set_status(StatusCode.ERROR)
                span.set_attribute("error.type", str(exchange.status))
            if exchange.answered is not None:
                self._end_stages(span, exchange.answered)
        span.end()

    def close(self) -> None:
        """Export the remaining spans, for up to five seconds, and end the thread."""
        self._provider.force_flush(int(1e3 * _CLOSE_S))
        self._provider.shutdown()

    def _end_stages(self, span: Span, answered: Answered) -> None:
        request, result, timings = answered.request, answered.result, answered.result.timings
        span.set_attributes(
            {
                "leafbeam.index_version": result.index_version,
                "leafbeam.channel": result.channel,
                "leafbeam.num_history": len(request.history),
                "leafbeam.num_rules": len(request.rules),
                "leafbeam.num_beams": result.num_beams,
                "leafbeam.num_items": request.num_items,
                "leafbeam.num_valid": result.num_valid,
                "leafbeam.batch_size": result.batch_size,
            }
        )
        # Forward passes and choices of codes alternate: the search is one span, with the sums of both as attributes.
        search = {"prefill": timings.prefill, "rounds": timings.rounds, "constrain": timings.constrain}
        stages = {"prepare": timings.prepare, "queue": timings.queue, "search": sum(search.values())}
        at, parent = answered.arrived_ns, set_span_in_context(span)
        for name, seconds in {**stages, "postprocess": timings.postprocess}.items():
            attributes = {f"leafbeam.{part}_s": value for part, value in search.items()} if name == "search" else None
            stage = self._tracer.start_span(name, parent, attributes=attributes, start_time=at)
            at += int(1e9 * max(0.0, seconds))
            stage.end(at)


def _traces_url(endpoint: str) -> str:
    problem = ArgumentError(f"{endpoint!r} is not an address of a collector: expected one such as http://localhost:4318")
    try:
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
            raise problem
    except ValueError:
        raise problem from None
    return f"{endpoint.rstrip('/')}/v1/traces" if url.path in ("", "/") and not url.query else endpoint
