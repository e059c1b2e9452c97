import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.catalog import Catalog
from leafbeam.engine import CatalogFiles, Engine, Limits, Request, Settings
from leafbeam.engine.decoder import Decoder
from leafbeam.errors import (
    ArgumentError,
    CheckpointError,
    IndexFileError,
    ItemIdError,
    RequestError,
    UnknownRuleError,
)
from leafbeam.index import Trie
from tests.waiting import busy

HISTORY = ("é3", "é14", "é15")
ALL_RULES = [(), ("cheap",), ("in_stock",), ("cheap", "in_stock"), ("rare",), ("none",), ("none", "cheap")]


def one(engine: Engine, **fields):
    return engine.recommend([Request(**fields)])[0]


def test_the_warm_up_searches_under_a_filter_even_without_rules(shop, monkeypatch):
    filters, run = [], Decoder.run

    def noting(self, batch, on_pass=None):
        filters.append(batch[0].item_filter)
        return run(self, batch, on_pass)

    monkeypatch.setattr(Decoder, "run", noting)
    for index in (shop.trie, Trie.build(np.empty((0, shop.trie.num_levels), int), codebook_sizes=shop.trie.codebook_sizes)):
        filters.clear()
        Engine(shop.model, index).warm_up()
        assert any(item_filter is not None for item_filter in filters)


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
@pytest.mark.parametrize("rules", ALL_RULES)
def test_the_answer_is_the_best_of_all_allowed_items_scored_one_by_one(shop, engine, rules, scoring):
    deny = ("é7", "é47", "é2", "é2")
    allowed = shop.allowed(rules, (*deny, *HISTORY))
    scores = shop.scores(list(HISTORY), allowed, scoring)
    result = one(engine, history=HISTORY, rules=rules, deny_item_ids=deny, num_items=12, num_beams=256, scoring=scoring)
    best = sorted(scores.values(), reverse=True)[:12]
    assert result.num_valid == len(result.item_ids) == len(result.codes) == len(result.scores) == min(12, len(allowed))
    assert len(set(result.item_ids)) == result.num_valid
    np.testing.assert_allclose(result.scores, best, atol=1e-4)
    np.testing.assert_allclose(result.scores, [scores[item] for item in result.item_ids], atol=1e-4)
    assert [tuple(sid) for sid in shop.trie.codes_of(list(result.item_ids)).tolist()] == list(result.codes)


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
@pytest.mark.parametrize("num_items", [1, 5, 40])
def test_every_answer_is_proved_to_be_the_best_allowed_list(shop, catalog, scoring, num_items):
    requests = [
        Request(history=history, rules=rules, deny_item_ids=("é7",), num_items=num_items, scoring=scoring)
        for history in (HISTORY, ("é9",))
        for rules in ALL_RULES
    ]
    allowed = [shop.allowed(request.rules, ("é7", *request.history)) for request in requests]
    scores = [shop.scores(list(request.history), items, scoring) for request, items in zip(requests, allowed, strict=True)]
    engine = Engine(shop.model, catalog)
    for _ in range(3):  # widths are learnt meanwhile
        for score_of, result in zip(scores, engine.recommend(requests), strict=True):
            best = sorted(score_of.values(), reverse=True)[:num_items]
            assert result.exact
            assert result.num_exact == result.num_valid == len(best)
            np.testing.assert_allclose(result.scores, best, atol=1e-4)


def test_a_proof_that_needs_more_rows_than_allowed_says_how_far_it_goes(shop, catalog):
    few, enough = (Engine(shop.model, catalog, settings=Settings(max_rows=rows)) for rows in (1, 64))
    requests = [Request(history=(f"é{i}",), num_items=3) for i in range(20)]
    unproved, best = few.recommend(requests), enough.recommend(requests)
    assert all(result.exact for result in best)
    assert any(not result.exact for result in unproved)
    for result, proved in zip(unproved, best, strict=True):
        count = result.num_exact
        np.testing.assert_allclose(result.scores[:count], proved.scores[:count], atol=1e-4)
        assert result.rows <= 3 < proved.rows


def test_a_fixed_number_of_beams_is_not_widened(shop, catalog):
    proving, fixed = Engine(shop.model, catalog), Engine(shop.model, catalog, settings=Settings(num_beams=1))
    for engine, beams in ((proving, 1), (fixed, None)):
        results = engine.recommend([Request(history=(f"é{i}",), num_items=1, num_beams=beams) for i in range(20)])
        assert {result.rows for result in results} == {shop.trie.num_levels}
        assert not all(result.exact for result in results)


