"""The metrics of a server, in Prometheus' format."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from leafbeam.catalog import Catalog, LoadReport
from leafbeam.engine import COUNTERS, Engine, Result
from leafbeam.ingest import Source
from leafbeam.serve.errors import CLIENT_CLOSED_REQUEST
from leafbeam.text import TextService
from leafbeam.text.worker import Texts

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_STAGES = ("prepare", "queue", "prefill", "rounds", "constrain", "postprocess", "total")


class Metrics:
    """The metrics of one server, with a registry of their own. The engine's and the texts' state is read when a page is made.

    num_http_workers: returns the number of HTTP workers that are running. unready_reason: returns what /readyz gives as the
    reason, or None.

    >>> metrics.observe(200, 0.012); metrics.page()     # doctest: +SKIP
    """

    def __init__(self, engine: Engine | None, text: TextService | None = None) -> None:
        registry = self._registry = CollectorRegistry()
        if engine is not None:
            registry.register(_EngineCollector(engine))
        if text is not None:
            registry.register(_TextCollector(text))
        self._requests = Counter("leafbeam_requests", "Requests for recommendations", ["outcome"], registry=registry)
        self._latency = Histogram(
            "leafbeam_request_seconds", "From body to answer", ["outcome"], buckets=_SECONDS, registry=registry
        )
        stages = Histogram(
            "leafbeam_stage_seconds", "Seconds of answered requests by stage", ["stage"], buckets=_SECONDS, registry=registry
        )
        self._batch = Histogram(
            "leafbeam_batch_size", "Requests run together", buckets=(1, 2, 4, 8, 16, 32, 64, 128), registry=registry
        )
        self._rows = Counter("leafbeam_rows", "Rows that the model computed for answered requests", registry=registry)
        self._searches = Counter(
            "leafbeam_searches", "Searches, by whether the answer is proved to be the best", ["exact"], registry=registry
        )
        self._items = Counter("leafbeam_items", "Items returned", registry=registry)
        self._short = Counter("leafbeam_short_answers", "Answers with fewer items than requested", registry=registry)
        self._reloads = Counter("leafbeam_rule_reloads", "Reloads of the rules", ["outcome"], registry=registry)
        self.model_loads = Counter("leafbeam_model_loads", "Loads of a model while serving", ["outcome"], registry=registry)
        self._connections = Counter(
            "leafbeam_connections_refused", "Connections closed before a complete request", ["reason"], registry=registry
        )
        self._access = Counter(
            "leafbeam_access_refused", "Requests refused before they were read", ["reason"], registry=registry
        )
        self.unready_reason: Callable[[], str | None] = lambda: None
        ready = Gauge("leafbeam_ready", "1 while /readyz answers 200", registry=registry)
        ready.set_function(lambda: float(self.unready_reason() is None))
        self.num_http_workers: Callable[[], int] = lambda: 0
        http_workers = Gauge("leafbeam_http_workers", "HTTP processes that accept connections", registry=registry)
        http_workers.set_function(lambda: self.num_http_workers())
        self.http_worker_restarts = Counter(
            "leafbeam_http_worker_restarts", "HTTP processes started in place of one that ended", registry=registry
        )
        self._completions = Counter(
            "leafbeam_completions", "Requests of the routes for OpenAI's clients", ["outcome"], registry=registry
        )
        self._completion_latency = Histogram(
            "leafbeam_completion_seconds", "From body to answer, or to a stream's first piece", ["outcome"], buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.text_tokens = Counter("leafbeam_text_tokens", "Tokens of generated texts", registry=registry)
        self._stages = {stage: stages.labels(stage) for stage in _STAGES}
        # A label is reported as 0 before its first event.
        for outcome in ("ok", "refused", "overloaded", "unavailable", "cancelled", "failed"):
            self._requests.labels(outcome)
            self._completions.labels(outcome)
        for outcome in ("ok", "failed"):
            self._reloads.labels(outcome)
            self.model_loads.labels(outcome)
        for reason in ("unauthorized", "forbidden", "key_rate"):
            self._access.labels(reason)
        for reason in ("connections", "headers_too_long", "headers_too_slow", "not_http", "silent", "small_chunks"):
            self._connections.labels(reason)

    def observe(self, status: int, seconds: float) -> None:
        """Count a request for recommendations by the HTTP status of its answer."""
        outcome = _outcome_of(status)
        self._requests.labels(outcome).inc()
        self._latency.labels(outcome).observe(seconds)

    def observe_completion(self, status: int, seconds: float) -> None:
        """Count a request of the routes for OpenAI's clients by the status of its answer."""
        outcome = _outcome_of(status)
        self._completions.labels(outcome).inc()
        self._completion_latency.labels(outcome).observe(seconds)

    def observe_result(self, result: Result, num_items: int) -> None:
        """Count the stages and items of an answered request, which asked for `num_items`."""
        for stage, histogram in self._stages.items():
            histogram.observe(getattr(result.timings, stage))
        self._batch.observe(result.batch_size)
        if result.num_beams:
            self._rows.inc(result.rows)
            self._searches.labels("yes" if result.exact else "no").inc()
        self._items.inc(result.num_valid)
        if result.num_valid < num_items:
            self._short.inc()

    def observe_reload(self, report: LoadReport) -> None:
        """Count a reload of the rules."""
        self._reloads.labels("ok" if report.ok else "failed").inc()

    def observe_refused_connection(self, reason: str) -> None:
        """Count a connection that was closed before a complete request."""
        self._connections.labels(reason).inc()

    def observe_refused_access(self, reason: str) -> None:
        """Count a request without a key that may do it, or beyond its key's rate."""
        self._access.labels(reason).inc()

    def show_source(self, source: Source) -> None:
        """Report the lag behind the source that the items follow."""
        lag = Gauge(
            "leafbeam_feed_lag_seconds",
            "Age of the oldest change of the followed source that may be missing; NaN before the first look",
            registry=self._registry,
        )
        lag.set_function(lambda: float("nan") if (lag_s := source.status.lag_s) is None else lag_s)
        failing = Gauge(
            "leafbeam_feed_failing", "Whether following the source stopped, and is tried again", registry=self._registry
        )
        failing.set_function(lambda: float(source.status.error is not None))

    def page(self) -> bytes:
        """Return all metrics as text for Prometheus."""
        return generate_latest(self._registry)


