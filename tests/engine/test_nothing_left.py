"""A3: an answer without items says which rules, and which exclusions of the request, left none."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.catalog import Catalog
from leafbeam.engine import Engine, Request
from tests.engine.conftest import ITEM_IDS, RULES, Shop, make_shop

SHOP = make_shop()
DENY, HISTORY = "- deny_item_ids", "- history"


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    """An engine with rules, and one of the index alone."""
    with Catalog.in_memory(pa.Table.from_pylist(SHOP.rows), SHOP.trie, RULES, background=False) as catalog:
        yield Engine(SHOP.model, catalog), Engine(SHOP.model, SHOP.trie)


def one(engine: Engine, **fields: Any) -> Any:
    return engine.recommend([Request(num_items=3, **fields)])[0]


def check_against_brute_force(shop: Shop, result: Any, left_of: dict[str, set[str]]) -> None:
    """Compare an answer with the items that each part of its request leaves."""
    every = set(ITEM_IDS)
    left = every.intersection(*left_of.values())
    assert result.num_valid == min(3, len(left))
    assert bool(result.empty_rules) == (not left)
    named = [left_of[name] for name in result.empty_rules]
    if left:
        return
    assert not every.intersection(*named)
    for index in range(len(named)):  # none can be left out
        assert every.intersection(*named[:index], *named[index + 1 :])
    rules_leave = every.intersection(*(part for name, part in left_of.items() if not name.startswith("- ")))
    assert any(name.startswith("- ") for name in result.empty_rules) == bool(rules_leave)


@settings(max_examples=80, deadline=None)
@given(
    rules=st.lists(st.sampled_from(sorted(RULES)), max_size=3, unique=True).map(tuple),
    data=st.data(),
    keep=st.booleans(),
    with_rules=st.booleans(),
)
def test_the_smallest_set_of_rules_and_exclusions_is_named(engines, rules, data, keep, with_rules):
    """A3: against brute force; an exclusion is named only where the rules leave items."""
    rules = rules if with_rules else ()
    allowed = sorted(SHOP.allowed(rules))
    split = data.draw(st.integers(0, len(allowed)))
    spared = data.draw(st.sampled_from([0, 0, 0, 1]))
    overlap = data.draw(st.integers(0, 3))
    deny, history = allowed[: split + overlap], allowed[split : len(allowed) - spared]
    result = one(
        engines[0 if with_rules else 1],
        rules=rules,
        deny_item_ids=(*deny, "unknown"),
        history=tuple(history),
        keep_history=keep,
    )
    left_of = {rule: SHOP.allowed((rule,)) for rule in rules}
    left_of |= {DENY: set(ITEM_IDS) - set(deny), HISTORY: set(ITEM_IDS) - (set() if keep else set(history))}
    check_against_brute_force(SHOP, result, left_of)


RARE = tuple(sorted(SHOP.allowed(("rare",))))


@pytest.mark.parametrize(
    ("fields", "empty"),
    [
        ({"deny_item_ids": ITEM_IDS}, (DENY,)),
        ({"history": ITEM_IDS}, (HISTORY,)),
        ({"history": ITEM_IDS, "keep_history": True}, ()),
        ({"history": ITEM_IDS[:80], "deny_item_ids": ITEM_IDS[80:]}, (DENY, HISTORY)),
        ({"history": ITEM_IDS, "deny_item_ids": ITEM_IDS}, (DENY,)),
        ({"rules": ("rare",), "history": RARE}, ("rare", HISTORY)),
        ({"rules": ("rare",), "deny_item_ids": RARE}, ("rare", DENY)),
        ({"rules": ("rare",), "deny_item_ids": RARE[1:]}, ()),
        ({"filter": "rare - none", "deny_item_ids": RARE}, ("rare - none", DENY)),
        ({"rules": ("none",), "deny_item_ids": ITEM_IDS, "history": ITEM_IDS}, ("none",)),
        ({"rules": ("rare",), "deny_item_ids": ["x", *RARE[1:]], "history": ["y", RARE[0], RARE[0]]}, ("rare", DENY, HISTORY)),
    ],
)
def test_each_exclusion_is_named_with_the_rules_that_it_needs(engines, fields, empty):
    """A3: alone, together, with a rule, with a part of the filter; unknown and repeated ids; empty rules come first."""
    assert sorted(one(engines[0], **fields).empty_rules) == sorted(empty)


@pytest.mark.parametrize("rules", [(), ("rare",)])
def test_deleted_items_of_a_history_and_items_without_a_row_do_not_count(rules):
    """A3: they are not among the items that the history takes."""
    rows = [row for row in SHOP.rows if row["item_id"] in (*RARE, "é1", "é2")]
    with Catalog.in_memory(pa.Table.from_pylist(rows), SHOP.trie, RULES, background=False) as catalog:
        engine = Engine(SHOP.model, catalog)
        catalog.delete([RARE[0], "é1"])
        left = [row["item_id"] for row in rows if row["item_id"] not in (RARE[0], "é1")]
        history = tuple(left) if not rules else RARE[1:]
        assert one(engine, rules=rules, history=(RARE[0], *history)).empty_rules == (*rules, HISTORY)
        result = one(engine, rules=rules, history=(RARE[0], *history[1:]))
        assert (result.num_valid, result.empty_rules) == (1, ())
