import re
import time

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.catalog import Catalog, Rule
from leafbeam.catalog.durations import parse_duration
from leafbeam.catalog.items_table import ItemsTable
from leafbeam.catalog.rule_config import read_rules, rules_from_text
from leafbeam.errors import ItemIdError, RequestError, RuleError, UnknownRuleError
from tests.catalog.shop import IDS, RULES, TRIE, expected, items, names
from tests.fixtures.clocks import Clock


@pytest.fixture
def catalog():
    with Catalog.in_memory(items(), TRIE, RULES, clock=Clock(1000.0), background=False) as made:
        yield made


# How rules are written down.


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("100ms", 0.1),
        ("60s", 60),
        ("1.5s", 1.5),
        ("5m", 300),
        ("1h", 3600),
        ("1d", 86400),
        ("365d", 31_536_000),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "duration",
    [
        "",
        "60",
        "s",
        "0s",
        "99ms",
        "-1s",
        "1 s",
        "1S",
        "366d",
        "9" * 400 + "d",
        "1e3s",
        "nan s",
        "٣s",
        "1s\n",
        60,
        1.5,
        None,
        True,
        ["1s"],
    ],
)
def test_an_invalid_duration_is_refused(duration):
    with pytest.raises(RuleError, match='such as "500ms", "60s"'):
        parse_duration(duration)


def test_a_rules_file_may_have_refresh_intervals(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        "[rules]\nplain = 'true'\nfresh = { where = 'price < 3', refresh = '5m' }\n[rules.long]\nwhere = '''\nprice > 3\n'''\n"
    )
    rules, faults = read_rules(path, refresh=7.0)
    assert faults == {}
    assert rules == {
        "plain": Rule(name="plain", where="true", refresh=7.0),
        "fresh": Rule(name="fresh", where="price < 3", refresh=300.0),
        "long": Rule(name="long", where="price > 3\n", refresh=7.0),
    }


@pytest.mark.parametrize("text", ["a." * 50_000 + "b = 1\n", "[" + "'a' . " * 50_000 + "b]\nc.d = 1\n"])
def test_a_key_of_many_dots_is_refused_at_once(tmp_path, text):
    path = tmp_path / "rules.toml"
    path.write_text("[rules]\nx = 'price < 3'\n" + text)
    with pytest.raises(RuleError, match="has a key of more than 32 dots"):
        read_rules(path)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"where": "true", "refresh": 60}, "the refresh of rule 'x' has to be a text"),
        ({"where": "true", "refresh": "often"}, "the refresh of rule 'x' has to be a text"),
        ({"refresh": "60s"}, "but it has no where"),
        ({}, "but it has no where"),
        ({"where": "true", "every": "60s"}, "but it has 'every' too"),
        ({"where": 3}, "must be an SQL predicate as text, not 3"),
        ({"where": ""}, "must be an SQL predicate as text"),
        ([], "must be an SQL predicate as text"),
    ],
)
def test_a_rule_of_another_shape_is_refused_and_hides_no_other(value, says):
    rules, faults = read_rules({"x": value, "y": "true"})
    assert set(rules) == {"y"}
    with pytest.raises(RuleError, match=says):
        raise faults["x"]
    with pytest.raises(RuleError, match=says):
        Catalog.in_memory(items(), TRIE, {"x": value})


