"""An engine on a device captures by default and answers as the eager path and the CPU do.

The device is a stand-in: buffers, filters and versions are handled as on a GPU, and a replay runs the decode again.
"""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from benchmarks.serving.torch_index import RunAgain
from leafbeam import BeamSearch
from leafbeam.catalog import Catalog
from leafbeam.engine import Engine, Limits, Request, Result, Settings
from leafbeam.engine.graphs.graph import Graphs, graphs_for
from leafbeam.engine.graphs.static_decode import BatchInputs, DeviceIndex, StaticDecode
from leafbeam.engine.search_widths import SearchKind
from leafbeam.errors import ArgumentError
from leafbeam.index import ItemColumn
from leafbeam.model import load_model
from leafbeam.ops.attention import triton as attention_kernels
from leafbeam.serve import create_app
from tests.fixtures.captured import PATIENCE, graphs_with, same, settings
from tests.fixtures.live_catalog import opened
from tests.fixtures.shops import small_model
from tests.fixtures.static_runs import new_encoder_decoder
from tests.waiting import busy

TYPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a rule": {"rules": ("cheap",)},
    "an expression": {"filter": "(cheap | rare) & in_stock"},
    "no item": {"rules": ("none",)},
    "denied items": {"deny_item_ids": ("é7", "é8", "é9"), "rules": ("in_stock",)},
    "explained": {"explain": True, "rules": ("cheap",)},
    "beams of its own": {"num_beams": 12},
    "many items": {"num_items": 40},
    "boosts": {"boosts": {"margin": 0.7}, "rules": ("cheap",)},
    "a negative weight": {"boosts": {"margin": -0.5, "few": 0.25}},
    "beams of its own and boosts": {"num_beams": 12, "boosts": {"few": 1.0}},
}
LISTS: dict[str, dict[str, Any]] = {
    "a cap": {"at_most": {"price": 1}},
    "a cap and denied items": {"at_most": {"stock": 2}, "deny_item_ids": ("é7", "é8")},
    "a quota": {"at_least": {"rare": 2}},
    "boosts, a cap and a quota": {"boosts": {"margin": 1.0}, "at_most": {"price": 1}, "at_least": {"rare": 1}},
}


@pytest.fixture(scope="module", autouse=True)
def boosts(catalog: Catalog) -> Generator[None]:
    catalog.add_boost("margin", "price / 20")
    catalog.add_boost("few", "CASE WHEN stock = 0 THEN 3 ELSE 0 END")
    yield
    catalog.remove_boost("margin")
    catalog.remove_boost("few")


@pytest.fixture(scope="module")
def captured(shop: Any, catalog: Catalog) -> Generator[Engine]:
    with Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with()) as engine:
        yield engine


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("kind", TYPES)
def test_captured_eager_and_cpu_give_equal_answers(
    shop: Any, catalog: Catalog, captured: Engine, kind: str, scoring: Any
) -> None:
    fields = {"num_items": 5, "scoring": scoring} | TYPES[kind]
    requests = [Request(history=tuple(f"é{i}" for i in range(count)), **fields) for count in (0, 3, 9)]
    before = captured.counts.of("graphs")["replayed"]
    found = [future.result(PATIENCE) for future in [captured.submit(request) for request in requests]]
    is_replayed = kind != "explained" and not kind.startswith("beams of its own")
    assert (captured.counts.of("graphs")["replayed"] > before) == is_replayed
    on_cpu = Engine(shop.model, catalog, settings=settings()).recommend(requests)
    for request, result, expected in zip(requests, found, on_cpu, strict=True):
        same(result, expected)
        eager = eagerly(shop, catalog, request)
        assert result.item_ids == tuple(eager.item_ids[0].tolist())
        np.testing.assert_allclose(result.scores, eager.scores[0, : len(result.scores)], atol=5e-5)