def num_tokens(texts: Texts) -> int:
    """Return the tokens of some texts, their ends included."""
    return sum(len(text.tokens) + text.finished for generations in texts for text in generations)


def _outcome_of(status: int) -> str:
    special = {429: "overloaded", 503: "unavailable", CLIENT_CLOSED_REQUEST: "cancelled"}
    return special.get(status) or {2: "ok", 4: "refused"}.get(status // 100, "failed")


class _TextCollector(Collector):
    """Metrics read from the worker of texts when a page is made."""

    def __init__(self, text: TextService) -> None:
        self._worker = text.worker

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("leafbeam_text_queue_length", "Requests for texts that wait", value=self._worker.num_waiting)
        yield GaugeMetricFamily("leafbeam_text_running", "Requests for texts that run", value=self._worker.num_running)


class _EngineCollector(Collector):
    """Metrics read from the engine when a page is made."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        for name, help, value in self._gauges():
            yield GaugeMetricFamily(f"leafbeam_{name}", help, value=value)
        terms = GaugeMetricFamily("leafbeam_step_time_seconds", "Coefficients of the latency model", labels=["term"])
        for term, seconds in self._engine.scheduler.latency_fit.seconds.items():
            terms.add_metric([term], seconds)
        yield terms
        if (store := self._engine.prompt_store) is not None:
            yield CounterMetricFamily("leafbeam_prompt_store_hits", "Prompts found in part in the store", value=store.hits)
            yield CounterMetricFamily("leafbeam_prompt_store_misses", "Prompts not found in the store", value=store.misses)
            yield CounterMetricFamily("leafbeam_prompt_store_tokens", "Prompt tokens reused", value=store.tokens_saved)
        for name, counter in COUNTERS.items():
            family = CounterMetricFamily(f"leafbeam_{name}", counter.help, labels=[counter.label])
            for reason, number in self._engine.counts.of(name).items():
                family.add_metric([reason], number)
            yield family
        yield InfoMetricFamily("leafbeam_index", "The index", value={"version": self._engine.version.name})
        yield InfoMetricFamily("leafbeam_model", "The model", value={"version": self._engine.model_version or ""})
        if self._engine.catalog is not None:
            yield from _rule_metrics(self._engine.catalog)

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        engine, version = self._engine, self._engine.version
        load, fit = engine.scheduler.load, engine.scheduler.latency_fit
        yield "queue_length", "Requests waiting", load.waiting
        yield "queue_tokens", "Prompt tokens waiting", load.waiting_tokens
        yield "running_requests", "Requests in running batches", load.running
        yield "running_tokens", "Prompt tokens in running batches, with padding", load.running_tokens
        yield "running_beam_rows", "Beams in running batches", load.running_beam_rows
        yield "busy_workers", "Workers that run a batch", load.busy_workers
        yield "workers", "Workers", engine.settings.workers
        yield "step_time_spread", "95th percentile of a batch's actual over its expected seconds", fit.spread
        yield "step_time_observed", "Batches that the latency model has observed", fit.observed
        yield "index_items", "Items of the index", len(version)
        yield "index_changes", "Changes of items since the first version", version.number
        if (graphs := engine.graphs) is not None:
            yield "graphs_captured", "Captured graphs of all workers", graphs.captured
            yield "graph_bytes", "Memory of captured graphs, without the index", graphs.nbytes
        if (store := engine.prompt_store) is not None:
            yield "prompt_store_bytes", "Keys and values of recent prompts", store.nbytes
        if (catalog := engine.catalog) is not None:
            report = catalog.rules.report
            yield "rules_generation", "Loads that changed the rules", catalog.rules.generation
            yield "items_not_in_index", "Items of the catalog unknown to the index", report.not_in_index
            yield "items_not_in_catalog", "Items of the index unknown to the catalog", report.not_in_catalog


def _rule_metrics(catalog: Catalog) -> Iterable[Metric]:
    """Yield the metrics of rules, and those of boosts."""
    version = catalog.rules.definitions_version
    yield InfoMetricFamily("leafbeam_rules", "The definitions of rules and boosts", value={"version": version})
    for kind, items in (("rule", "Items that a rule allows"), ("boost", "Items for which a boost is not 0")):
        selected = GaugeMetricFamily(f"leafbeam_{kind}_items", items, labels=[kind])
        failed = GaugeMetricFamily(f"leafbeam_{kind}_failed", f"1 if the {kind}'s last evaluation failed", labels=[kind])
        age = GaugeMetricFamily(f"leafbeam_{kind}_age_seconds", f"Seconds since the {kind}'s last evaluation", labels=[kind])
        for status in catalog.rules.report.rules:
            if status.kind == kind:
                selected.add_metric([status.name], status.num_items)
                failed.add_metric([status.name], float(status.error is not None))
        for status in catalog.status:
            if status.kind == kind and status.age_s is not None:
                age.add_metric([status.name], status.age_s)
        yield from (selected, failed, age)
