"""Boosts, caps and quotas of requests: the list is that of scoring every allowed item, while boosts and items change."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from leafbeam.catalog import Catalog
from leafbeam.engine import Engine, Request, Result, Settings
from leafbeam.errors import LeafbeamError, RequestError, UnknownRuleError
from leafbeam.index import ItemColumn
from tests.engine.conftest import RULES, Shop
from tests.fixtures.memories import make_memory

SOURCE = {**RULES}
BOOSTS = {"margin": "price / 20", "few": "CASE WHEN stock = 0 THEN 3 ELSE 0 END"}


@pytest.fixture(scope="module")
def boosted(shop: Shop, catalog_file: Any) -> Iterator[Engine]:
    catalog = Catalog.open(catalog_file, shop.trie, SOURCE)
    for name, expression in BOOSTS.items():
        catalog.add_boost(name, expression)
    with Engine(shop.model, catalog) as engine:
        yield engine


def boost_of(row: Mapping[str, Any], weights: Mapping[str, float]) -> float:
    values = {"margin": row["price"] / 20, "few": 3.0 * (row["stock"] == 0)}
    return sum(weight * values[name] for name, weight in weights.items())


def expected(shop: Shop, request: Request) -> list[Any]:
    """The list of a request: quotas first, then the rest, best first, of all allowed items; and then by score."""
    rows = {row["item_id"]: row for row in shop.rows}
    allowed = shop.allowed(request.rules, (*request.deny_item_ids, *request.history))
    scores = shop.scores(list(request.history), allowed, "full")
    total = {one: score + boost_of(rows[one], request.boosts) for one, score in scores.items()}
    order, taken = sorted(total, key=lambda one: -total[one]), list[Any]()
    counts = {column: Counter[Any]() for column in request.at_most}

    def take(items: list[Any], number: int) -> None:
        for one in items:
            full = any(counts[column][rows[one][column]] >= most for column, most in request.at_most.items())
            if number <= 0 or one in taken or full:
                continue
            for column, count in counts.items():
                count[rows[one][column]] += 1
            taken.append(one)
            number -= 1

    for rule, least in request.at_least.items():
        members = shop.allowed((rule,))
        take([one for one in order if one in members], least - sum(one in members for one in taken))
    take(order, request.num_items - len(taken))
    return sorted(taken, key=lambda one: -total[one])


REQUESTS: list[dict[str, Any]] = [
    {"boosts": {"margin": 1.0}},
    {"boosts": {"margin": -0.7}, "rules": ("cheap",)},
    {"boosts": {"margin": 0.5, "few": 1.0}, "history": ("é3", "é9")},
    {"boosts": {"few": 2.0}, "deny_item_ids": ("é3", "é4"), "num_items": 30},
    {"at_most": {"stock": 2}, "num_items": 6},
    {"at_most": {"stock": 4, "price": 1}},
    {"at_least": {"rare": 2}, "num_items": 5},
    {"at_least": {"cheap": 4, "in_stock": 3}, "boosts": {"margin": 1.0}},
    {"at_least": {"rare": 3}, "at_most": {"stock": 3, "price": 2}, "boosts": {"few": -1.0}, "num_items": 8},
]


@pytest.mark.parametrize("fields", REQUESTS, ids=lambda fields: "-".join(fields))
def test_the_list_is_that_of_all_allowed_items(shop: Shop, boosted: Engine, fields: dict[str, Any]) -> None:
    request = Request(**fields, deadline_s=60)
    result = boosted.submit(request).result(60)
    rows = {row["item_id"]: row for row in shop.rows}
    assert result.exact
    assert result.channel == "model"
    scores = shop.scores(list(request.history), set(result.item_ids), "full")
    totals = [scores[one] + boost_of(rows[one], request.boosts) for one in result.item_ids]
    np.testing.assert_allclose(result.scores, totals, atol=1e-4)
    np.testing.assert_allclose(result.model_scores, [scores[one] for one in result.item_ids], atol=1e-4)
    best = [scores_of(shop, request)[one] for one in expected(shop, request)]
    np.testing.assert_allclose(result.scores, best, atol=1e-4)  # items that share a SID may change places
    assert boosted.recommend([request])[0].scores == pytest.approx(result.scores, abs=1e-4)


def scores_of(shop: Shop, request: Request) -> dict[Any, float]:
    rows = {row["item_id"]: row for row in shop.rows}
    scores = shop.scores(list(request.history), {row["item_id"] for row in shop.rows}, "full")
    return {one: score + boost_of(rows[one], request.boosts) for one, score in scores.items()}


def test_requests_with_and_without_objectives_are_answered_together(shop: Shop, boosted: Engine) -> None:
    every: list[dict[str, Any]] = [{}, *REQUESTS, {"rules": ("cheap",)}]
    requests = [Request(**fields, deadline_s=60) for fields in every]
    futures = [boosted.submit(request) for request in requests]
    for request, future in zip(requests, futures, strict=True):
        alone = boosted.recommend([request])[0]
        np.testing.assert_allclose(future.result(60).scores, alone.scores, atol=1e-4)


def test_a_quota_that_cannot_be_met_is_filled_up_and_named(boosted: Engine) -> None:
    result = boosted.submit(Request(rules=("in_stock",), at_least={"none": 2, "cheap": 1}, deadline_s=60)).result(60)
    assert result.num_valid == 10
    assert result.exact
    assert result.unmet == {"none": 2}


def test_changes_of_boosts_and_items_are_seen_by_the_next_request(shop: Shop, catalog_file: Any) -> None:
    catalog = Catalog.in_memory(shop_table(shop), shop.trie, SOURCE)
    catalog.add_boost("margin", "price / 20")
    with Engine(shop.model, catalog) as engine:

        def best(**fields: Any) -> Result:
            return engine.submit(Request(boosts={"margin": 400.0}, num_items=3, deadline_s=60, **fields)).result(60)

        assert {float(str(item)[1:]) % 40 for item in best().item_ids} == {39.0}  # the dearest
        catalog.add_boost("margin", "-price / 20")
        assert {float(str(item)[1:]) % 40 for item in best().item_ids} == {0.0}
        codes = shop.codes_NL[:1]
        catalog.insert(codes, ["new"], [{"item_id": "new", "title": "new", "price": -40.0, "stock": 1}])
        assert best().item_ids[0] == "new"
        assert best().boosts[0] == pytest.approx(800.0)
        catalog.delete(["new"])
        assert "new" not in best().item_ids


def test_the_sum_of_boosts_is_kept_for_the_items_that_did_not_change(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, sums = Catalog.in_memory(shop_table(shop), shop.trie, SOURCE), list[int]()
    for name, expression in BOOSTS.items():
        catalog.add_boost(name, expression)
    plus = ItemColumn.plus

    def counted(self: ItemColumn, other: ItemColumn) -> ItemColumn:
        sums.append(len(self.parts[0]))
        return plus(self, other)

    monkeypatch.setattr(ItemColumn, "plus", counted)
    weights = {"margin": 1.0, "few": -2.0}
    with Engine(shop.model, catalog) as engine:
        for number in range(3):
            row = {"item_id": f"new{number}", "title": "new", "price": 900.0, "stock": 1}
            catalog.insert(shop.codes_NL[number : number + 1], [row["item_id"]], [row])
            found = engine.submit(Request(boosts=weights, num_items=3, deadline_s=60)).result(60)
            assert row["item_id"] in found.item_ids
            assert found.boosts[list(found.item_ids).index(row["item_id"])] == pytest.approx(boost_of(row, weights))
    assert sums == [shop.trie.num_items, 1, 2, 3]


def shop_table(shop: Shop) -> Any:
    import pyarrow as pa

    return pa.Table.from_pylist(shop.rows)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"boosts": {"margin": float("nan")}}, "boosts of 'margin' must be a finite number"),
        ({"boosts": {"margin": float("inf")}}, "must be a finite number"),
        ({"boosts": ["margin"]}, "boosts must map names to numbers"),
        ({"boosts": {1: 1.0}}, "boosts must map names, as text"),
        ({"at_most": {"stock": 0}}, "at_most of 'stock' must be an integer of at least 1"),
        ({"at_most": {"stock": True}}, "at_most of 'stock' must be an integer"),
        ({"at_least": {"cheap": 11}}, "at_least asks for 11 items, and num_items is 10"),
        ({"at_most": {"stock": 1}, "scoring": "allowed"}, "need the scoring 'full'"),
    ],
)
def test_requests_that_contradict_themselves_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Request(**fields)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"boosts": {"nothing": 1.0}}, LeafbeamError, "unknown boost 'nothing'"),
        ({"at_most": {"nothing": 1}}, LeafbeamError, "nothing"),
        ({"at_least": {"nothing": 1}}, UnknownRuleError, "unknown rule 'nothing'"),
        ({"boosts": {"margin": 900.0}}, RequestError, "nats"),
    ],
)
def test_unknown_names_and_numbers_too_large_are_named(
    boosted: Engine, fields: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        boosted.submit(Request(**fields)).result(60)


def test_an_engine_without_a_catalog_says_so(shop: Shop) -> None:
    with Engine(shop.model, shop.trie) as engine, pytest.raises(RequestError, match="need a catalog"):
        engine.submit(Request(boosts={"margin": 1.0}))


@pytest.mark.parametrize("fields", REQUESTS, ids=lambda fields: "-".join(fields))
@pytest.mark.parametrize("channel", ["memory", "fused"])
def test_a_memory_ranks_with_boosts_caps_and_quotas_too(
    shop: Shop, boosted: Engine, channel: Any, fields: dict[str, Any]
) -> None:
    assert boosted.catalog is not None
    engine = Engine(shop.model, boosted.catalog, memory=make_memory())
    fields = {"history": ("é3", "é14", "é15")} | fields
    rows = {row["item_id"]: row for row in shop.rows}
    plain = {name: value for name, value in fields.items() if name not in ("boosts", "at_most", "at_least", "num_items")}
    every = engine.recommend(Request(channel=channel, num_items=160, num_beams=160, **plain))
    found = [place for place, why in enumerate(every.reasons) if why.channel != "popular"]
    scores = {every.item_ids[place]: every.scores[place] for place in found}
    request = Request(channel=channel, num_beams=160, **fields)
    result = engine.recommend(request)
    assert result.channel == channel
    assert result.num_valid == request.num_items or request.at_most or request.rules
    for item, score, boost, why in zip(
        result.item_ids, result.scores, result.boosts or (0.0,) * result.num_valid, result.reasons, strict=True
    ):
        if why.channel != "popular":
            assert score == pytest.approx(scores.get(item, 0.0) + boost, abs=1e-4)
            assert boost == pytest.approx(boost_of(rows[item], request.boosts), abs=1e-4)
    if not request.has_policy:  # no item that was found scores above the last one and is left out
        totals = {item: score + boost_of(rows[item], request.boosts) for item, score in scores.items()}
        left = [total for item, total in totals.items() if item not in result.item_ids]
        assert not left or max(left) <= result.scores[-1] + 1e-4
    for column, most in request.at_most.items():
        assert max(Counter(rows[item][column] for item in result.item_ids).values()) <= most
    for rule, least in request.at_least.items():
        assert sum(item in shop.allowed((rule,)) for item in result.item_ids) + result.unmet.get(rule, 0) >= least


def test_fixed_beams_take_boosts_and_claim_no_proof_that_they_lack(shop: Shop, boosted: Engine) -> None:
    request = Request(boosts={"few": 3.0}, num_beams=10, deadline_s=60)
    result = boosted.submit(request).result(60)
    best = sorted(scores_of(shop, request).values(), reverse=True)
    assert result.num_valid == 10
    np.testing.assert_allclose(result.scores[: result.num_exact], best[: result.num_exact], atol=1e-4)
    assert Settings().num_beams is None