def test_a_later_source_replaces_the_rules_that_it_names(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("[rules]\ncheap = 'price < 5'\nrare = 'stock = 2'\n")
    with Catalog.in_memory(items(), TRIE, [path, {"cheap": "price < 9"}, {"dear": "price > 30"}]) as catalog:
        assert set(catalog.rules.filters) == {"cheap", "rare", "dear"}
        assert names(catalog, "cheap") == expected(lambda i: i % 40 < 9)
        path.write_text("[rules]\ncheap = 'price < 7'\n")
        assert catalog.reload().ok
        assert set(catalog.rules.filters) == {"cheap", "dear"}
        assert names(catalog, "cheap") == expected(lambda i: i % 40 < 9)


def test_a_rule_of_a_command_line_is_one_text():
    stated = rules_from_text(
        ["fresh@60s=first_seen > now() - INTERVAL 7 DAY", " cheap = price <= 20 ", "a-b=name = 'x=y@z'", "two=a = 1\nOR b = 2"]
    )
    assert stated == {
        "fresh": {"where": "first_seen > now() - INTERVAL 7 DAY", "refresh": "60s"},
        "cheap": "price <= 20",
        "a-b": "name = 'x=y@z'",
        "two": "a = 1\nOR b = 2",
    }
    assert rules_from_text([]) == {}
    with Catalog.in_memory(items(), TRIE, rules_from_text(["cheap@1d=price < 20", "none=stock = 9"])) as catalog:
        assert names(catalog, "cheap") == expected(lambda i: i % 40 < 20)
        assert {one.name: one.refresh for one in catalog.status} == {"cheap": 86_400.0, "none": None}


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["cheap"], "write a rule as NAME=PREDICATE"),
        ([""], "write a rule as NAME=PREDICATE"),
        (["a b=price < 3"], "write a rule as NAME=PREDICATE"),
        (["=price < 3"], "a rule's name must begin with a letter"),
        (["7=price < 3"], "a rule's name must begin with a letter"),
        (["cheap="], "rule 'cheap' must be an SQL predicate as text"),
        (["cheap@=price < 3"], "the refresh of rule 'cheap' has to be a text such as"),
        (["cheap@often=price < 3"], "the refresh of rule 'cheap' has to be a text such as"),
        (["cheap=name = '\udcc3'"], "rule 'cheap' holds bytes that are not UTF-8"),
        (["cheap=price < 3", "cheap=price < 4"], "rule 'cheap' is stated twice"),
        (["cheap=a" + ".a" * 1001 + " = 1.5"], "rule 'cheap' has 1,001 dots outside numbers: expected at most 1,000"),
        (["cheap=price > 1" + " or price > 1.5" * 5000], "rule 'cheap' has 75,009 characters: expected at most 65,536"),
        (["cheap=" + "(" * 101], "rule 'cheap' has brackets nested 101 levels deep: expected at most 100"),
        (["cheap=" + "len([" * 51 + "1" + "])" * 51 + " > 0"], "rule 'cheap' has brackets nested 102 levels deep"),
    ],
)
def test_an_invalid_text_of_a_rule_is_refused(texts, says):
    with pytest.raises(RuleError, match=says):
        rules_from_text(texts)


def test_brackets_side_by_side_and_in_quotes_are_not_nested():
    rules_from_text(["cheap=" + "(price < 3) or " * 200 + "true", "odd=name = '" + "(''" * 200 + "'"])


# Rules that come and go.


def test_a_rule_can_be_added_replaced_and_removed(catalog):
    before = catalog.rules
    catalog.add_rule("dear", "price >= 20", refresh="60s")
    assert names(catalog, "dear") == expected(lambda i: i % 40 >= 20)
    assert "dear" not in before.filters
    assert catalog.rules.generation == before.generation + 1
    assert catalog.rules.filters["cheap"].parts[0] is before.filters["cheap"].parts[0]
    catalog.add_rule("dear", "price >= 39")
    assert names(catalog, "dear") == expected(lambda i: i % 40 >= 39)
    catalog.remove_rule("dear")
    with pytest.raises(UnknownRuleError, match="unknown rule 'dear'; the rules of this catalog are: cheap, in_stock, rare"):
        catalog.filter(["dear"])
    with pytest.raises(
        UnknownRuleError, match="no rule 'dear' to remove; the rules of this catalog are: cheap, in_stock, rare"
    ):
        catalog.remove_rule("dear")


def test_an_added_rule_outlives_a_reload_and_a_removed_one_comes_back_with_it(tmp_path):
    (tmp_path / "rules.toml").write_text("[rules]\ncheap = 'price < 20'\nrare = 'stock = 2'\n")
    with Catalog.in_memory(items(), TRIE, tmp_path / "rules.toml") as catalog:
        catalog.add_rule("cheap", "price < 5")
        catalog.add_rule("dear", "price > 30")
        catalog.remove_rule("rare")
        assert set(catalog.rules.filters) == {"cheap", "dear"}
        assert catalog.reload().ok
        assert set(catalog.rules.filters) == {"cheap", "dear", "rare"}
        assert names(catalog, "cheap") == expected(lambda i: i % 40 < 5)
        catalog.remove_rule("cheap")
        assert catalog.reload().ok
        assert names(catalog, "cheap") == expected(lambda i: i % 40 < 20)


@pytest.mark.parametrize(
    ("name", "where", "refresh"),
    [
        ("new", "price <", None),
        ("new", "no_such_column > 1", None),
        ("new", "error('no')", None),
        ("new", "sum(price) > 1", None),
        ("new", "row_number() OVER () < 3", None),
        ("new", "true) OR (true", None),
        ("new", "true); DELETE FROM items; --", None),
        ("new", "item_id", None),
        ("new", "", None),
        ("new", "true", "soon"),
        ("new", "true", "0s"),
        ("a b", "true", None),
        ("x' OR '1", "true", None),
        ("cheap", "price <", None),
    ],
)
def test_a_malformed_rule_is_refused_and_changes_nothing(catalog, name, where, refresh):
    before, status = catalog.rules, catalog.status
    with pytest.raises(RuleError):
        catalog.add_rule(name, where, refresh)
    assert catalog.rules is before
    assert catalog.status == status
    assert catalog.reload().ok
    assert set(catalog.rules.filters) == {"cheap", "in_stock", "rare"}
    assert names(catalog, "cheap") == expected(lambda i: i % 40 < 20)


