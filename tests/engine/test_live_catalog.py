"""An engine over a catalog that changes, against a dictionary that does the same."""

import gc
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leafbeam.catalog import Catalog
from leafbeam.engine import Engine, Request
from leafbeam.retrieve import ItemMemory
from tests.fixtures.live_catalog import Twin, opened
from tests.waiting import busy

EXPRESSIONS = {
    None: lambda row: True,
    "cheap & in_stock": lambda row: row["price"] < 20 and row["stock"] > 0,
    "cheap | in_stock": lambda row: row["price"] < 20 or row["stock"] > 0,
    "in_stock - cheap": lambda row: row["stock"] > 0 and not row["price"] < 20,
}


def selected(table: dict[str, dict[str, Any]], expression: str | None) -> set[str]:
    return {one for one, row in table.items() if EXPRESSIONS[expression](row)}


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_that_of_a_dictionary_with_the_same_history(shop, seed):
    rng = np.random.default_rng(seed)
    with opened(shop) as catalog:
        twin, engine = Twin(shop, catalog, rng), Engine(shop.model, catalog)
        for _ in range(30):
            getattr(twin, rng.choice(["insert", "insert", "delete", "replace", "update", "compact"]))()
            deny = tuple(twin.some())
            asked = [Request(filter=text, deny_item_ids=deny, num_items=256, num_beams=256) for text in EXPRESSIONS]
            for text, result in zip(EXPRESSIONS, engine.recommend(asked), strict=True):
                assert set(result.item_ids) == selected(twin.table, text) - set(deny)
                assert len(result.item_ids) == len(set(result.item_ids)) == result.num_valid


def test_a_batch_that_runs_keeps_the_version_that_it_began_with_and_frees_it(shop):
    everything = Request(num_items=256, num_beams=256)
    with opened(shop) as catalog, Engine(shop.model, catalog) as engine:
        with busy(shop.model, lambda: engine.submit(everything)) as running:
            for number in range(5):
                catalog.delete([f"é{number}"])
                catalog.compact(wait=True)
        old = running.result(20)
        assert set(old.item_ids) == shop.allowed()
        new = engine.submit(everything).result(20)
        assert set(new.item_ids) == shop.allowed() - {f"é{number}" for number in range(5)}
        assert old.index_version == shop.trie.version != new.index_version
        del running, old
        gc.collect()
        assert catalog.index.status.versions_alive <= 2


def test_answers_beside_a_writer_see_whole_transactions(shop):
    """A transaction moves ten items from one half to the other: no answer sees half of it."""
    left = {f"l{i}" for i in range(10)}
    right = {f"r{i}" for i in range(10)}
    stop, wrong = threading.Event(), []
    request = Request(filter="cheap", num_items=256, num_beams=256)

    def write(catalog: Catalog) -> None:
        rng, here, there = np.random.default_rng(1), sorted(left), sorted(right)
        while not stop.is_set():
            with catalog.transaction() as change:
                change.delete(here)
                change.insert(rng.integers(0, 4, (10, 3)), there, [{"price": 1.0}] * 10)
            here, there = there, here
            if rng.random() < 0.1:
                catalog.compact()

    def look(engine: Engine) -> None:
        for _ in range(20):
            found = set(engine.submit(request).result(60).item_ids)
            if found - left - right != shop.allowed(("cheap",)) or found & (left | right) not in (left, right):
                wrong.append(found)

    with opened(shop) as catalog, Engine(shop.model, catalog) as engine:
        catalog.insert([[0, 0, 0]] * 10, sorted(left), [{"price": 1.0}] * 10)
        writer = threading.Thread(target=write, args=(catalog,))
        readers = [threading.Thread(target=look, args=(engine,)) for _ in range(3)]
        for thread in [writer, *readers]:
            thread.start()
        for thread in readers:
            thread.join(120)
        stop.set()
        writer.join(20)
        assert not any(thread.is_alive() for thread in [writer, *readers])
    assert wrong == []


@pytest.mark.parametrize("channel", ["model", "memory", "fused"])
@pytest.mark.parametrize("inserts_follow", [False, True])
def test_deleted_items_of_a_history_inform_the_answer_until_a_compaction(shop, channel, inserts_follow):
    """A2: the answer is that of before, less the deleted items, and not that of a new user; afterwards they are reported."""
    history = ("é3", "é14")
    memory = ItemMemory.fit([row["item_id"] for row in shop.rows], np.array([0, 4, 7]), np.array([3, 20, 14, 30, 14, 31, 3]))
    with opened(shop) as catalog:
        engine = Engine(shop.model, catalog, memory=memory)
        request = Request(history=history, num_items=8, num_beams=160, channel=channel)
        before, cold = engine.recommend(request), engine.recommend(replace(request, history=()))
        catalog.delete(list(history))
        if inserts_follow:
            catalog.insert([[0, 0, 0]], ["late"], [{"price": 1.0, "stock": 0}])
        after = engine.recommend(replace(request, deny_item_ids=("late",)))
        assert after.item_ids == before.item_ids != cold.item_ids
        assert (after.num_history_used, after.ignored_history) == (2, ())
        kept = engine.recommend(replace(request, keep_history=True, num_items=160))
        assert not {*history} & {*kept.item_ids}
        catalog.insert([shop.codes_NL[50]], ["é3"], [{"price": 1.0, "stock": 0}])  # it comes back
        again = engine.recommend(replace(request, history=("é3",), channel="model", keep_history=True, num_items=160))
        assert again.num_history_used == 1
        assert "é3" in again.item_ids
        catalog.compact(wait=True)
        late = engine.recommend(request)
        assert (late.num_history_used, late.ignored_history) == (1, ("é14",))


def test_an_id_that_was_inserted_again_has_its_new_codes_in_a_history(shop):
    """A2: a live row comes before a deleted one, whichever segment has it; the newest deleted one is good enough."""
    with opened(shop) as catalog:
        catalog.delete(["é3"])
        old = catalog.version().locate(["é3"], deleted=True)
        assert catalog.version().codes_at(*old).tolist() == [shop.codes_NL[3].tolist()]
        catalog.insert([[7, 7, 3]], ["é3"], [{"price": 1.0, "stock": 0}])
        new = catalog.version().locate(["é3", "never"], deleted=True)
        assert new[0].tolist()[1] == -1
        assert catalog.version().codes_of(["é3"]).tolist() == [[7, 7, 3]]
        assert catalog.version().codes_at(new[0][:1], new[1][:1]).tolist() == [[7, 7, 3]]