@pytest.mark.parametrize("kind", LISTS)
def test_caps_and_quotas_are_filled_from_captured_searches_and_give_equal_answers(
    shop: Any, catalog: Catalog, captured: Engine, kind: str
) -> None:
    requests = [Request(history=tuple(f"é{i}" for i in range(count)), num_items=5, **LISTS[kind]) for count in (0, 3, 9)]
    before, model = captured.counts.of("graphs"), type(shop.model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "start", None)  # the model never runs eagerly
        found = [future.result(PATIENCE) for future in [captured.submit(request) for request in requests]]
    after = captured.counts.of("graphs")
    assert after["replayed"] > before["replayed"]
    assert sum(after.values()) - after["replayed"] == sum(before.values()) - before["replayed"]
    for result, expected in zip(found, Engine(shop.model, catalog, settings=settings()).recommend(requests), strict=True):
        same(result, expected)
        assert result.unmet == expected.unmet


def eagerly(shop: Any, catalog: Catalog, request: Request) -> Any:
    """Return the answers of a device without graphs: the fixed shapes of torch, one step after the other."""
    rules = catalog.rules
    allowed = rules.filter(request.filter or request.rules)
    version = rules.version
    segment_n, row_n = version.locate(list(request.history))
    tokens, lengths = shop.model.vocabulary.prompts(
        [version.codes_at(segment_n, row_n)] if len(row_n) else [np.empty((0, 3), np.int64)]
    )
    session = shop.model.start(torch.from_numpy(tokens), torch.from_numpy(lengths))
    beams: dict[str, Any] = (
        {"num_beams": request.num_beams} if request.num_beams else {"num_items": request.num_items, "max_rows": 128}
    )
    deny = [*request.deny_item_ids, *request.history]
    search = BeamSearch(version, scoring=request.scoring, backend="torch", **beams)
    columns = [rules.boost(name).scaled(weight) for name, weight in request.boosts.items()]
    boost = reduce(ItemColumn.plus, columns) if columns else None
    result = search.run(session.step_fn, filters=allowed, deny=[deny], boosts=boost)
    kept = slice(0, request.num_items)
    result.item_ids[0] = result.item_ids[0][kept]
    return result


def test_a_proof_goes_on_with_a_wider_graph_and_never_runs_the_model_eagerly(
    shop: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "captured_widths", (3, 128))
    monkeypatch.setattr(SearchKind, "guess", 2)
    requests = [Request(history=("é1",), rules=rules, num_items=3) for rules in ((), ("cheap",), ("rare",))]
    expected = Engine(shop.model, catalog, settings=settings()).recommend(requests)
    with Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with()) as captured:
        monkeypatch.setattr(type(shop.model), "start", None)
        found = [captured.submit(request).result(PATIENCE) for request in requests]
    for result, other in zip(found, expected, strict=True):
        same(result, other)
        assert result.exact
    counted = captured.counts.of("graphs")
    assert counted["replayed"] > len(requests)  # some of them needed a second pass
    assert (counted["no_bucket"], counted["failed"]) == (0, 0)


def test_a_model_loaded_while_serving_has_graphs_of_its_own(shop: Any, catalog: Catalog, tmp_path: Path) -> None:
    """Requests that come while they are captured wait, and are answered by the model of their arrival."""
    sizes = {"max_position_embeddings": shop.model.config.max_position_embeddings}
    small_model(shop.model.vocabulary, seed=7, **sizes).save_pretrained(tmp_path)
    request = Request(history=("é1", "é5"), rules=("cheap",), num_items=5)
    old = Engine(shop.model, catalog, settings=settings()).recommend(request)
    new = Engine(load_model(tmp_path), catalog, settings=settings()).recommend(request)
    assert old.item_ids != new.item_ids
    with Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with()) as engine:
        first = engine.graphs
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(engine.load_model, tmp_path)
            meanwhile: list[Result] = []
            while not loading.done():
                meanwhile.append(engine.submit(request).result(PATIENCE))
        assert loading.result() == engine.model_version
        before = engine.counts.of("graphs")["replayed"]
        same(engine.submit(request).result(PATIENCE), new)
        assert engine.counts.of("graphs")["replayed"] > before
        assert engine.graphs is not first
    for result in meanwhile:
        same(result, new if result.item_ids == new.item_ids else old)
    assert sum(engine.counts.of("failed").values()) == 0


