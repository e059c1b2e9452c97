"""Readings of a server's metrics, and the rates between two readings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from leafbeam.errors import ArgumentError, DataError
from leafbeam.extras import optional_imports

with optional_imports("metrics of a server", "client"):
    from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
_REFUSALS = ("refused", "shed", "access_refused", "connections_refused")  # counters by reason


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The metrics of a server at one moment. `at` is the reader's clock in seconds; `samples` are values by name and labels."""

    at: float
    samples: Mapping[str, Mapping[Labels, float]] = field(repr=False)

    @classmethod
    def parse(cls, text: str, at: float) -> "Reading":
        """Return a reading of text in Prometheus' format. Raises DataError."""
        samples: dict[str, dict[Labels, float]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # the parser has no error of its own
            raise DataError(f"these are not metrics in Prometheus' format: {str(error)[:100]!r}") from None
        if not any(name.startswith("leafbeam_") for name in samples):
            raise DataError("these metrics are not those of a leafbeam server: expected names that begin with leafbeam_")
        return cls(at=at, samples=samples)

    def series(self, name: str, label: str = "", **labels: str) -> dict[str, float]:
        """Add up the series of a metric that have these labels, and return the sums by one label ("" for series without it)."""
        values: dict[str, float] = {}
        for have, value in self.samples.get(f"leafbeam_{name}", {}).items():
            if have >= labels.items():
                key = dict(have).get(label, "")
                values[key] = values.get(key, 0.0) + value
        return values

    def value(self, name: str) -> float:
        """Return the value of a metric, over all of its labels; 0 if the server has none."""
        return sum(self.series(name).values())

    @property
    def index_version(self) -> str:
        return next((dict(labels).get("version", "") for labels in self.samples.get("leafbeam_index_info", {})), "")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rates of a server between two readings. `refusals` are per second, by reason. Quantiles are None if there
    were no requests.
    """

    seconds: float
    requests_per_s: float
    failures_per_s: float
    p50_s: float | None
    p99_s: float | None
    batch_size: float | None
    refusals_per_s: Mapping[str, float]
    changes_per_s: float
    now: Reading

    @classmethod
    def between(cls, before: Reading, after: Reading) -> "Rates":
        """Return the rates between two readings. A counter that fell shows that the server was restarted; it counts from 0."""
        seconds = after.at - before.at
        if not seconds > 0:
            raise ArgumentError(f"the second reading must come after the first, not {-seconds:g} s before it")

        def grown(name: str, label: str = "", **labels: str) -> dict[str, float]:
            then = before.series(name, label, **labels)
            return {
                key: value - then.get(key, 0.0) if value >= then.get(key, 0.0) else value
                for key, value in after.series(name, label, **labels).items()
            }

        refusals = {
            reason: count / seconds
            for name in _REFUSALS
            for reason, count in grown(f"{name}_total", "reason").items()
            if count > 0
        }
        outcomes, batches = grown("requests_total", "outcome"), sum(grown("batch_size_count").values())
        buckets = grown("request_seconds_bucket", "le", outcome="ok")
        return cls(
            seconds=seconds,
            requests_per_s=sum(outcomes.values()) / seconds,
            failures_per_s=outcomes.get("failed", 0.0) / seconds,
            p50_s=quantile(buckets, 0.5),
            p99_s=quantile(buckets, 0.99),
            batch_size=sum(grown("batch_size_sum").values()) / batches if batches else None,
            refusals_per_s=refusals,
            changes_per_s=sum(grown("index_changes").values()) / seconds,
            now=after,
        )


def quantile(buckets: Mapping[str, float], share: float) -> float | None:
    """Return a quantile of a histogram whose buckets count all values up to their bound; None if it is empty.

    Between two bounds values count as evenly spread; beyond the last finite bound, that bound is returned (as Prometheus'
    `histogram_quantile` does).

    >>> quantile({"0.1": 50, "0.2": 100, "+Inf": 100}, 0.75)
    0.15
    """
    bounds = sorted((float(bound), count) for bound, count in buckets.items())
    total = max((count for _, count in bounds), default=0.0)
    if not total > 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in bounds:
        if count >= share * total:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (share * total - below) / (count - below) if count > below else bound
        low, below = bound, count
    return low
