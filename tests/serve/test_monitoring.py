"""The dashboard and the alerts ask for metrics, labels and values that a real server exposes, and leave none out."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggregateExpr, BinaryExpr, Call, MatrixSelector, VectorSelector
from starlette.testclient import TestClient

from leafbeam.engine import Settings
from leafbeam.serve import create_app
from leafbeam.text import TextService
from tests.text.conftest import save_model

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/leafbeam.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
PAGE = (ROOT / "docs/reference/metrics-and-errors.md").read_text(encoding="utf-8")
# Without a GPU a server has no graphs, and so no metrics of their memory.
OF_A_GPU = {"leafbeam_graphs_captured": {}, "leafbeam_graph_bytes": {}}
# A server whose items follow a source has these too (tests/feeds/test_catalog_source.py).
OF_A_SOURCE = {"leafbeam_feed_lag_seconds": {}, "leafbeam_feed_failing": {}}
OF_PROMETHEUS = {"instance", "job"}  # labels that Prometheus adds
Labels = dict[str, set[str]]


@pytest.fixture(scope="module")
def exposed(first_shop: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Labels]:
    """The series of servers of items and of texts: their names, labels and the labels' values."""
    series: dict[str, Labels] = {name: dict(labels) for name, labels in (OF_A_GPU | OF_A_SOURCE).items()}
    engine = first_shop.engine(settings=Settings(prompt_store_mb=1))
    engine.catalog.add_boost("margin", "price / 10")
    with TestClient(create_app(engine)) as client:
        assert client.post("/v1/recommend", json={"rules": ["cheap"]}).status_code == 200
        assert client.post("/v1/completions", json={"model": "items", "prompt": ""}).status_code == 200
        page = client.get("/metrics").text
    text = TextService.load(save_model(tmp_path_factory.mktemp("text") / "words"))
    page += TestClient(create_app(None, text=text)).get("/metrics").text  # not started: its metrics are there
    text.compiler.close()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = series.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return series


def dashboard_expressions() -> list[tuple[str, str]]:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]


EXPRESSIONS = [*dashboard_expressions(), *((rule["alert"], rule["expr"]) for rule in ALERTS)]


def parsed(expression: str) -> Any:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m").replace("$instance", ".*"))


def nodes(expression: Any) -> Iterator[Any]:
    """All parts of an expression, itself first."""
    yield expression
    parts = [getattr(expression, name, None) for name in ("lhs", "rhs", "expr", "vector_selector", "param")]
    for part in [*parts, *(expression.args if isinstance(expression, Call) else ())]:
        if part is not None and not isinstance(part, str):
            yield from nodes(part)


@dataclass(frozen=True, kw_only=True)
class Series:
    """What a selector asks for. matchers: (label, value) pairs."""

    name: str
    matchers: list[tuple[str, str]]


def selectors(expression: str) -> list[Series]:
    found = [node for node in nodes(parsed(expression)) if isinstance(node, VectorSelector)]
    return [Series(name=str(node.name), matchers=[(one.name, one.value) for one in node.matchers.matchers]) for node in found]


def grouped_by(expression: str) -> set[str]:
    modifiers = [node.modifier for node in nodes(parsed(expression)) if isinstance(node, AggregateExpr | BinaryExpr)]
    return {label for modifier in modifiers if modifier is not None for label in getattr(modifier, "labels", None) or ()}


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_an_expression_asks_for_series_that_the_server_exposes(title: str, expression: str, exposed: dict[str, Labels]) -> None:
    found = selectors(expression)
    assert found
    labels_of_all: set[str] = set()
    for selector in found:
        if selector.name == "up":  # Prometheus' own
            continue
        assert selector.name in exposed, f"{title}: no server exposes {selector.name}"
        labels = exposed[selector.name]
        labels_of_all |= set(labels)
        for label, pattern in selector.matchers:
            if label in OF_PROMETHEUS:
                continue
            assert label in labels, f"{title}: {selector.name} has no label {label}"
            for value in pattern.split("|"):
                assert value in labels[label], f"{title}: {selector.name} has no {label}={value!r}"
    assert grouped_by(expression) <= labels_of_all | OF_PROMETHEUS, title


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_rates_are_of_counters_and_values_of_gauges(title: str, expression: str) -> None:
    """Their names tell them apart: `_total`, `_sum`, `_count` and `_bucket` are counters, and two counts of the engine."""
    counters = re.compile(r".*_(total|sum|count|bucket)|leafbeam_(index_changes|step_time_observed)")
    of_rates = {node.vector_selector.name for node in nodes(parsed(expression)) if isinstance(node, MatrixSelector)}
    for selector in selectors(expression):
        assert bool(counters.fullmatch(selector.name)) == (selector.name in of_rates), f"{title}: {selector.name}"


def test_an_expression_that_names_what_does_not_exist_is_found(exposed: dict[str, Labels]) -> None:
    for expression in (
        "leafbeam_no_such_metric",
        'rate(leafbeam_requests_total{result="ok"}[5m])',
        'rate(leafbeam_requests_total{outcome="fine"}[5m])',
        "sum by (reason) (rate(leafbeam_requests_total[5m]))",
    ):
        with pytest.raises(AssertionError):
            test_an_expression_asks_for_series_that_the_server_exposes("wrong", expression, exposed)
    with pytest.raises(ValueError, match=r".+"):
        parsed("sum(rate(leafbeam_requests_total[5m])")


def test_the_dashboard_shows_every_metric_of_the_page(exposed: dict[str, Labels]) -> None:
    table = PAGE.split("## Metrics")[1].split("## Rejections")[0]
    names = re.findall(r"`(\w+?)(?:\{\w+\})?`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    assert len(names) > 40
    shown = {selector.name for _, expression in dashboard_expressions() for selector in selectors(expression)}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in names else name for name in shown}
    assert sorted({f"leafbeam_{name}" for name in names} - shown) == []
    of_server = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed if not name.endswith("_created")}
    assert sorted(name for name in of_server if name.removeprefix("leafbeam_") not in names) == []


def test_legends_and_texts_name_labels_of_their_expressions(exposed: dict[str, Labels]) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            named = [set(exposed[selector.name]) for selector in selectors(target["expr"])]
            kept = grouped_by(target["expr"]) or set().union(*named) | OF_PROMETHEUS
            assert labels <= kept, panel["title"]
    for rule in ALERTS:
        labels = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        named = [set(exposed.get(selector.name, ())) for selector in selectors(rule["expr"])]
        assert labels <= (grouped_by(rule["expr"]) or set().union(*named) | OF_PROMETHEUS), rule["alert"]


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 10
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "action"}
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "0m")), rule["alert"]


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells |= mine


def test_grafana_and_prometheus_are_told_of_the_same_names() -> None:
    datasource = yaml.safe_load((ROOT / "deploy/grafana/datasources.yaml").read_text(encoding="utf-8"))["datasources"][0]
    used = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if "datasource" in panel}
    used |= {variable["datasource"]["uid"] for variable in DASHBOARD["templating"]["list"]}
    assert used == {datasource["uid"]}
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert set(re.findall(r'job="(\w+)"', " ".join(rule["expr"] for rule in ALERTS))) <= jobs
    assert all((ROOT / "deploy/prometheus" / name).exists() for name in config["rule_files"])