def test_only_requests_that_are_not_proved_go_on_with_a_wider_graph(
    shop: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "captured_widths", (3, 128))
    monkeypatch.setattr(SearchKind, "guess", 2)
    ran: list[tuple[int, int, int]] = []
    search = Graphs.search

    def noted(graphs: Graphs, batch: BatchInputs, **options: Any) -> Any:
        ran.append((*batch.tokens_BT.shape, options["num_beams"]))
        return search(graphs, batch, **options)

    monkeypatch.setattr(Graphs, "search", noted)
    # A rule that allows one item is proved by the first pass; the other request is not.
    requests = [Request(history=("é1",) * 9, rules=("one",), num_items=3), Request(history=("é1",), num_items=3)]
    catalog.add_rule("one", "item_id = 'é5'")
    try:
        expected = Engine(shop.model, catalog, settings=settings()).recommend(requests)
        with Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with()) as captured:
            ran.clear()
            with busy(shop.model, lambda: captured.submit(Request(explain=True))):
                futures = [captured.submit(request) for request in requests]
            for future, other in zip(futures, expected, strict=True):
                same(future.result(PATIENCE), other)
    finally:
        catalog.remove_rule("one")
    num_tokens = [shop.model.vocabulary.prompt_length(count) for count in (9, 1)]
    assert ran == [(2, num_tokens[0], 3), (1, num_tokens[1], 4)]


def test_where_no_graph_is_wide_enough_the_proof_goes_on_eagerly(
    shop: Any, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "captured_widths", (3,))
    monkeypatch.setattr(SearchKind, "guess", 2)
    requests = [Request(history=("é1",), rules=rules, num_items=3) for rules in ((), ("cheap",), ("rare",))]
    expected = Engine(shop.model, catalog, settings=settings()).recommend(requests)
    with Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with()) as captured:
        for request, other in zip(requests, expected, strict=True):
            same(captured.submit(request).result(PATIENCE), other)
    assert captured.counts.of("graphs")["no_bucket"] > 0


def test_requests_that_are_not_captured_run_eagerly_and_are_counted(shop: Any, catalog: Catalog) -> None:
    kinds: list[dict[str, Any]] = [{"explain": True}, {"scoring": "vocabulary"}, {"num_beams": 12, "at_most": {"price": 1}}]
    requests = [Request(history=("é1",), num_items=9, **options) for options in kinds]
    expected = Engine(shop.model, catalog, settings=settings()).recommend(requests)
    with Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with()) as captured:
        for request, other in zip(requests, expected, strict=True):
            same(captured.submit(request).result(PATIENCE), other)
    counted = captured.counts.of("graphs")
    assert counted["not_captured"] >= 3  # a list of nine with at most one of a price ranks 18 items, more than 12 beams
    assert counted["replayed"] == 0


def test_boosts_and_items_change_between_two_replays(shop: Any) -> None:
    live = opened(shop)
    live.add_boost("margin", "price / 20")
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: live.update(["é7", "é30"], [{"price": 900.0, "stock": 2}, {"price": 400.0, "stock": 2}]),
        lambda: live.delete(["é7"]),
        lambda: live.add_boost("margin", "-price / 20"),
    ]
    plain = Engine(shop.model, live, settings=settings())
    requests = [
        Request(history=("é1",), num_items=4, boosts={"margin": 1.0}),
        Request(history=("é1", "é2"), num_items=4, boosts={"margin": -0.3}, at_most={"price": 1}),
        Request(history=("é2",), num_items=4),
    ]
    best: list[Any] = []
    with Engine(shop.model, live, settings=settings(), new_graphs=graphs_with()) as captured:
        for change in changes:
            change()
            for request in requests:
                same(result := captured.submit(request).result(PATIENCE), plain.recommend(request))
                best += [result.item_ids[0]] if request is requests[0] else []
    assert best[1:3] == ["é7", "é30"]
    assert captured.counts.of("graphs")["replayed"] >= len(changes) * len(requests)
    assert captured.counts.of("graphs")["version"] == 0


