"""The catalog of a server as it is in the end, item by item, compared with what was acknowledged."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.serving.soak_clients import KnownShop
from benchmarks.serving.soak_history import BAND, Item, band_where, is_allowed
from benchmarks.serving.soak_shop import RULES
from leafbeam.client import Client
from leafbeam.errors import NotFoundError

__all__ = ["Found", "missing_changes", "read_back"]

_GONE = 200  # of the items that went long ago


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a server has. items: None for one that it has not. allowing: the rules of a file that allow each item."""

    items: Mapping[int, Item | None]
    allowing: Mapping[int, frozenset[str]]
    num_items: int
    band: str | None


def read_back(client: Client, shop: KnownShop, dice: random.Random) -> Found:
    """Read every item that should be there, those that went lately and some that went before, and the rule `band`."""
    gone = dice.sample(range(shop.oldest), min(_GONE, shop.oldest))
    items, allowing = dict[int, Item | None](), dict[int, frozenset[str]]()
    for item_id in {*shop.items.keys, *gone}:
        try:
            answer = client.get_item(item_id)
        except NotFoundError:
            items[item_id] = None
            continue
        attributes = answer.attributes
        items[item_id] = Item(codes=answer.codes, price=attributes["price"], stock=attributes["stock"])
        allowing[item_id] = frozenset(answer.rules) & RULES.keys()
    try:
        band = client.get_rule(BAND).where
    except NotFoundError:
        band = None
    return Found(items=items, allowing=allowing, num_items=client.get_catalog().num_items, band=band)


def missing_changes(found: Found, shop: KnownShop, at: float) -> list[str]:
    """Where a server differs from what was acknowledged; a change without an answer may have been made or not."""
    problems = list[str]()
    possible = {item_id: shop.items.possible(item_id, at) for item_id in {*shop.items.keys, *found.items}}
    for item_id, states in possible.items():
        item = found.items.get(item_id)
        if item not in states:
            problems.append(f"item {item_id} is {item}, expected {states}")
        elif item is not None:
            allowing = frozenset(rule for rule in RULES if is_allowed(item, rule, None))
            if found.allowing[item_id] != allowing:
                problems.append(f"item {item_id}, {item}, is allowed by {found.allowing[item_id]}, expected {allowing}")
    least = sum(None not in states for states in possible.values())
    most = sum(states != [None] for states in possible.values())
    if not least <= found.num_items <= most:
        problems.append(f"the catalog has {found.num_items} items, expected {least} to {most}")
    bands = [None if low is None else band_where(low) for low in shop.bands.possible(BAND, at)]
    if found.band not in bands:
        problems.append(f"the rule {BAND} is {found.band}, expected {bands}")
    return problems
