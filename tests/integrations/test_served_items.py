"""What an engine may sample: filters by name, legal tokens after a prefix, and the items of what was sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from leafbeam import Trie
from leafbeam.errors import ArgumentError, ForeignFilterError
from leafbeam.integrations.served_items import DENY, RULES, ServedItems, keep_legal

from .tiny import EOS, WORDS, Kind, Shop


def served(kind: Kind = "trie") -> ServedItems:
    shop = Shop(kind)
    filters = {
        "even": shop.index.filter(item_ids=np.arange(6, 300, 2)),
        "third": shop.index.filter(item_ids=np.arange(6, 300, 3)),
    }
    return ServedItems(index=shop.index, code_tokens=shop.tokens, eos_token_id=EOS, filters=filters)


@pytest.mark.parametrize("kind", ["trie", "version"])
def test_every_walk_through_legal_tokens_ends_at_allowed_items_and_reaches_all_of_them(kind: Kind) -> None:
    items = served(kind)
    arguments = {RULES: ["even", "third"], DENY: [12, 18]}
    request = items.request_filter(arguments)
    assert request is not None
    legal = items.legal_tokens(request)
    reached: set[int] = set()
    prefixes: list[list[int]] = [[]]
    for _ in range(items.num_tokens):
        prefixes = [[*prefix, token] for prefix in prefixes for token in legal.after(0, prefix)]
    for prefix in prefixes:
        found = items.item_ids(prefix, arguments).tolist()
        assert found
        assert legal.after(0, prefix) == [EOS]
        assert items.item_ids([*prefix, EOS], arguments).tolist() == found
        reached |= set(found)
    assert reached == set(range(6, 300, 6)) - {12, 18}


def test_what_is_no_whole_allowed_item_has_no_items() -> None:
    items = served()
    whole = [int(table[code]) for table, code in zip(Shop().tokens, items.version.codes_of([7])[0], strict=True)]
    assert 7 in items.item_ids(whole)
    assert 7 not in items.item_ids(whole, {DENY: [7]})
    for wrong in ([], whole[:2], [*whole, whole[0]], [1, 1, 1], [EOS]):
        assert items.item_ids(wrong).tolist() == []


def test_sequences_end_with_the_end_token_or_the_last_token() -> None:
    index = Trie.from_sequences([[11, 12], [11, 12, 13], [40]], vocabulary_size=50, item_ids=["a", "b", "c"])
    items = ServedItems(index=index, eos_token_id=2)
    request = items.request_filter({RULES: []})
    assert request is not None
    legal = items.legal_tokens(request)
    assert sorted(legal.after(0, [])) == [11, 40]
    assert sorted(legal.after(0, [11, 12])) == [2, 13]
    assert legal.after(0, [11, 12, 2]) == [2]
    assert legal.after(0, [13]) == [2]
    for tokens, ids in (
        ([11, 12], ["a"]),
        ([11, 12, 2], ["a"]),
        ([11, 12, 13], ["b"]),
        ([40, 2, 9], ["c"]),
        ([11], []),
        ([], []),
    ):
        assert items.item_ids(tokens).tolist() == ids


def test_requests_without_our_arguments_are_text() -> None:
    items = served()
    assert items.request_filter(None) is None
    assert items.request_filter({"another": 1}) is None
    assert items.request_filter({DENY: []}) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({RULES: ["odd"]}, r"names 'odd': expected some of \['even', 'third'\]"),
        ({RULES: "even"}, "expected a list"),
        ({RULES: [None]}, "expected a list"),
        ({"leafbeam_rule": []}, "leafbeam_rule is not an argument"),
        ({DENY: 3}, "expected a list"),
    ],
)
def test_arguments_of_requests_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        served().request_filter(arguments)


def test_a_filter_of_another_index_is_refused_at_once() -> None:
    foreign = Trie.build([[0, 0, 0]], (2, 2, 2)).filter(np.ones(1, np.bool_))
    shop = Shop()
    with pytest.raises(ForeignFilterError):
        ServedItems(index=shop.index, code_tokens=shop.tokens, eos_token_id=EOS, filters={"foreign": foreign})
    with pytest.raises(ArgumentError, match="code_tokens is missing"):
        ServedItems(index=shop.index, eos_token_id=EOS)


def test_only_the_rows_of_requests_for_items_change() -> None:
    before = torch.randn(4, WORDS, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    keep_legal(after, {3: [5, 9], 1: [EOS]})
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    for row, tokens in ((3, [5, 9]), (1, [EOS])):
        assert torch.equal(after[row, tokens], before[row, tokens])
        assert int((after[row] > -torch.inf).sum()) == len(tokens)