def test_items_that_share_a_sid_are_adjacent_with_one_score(shop, engine):
    result = one(engine, num_items=160, num_beams=160)
    at = [result.item_ids.index(f"é{i}") for i in (5, 6, 7)]
    assert max(at) - min(at) == 2
    assert len({result.scores[place] for place in at}) == 1
    assert set(result.item_ids) == shop.allowed()


def test_items_of_the_history_are_left_out_unless_they_are_asked_for(shop, engine):
    twice = ("é3", "nobody", "é3", *(f"é{i}" for i in range(60)))  # more than the model reads
    without, kept = (one(engine, history=twice, num_items=160, keep_history=keep) for keep in (False, True))
    assert set(without.item_ids) == shop.allowed((), twice)
    assert set(kept.item_ids) == shop.allowed()
    assert (without.num_history_left_out, kept.num_history_left_out) == (60, 0)
    assert without.num_history_used == kept.num_history_used < 60
    assert without.ignored_deny == ()
    order = [item for item in kept.item_ids if item in set(without.item_ids)]
    assert [kept.scores[kept.item_ids.index(item)] for item in order] == pytest.approx(list(without.scores), abs=1e-4)
    with pytest.raises(RequestError, match="keep_history must be True or False, not 'yes'"):
        Request(keep_history="yes")  # type: ignore[arg-type]


def test_unknown_ids_of_a_history_are_left_out_and_reported(engine):
    strange = ("nobody", "é3\0", "\ud800", "é" * 100_000, "")
    plain = one(engine, history=HISTORY)
    mixed = one(engine, history=("nobody", *HISTORY[:2], *strange[1:], HISTORY[2]))
    assert (mixed.item_ids, mixed.scores) == (plain.item_ids, plain.scores)
    assert mixed.ignored_history == strange
    assert (mixed.num_history_used, plain.num_history_used) == (3, 3)


def test_a_history_longer_than_the_model_keeps_its_newest_items_and_reports_how_many(shop, engine):
    long = tuple(f"é{i % 160}" for i in range(500))
    result = one(engine, history=long, keep_history=True)
    assert result.num_history_used == shop.model.config.max_position_embeddings // 3 - 1
    assert result.item_ids == one(engine, history=long[-result.num_history_used :], keep_history=True).item_ids


def test_an_item_may_come_twice_in_a_history(shop, engine):
    twice = ("é3", "é3", "é4")
    result = one(engine, history=twice, num_items=1, num_beams=256)
    assert result.num_history_used == 3
    assert result.scores[0] == pytest.approx(max(shop.scores(list(twice), shop.allowed(), "full").values()), abs=1e-4)


def test_unknown_denied_ids_change_nothing_and_are_reported(engine):
    first = one(engine, history=HISTORY).item_ids[0]
    result = one(engine, history=HISTORY, deny_item_ids=(first, "gone", first))
    assert first not in result.item_ids
    assert result.ignored_deny == ("gone",)
    assert one(engine, history=HISTORY, deny_item_ids=("gone",)).item_ids[0] == first


def test_fewer_beams_than_items_are_raised_to_the_items(engine):
    result = one(engine, num_items=50, num_beams=2)
    assert (result.num_beams, result.num_valid) == (50, 50)
    assert one(engine, num_items=40, num_beams=1).num_beams == 40
    assert one(engine, num_items=5, num_beams=7).num_beams == 7


def test_ids_of_the_wrong_type_are_an_error(shop, engine):
    with pytest.raises(ItemIdError, match="history holds 3, but the item ids of this index are text, such as 'é0'"):
        engine.recommend([Request(history=(3,))])
    with pytest.raises(ItemIdError, match="deny_item_ids holds 3"):
        engine.recommend([Request(deny_item_ids=(3,))])
    numbers = Engine(shop.model, Trie.build(shop.codes_NL, shop.trie.codebook_sizes))
    result = one(numbers, history=(3, 2**70, -1, 14), deny_item_ids=(2**63,))
    assert (result.num_history_used, result.ignored_history, result.ignored_deny) == (2, (2**70, -1), (2**63,))
    assert all(type(item) is int for item in result.item_ids)
    with pytest.raises(ItemIdError, match="history holds 'a', but the item ids of this index are integers, such as 0"):
        numbers.recommend([Request(history=("a",))])


