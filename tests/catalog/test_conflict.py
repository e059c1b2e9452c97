"""A3: an answer without items names the rules that left none."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.catalog import Catalog, Expression
from leafbeam.catalog.conflict import conflict_of
from leafbeam.index import Trie, Version
from tests.catalog.shop import IDS, TRIE, items

RULES = {
    "cheap": "price < 20",
    "dear": "price >= 20",
    "none": "price > 1e9",
    "in_stock": "stock > 0",
    "sold_out": "stock = 0",
    "even": "price::INT % 2 = 0",
    "not_six": "price::INT % 6 != 0",
    "three": "price::INT % 3 = 0",
}


@pytest.mark.parametrize(
    ("rules", "also", "empty"),
    [
        (["cheap", "in_stock"], None, ()),
        ([], None, ()),
        (["none"], None, ("none",)),
        (["cheap", "none", "dear"], None, ("none",)),
        (["in_stock", "cheap", "dear"], None, ("cheap", "dear")),
        (["cheap", "sold_out", "in_stock"], None, ("in_stock", "sold_out")),
        (["cheap", "even", "not_six", "three"], None, ("even", "not_six", "three")),
        (["cheap"], "dear & in_stock", ("cheap", "dear")),
        (["cheap"], "(dear & in_stock) | none", ("(dear & in_stock) | none", "cheap")),
        (["cheap"], "none | none & dear", ("(dear & none) | none",)),
        (["cheap"], "none - dear", ("none",)),
        ([], "cheap - cheap", ("cheap - cheap",)),
        (["in_stock"], "(cheap & dear) - three", ("cheap", "dear")),
    ],
)
def test_the_smallest_set_of_rules_that_no_item_satisfies_is_named(rules, also, empty):
    """A3: one rule, a pair, three of which no pair is empty, and parts of expressions."""
    with Catalog.in_memory(items(), TRIE, RULES, background=False) as catalog:
        expression = Expression.of(rules, also)
        if expression is None:
            assert len(catalog.rules.version) == len(IDS)
            return
        assert tuple(sorted(catalog.rules.conflict(expression))) == tuple(sorted(empty))
        assert bool(empty) == (not len(catalog.filter(expression)))


def test_rules_that_changed_items_emptied_are_named():
    """A3: after an update, with items in two segments."""
    with Catalog.in_memory(items(), TRIE, RULES, background=False) as catalog:
        both = Expression.parse("cheap & in_stock")
        assert catalog.rules.conflict(both) == ()
        cheap = catalog.filter("cheap & in_stock").item_ids().tolist()
        catalog.update(cheap, [{"price": 30.0}] * len(cheap))
        assert catalog.rules.conflict(both) == ("cheap", "in_stock")


def test_items_without_a_row_do_not_count():
    """A3: a rule whose items all lack a row is empty."""
    rows = items().slice(0, 10)
    with Catalog.in_memory(rows, TRIE, {"late": "item_id > 'é100'", "all": "true"}, background=False) as catalog:
        assert catalog.rules.conflict(Expression.parse("all & late")) == ("late",)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=6), st.booleans())
def test_no_named_rule_can_be_left_out(masks: list[int], wide: bool) -> None:
    """A3: against brute force, also where the items are far apart in the bitmap."""
    size = 300_000 if wide else 8
    version = _WIDE if wide else _SMALL
    filters = {}
    for number, mask in enumerate(masks):
        bits_N = np.zeros(size, np.bool_)
        bits_N[:: size // 8][:8] = [mask >> bit & 1 for bit in range(8)]
        filters[f"r{number}"] = version.filter_of([version.segments[0].trie.filter(bits_N)])
    expression = Expression.of(filters)
    assert expression is not None
    empty = conflict_of(expression, lambda part: part.evaluate(filters.__getitem__))
    common = [np.bitwise_and.reduce([masks[int(name[1:])] for name in names] or [255]) for names in _less_one(empty)]
    if np.bitwise_and.reduce(masks):
        assert empty == ()
    else:
        assert np.bitwise_and.reduce([masks[int(name[1:])] for name in empty]) == 0
        assert all(len(empty) == 1 or rest for rest in common)
        pairs = [left & right for place, left in enumerate(masks) for right in masks[:place]]
        assert len(empty) == (1 if 0 in masks else 2 if 0 in pairs else max(3, len(empty)))


def _less_one(names: tuple[str, ...]) -> list[list[str]]:
    return [[name for name in names if name != left_out] for left_out in names]


_SMALL = Version.of(Trie.build([[i] for i in range(8)], [8]))
_WIDE = Version.of(Trie.build(np.stack(np.divmod(np.arange(300_000), 1000), axis=1), [300, 1000]))


def test_a_catalog_of_no_rows_names_the_rule():
    """A3: nothing is in the table."""
    with Catalog.in_memory(
        pa.table({"item_id": IDS[:0], "price": pa.array([], pa.float64())}), TRIE, {"cheap": "price < 20"}
    ) as catalog:
        assert catalog.rules.conflict(Expression.parse("cheap")) == ("cheap",)
