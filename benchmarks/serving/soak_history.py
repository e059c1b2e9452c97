"""What items and rules may be at any moment while one client changes them over HTTP, and what answers that makes wrong.

A change is made at some moment between its sending and its acknowledgement. So an answer is right if there
is a moment between the sending of its request and its arrival at which every item of it was there, with these codes, and
allowed by the request's rules.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from leafbeam.serve.schema import RecommendAnswer, RecommendBody

__all__ = ["BAND", "ChangeHistory", "Item", "band_where", "is_allowed", "mistake_of", "mistake_of_refusal"]

BAND = "band"  # the rule that comes, changes and goes over HTTP; its state is the lowest price of it
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """An item as a change left it."""

    codes: tuple[int, ...]
    price: float
    stock: int


@dataclass(kw_only=True, slots=True)
class _State(Generic[V]):
    """What a key is from some moment after `sent` to one before `until`. None: it is not there."""

    value: V | None
    sent: float
    until: float = math.inf


class ChangeHistory(Generic[K, V]):
    """The states of keys of which one thread changes some at a time; any thread may ask. Keys without a state are not there.

    >>> history = ChangeHistory({"a": 1})
    >>> history.send({"a": 2}, 10.0)
    >>> history.acknowledge(11.0)
    >>> [history.possible("a", at) for at in (9.0, 10.5, 12.0)]
    [[1], [1, 2], [2]]
    """

    def __init__(self, values: Mapping[K, V]) -> None:
        self._states = {key: [_State[V](value=value, sent=-math.inf)] for key, value in values.items()}
        self._unacknowledged: tuple[K, ...] = ()
        self._ended: deque[tuple[float, K]] = deque()
        self._lock = threading.Lock()

    def send(self, values: Mapping[K, V | None], at: float) -> None:
        """A change that makes these values of these keys is sent."""
        with self._lock:
            assert not self._unacknowledged, "one change at a time"
            for key, value in values.items():
                states = self._states.setdefault(key, [_State[V](value=None, sent=-math.inf)])
                states.append(_State[V](value=value, sent=at))
            self._unacknowledged = tuple(values)

    def acknowledge(self, at: float) -> None:
        """The change that was sent has been answered: what was before it is over."""
        with self._lock:
            for key in self._unacknowledged:
                self._states[key][-2].until = at
                self._ended.append((at, key))
            self._unacknowledged = ()

    def forget(self, before: float) -> None:
        """Drop the states that were over by then."""
        with self._lock:
            while self._ended and self._ended[0][0] < before:
                _, key = self._ended.popleft()
                states = self._states[key]
                states.pop(0)
                if len(states) == 1 and states[0].value is None:
                    del self._states[key]

    @property
    def keys(self) -> list[K]:
        """Keys that are there, or were until not long ago."""
        with self._lock:
            return list(self._states)

    def possible(self, key: K, at: float) -> list[V | None]:
        """What a key may have been at a moment, in the order of the changes."""
        with self._lock:
            states = self._states.get(key)
            return [None] if states is None else [state.value for state in states if state.sent <= at <= state.until]

    def changed(self, keys: Iterable[K], after: float, until: float) -> list[float]:
        """The moments at which changes of these keys were sent."""
        with self._lock:
            states = [state for key in keys for state in self._states.get(key, ())]
            return [state.sent for state in states if after < state.sent <= until]


def band_where(low: int) -> str:
    """The predicate of the rule `band`."""
    return f"price >= {low} AND price < {low + 20}"


def is_allowed(item: Item, rule: str, low: int | None) -> bool:
    """Whether a rule allows an item. low: the state of the rule `band`."""
    allowed = {
        "cheap": item.price < 20,
        "dear": item.price >= 20,
        "in_stock": item.stock > 0,
        BAND: low is not None and low <= item.price < low + 20,
    }
    return allowed[rule]


def mistake_of(
    request: RecommendBody,
    answer: RecommendAnswer,
    items: ChangeHistory[int, Item],
    bands: ChangeHistory[str, int],
    *,
    asked: float,
    answered: float,
) -> str | None:
    """What is wrong with an answer, or None. The rules leave more items than a request wants, so it has to be full."""
    found = {int(item_id): codes for item_id, codes in zip(answer.item_ids, answer.codes, strict=True)}
    if len(found) != request.num_items or len(answer.item_ids) != request.num_items:
        return f"{answer.item_ids} for {request}: expected {request.num_items} different items"
    if found.keys() & {*request.history, *request.deny_item_ids}:
        return f"{answer.item_ids} for {request}: the history and denied items must be left out"

    def is_right(at: float, low: int | None) -> bool:
        return all(
            any(
                item is not None and item.codes == codes and all(is_allowed(item, rule, low) for rule in request.rules)
                for item in items.possible(item_id, at)
            )
            for item_id, codes in found.items()
        )

    moments = {asked, *items.changed(found, asked, answered), *bands.changed([BAND], asked, answered)}
    if not any(is_right(at, low) for at in moments for low in bands.possible(BAND, at)):
        states = {item_id: items.possible(item_id, answered) for item_id in found}
        band = bands.possible(BAND, answered)
        return f"{found} for {request}: at no moment were they all allowed; at the end they are {states}, band {band}"
    return None


def mistake_of_refusal(request: RecommendBody, bands: ChangeHistory[str, int], *, asked: float, answered: float) -> str | None:
    """What is wrong with the refusal of a rule as unknown, or None: it has to be the one that comes and goes, while away."""
    moments = {asked, *bands.changed([BAND], asked, answered)}
    if BAND in request.rules and any(None in bands.possible(BAND, at) for at in moments):
        return None
    return f"{request} was refused: its rules are known"