def test_requests_answered_together_are_answered_as_if_alone(engine):
    requests = [
        Request(history=HISTORY[: i % 4], rules=rules, num_items=1 + i, num_beams=20 + i % 2, scoring=scoring)
        for scoring in ("full", "allowed", "vocabulary")
        for i, rules in enumerate(ALL_RULES)
    ]
    together = engine.recommend(requests)
    assert {result.batch_size for result in together} != {1}
    for request, result in zip(requests, together, strict=True):
        alone = engine.recommend([request])[0]
        assert result.item_ids == alone.item_ids
        np.testing.assert_allclose(result.scores, alone.scores, atol=1e-5)


def test_probabilities_over_the_whole_vocabulary_need_a_model_that_gives_them(shop):
    class Foreign:
        vocabulary, config, device = shop.model.vocabulary, shop.model.config, shop.model.device

        def start(self, tokens_BT, lengths_B=None):
            return shop.model.start(tokens_BT, lengths_B)

    engine = Engine(Foreign(), shop.trie)
    engine.warm_up()
    assert one(engine, num_items=3).num_valid == 3
    with pytest.raises(RequestError, match="scoring 'vocabulary' needs one of leafbeam's own models: use 'full' or 'allowed'"):
        one(engine, scoring="vocabulary")


def test_a_request_over_a_limit_is_refused(shop):
    engine = Engine(shop.model, shop.trie, limits=Limits(max_items=5, max_beams=30))
    with pytest.raises(RequestError, match="num_items must be from 1 to 5, not 6"):
        engine.recommend([Request(num_items=6)])
    with pytest.raises(ArgumentError, match=r"above max_beams=30"):
        Engine(shop.model, shop.trie, limits=Limits(max_items=5, max_beams=30), settings=Settings(num_beams=31))


def test_a_model_of_other_codebooks_than_the_index_is_refused(shop):
    with pytest.raises(CheckpointError, match=r"the model's codebooks are \(8, 8, 4\), but the index has \(8, 8, 5\)"):
        Engine(shop.model, Trie.build(shop.codes_NL, (8, 8, 5)))


def test_an_engine_searches_the_index_that_its_rules_were_evaluated_over(shop, catalog_file):
    other = Trie.build(shop.codes_NL[::-1], shop.trie.codebook_sizes, item_ids=[row["item_id"] for row in shop.rows])
    with Catalog.open(catalog_file, other, {"cheap": "price < 20"}) as catalog:
        engine = Engine(shop.model, catalog)
        result = one(engine, rules=("cheap",), num_items=100)
    assert engine.trie is other
    assert result.index_version == other.version != shop.trie.version
    assert set(result.item_ids) == shop.allowed(("cheap",))


def test_representations_are_short(engine):
    request = Request(history=HISTORY * 500, deny_item_ids=HISTORY * 500, rules=("cheap",))
    assert repr(request) == "Request(1,500 items of history, num_items=10, deny 1,500 items, rules=('cheap',))"
    assert repr(engine.recommend(request)).startswith("Result(10 items, best 'é")
    assert repr(engine) == f"Engine(Transformer, 160 items of {engine.trie.version}, it was not started)"


def test_an_empty_index_gives_empty_answers(shop):
    engine = Engine(shop.model, Trie.build(np.empty((0, 3), np.int64), (8, 8, 4)))
    result = one(engine, history=(1, 2))
    assert (result.num_valid, result.item_ids, result.ignored_history) == (0, (), (1, 2))


def test_an_engine_from_files_answers_like_the_one_that_was_saved(shop, engine, catalog_file, tmp_path):
    shop.model.save_pretrained(tmp_path / "model")
    shop.trie.save(tmp_path / "index.leafbeam")
    files = CatalogFiles(index=tmp_path / "index.leafbeam", catalog=catalog_file, rules={"cheap": "price < 20"})
    loaded = Engine.load(tmp_path / "model", files)
    fields = {"history": HISTORY, "rules": ("cheap",)}
    assert one(loaded, **fields).item_ids == one(engine, **fields).item_ids
    with pytest.raises(ArgumentError, match="rules need a catalog"):
        CatalogFiles(index=tmp_path / "index.leafbeam", rules={"cheap": "price < 20"})
    same = [Engine.load(shop.model, files), Engine.load(tmp_path / "model", shop.trie)]
    assert [one(engine, history=HISTORY).item_ids for engine in same] == [one(loaded, history=HISTORY).item_ids] * 2
    assert Engine.load(tmp_path / "model", tmp_path / "index.leafbeam").catalog is None
    for engine in (loaded, *same):
        engine.close()