def test_fixed_beams_that_are_captured_take_boosts(shop: Any, catalog: Catalog) -> None:
    requests = [
        Request(history=("é1",), num_items=4, num_beams=12, boosts={"few": 1.0}, scoring=scoring)
        for scoring in ("full", "allowed")
    ]
    chosen = settings(num_beams=12)
    expected = Engine(shop.model, catalog, settings=chosen).recommend(requests)
    with Engine(shop.model, catalog, settings=chosen, new_graphs=graphs_with()) as captured:
        for request, other in zip(requests, expected, strict=True):
            result = captured.submit(request).result(PATIENCE)
            same(result, other)
            np.testing.assert_allclose(result.boosts, other.boosts, atol=1e-5)
            assert result.num_exact == other.num_exact
    assert captured.counts.of("graphs")["replayed"] == 2


def test_an_engine_on_a_device_captures_by_default_and_says_so(shop: Any, catalog: Catalog) -> None:
    with TestClient(create_app(Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with()))) as client:
        graphs = client.get("/readyz").json()["tuning"]["graphs"]
    widths, batches, scorings = 2, 4, 2  # 64 and 128 beams; 1 and 2 requests of up to 32 and 37 tokens
    number = widths * batches * scorings
    assert graphs.startswith(f"{number} of {number} captured, ")
    assert graphs.endswith(" MB")
    with TestClient(
        create_app(Engine(shop.model, catalog, settings=settings(graphs=False), new_graphs=graphs_with()))
    ) as client:
        assert "graphs" not in client.get("/readyz").json()["tuning"]
    with TestClient(create_app(Engine(shop.model, catalog))) as client:
        assert "graphs" not in client.get("/readyz").json()["tuning"]


def test_what_cannot_be_captured_runs_eagerly_and_the_log_and_readyz_say_why(
    shop: Any, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any, **options: Any) -> Graphs:
        raise RuntimeError("the driver is too old for graphs")

    cases: list[tuple[Any, Settings, str]] = [
        (broken, settings(), "none: the driver is too old for graphs"),
        (graphs_with(), settings(graph_mb=1), "none: no graph fits in graph_mb=1: raise it"),
    ]
    sizes = {"num_layers": 1} if hasattr(shop.model.config, "d_model") else {}
    for new_graphs, chosen, expected in cases:
        model = shop.model if new_graphs is broken else new_encoder_decoder(2, shop.model.vocabulary, d_ff=200_000, **sizes)
        with TestClient(create_app(Engine(model, catalog, settings=chosen, new_graphs=new_graphs))) as client:
            readiness = client.get("/readyz").json()
            assert (readiness["ready"], readiness["tuning"]["graphs"]) == (True, expected)
            assert client.post("/v1/recommend", json={"history": ["é1"], "num_items": 3}).status_code == 200
        assert expected.removeprefix("none: ") in caplog.text
    with pytest.raises(RuntimeError, match="too old"):
        Engine(shop.model, catalog, settings=settings(graphs=True), new_graphs=broken).start()
    with pytest.raises(ArgumentError, match="load it with device='cuda', or leave graphs out"):
        Engine(shop.model, catalog, settings=settings(graphs=True))


