"""Answers of the item memory, alone and fused, are exact over the items that the rules allow."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.engine import CatalogFiles, Channel, Engine, ItemId, Request
from leafbeam.errors import ArgumentError, ItemIdError, RequestError
from leafbeam.index import Trie
from leafbeam.retrieve import ItemMemory, LiveMemory
from tests.engine.conftest import ITEM_IDS, RULES
from tests.fixtures.memories import FUSIONS, make_memory


@pytest.fixture(scope="module")
def memory() -> ItemMemory:
    return make_memory()


HISTORY = ("é3", "é14", "é15")


@pytest.mark.parametrize("rules", [(), ("cheap",), ("cheap", "in_stock"), ("rare",), ("none",)])
def test_the_memory_alone_returns_the_best_allowed_items_without_a_search(shop, catalog, memory, rules):
    engine = Engine(shop.model, catalog, memory=memory)
    allowed = shop.allowed(rules, ("é20",))
    result = engine.recommend(Request(history=HISTORY, rules=rules, deny_item_ids=("é20", "unknown"), channel="memory"))
    found = [item for item in memory.search(HISTORY, num_items=200).item_ids if item in allowed][:10]
    assert result.item_ids[: len(found)] == tuple(found)
    assert (result.channel, result.num_beams, result.num_valid) == ("memory", 0, min(10, len(allowed - set(HISTORY))))
    assert [why.channel == "popular" for why in result.reasons] == [item not in found for item in result.item_ids]
    assert [tuple(shop.codes_NL[ITEM_IDS.index(item)]) for item in result.item_ids] == list(result.codes)


@pytest.fixture(scope="module")
def counts() -> tuple[ItemMemory, Counter[str]]:
    """A memory, and how often it counted a transition to each item."""
    counted = ItemMemory.fit(ITEM_IDS, np.array([0, 4, 8, 10]), np.array([30, 41, 42, 3, 50, 42, 41, 30, 42, 7]))
    taken: Counter[str] = Counter()
    for item in ITEM_IDS:
        taken.update(counted.counts(item))
    return counted, taken


@pytest.mark.parametrize("channel", ["memory", "fused"])
@pytest.mark.parametrize("history", [(), HISTORY, ("unknown",)])
@pytest.mark.parametrize(("rules", "deny"), [(("cheap", "in_stock"), ("é20", "é21")), (("rare",), ()), ((), ())])
def test_short_answers_are_filled_up_with_popular_allowed_items(shop, catalog, counts, channel, history, rules, deny):
    """A1: all allowed items come, each once, those that nothing finds last, the most popular first, and marked."""
    counted, taken = counts
    engine = Engine(shop.model, catalog, memory=counted)
    request = Request(history=history, rules=rules, deny_item_ids=deny, num_items=160, num_beams=160, channel=channel)
    result = engine.recommend(request)
    assert sorted(result.item_ids) == sorted(shop.allowed(rules, (*deny, *history)))
    assert list(result.scores) == sorted(result.scores, reverse=True)
    filled = [item for item, why in zip(result.item_ids, result.reasons, strict=True) if why.channel == "popular"]
    assert filled == list(result.item_ids[result.num_valid - len(filled) :])
    taken = [taken[item] for item in filled]
    assert taken == pytest.approx(sorted(taken, reverse=True), rel=0.05)
    few = engine.recommend(replace(request, num_items=5))
    if channel == "memory":
        assert few.item_ids == result.item_ids[:5]
    assert few.num_valid == min(5, result.num_valid)


@pytest.mark.parametrize("rules", [(), ("cheap",), ("cheap", "in_stock"), ("rare",), ("none",)])
@pytest.mark.parametrize("keeps", [False, True])
def test_the_fused_answer_is_the_best_sum_over_all_allowed_items(shop, catalog, memory, rules, keeps):
    engine, fusion = Engine(shop.model, catalog, memory=memory), FUSIONS.of(keeps_history=keeps)
    request = Request(history=HISTORY, rules=rules, num_beams=30, keep_history=keeps)
    result = engine.recommend(request)
    search = engine.recommend(replace(request, num_items=30, channel="model"))
    allowed_N = np.isin(ITEM_IDS, list(shop.allowed(rules, deny=() if keeps else HISTORY)))
    parts = memory.scores(memory.newest(memory.rows_of(HISTORY)), allowed_N)
    expected = {}
    for row, item in enumerate(ITEM_IDS):
        score = fusion.transition * parts.transition_N[row] + fusion.text * parts.text_N[row] + fusion.seen * (item in HISTORY)
        if item in search.item_ids:
            score += fusion.log_prob * (search.scores[search.item_ids.index(item)] - min(search.scores) + 1) + fusion.found
        if item in search.item_ids or (allowed_N[row] and (parts.transition_N[row] > 0 or parts.text_N[row] > 0)):
            expected[item] = score
    best = sorted(expected, key=lambda item: (-expected[item], ITEM_IDS.index(item)))[:10]
    assert result.channel == "fused"
    assert result.item_ids == tuple(best)
    assert result.scores == pytest.approx([expected[item] for item in best], abs=1e-4)
    assert {why.channel for why in result.reasons} <= {"model", "transition", "text"}
    assert all((why.item_id is None) == (why.channel == "model") for why in result.reasons)


def test_requests_of_all_channels_share_a_batch_and_a_started_engine(shop, catalog, memory):
    requests = [Request(history=HISTORY, channel=channel) for channel in ("model", "memory", "fused", None)]
    with Engine(shop.model, catalog, memory=memory) as engine:
        submitted = [engine.submit(request).result(30) for request in requests]
        offline = engine.recommend(requests)
    assert [result.channel for result in submitted] == ["model", "memory", "fused", "fused"]
    assert [result.item_ids for result in submitted] == [result.item_ids for result in offline]
    assert submitted[2].item_ids == submitted[3].item_ids


def test_a_channel_without_a_memory_or_of_another_name_is_refused(shop, catalog, engine):
    with pytest.raises(RequestError, match="needs an item memory"):
        engine.recommend(Request(history=HISTORY, channel="memory"))
    assert engine.recommend(Request(history=HISTORY)).channel == "model"
    with pytest.raises(RequestError, match="channel must be"):
        Request(channel="graph")  # type: ignore[arg-type]
    foreign = ItemMemory.fit(["x", "y"], np.array([0, 2]), np.array([0, 1]))
    with pytest.raises(ItemIdError, match="none of the item memory's 2 items"):
        Engine(shop.model, catalog, memory=foreign)


def test_items_inserted_live_are_recommended_at_once_and_deleted_ones_never(shop, memory):
    catalog = Catalog.in_memory(pa.Table.from_pylist(shop.rows), shop.trie, RULES)
    engine = Engine(shop.model, catalog, memory=memory)
    memory.insert(["late"], like=[["é14"]])  # "later" takes the text of é15, whose Semantic ID it has

    def answer(history: str, channel: Channel) -> tuple[ItemId, ...]:
        return engine.recommend(Request(history=(history,), num_items=30, channel=channel)).item_ids

    assert "late" not in answer("é14", "memory") + answer("é14", "fused")
    attributes = [{"title": "new", "price": 5.0, "stock": 1}] * 2
    catalog.insert([shop.codes_NL[14], shop.codes_NL[15]], ["late", "later"], attributes)
    for channel in ("memory", "fused"):
        assert "late" in answer("é14", channel)
        assert "later" in answer("é15", channel)
        assert "é15" in answer("later", channel)
    catalog.delete(["é15", "late"])
    for channel in ("memory", "fused"):
        assert not {"é15", "late"} & {*answer("é14", channel), *answer("later", channel)}
    catalog.close()


def test_an_empty_index_gives_an_empty_answer_and_an_empty_history_a_popular_one(shop, memory):
    """A1: without a history the memory finds nothing, and all is filled up."""
    empty = Trie.build(np.empty((0, 3), int), codebook_sizes=shop.trie.codebook_sizes)
    for channel in ("memory", "fused"):
        assert Engine(shop.model, empty, memory=memory).recommend(Request(channel=channel)).item_ids == ()
    engine = Engine(shop.model, shop.trie, memory=memory)
    popular = engine.recommend(Request(channel="memory"))
    assert {why.channel for why in popular.reasons} == {"popular"}
    assert popular.num_valid == 10
    assert engine.recommend(Request(channel="fused")).item_ids == engine.recommend(Request(channel="model")).item_ids


def test_interactions_are_learnt_while_requests_are_answered(shop, memory, tmp_path):
    path = tmp_path / "memory.leafbeam"
    memory.save(path)
    shop.trie.save(tmp_path / "index.leafbeam")
    files = CatalogFiles(index=tmp_path / "index.leafbeam", memory=path, learn=True)
    request = Request(history=("é100",), num_items=1, channel="memory")
    with Engine.load(shop.model, files) as engine:
        assert engine.submit(request).result(30).item_ids != ("é101",)
        assert engine.observe([(("é100",), "é101")] * 50 + [(("unknown",), "é101")]) == 50
        assert engine.submit(request).result(30).item_ids == ("é101",)
    with Engine.load(shop.model, files) as engine:  # the first has closed the memory
        assert engine.submit(request).result(30).item_ids == ("é101",)
    with pytest.raises(RequestError, match="counts no interactions"):
        Engine(shop.model, shop.trie, memory=memory).observe([(("é100",), "é101")])
    with pytest.raises(ArgumentError, match="memory="):
        CatalogFiles(index=tmp_path / "index.leafbeam", learn=True)


def test_interactions_with_items_inserted_live_survive_a_restart(shop, memory, tmp_path):
    path = tmp_path / "memory.leafbeam"
    memory.save(path)
    request = Request(history=("newest",), num_items=1, channel="memory")
    for restarted in (False, True):
        catalog = Catalog.in_memory(pa.Table.from_pylist(shop.rows), shop.trie, RULES)
        catalog.insert([shop.codes_NL[14]], ["newest"], [{"title": "new", "price": 5.0, "stock": 1}])
        with LiveMemory.open(path) as live, Engine(shop.model, catalog, memory=live) as engine:
            assert "newest" in engine.recommend(Request(history=("é14",), num_items=30, channel="fused")).item_ids
            if not restarted:
                assert engine.observe([(("newest",), "é101")] * 50) == 50
            assert engine.recommend(request).item_ids == ("é101",)
        catalog.close()
