"""Boosts and group columns: a number for each item, kept at the state of the table and the index."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.catalog.definitions import MAX_GROUPS
from leafbeam.errors import DataError, RuleError, UnknownBoostError, UnknownColumnError, UnknownRuleError
from leafbeam.index import ItemColumn, Trie
from leafbeam.live import CompactionPolicy, LiveIndex
from tests.catalog.shop import IDS, TRIE, change, groups, items, numbers

BOOSTS = {
    "margin": {"expression": "price / 10"},
    "scarce": {"expression": "CASE WHEN stock = 1 THEN 2 END", "refresh": "60s"},
    "relative": {"expression": "price - (SELECT avg(price) FROM items)"},
}


def branded() -> pa.Table:
    return items().append_column("brand", [[None if i % 7 == 0 else f"brand {i % 5}" for i in range(len(IDS))]])


@pytest.fixture
def catalog() -> Any:
    with Catalog.in_memory(branded(), TRIE, [{"cheap": "price < 20"}, BOOSTS], background=False) as made:
        yield made


def test_a_boost_is_the_number_of_its_expression_for_each_item_and_null_is_0(catalog):
    assert numbers(catalog, catalog.rules.boost("margin")) == {
        item_id: np.float32(i % 40 / 10) for i, item_id in enumerate(IDS)
    }
    assert numbers(catalog, catalog.rules.boost("scarce")) == {item_id: 2.0 * (i % 3 == 1) for i, item_id in enumerate(IDS)}
    assert set(catalog.rules.boosts) == set(BOOSTS)
    assert set(catalog.rules.filters) == {"cheap"}


def test_the_report_counts_rules_and_boosts(catalog):
    report = catalog.rules.report
    assert {status.name: (status.kind, status.num_items, status.refresh) for status in report.rules} == {
        "cheap": ("rule", 160, None),
        "margin": ("boost", 292, None),
        "scarce": ("boost", 100, 60.0),
        "relative": ("boost", 300, None),
    }
    assert str(report).startswith("catalog: 300 items, 1 rule, 3 boosts, loaded in")
    assert "\n  boost margin: 292 items" in str(report)
    assert {status.name for status in catalog.status} == {"cheap", *BOOSTS}


def test_a_file_has_rules_and_boosts(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        "[rules]\ncheap = 'price < 20'\n[boosts]\nmargin = 'price / 10'\n"
        "scarce = { expression = 'CASE WHEN stock = 1 THEN 2 END', refresh = '60s' }\n"
    )
    with Catalog.in_memory(items(), TRIE, path) as catalog:
        assert numbers(catalog, catalog.rules.boost("margin"))[IDS[7]] == np.float32(0.7)
        assert {status.name: status.refresh for status in catalog.status} == {"cheap": None, "margin": None, "scarce": 60.0}
        path.write_text("[boosts]\nmargin = 'price / 5'\n")
        assert catalog.reload().ok
        assert numbers(catalog, catalog.rules.boost("margin"))[IDS[7]] == np.float32(1.4)
        assert not catalog.rules.filters


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[rules]\nnew = 'true'\n[boosts]\nnew = '1'", "both a rule and a boost 'new'"),
        ("[boosts]\nnew = { where = 'true' }", "boost 'new' has to be an expression, .* but it has 'where' too"),
        ("[boosts]\nnew = 3", "boost 'new' must be an SQL expression as text, not 3"),
        ("[boosts]\nnew = ''", "boost 'new' must be an SQL expression as text"),
        ("[boosts]\n9 = '1'", "a boost's name must begin with a letter"),
        ("[boost]\nnew = '1'", "it holds: boost"),
        ("boosts = 3", "it holds: boosts"),
    ],
)
def test_a_file_with_an_invalid_boost_is_refused(tmp_path, text, says):
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(RuleError, match=says):
        Catalog.in_memory(items(), TRIE, tmp_path / "rules.toml")


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("1 / (price - 7)", f"boost 'new' is inf for item '{IDS[7]}': expected a finite number, or NULL for 0"),
        ("CASE WHEN price = 7 THEN 'nan'::DOUBLE ELSE 1 END", f"boost 'new' is nan for item '{IDS[7]}'"),
        ("CASE WHEN price = 7 THEN -1e39 ELSE 1 END", f"boost 'new' is -1e\\+39 for item '{IDS[7]}'"),
        ("price < 7", "boost 'new' is BOOLEAN, not a number: .* CASE WHEN price < 7 THEN 1 ELSE 0 END"),
        ("'seven'", "boost 'new' is VARCHAR, not a number"),
        ("now()", "boost 'new' is TIMESTAMP.*, not a number"),
        ("sum(price)", "boost 'new' cannot be evaluated: .*\n.* aggregates"),
        ("COLUMNS(* EXCLUDE (item_id, brand))", "boost 'new' is 2 columns: expected one"),
        ("no_such_column", "boost 'new' cannot be evaluated"),
        ("price;", "boost 'new' cannot be evaluated"),
        ("error('no')", "boost 'new' cannot be evaluated"),
    ],
)
def test_a_boost_that_is_no_finite_number_is_refused_and_changes_nothing(catalog, expression, says):
    before = catalog.rules
    with pytest.raises(RuleError, match=says):
        catalog.add_boost("new", expression)
    assert catalog.rules is before
    catalog.add_boost("new", "price")


def test_a_boost_can_be_added_replaced_and_removed(catalog):
    before = catalog.rules
    catalog.add_boost("new", "stock", refresh="60s")
    assert numbers(catalog, catalog.rules.boost("new"))[IDS[2]] == 2.0
    assert catalog.rules.boost("margin").parts[0] is before.boost("margin").parts[0]
    catalog.add_boost("new", "-stock")
    assert numbers(catalog, catalog.rules.boost("new"))[IDS[2]] == -2.0
    assert catalog.reload().ok
    assert "new" in catalog.rules.boosts
    catalog.remove_boost("new")
    with pytest.raises(UnknownBoostError, match=r"unknown boost 'new'; the boosts .* are: margin, relative, scarce"):
        catalog.rules.boost("new")
    with pytest.raises(
        UnknownBoostError, match="no boost 'new' to remove; the boosts of this catalog are: margin, scarce, relative"
    ):
        catalog.remove_boost("new")


def test_rules_and_boosts_do_not_stand_for_each_other(catalog):
    with pytest.raises(UnknownBoostError, match=r"unknown boost 'cheap' \(there is a rule of this name\)"):
        catalog.rules.boost("cheap")
    with pytest.raises(UnknownRuleError, match=r"unknown rule 'margin' \(there is a boost of this name\)"):
        catalog.filter("margin")
    for add in (lambda: catalog.add_boost("cheap", "1"), lambda: catalog.add_rule("margin", "true")):
        with pytest.raises(RuleError, match="both a rule and a boost"):
            add()
    with pytest.raises(UnknownBoostError):
        catalog.remove_boost("cheap")
    with pytest.raises(UnknownRuleError):
        catalog.remove_rule("margin")
    with pytest.raises(RuleError, match="both a rule and a boost 'cheap'"):
        Catalog.in_memory(items(), TRIE, [{"cheap": "price < 20"}, {"cheap": {"expression": "1"}}])


def test_a_file_whose_rule_has_the_name_of_an_added_boost_changes_nothing(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("[rules]\ncheap = 'price < 20'\n")
    with Catalog.in_memory(items(), TRIE, path) as catalog:
        catalog.add_boost("new", "stock")
        path.write_text("[rules]\nnew = 'price < 20'\n")
        assert "both a rule and a boost 'new'" in str(catalog.reload().error)
        path.write_text("[boosts]\ncheap = 'price'\n")
        assert catalog.reload().ok
        assert (set(catalog.rules.filters), set(catalog.rules.boosts)) == (set(), {"cheap", "new"})


def test_a_name_that_becomes_a_boost_and_cannot_be_evaluated_is_gone(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("[rules]\ncheap = 'price < 20'\n")
    with Catalog.in_memory(items(), TRIE, path) as catalog:
        path.write_text("[boosts]\ncheap = 'no_such_column'\n")
        assert not catalog.reload().ok
        assert (set(catalog.rules.filters), set(catalog.rules.boosts)) == (set(), set())
        catalog.update(IDS[:1], [{"price": 7.0}])


def test_a_boost_that_fails_keeps_its_last_good_numbers_and_says_so(catalog):
    before = numbers(catalog, catalog.rules.boost("margin"))
    change(catalog, f"UPDATE items SET price = 'inf' WHERE item_id = '{IDS[3]}'")
    report = catalog.reload()
    assert not report.ok
    assert f"boost margin: 292 items as before: boost 'margin' is inf for item '{IDS[3]}'" in str(report)
    assert numbers(catalog, catalog.rules.boost("margin")) == before
    assert {status.name: status.kept for status in report.rules}["margin"]
    catalog.update([IDS[3]], [{"price": 30.0}])
    assert catalog.reload().ok
    assert numbers(catalog, catalog.rules.boost("margin")) == {**before, IDS[3]: 3.0}


def test_an_item_whose_number_cannot_be_used_counts_as_0_until_it_can(catalog):
    catalog.update([IDS[3], IDS[4]], [{"price": float("nan")}, {"price": 30.0}])
    (status,) = (status for status in catalog.status if status.name == "margin")
    assert f"boost 'margin' is nan for item '{IDS[3]}'" in str(status.error)
    found = numbers(catalog, catalog.rules.boost("margin"))
    assert (found[IDS[3]], found[IDS[4]]) == (0.0, 3.0)
    assert catalog.rules.filters["cheap"].parts  # the rules are evaluated all the same
    assert IDS[4] not in catalog.rules.filters["cheap"]


def test_inserted_changed_and_deleted_items_have_their_numbers_in_the_next_rule_set(catalog):
    pinned = catalog.rules
    catalog.insert([[0, 30]], ["new"], [{"price": 55.0, "stock": 1, "brand": "brand 9"}])
    catalog.update(IDS[:100], [{"price": 70.0}] * 100)
    catalog.delete(IDS[200:250])
    found = numbers(catalog, catalog.rules.boost("margin"))
    assert found == {
        **{item_id: 7.0 if i < 100 else np.float32(i % 40 / 10) for i, item_id in enumerate(IDS) if not 200 <= i < 250},
        "new": 5.5,
    }
    assert pinned.boost("margin").parts[0].max() == np.float32(3.9)
    catalog.compact(wait=True)
    assert numbers(catalog, catalog.rules.boost("margin")) == found
    assert len(catalog.rules.version.segments) == 1


def test_a_boost_with_an_interval_is_evaluated_again_when_it_is_due():
    now = [0.0]
    with Catalog.in_memory(branded(), TRIE, BOOSTS, clock=lambda: now[0], background=False) as catalog:
        change(catalog, "UPDATE items SET stock = 1, price = 50")
        now[0] = 59.0
        catalog.refresh_due()
        assert numbers(catalog, catalog.rules.boost("scarce"))[IDS[0]] == 0.0
        now[0] = 60.0
        catalog.refresh_due()
        assert numbers(catalog, catalog.rules.boost("scarce"))[IDS[0]] == 2.0
        assert numbers(catalog, catalog.rules.boost("margin"))[IDS[0]] == 0.0
        catalog.refresh("margin")
        assert numbers(catalog, catalog.rules.boost("margin"))[IDS[0]] == 5.0


def test_a_change_of_some_items_leaves_the_bounds_of_other_segments_as_they_are(catalog):
    def bounds(weight: float) -> Any:
        tries = [segment.trie for segment in catalog.rules.version.segments]
        return catalog.rules.boost("margin").scaled(weight).bounds(tries)

    before, negated = bounds(2.0), bounds(-1.0)
    assert (before[0].root, negated[0].root) == (np.float32(3.9), 0.0)
    catalog.insert([[0, 30]], ["new"], [{"price": 55.0}])
    assert (bounds(1.0)[0], bounds(-0.5)[0]) == (before[0], negated[0])
    assert (bounds(1.0)[1].root, bounds(-1.0)[1].root) == (5.5, -5.5)
    catalog.update(IDS[:1], [{"price": 60.0}])
    assert bounds(1.0)[0].root == 6.0
    assert bounds(1.0)[1].root == 5.5


def test_no_request_waits_for_the_bounds_of_a_refreshed_boost_that_requests_used(catalog):
    def base() -> ItemColumn:
        return catalog.rules.boost("margin").segments[0]

    catalog.refresh("margin")
    assert not base().has_bounds  # no request used it
    catalog.rules.boost("margin").bounds([segment.trie for segment in catalog.rules.version.segments])
    used = base()
    catalog.refresh("margin")
    assert base() is used  # the same numbers
    change(catalog, "UPDATE items SET price = price + 10")
    catalog.refresh("margin")
    assert base() is not used
    assert base().has_bounds
    assert base().bounds([catalog.rules.version.segments[0].trie])[0].root == np.float32(4.9)
    catalog.insert([[0, 30]], ["new"], [{"price": 55.0}])
    catalog.rules.boost("margin").bounds([segment.trie for segment in catalog.rules.version.segments])
    catalog.compact(wait=True)
    assert len(catalog.rules.version.segments) == 1
    assert base().has_bounds
    assert base().bounds([catalog.rules.version.segments[0].trie])[0].root == 5.5


# Groups.


def test_groups_are_the_values_of_a_column_and_null_is_none(catalog):
    assert groups(catalog, "brand") == {item_id: None if i % 7 == 0 else f"brand {i % 5}" for i, item_id in enumerate(IDS)}
    assert groups(catalog, "stock") == {item_id: str(i % 3) for i, item_id in enumerate(IDS)}
    assert catalog.rules.groups("brand") is catalog.rules.groups("brand")
    assert {status.name for status in catalog.status} == {"cheap", *BOOSTS}
    assert not {"brand", "groups:brand"} & (catalog.rules.boosts.keys() | catalog.rules.filters.keys())


def test_groups_follow_changes_and_an_old_rule_set_keeps_its_own(catalog):
    before = groups(catalog, "brand")
    pinned, numbers_before = catalog.rules, catalog.rules.groups("brand").parts[0].copy()
    catalog.update(IDS[:2], [{"brand": "brand 9"}, {"brand": None}])
    catalog.insert([[0, 30]], ["new"], [{"brand": "brand 3"}])
    assert groups(catalog, "brand") == {**before, IDS[0]: "brand 9", IDS[1]: None, "new": "brand 3"}
    assert (pinned.groups("brand").parts[0] == numbers_before).all()
    catalog.compact(wait=True)
    assert groups(catalog, "brand") == {**before, IDS[0]: "brand 9", IDS[1]: None, "new": "brand 3"}
    assert catalog.reload().ok
    assert groups(catalog, "brand") == {**before, IDS[0]: "brand 9", IDS[1]: None, "new": "brand 3"}


def test_a_rule_set_of_an_older_version_can_still_ask_for_groups(catalog):
    pinned = catalog.rules
    catalog.insert([[0, 30]], ["new"], [{"brand": "brand 3"}])
    catalog.compact(wait=True)
    column = pinned.groups("brand")
    assert column.index is pinned.version
    names = [*pinned.group_names("brand"), None]
    ordinal_N = TRIE.items.ordinal_N
    assert [names[column.parts[0][ordinal_N[i]]] for i in range(8)] == [
        None if i % 7 == 0 else f"brand {i % 5}" for i in range(8)
    ]


def test_a_column_that_is_not_there_is_refused_with_the_columns(catalog):
    with pytest.raises(UnknownColumnError, match=r"unknown column 'colour'; the columns .* are: item_id, price, stock, brand"):
        catalog.rules.groups("colour")
    with pytest.raises(UnknownColumnError):
        catalog.rules.group_names('brand" OR 1')


def test_more_groups_than_a_cap_can_have_are_refused():
    count = MAX_GROUPS + 1
    trie = Trie.build([[i % 512, i // 512] for i in range(count)], [512, 512], item_ids=range(count))
    table = pa.table({"item_id": range(count), "sku": range(count), "half": [i // 2 for i in range(count)]})
    with Catalog.in_memory(table, trie) as catalog:
        with pytest.raises(RuleError, match="column 'sku' has 100,001 values: expected at most 100,000 groups"):
            catalog.rules.groups("sku")
        assert len(catalog.rules.group_names("half")) == (count + 1) // 2


def test_only_so_many_columns_are_kept(catalog):
    change(catalog, "".join(f"ALTER TABLE items ADD COLUMN c{i} INTEGER DEFAULT {i};" for i in range(20)))
    for number in range(20):
        assert catalog.rules.group_names(f"c{number}") == (str(number),)
    kept = [name for name in catalog.rules.filters.by_segment if name.startswith("groups:")]
    assert kept == [f"groups:c{number}" for number in range(4, 20)]
    assert catalog.rules.group_names("c0") == ("0",)
    assert catalog.rules.group_names("c19") == ("19",)


def test_groups_of_a_closed_catalog_are_refused():
    with Catalog.in_memory(branded(), TRIE) as catalog:
        rules = catalog.rules
    with pytest.raises(DataError):
        rules.groups("brand")


# Any sequence of changes.


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_after_any_changes_every_number_is_that_of_a_catalog_opened_anew(tmp_path, seed):
    chance = random.Random(seed)
    path = tmp_path / "shop.duckdb"
    Catalog.create(path, branded())
    index = LiveIndex.create(None, TRIE, compaction=CompactionPolicy(fraction=None))
    rules = [{"cheap": "price < 20"}, BOOSTS]

    def row() -> dict[str, Any]:
        return {
            "price": chance.choice([None, float(chance.randrange(40))]),
            "stock": chance.randrange(3),
            "brand": chance.choice([None, f"b{chance.randrange(8)}"]),
        }

    def code() -> list[int]:
        return [chance.randrange(8), chance.randrange(31)]

    def insert(ids: list[str]) -> None:
        names = [f"n{chance.randrange(10**6):06d}" for _ in range(chance.randrange(1, 6))]
        names = sorted(set(names) - set(ids))
        catalog.insert([code() for _ in names], names, [row() for _ in names])

    def update(ids: list[str]) -> None:
        chosen = chance.sample(ids, 5)
        catalog.update(chosen, [row() for _ in chosen])

    def replace(ids: list[str]) -> None:
        chosen = chance.sample(ids, 3)
        catalog.replace([code() for _ in chosen], chosen, [row() for _ in chosen])

    changes: list[Any] = [
        insert,
        insert,
        update,
        update,
        replace,
        lambda ids: catalog.delete(chance.sample(ids, 4)),
        lambda ids: catalog.compact(wait=True),
        lambda ids: catalog.refresh(),
        lambda ids: catalog.purge(),
        lambda ids: catalog.reload(),
        lambda ids: catalog.rules.groups(chance.choice(["brand", "stock"])),
    ]
    with index, Catalog.open(path, index, rules, background=False, exclusive=True) as catalog:
        for _ in range(40):
            chance.choice(changes)(catalog.version().all_items.item_ids().tolist())
        found = {name: numbers(catalog, column) for name, column in catalog.rules.boosts.items()}
        found_groups = {column: groups(catalog, column) for column in ("brand", "stock")}
        cheap = set(catalog.rules.filters["cheap"].item_ids().tolist())
        table = catalog.lookup(catalog.version().all_items.item_ids().tolist())
        ids = catalog.version().all_items.item_ids()
        trie = Trie.build(catalog.version().codes_of(ids), [8, 31], item_ids=ids)
        assert catalog.reload().ok
        relative = numbers(catalog, catalog.rules.boost("relative"))
    with Catalog.in_memory(table, trie, rules) as fresh:
        for name in ("margin", "scarce"):
            assert found[name] == numbers(fresh, fresh.rules.boost(name))
        assert found["relative"] == relative  # reads rows of deleted items too
        assert found_groups == {column: groups(fresh, column) for column in ("brand", "stock")}
        assert cheap == set(fresh.rules.filters["cheap"].item_ids().tolist())
