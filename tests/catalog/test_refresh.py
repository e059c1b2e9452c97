import gc
import logging
import threading
import time

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.catalog import Catalog, Rule
from leafbeam.catalog.refresh import Schedule
from leafbeam.catalog.sessions import ReadSession
from leafbeam.errors import DataError, UnknownRuleError
from tests.catalog.shop import IDS, NUM_ITEMS, RULES, TRIE, change, expected, items, names
from tests.fixtures.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def catalog(clock):
    with Catalog.in_memory(items(), TRIE, RULES, clock=clock, background=False) as made:
        yield made


def test_a_rule_is_evaluated_again_when_it_is_due_and_not_before(catalog, clock):
    before = catalog.rules
    change(catalog, "UPDATE items SET stock = 0, price = 0")
    assert catalog.refresh_due() == 60.0
    clock.now += 59.0
    assert catalog.refresh_due() == 1.0
    assert catalog.rules is before
    clock.now += 1.5
    assert catalog.refresh_due() == 60.0
    assert names(catalog, "in_stock") == set()
    assert names(catalog, "cheap") == expected(lambda i: i % 40 < 20)
    assert {one.name: one.age_s for one in catalog.status} == {"cheap": 60.5, "in_stock": 0.0, "rare": 60.5}
    assert {one.name: one.refresh for one in catalog.status} == {"cheap": None, "in_stock": 60.0, "rare": None}
    assert (before.generation, catalog.rules.generation) == (1, 2)


def test_a_refresh_that_finds_the_same_items_keeps_the_filter_objects(catalog, clock):
    before = catalog.rules
    clock.now += 60
    catalog.refresh_due()
    assert catalog.rules.generation == before.generation
    assert catalog.rules.filters["in_stock"].parts[0] is before.filters["in_stock"].parts[0]
    assert {one.name: one.age_s for one in catalog.status}["in_stock"] == 0.0


def test_rules_can_be_refreshed_by_name_or_all_at_once(catalog):
    change(catalog, "UPDATE items SET stock = 0, price = 0")
    (report,) = catalog.refresh("cheap")
    assert (report.name, report.num_items) == ("cheap", NUM_ITEMS)
    assert len(names(catalog, "in_stock")) == 200
    assert [report.num_items for report in catalog.refresh()] == [NUM_ITEMS, 0, 0]
    with pytest.raises(UnknownRuleError, match="no rule or boost 'fresh' to refresh"):
        catalog.refresh("cheap", "fresh")


@pytest.mark.parametrize("fault", ["column", "raises", "table"])
def test_a_rule_that_fails_keeps_its_last_good_filter_and_says_so_once(catalog, clock, caplog, fault):
    caplog.set_level(logging.INFO, "leafbeam.catalog")
    before = names(catalog, "in_stock")
    change(
        catalog,
        {
            "column": "ALTER TABLE items RENAME COLUMN stock TO stocks",
            "raises": "ALTER TABLE items ALTER stock TYPE VARCHAR USING 'none'",
            "table": "ALTER TABLE items RENAME TO things",
        }[fault],
    )
    for _ in range(3):
        clock.now += 60
        assert catalog.refresh_due() == 60.0
    status = {one.name: one for one in catalog.status}
    assert names(catalog, "in_stock") == before
    assert status["in_stock"].error is not None
    assert "rule 'in_stock' cannot be evaluated" in status["in_stock"].error
    assert (status["in_stock"].age_s, status["in_stock"].num_items) == (180.0, len(before))
    assert status["cheap"].error is None
    report = {one.name: one for one in catalog.rules.report.rules}
    assert report["in_stock"].kept
    assert not report["cheap"].kept
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "keeps its last good result" in caplog.text
    change(
        catalog,
        {
            "column": "ALTER TABLE items RENAME COLUMN stocks TO stock",
            "raises": "ALTER TABLE items ALTER stock TYPE INTEGER USING 1",
            "table": "ALTER TABLE things RENAME TO items",
        }[fault],
    )
    clock.now += 60
    catalog.refresh_due()
    status = {one.name: one for one in catalog.status}
    assert (status["in_stock"].error, status["in_stock"].age_s) == (None, 0.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert all(not one.kept for one in catalog.rules.report.rules)


def test_a_file_that_is_gone_for_a_while_keeps_all_rules(tmp_path, clock):
    path = tmp_path / "shop.duckdb"
    Catalog.create(path, items())
    with Catalog.open(path, TRIE, {"cheap": "price < 20"}, refresh="1s", wait_s=0, clock=clock, background=False) as catalog:
        path.rename(tmp_path / "away")
        clock.now += 1
        assert catalog.refresh_due() == 1.0
        assert "there is no file" in (catalog.status[0].error or "")
        with pytest.raises(DataError, match="there is no file"):
            catalog.add_rule("dear", "price > 20")
        (tmp_path / "away").rename(path)
        with duckdb.connect(str(path)) as connection:
            connection.execute("UPDATE items SET price = 40 - price")
        clock.now += 1
        catalog.refresh_due()
        assert names(catalog, "cheap") == expected(lambda i: i % 40 > 20)
        assert catalog.status[0].error is None


def test_the_schedule_follows_when_a_rule_is_removed_or_redefined(catalog, clock):
    catalog.remove_rule("in_stock")
    assert catalog.refresh_due() is None
    catalog.add_rule("cheap", "price < 20", refresh="10s")
    catalog.add_rule("dear", "price > 20", refresh="25s")
    clock.now += 10
    assert catalog.refresh_due() == 10.0
    catalog.add_rule("cheap", "price < 20")
    assert catalog.refresh_due() == 15.0


def test_requests_and_changes_go_on_while_a_slow_rule_is_evaluated(monkeypatch):
    with Catalog.in_memory(items(), TRIE, {"cheap": "price < 20", "slow": "price < 30"}) as catalog:
        inside, go = threading.Event(), threading.Event()
        evaluate = ReadSession.evaluate

        def slow_evaluate(self, rule, num_rows, end):
            found = evaluate(self, rule, num_rows, end)
            if rule.name == "slow":
                inside.set()
                assert go.wait(20)
            return found

        monkeypatch.setattr(ReadSession, "evaluate", slow_evaluate)
        thread = threading.Thread(target=catalog.refresh, args=("slow",))
        thread.start()
        assert inside.wait(20)
        assert len(catalog.filter(["cheap", "slow"])) == 160
        catalog.insert([[0, 0], [1, 1]], ["new", "other"], [{"price": 25.0}, {"price": 35.0}])
        catalog.update(IDS[:2], [{"price": 99.0}, {"price": 29.5}])
        catalog.delete([IDS[5]])
        assert names(catalog, "slow") == (expected(lambda i: i % 40 < 30) | {"new"}) - {IDS[0], IDS[5]}
        go.set()
        thread.join(20)
        # What was evaluated before the changes is put in force with them.
        assert names(catalog, "slow") == (expected(lambda i: i % 40 < 30) | {"new"}) - {IDS[0], IDS[5]}
        assert names(catalog, "cheap") == expected(lambda i: i % 40 < 20) - {IDS[0], IDS[1], IDS[5]}


def until(found) -> None:
    give_up = time.monotonic() + 20
    while not found():
        assert time.monotonic() < give_up
        time.sleep(0.002)


def test_the_background_thread_refreshes_by_itself_and_ends_with_the_catalog():
    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "leafbeam-refresh"]

    assert threads() == []
    with Catalog.in_memory(items(), TRIE, {"cheap": "price < 20"}) as catalog:
        assert threads() == []
        catalog.add_rule("in_stock", "stock > 0", refresh="100ms")
        change(catalog, "UPDATE items SET stock = 1")
        until(lambda: len(catalog.rules.filters["in_stock"]) == NUM_ITEMS)
        assert len(threads()) == 1
    assert threads() == []
    forgotten = Catalog.in_memory(items(), TRIE, {"cheap": "price < 20"}, refresh="100ms")
    assert len(threads()) == 1
    del forgotten
    gc.collect()
    until(lambda: (gc.collect(), threads() == [])[1])