def test_times_are_compared_with_now_in_utc():
    now = time.time_ns() // 1000
    hour = 3600 * 10**6
    table = pa.table(
        {
            "item_id": IDS[:4],
            "seen": pa.array([now, now - 7 * 24 * hour + hour, now - 7 * 24 * hour - hour, None], pa.timestamp("us")),
            "zoned": pa.array(
                [now, now - 7 * 24 * hour + hour, now - 7 * 24 * hour - hour, None], pa.timestamp("us", "Asia/Tokyo")
            ),
        }
    )
    rules = {"fresh": "seen > now() - INTERVAL 7 DAY", "too": "zoned > now() - INTERVAL 7 DAY"}
    with Catalog.in_memory(table, TRIE, rules) as catalog:
        assert names(catalog, "fresh") == names(catalog, "too") == set(IDS[:2])


NOWS = ["now()", "current_timestamp", "get_current_timestamp()", "NOW()"]
TIMES = [
    "seen > {now} - INTERVAL 7 DAY",
    "zoned > {now} - INTERVAL 7 DAY",
    "day > {now} - INTERVAL 7 DAY",
    "{now} - INTERVAL 7 DAY < seen AND NOT zoned < {now} - INTERVAL 7 DAY",
    "seen BETWEEN {now} - INTERVAL 7 DAY AND {now}",
    "date_diff('hour', seen, {now}) < 168",
    "age({now}, seen) < INTERVAL 7 DAY",
    "epoch({now}) - epoch(seen) < 7 * 86400",
    "date_trunc('day', {now}) - INTERVAL 7 DAY < seen",
    "year({now}) = year(seen)",
    "seen > {now} AT TIME ZONE 'Asia/Tokyo' - INTERVAL 7 DAY",
    "seen > timezone('America/New_York', {now}) - INTERVAL 7 DAY",
    "strftime({now}, '%Y-%m-%d') > strftime(seen, '%Y-%m-%d')",
    "typeof({now}) = 'TIMESTAMP WITH TIME ZONE'",
    "{now}::VARCHAR LIKE '%+00'",
    "coalesce(zoned, {now}) > {now} - INTERVAL 7 DAY",
]


def test_rules_about_now_mean_what_duckdb_means_and_cost_no_time_zone_a_row():
    """One catalog for all, so that rules that see zones and rules that do not come by turns."""
    hours = 3600 * 10**6 * np.arange(0, 300, 7) + 30 * 60 * 10**6
    seen = time.time_ns() // 1000 - hours
    columns = {"seen": pa.array(seen, pa.timestamp("us")), "zoned": pa.array(seen, pa.timestamp("us", "Asia/Tokyo"))}
    table = pa.table({"item_id": IDS[: len(seen)], **columns, "day": columns["seen"].cast(pa.date32(), safe=False)})
    rules = {f"r{number}": text.format(now=NOWS[number % len(NOWS)]) for number, text in enumerate(TIMES)}
    with duckdb.connect() as connection, Catalog.in_memory(table, TRIE, rules, background=False) as catalog:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("items", table)
        for name, where in rules.items():
            meant = {row[0] for row in connection.execute(f"SELECT item_id FROM items WHERE {where}").fetchall()}
            assert names(catalog, name) == meant, where
        catalog.update(IDS[:1], [{"day": None}])  # rows that changed are judged together
        for name, where in rules.items():
            meant = {row[0] for row in connection.execute(f"SELECT item_id FROM items WHERE {where}").fetchall()}
            assert names(catalog, name) - {IDS[0]} == meant - {IDS[0]}, where