def test_changed_items_are_seen_by_the_next_request_and_not_by_a_queued_one(shop):
    catalog = Catalog.in_memory(pa.Table.from_pylist(shop.rows), shop.trie, {"cheap": "price < 20"})
    ask = Request(rules=("cheap",), num_items=200, history=("new",), keep_history=True)
    cheap = shop.allowed(("cheap",))
    gone = sorted(cheap)[:20]
    with catalog, Engine(shop.model, catalog) as engine:
        with busy(shop.model, lambda: engine.submit(Request())) as blocker:
            early = engine.submit(ask)
            with catalog.transaction() as change:
                change.insert([[0, 1, 2], [3, 3, 3]], ["new", "dear"], [{"price": 3.0}, {"price": 30.0}])
                change.delete(gone)
            late = engine.submit(ask)
        assert set(early.result(20).item_ids) == cheap
        assert early.result().ignored_history == ("new",)
        assert set(late.result(20).item_ids) == (cheap | {"new"}) - set(gone)
        assert (late.result().ignored_history, late.result().num_history_used) == ((), 1)
        assert (early.result().batch_size, late.result().batch_size) == (1, 1)
        assert (early.result().index_version, late.result().index_version) == (shop.trie.version, f"{shop.trie.version}+1")
        assert blocker.result(20).num_valid == 10
        catalog.compact(wait=True)
        merged = engine.submit(ask).result(20)
        assert (set(merged.item_ids), merged.scores) == (set(late.result().item_ids), late.result().scores)
        assert merged.index_version != late.result().index_version


def test_a_request_may_filter_by_an_expression_over_rules(shop, engine):
    cheap, in_stock, rare = (shop.allowed((rule,)) for rule in ("cheap", "in_stock", "rare"))
    for text, expected in {
        "cheap - in_stock": cheap - in_stock,
        "rare | (cheap & in_stock)": rare | (cheap & in_stock),
        "none": set(),
    }.items():
        plain, named = engine.recommend(
            [Request(filter=text, num_items=200), Request(filter=text, rules=("in_stock",), num_items=200)]
        )
        assert set(plain.item_ids) == expected
        assert set(named.item_ids) == expected & in_stock
    for error, call, message in (
        (UnknownRuleError, lambda: engine.recommend([Request(filter="cheap & fresh")]), "unknown rule 'fresh'"),
        (RequestError, lambda: engine.recommend([Request(filter="cheap & price < 3")]), "unexpected text"),
        (
            UnknownRuleError,
            lambda: Engine(shop.model, shop.trie).recommend([Request(filter="cheap")]),
            "no catalog, so no rules",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


ids = st.one_of(st.sampled_from([f"é{i}" for i in range(170)]), st.text(max_size=8))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ids, max_size=20), st.lists(ids, max_size=200), st.sampled_from(ALL_RULES), st.integers(1, 200),
    st.sampled_from(["full", "allowed"]),
)  # fmt: skip
def test_no_answer_ever_holds_an_item_that_is_not_allowed(shop, catalog, history, deny, rules, num_items, scoring):
    engine = Engine(shop.model, catalog)
    request = Request(history=history, deny_item_ids=deny, rules=rules, num_items=num_items, scoring=scoring)
    result = engine.recommend([request])[0]
    allowed = shop.allowed(rules, (*deny, *history))
    assert set(result.item_ids) <= allowed
    assert len(set(result.item_ids)) == len(result.item_ids) == result.num_valid == min(num_items, len(allowed))
    assert list(result.scores) == sorted(result.scores, reverse=True)
    assert result.ignored_history == tuple(one for one in history if one not in shop.allowed())


def test_an_idle_worker_uses_no_cpu(engine):
    others = set(threading.enumerate())  # other engines' workers may still end
    with engine:
        engine.submit(Request()).result(20)
        worker = next(thread for thread in set(threading.enumerate()) - others if thread.name == "leafbeam-worker-0")
        before = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - before < 0.1
        assert worker.is_alive()
    assert not worker.is_alive()


def test_a_damaged_index_is_refused_before_it_answers_unless_verification_is_off(shop, tmp_path):
    path = tmp_path / "index.leafbeam"
    shop.trie.save(path)
    raw = bytearray(path.read_bytes())
    raw[raw.rindex("é17".encode()) + 2] ^= 1  # an id, which the file's structure says nothing about
    path.write_bytes(raw)
    with pytest.raises(IndexFileError, match="arrays hash to"):
        Engine.load(shop.model, path)
    trusting = Engine.load(shop.model, CatalogFiles(index=path, verify=False))
    assert set(trusting.trie.item_ids.tolist()) != set(shop.trie.item_ids.tolist())