def test_a_rule_that_closing_interrupts_has_not_failed(monkeypatch, caplog):
    evaluate, began = ReadSession.evaluate, threading.Event()

    def until_stopped(self, rule, num_rows, end):
        began.set()
        until(lambda: self._limit.stopped)
        return evaluate(self, rule, num_rows, end)

    with Catalog.in_memory(items(), TRIE, {"cheap": "price < 20"}, refresh="100ms"):
        monkeypatch.setattr(ReadSession, "evaluate", until_stopped)
        assert began.wait(20)
    assert caplog.text == ""


def test_an_exception_in_the_background_thread_does_not_end_it(monkeypatch, caplog):
    with Catalog.in_memory(items(), TRIE, {"cheap": "price < 20"}, background=False) as catalog:
        monkeypatch.setattr(catalog._rules, "refresh_due", lambda: 1 / 0)
        assert catalog._rules.refresh_in_background() == 1.0
    assert "rules could not be refreshed" in caplog.text


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.5, 50), min_size=1, max_size=6),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 30)), max_size=60),
)
def test_a_schedule_starves_no_rule_and_runs_none_too_early(intervals, steps):
    """steps: the clock goes on by so much, then the rule that is due takes so long."""
    schedule, now = Schedule(), 0.0
    rules = [Rule(name=f"r{i}", where="true", refresh=interval) for i, interval in enumerate(intervals)]
    schedule.plan(rules, now)
    due = {rule.name: rule.refresh or 0.0 for rule in rules}
    for passed, taken in steps:
        now += passed
        wait, name = schedule.wait(now), schedule.next_due(now)
        assert (wait == 0) == (name is not None)
        if name is None:
            assert wait == pytest.approx(min(due.values()) - now)
            continue
        assert due[name] == min(due.values()) <= now
        began, now = now, now + taken
        schedule.evaluated(name, began, now)
        due[name] = max(began + intervals[int(name[1:])], now)
        schedule.plan(rules, now)


def test_a_rule_slower_than_its_interval_leaves_room_for_others(catalog, clock, monkeypatch):
    evaluate, evaluated = ReadSession.evaluate, []

    def slow(self, rule, num_rows, end):
        evaluated.append(rule.name)
        clock.now += 90.0
        return evaluate(self, rule, num_rows, end)

    monkeypatch.setattr(ReadSession, "evaluate", slow)
    clock.now += 60
    assert catalog.refresh_due() == 0.0
    assert set(evaluated) == {"in_stock"}
    assert len(evaluated) <= len(RULES)