def test_a_rule_added_or_an_item_deleted_while_a_batch_runs_changes_nothing_in_that_batch(shop: Any) -> None:
    entered, go_on, gated = threading.Event(), threading.Event(), threading.Event()

    class Gated(RunAgain):
        def capture(self, decode: StaticDecode) -> Callable[[], None]:
            replay = super().capture(decode)

            def run() -> None:
                if gated.is_set():
                    gated.clear()
                    entered.set()
                    assert go_on.wait(PATIENCE)
                replay()

            return run

    live = opened(shop)
    plain = Engine(shop.model, live, settings=settings())
    request = Request(history=("é1",), rules=("cheap",), num_items=4)
    before = plain.recommend(request)
    with Engine(shop.model, live, settings=settings(), new_graphs=graphs_with(Gated)) as captured:
        gated.set()
        running = captured.submit(request)
        assert entered.wait(PATIENCE)
        live.add_rule("dear", "price >= 30")
        live.delete([before.item_ids[0]])
        go_on.set()
        result = running.result(PATIENCE)
        same(result, before)
        assert result.rules_generation == before.rules_generation
        for rules in (("cheap",), ("dear",)):
            later = Request(history=("é1",), rules=rules, num_items=4)
            same(captured.submit(later).result(PATIENCE), plain.recommend(later))
    assert captured.counts.of("graphs")["version"] == 0
    assert captured.counts.of("graphs")["replayed"] >= 3


def test_two_workers_share_the_graphs_and_take_turns(shop: Any, catalog: Catalog) -> None:
    running: list[int] = []

    class Counting(RunAgain):
        def capture(self, decode: StaticDecode) -> Callable[[], None]:
            replay = super().capture(decode)

            def run() -> None:
                running.append(1)
                assert sum(running) == 1
                replay()
                running.append(-1)

            return run

    requests = [
        Request(history=(f"é{i}",), rules=rules, num_items=4) for i in range(8) for rules in ((), ("cheap",), ("rare",))
    ]
    expected = Engine(shop.model, catalog, settings=settings()).recommend(requests)
    with Engine(shop.model, catalog, settings=settings(workers=2), new_graphs=graphs_with(Counting)) as captured:
        futures = [captured.submit(request) for request in requests]
        for future, other in zip(futures, expected, strict=True):
            same(future.result(PATIENCE), other)
    assert captured.counts.of("graphs")["failed"] == 0


@pytest.mark.slow
def test_the_kernels_of_a_gpu_behind_an_engine_answer_as_the_cpu_does(shop: Any) -> None:
    """Index, filters, step and attention as on a GPU, under Triton's interpreter; rules and items change between replays."""
    live, limits = opened(shop), Limits(max_history=2)
    live.add_boost("margin", "price / 20")
    new_graphs = partial(graphs_for, attention=attention_kernels.attention(), index=DeviceIndex, capturer=RunAgain)
    chosen = Settings(num_beams=6, max_batch=1)
    plain = Engine(shop.model, live, limits=limits, settings=chosen)
    requests = [
        Request(history=("é1",), num_items=4),
        Request(history=("é1", "é2"), num_items=4, filter="cheap & in_stock", scoring="allowed"),
        Request(history=("é2",), num_items=4, rules=("cheap",), deny_item_ids=("é3", "é4")),
        Request(history=("é1",), num_items=3, boosts={"margin": 0.5}, at_most={"price": 1}),
        Request(history=("é2",), num_items=4, boosts={"margin": -0.5}, scoring="allowed"),
    ]
    with Engine(shop.model, live, limits=limits, settings=chosen, new_graphs=new_graphs) as captured:
        for change in (lambda: None, lambda: live.delete(["é5"]), lambda: live.update(["é7"], [{"price": 1.0, "stock": 2}])):
            change()
            for request in requests:
                same(captured.submit(request).result(PATIENCE), plain.recommend(request))
    counted = captured.counts.of("graphs")
    assert counted == {**dict.fromkeys(counted, 0), "replayed": counted["replayed"]}
    assert counted["replayed"] >= 15
