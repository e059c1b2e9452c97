"""What the server counts, in the words of Prometheus."""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leafbeam.catalog import Catalog, LoadReport
from leafbeam.engine import Engine, Result, name_of

GONE = 499  # nobody waits for the answer any more (nginx's number)

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
# Of the engine's counts: the label and what is counted.
_KINDS = {
    "refused": ("reason", "Requests refused before they waited"),
    "shed": ("reason", "Requests given up while they waited or ran"),
    "cancelled": ("while", "Requests that nobody waits for any more"),
    "failed": ("reason", "Requests whose batch failed"),
    "answered": ("when", "Requests answered, by their deadline"),
    "batches": ("closed", "Batches, by what closed them"),
    "graphs": ("how", "Batches that a captured graph ran, and why others were run without one"),
    "batch_faults": ("kind", "What went wrong with batches"),
}
_STAGES = ("prepare", "queue", "prefill", "rounds", "constrain", "postprocess", "total")


class Metrics:
    """Counters of one server, with a registry of their own; the engine's state is read when somebody looks.

    >>> metrics.observe("ok", 0.012); metrics.page()     # doctest: +SKIP
    """

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_State(engine))
        self._requests = Counter(
            "leafbeam_requests", "Requests for recommendations by outcome", ["outcome"], registry=self._registry
        )
        self._latency = Histogram(
            "leafbeam_request_seconds",
            "From body to answer, by outcome",
            ["outcome"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._stages = Histogram(
            "leafbeam_stage_seconds", "Time of answered requests by stage", ["stage"], buckets=_SECONDS, registry=self._registry
        )
        self._batch = Histogram(
            "leafbeam_batch_size", "Requests run together", buckets=(1, 2, 4, 8, 16, 32, 64, 128), registry=self._registry
        )
        self._items = Counter("leafbeam_items", "Items answered", registry=self._registry)
        self._short = Counter("leafbeam_short_answers", "Answers with fewer items than asked", registry=self._registry)
        self._reloads = Counter(
            "leafbeam_rule_reloads", "Reloads of the rules by outcome", ["outcome"], registry=self._registry
        )
        for outcome in ("ok", "refused", "overloaded", "unavailable", "cancelled", "failed"):
            self._requests.labels(outcome)
        self._stage = {stage: self._stages.labels(stage) for stage in _STAGES}
        for outcome in ("ok", "failed"):
            self._reloads.labels(outcome)

    def observe(self, status: int, seconds: float) -> None:
        """One request for recommendations was answered with an HTTP status, after some seconds."""
        special = {429: "overloaded", 503: "unavailable", GONE: "cancelled"}
        outcome = special.get(status) or {2: "ok", 4: "refused"}.get(status // 100, "failed")
        self._requests.labels(outcome).inc()
        self._latency.labels(outcome).observe(seconds)

    def observe_result(self, result: Result, num_items: int) -> None:
        """What a successful request went through; num_items is what it asked for."""
        for stage, seconds in self._stage.items():
            seconds.observe(getattr(result.timings, stage))
        self._batch.observe(result.batch_size)
        self._items.inc(result.num_valid)
        if result.num_valid < num_items:
            self._short.inc()

    def observe_reload(self, report: LoadReport) -> None:
        """The rules were loaded again."""
        self._reloads.labels("ok" if report.ok else "failed").inc()

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class Counted:
    """ASGI middleware: observes every request to one path, however it ends."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, path: str) -> None:
        self._app, self._metrics, self._path = app, metrics, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            self._metrics.observe(status, time.perf_counter() - began)


class _State(Collector):
    """Gauges that are looked up, not kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        yield from self._of_engine()
        yield from self._of_index()
        if self._engine.catalog is not None:
            yield from self._of_rules(self._engine.catalog)

    def _of_engine(self) -> Iterable[Metric]:
        engine = self._engine
        now, trouble, fit = engine.load_now, engine.trouble, engine.fit
        gauges = {
            "queue_length": ("Requests waiting", now.waiting),
            "queue_tokens": ("Prompt tokens waiting", now.waiting_tokens),
            "running_requests": ("Requests in batches that run", now.running),
            "running_tokens": ("Prompt tokens of batches that run, with their padding", now.running_tokens),
            "running_beam_rows": ("Beams of batches that run", now.running_beam_rows),
            "busy_workers": ("Workers that run a batch", now.busy_workers),
            "workers": ("Workers", engine.settings.workers),
            "ready": ("1 while requests are welcome", float(trouble is None)),
            "step_time_spread": ("95th percentile of a batch's actual over its expected time", fit.spread),
            "step_time_observed": ("Batches that the step-time model has seen", fit.observed),
        }
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(f"leafbeam_{name}", meaning, value=value)
        terms = GaugeMetricFamily("leafbeam_step_time_seconds", "What the step-time model has learnt, by term", labels=["term"])
        for term, seconds in fit.seconds.items():
            terms.add_metric([term], seconds)
        yield terms
        if (graphs := engine.graphs) is not None:
            yield GaugeMetricFamily("leafbeam_graphs_captured", "Captured graphs of all workers", value=graphs.captured)
            yield GaugeMetricFamily("leafbeam_graph_bytes", "Memory of captured graphs, the index aside", value=graphs.nbytes)
        if (store := engine.prompt_store) is not None:
            yield GaugeMetricFamily("leafbeam_prompt_store_bytes", "Keys and values of prompts seen lately", value=store.nbytes)
            yield CounterMetricFamily("leafbeam_prompt_store_hits", "Prompts whose beginning was known", value=store.hits)
            yield CounterMetricFamily("leafbeam_prompt_store_misses", "Prompts that were read whole", value=store.misses)
            yield CounterMetricFamily("leafbeam_prompt_store_tokens", "Tokens that need not be read", value=store.tokens_saved)
        for kind, (label, meaning) in _KINDS.items():
            counter = CounterMetricFamily(f"leafbeam_{kind}", meaning, labels=[label])
            for reason, number in engine.counts.of(kind).items():
                counter.add_metric([reason], number)
            yield counter

    def _of_index(self) -> Iterable[Metric]:
        version = self._engine.version
        yield GaugeMetricFamily("leafbeam_index_items", "Items of the index", value=len(version))
        yield GaugeMetricFamily("leafbeam_index_changes", "Changes of items since the first version", value=version.number)
        yield InfoMetricFamily("leafbeam_index", "The index that answers", value={"version": name_of(version)})

    def _of_rules(self, catalog: Catalog) -> Iterable[Metric]:
        rules = catalog.rules
        yield GaugeMetricFamily("leafbeam_rules_generation", "Loads that changed the rules", value=rules.generation)
        yield GaugeMetricFamily(
            "leafbeam_items_not_in_index", "Items of the catalog unknown to the index", value=rules.report.not_in_index
        )
        yield GaugeMetricFamily(
            "leafbeam_items_not_in_catalog", "Items of the index unknown to the catalog", value=rules.report.not_in_catalog
        )
        allowed = GaugeMetricFamily("leafbeam_rule_items", "Items that a rule allows", labels=["rule"])
        stale = GaugeMetricFamily(
            "leafbeam_rule_failed", "1 if the rule could not be evaluated when it was last tried", labels=["rule"]
        )
        age = GaugeMetricFamily(
            "leafbeam_rule_age_seconds", "Since the rule was last evaluated over all items", labels=["rule"]
        )
        for report in rules.report.rules:
            allowed.add_metric([report.name], report.num_items)
            stale.add_metric([report.name], float(report.error is not None))
        for status in catalog.status:
            if status.age_s is not None:
                age.add_metric([status.name], status.age_s)
        yield allowed
        yield stale
        yield age