def test_a_rule_about_now_changes_with_the_time_alone():
    table = pa.table({"item_id": IDS[:1], "seen": pa.array([time.time_ns() // 1000 + 20_000], pa.timestamp("us"))})
    with Catalog.in_memory(table, TRIE, {"past": "seen < now()"}, background=False) as catalog:
        before = names(catalog, "past")
        time.sleep(0.03)
        catalog.refresh("past")
        assert (before, names(catalog, "past")) in ((set(), set(IDS[:1])), (set(IDS[:1]), set(IDS[:1])))


# Expressions and deny lists.


def test_an_expression_of_rules_is_a_filter_and_a_deny_list_is_subtracted(catalog):
    cheap, stock, rare = (names(catalog, name) for name in ("cheap", "in_stock", "rare"))

    def asked(*args, **more) -> set:
        return set(catalog.filter(*args, **more).item_ids().tolist())

    assert asked("cheap & in_stock") == asked(["in_stock", "cheap"]) == cheap & stock
    assert asked("cheap | in_stock - rare") == cheap | (stock - rare)
    assert asked("(cheap | in_stock) - rare", deny=IDS[:50]) == ((cheap | stock) - rare) - set(IDS[:50])
    assert asked(deny=[*IDS[:50], "unknown", IDS[3]]) == set(IDS[50:])
    assert asked(["cheap"], deny=np.array(IDS[:50])) == cheap - set(IDS[:50])
    assert catalog.filter() is None
    assert catalog.filter([], deny=[]) is None
    with pytest.raises(ItemIdError):
        catalog.filter(["cheap"], deny=[1.5])
    for wrong in (3, ["cheap", 3]):
        with pytest.raises(RequestError, match="3 is not a rule: expected names"):
            catalog.filter(wrong)
    for asked_for in ("cheap", ()):  # a number among texts would deny nothing
        with pytest.raises(ItemIdError, match="deny holds 3, but the item ids of this index are text"):
            catalog.filter(asked_for, deny=[3])


def test_an_expression_is_evaluated_once_for_each_state_of_the_rules(catalog):
    first = catalog.filter("cheap - rare & in_stock")
    assert catalog.filter("in_stock & (cheap - rare)") is first
    assert catalog.filter("cheap") is catalog.filter(["cheap", "cheap"])
    catalog.delete([IDS[1]])
    second = catalog.filter("cheap - rare & in_stock")
    assert second is not first
    assert IDS[1] in set(first.item_ids().tolist()) - set(second.item_ids().tolist())


def test_a_name_with_a_minus_is_a_name_and_the_error_says_how_to_subtract():
    with Catalog.in_memory(items(), TRIE, {"a": "price < 20", "b": "stock = 0", "a-b": "stock = 1"}) as catalog:
        assert catalog.filter("a-b") is catalog.filter(["a-b"])
        assert len(catalog.filter("a -b")) == len(names(catalog, "a") - names(catalog, "b"))
        with pytest.raises(UnknownRuleError, match=r"unknown rule 'a-c' \(a minus needs a space on its left\)"):
            catalog.filter("a-c")


@pytest.fixture(scope="module")
def locked():
    """A catalog whose table cannot be reached any more."""
    with Catalog.in_memory(items(), TRIE, {"cheap": "price < 20"}, background=False) as made:
        ways = {way: getattr(made._table, way) for way in ("reading", "writing", "_connect")}
        for way in ways:
            setattr(made._table, way, None)
        yield made
        for way, opened in ways.items():
            setattr(made._table, way, opened)


@settings(max_examples=600)
@given(
    text=st.one_of(
        st.text(max_size=40),
        st.text(alphabet="cheapinstock_ &|()-'\";=/*\0é", max_size=40),
        st.sampled_from(["cheap'; DROP TABLE items; --", "1=1", "cheap OR 1=1", "cheap\0", "${jndi:x}", "cheap; SELECT 1"]),
    ),
    rules=st.lists(st.one_of(st.text(max_size=10), st.sampled_from(["cheap", "x'; DROP TABLE items; --"])), max_size=3),
    deny=st.lists(st.text(alphabet="é0123'\";-", max_size=8), max_size=4),
)
def test_no_part_of_a_request_reaches_the_table(locked, text, rules, deny):
    """The table cannot be read: every request is answered from bitmaps, or refused by name."""
    for asked in (text, rules):
        try:
            found = locked.filter(asked, deny=deny)
        except (RequestError, UnknownRuleError):
            continue
        assert found is None or set(found.item_ids().tolist()) <= set(IDS) - set(deny)


def test_all_access_goes_through_the_items_table(catalog, monkeypatch):
    """So the test above is valid: it replaces the methods of ItemsTable."""
    monkeypatch.setattr(ItemsTable, "reading", None)
    with pytest.raises(TypeError):
        catalog.refresh("cheap")


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("price", "DOUBLE"),
        ("stock", "BIGINT"),
        ("'true'", "VARCHAR"),
        ("1", "INTEGER"),
        ("price::DECIMAL(9, 2)", "DECIMAL(9,2)"),
        ("[stock]", "BIGINT[]"),
        ("DATE '2025-01-01'", "DATE"),
    ],
)
def test_a_rule_that_is_neither_true_nor_false_is_refused_with_one_that_would_be(where: str, kind: str) -> None:
    """DuckDB takes every number but 0 as true: such a rule would select nearly everything."""
    expected = f"rule 'x' is {kind}, not true or false: compare it, as in "
    with pytest.raises(RuleError, match=re.escape(expected)) as refused:
        Catalog.in_memory(items(), TRIE, {"x": where})
    Catalog.in_memory(items(), TRIE, {"x": str(refused.value).removeprefix(expected)}).close()
    with Catalog.in_memory(items(), TRIE, {"x": "NULL"}) as catalog:
        assert len(catalog.rules.filters["x"]) == 0
