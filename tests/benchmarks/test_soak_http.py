"""The soak over HTTP ends with nothing lost, and finds wrong answers, lost changes and lost requests where there are some."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.serving.soak_clients import KnownShop
from benchmarks.serving.soak_history import BAND, ChangeHistory, Item, band_where, mistake_of, mistake_of_refusal
from benchmarks.serving.soak_http import CLIENTS, soak_http
from benchmarks.serving.soak_outcome import ENDS
from benchmarks.serving.soak_read_back import Found, missing_changes
from leafbeam.serve.schema import RecommendAnswer, RecommendBody, TimingsAnswer

pytestmark = pytest.mark.slow

OLD, NEW = Item(codes=(1, 2, 3), price=5.0, stock=1), Item(codes=(1, 2, 3), price=30.0, stock=1)
MOVED, SOLD_OUT = Item(codes=(9, 9, 9), price=5.0, stock=1), Item(codes=(1, 2, 3), price=5.0, stock=0)
WINDOWS = [(8.0, 9.0, False), (9.0, 10.5, False), (10.5, 12.0, False), (11.5, 12.0, True)]  # asked, answered, is it wrong then


def test_a_server_under_killed_http_processes_and_changes_loses_nothing() -> None:
    found = soak_http(3.0, items=150, kill_every_s=0.3, min_kills=2)
    assert found.problems == []
    assert (found.wrong, found.missing, found.ended["lost"]) == (0, 0, 0)
    assert found.kills == found.restarts >= 2
    assert found.ended["broken"] <= CLIENTS * found.kills
    assert found.ended["answered"] > 0
    assert found.changes >= 5
    assert found.read_back >= 2 * 150
    row = found.row()
    assert row["asked"] == sum(row[how] for how in ENDS)
    assert row["resident_mb"]["core"] > row["resident_mb"]["http"] > 10


def answer(*items: tuple[int, tuple[int, ...]]) -> RecommendAnswer:
    ids, codes = zip(*items, strict=True)
    timings = TimingsAnswer(prepare=0.0, queue=0.0, prefill=0.0, rounds=0.0, constrain=0.0, postprocess=0.0, total=0.0)
    return RecommendAnswer(
        item_ids=ids,
        codes=codes,
        scores=(0.0,) * len(ids),
        channel="model",
        reasons=(),
        num_valid=len(ids),
        num_beams=5,
        exact=False,
        num_exact=0,
        rows=0,
        num_history_used=0,
        num_history_left_out=0,
        empty_rules=(),
        read_user=False,
        ignored_history=(),
        ignored_deny_item_ids=(),
        index_version="1",
        rules_generation=1,
        batch_size=1,
        timings_ms=timings,
    )


def changed(before: Any, after: Any) -> ChangeHistory[Any, Any]:
    """A history in which a change was sent at 10 and acknowledged at 11."""
    history = ChangeHistory({key: value for key, value in before.items() if value is not None})
    history.send(after, 10.0)
    history.acknowledge(11.0)
    return history


@pytest.mark.parametrize("after", [None, NEW, MOVED, SOLD_OUT])
def test_an_answer_is_wrong_once_a_change_was_acknowledged(after: Item | None) -> None:
    request = RecommendBody(num_items=1, rules=["cheap", "in_stock"])
    items = changed({7: OLD}, {7: after})
    for asked, answered, wrong in WINDOWS:
        found = mistake_of(request, answer((7, OLD.codes)), items, ChangeHistory({}), asked=asked, answered=answered)
        assert (found is not None) == wrong, (asked, answered)


def test_an_answer_before_an_item_came_or_under_a_rule_that_changed_is_wrong() -> None:
    request = RecommendBody(num_items=1, rules=[BAND])
    bands = changed({BAND: 0}, {BAND: 15})
    items = changed({}, {7: OLD})
    shown = answer((7, OLD.codes))
    assert mistake_of(request, shown, items, ChangeHistory({BAND: 0}), asked=8.0, answered=9.0)
    assert not mistake_of(request, shown, items, ChangeHistory({BAND: 0}), asked=9.0, answered=10.0)
    for asked, answered, wrong in WINDOWS:
        found = mistake_of(request, shown, ChangeHistory({7: OLD}), bands, asked=asked, answered=answered)
        assert (found is not None) == wrong
    assert mistake_of(request, shown, ChangeHistory({7: OLD}), ChangeHistory({}), asked=8.0, answered=9.0)


def test_items_that_were_right_at_different_moments_only_are_wrong() -> None:
    request, bands = RecommendBody(num_items=2, rules=["cheap"]), ChangeHistory[str, int]({})
    items = changed({1: OLD, 2: NEW}, {1: NEW})
    items.send({2: OLD}, 11.5)
    items.acknowledge(12.0)
    shown = answer((1, OLD.codes), (2, OLD.codes))
    assert mistake_of(request, shown, items, bands, asked=9.0, answered=13.0)
    assert not mistake_of(RecommendBody(num_items=2), shown, items, bands, asked=9.0, answered=13.0)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (RecommendBody(num_items=2), [1]),
        (RecommendBody(num_items=1), [1, 2]),
        (RecommendBody(num_items=2), [1, 1]),
        (RecommendBody(num_items=1, history=[1]), [1]),
        (RecommendBody(num_items=1, deny_item_ids=[1]), [1]),
        (RecommendBody(num_items=1), [3]),
    ],
)
def test_short_repeated_excluded_and_unknown_items_are_wrong(body: RecommendBody, shown: list[int]) -> None:
    items = ChangeHistory({1: OLD, 2: OLD})
    found = answer(*((item, OLD.codes) for item in shown))
    assert mistake_of(body, found, items, ChangeHistory({}), asked=1.0, answered=2.0)


def test_a_known_rule_must_not_be_refused() -> None:
    bands = changed({BAND: 0}, {BAND: None})
    request = RecommendBody(rules=[BAND])
    assert mistake_of_refusal(request, bands, asked=8.0, answered=9.0)
    assert not mistake_of_refusal(request, bands, asked=9.0, answered=10.5)
    assert not mistake_of_refusal(request, bands, asked=12.0, answered=13.0)
    assert mistake_of_refusal(RecommendBody(rules=["cheap"]), bands, asked=12.0, answered=13.0)


# What is read back in the end.


def found_as(
    shop: KnownShop, items: dict[int, Item | None] | None = None, allowing: dict[int, list[str]] | None = None, **other: Any
) -> Found:
    """What a server has that lost nothing, but for what is given."""
    states = {item_id: shop.items.possible(item_id, time.monotonic())[-1] for item_id in shop.items.keys}
    there = {item_id: item for item_id, item in states.items() if item is not None}
    rules = {i: ["cheap" if item.price < 20 else "dear", *["in_stock"][: item.stock]] for i, item in there.items()}
    low = shop.bands.possible(BAND, time.monotonic())[-1]
    found = Found(
        items=states | (items or {}),
        allowing={item_id: frozenset(names) for item_id, names in (rules | (allowing or {})).items()},
        num_items=len(there),
        band=None if low is None else band_where(low),
    )
    return replace(found, **other)


def test_a_lost_change_is_found() -> None:
    shop = KnownShop(np.zeros((20, 3), np.int64))
    shop.items.send({3: None, 4: NEW, 20: NEW}, 1.0)
    shop.items.acknowledge(2.0)
    shop.bands.send({BAND: 7}, 3.0)
    shop.bands.acknowledge(4.0)
    assert missing_changes(found_as(shop), shop, time.monotonic()) == []
    old = Item(codes=(0, 0, 0), price=4.0, stock=1)
    lost: list[dict[str, Any]] = [
        {"items": {3: OLD}, "allowing": {3: ["cheap", "in_stock"]}},
        {"items": {4: old}, "allowing": {4: ["cheap", "in_stock"]}},
        {"items": {20: None}},
        {"items": {99: OLD}, "allowing": {99: ["cheap", "in_stock"]}},
        {"allowing": {4: ["cheap"]}},
        {"num_items": 19},
        {"num_items": 21},
        {"band": None},
        {"band": band_where(8)},
    ]
    for one in lost:
        assert len(missing_changes(found_as(shop, **one), shop, time.monotonic())) == 1, one


def test_a_change_without_an_answer_may_be_there_or_not_but_not_another() -> None:
    shop = KnownShop(np.zeros((20, 3), np.int64))
    before = found_as(shop)
    shop.items.send({4: NEW, 20: NEW}, time.monotonic())
    assert missing_changes(before, shop, time.monotonic()) == []
    assert missing_changes(found_as(shop), shop, time.monotonic()) == []
    other = found_as(shop, items={5: NEW}, allowing={5: ["dear", "in_stock"]})
    assert len(missing_changes(other, shop, time.monotonic())) == 1


# How requests end.


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body
