"""The clients of the soak over HTTP: those that ask and hang up, and the one that changes items and rules."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from benchmarks.serving.hostile_client import post
from benchmarks.serving.soak_history import BAND, ChangeHistory, Item, K, V, band_where, mistake_of, mistake_of_refusal
from benchmarks.serving.soak_outcome import HttpOutcome
from benchmarks.serving.soak_shop import draw_codes, rows_of
from leafbeam.client import Client, Retries
from leafbeam.errors import InvalidRequestError, NoAnswerError, NotFoundError, ServerBusyError, ServerError
from leafbeam.serve.schema import RecommendBody

__all__ = ["PATIENCE_S", "AskingClient", "ChangingClient", "KnownShop"]

PATIENCE_S = 60.0  # for one answer, also while no HTTP worker runs
ASK_PAUSE_S, CHANGE_PAUSE_S, LEAVING = 0.3, 0.25, 0.1


class KnownShop:
    """What the changing client knows of items and rules. Ids only grow and the oldest go first: `oldest` to `next_id` - 1."""

    def __init__(self, codes_NL: np.ndarray[Any, Any]) -> None:
        self.items = ChangeHistory[int, Item](dict(enumerate(_items_of(range(len(codes_NL)), codes_NL))))
        self.bands = ChangeHistory[str, int]({})
        self.oldest, self.next_id = 0, len(codes_NL)


@dataclass(kw_only=True)
class AskingClient:
    """Asks for items with any history, width, rule and deadline, waits for the answer and judges it; a tenth hangs up."""

    shop: KnownShop
    outcome: HttpOutcome
    dice: random.Random

    def run(self, url: str, over: threading.Event) -> None:
        alive_at = time.monotonic()  # the connection's HTTP worker lived then
        with Client(url, retries=Retries(attempts=1, deadline_s=PATIENCE_S)) as client:
            while not over.wait(self.dice.random() * 2 * ASK_PAUSE_S):
                body = self.draw()
                if self.dice.random() < LEAVING:
                    self._leave(url, body)
                else:
                    alive_at = self.send(client, body, alive_at)

    def draw(self) -> RecommendBody:
        """Any request. Its rules leave more items than it wants, and `band` may not be there."""
        dice, shop = self.dice, self.shop
        return RecommendBody(
            history=[dice.randrange(max(0, shop.oldest - 5), shop.next_id + 5) for _ in range(dice.randint(0, 30))],
            num_items=dice.randint(1, 20),
            rules=dice.choice([[], ["cheap"], ["dear"], ["cheap", "in_stock"], [BAND], [BAND, "in_stock"]]),
            deny_item_ids=[dice.randrange(shop.oldest, shop.next_id) for _ in range(dice.randint(0, 5))],
            num_beams=dice.choice([None, 5, 50, 100]),
            scoring=dice.choice(["full", "allowed"]),
            deadline_ms=dice.choice([None, None, None, None, 1, 20, 200]),
        )

    def _leave(self, url: str, body: RecommendBody) -> None:
        place = urlsplit(url)
        with socket.create_connection((place.hostname or "", place.port or 80), PATIENCE_S) as connection:
            with suppress(OSError):  # of a killed HTTP worker
                connection.sendall(post(msgspec.json.encode(body)))
            time.sleep(self.dice.random() * 0.02)
        self.outcome.end("left")

    def send(self, client: Client, body: RecommendBody, alive_at: float) -> float:
        """Send a request, judge and count how it ends. alive_at, and what returns: when the connection's worker lived."""
        shop, asked = self.shop, time.monotonic()
        try:
            answer = client.recommend(
                body.history,
                num_items=body.num_items,
                rules=body.rules,
                deny_item_ids=body.deny_item_ids,
                num_beams=body.num_beams,
                scoring="full" if body.scoring == "full" else "allowed",
                deadline_ms=body.deadline_ms,
            )
        except ServerError as error:
            self._count_failure(body, error, asked, alive_at)
            return time.monotonic() if isinstance(error, NoAnswerError) else asked
        mistake = mistake_of(body, answer, shop.items, shop.bands, asked=asked, answered=time.monotonic())
        self.outcome.end("answered", mistake)
        return asked

    def _count_failure(self, body: RecommendBody, error: ServerError, asked: float, alive_at: float) -> None:
        outcome, reason = self.outcome, error.reason
        with outcome.lock:  # held while an HTTP process is killed
            was_killed = outcome.last_kill >= alive_at
        if isinstance(error, NoAnswerError) and error.code == "cut" and was_killed:
            outcome.end("broken")
        elif isinstance(error, ServerBusyError) and reason is not None and body.deadline_ms is not None:
            outcome.end("refused", reason=reason)
        elif isinstance(error, InvalidRequestError) and error.code == "UnknownRuleError":
            mistake = mistake_of_refusal(body, self.shop.bands, asked=asked, answered=time.monotonic())
            outcome.end("refused", mistake, reason="unknown_rule")
        else:
            outcome.end("lost", f"{body}: {error}")


@dataclass(kw_only=True)
class ChangingClient:
    """Inserts, replaces, changes and removes items, makes and removes a rule, compacts and reloads: one after the other."""

    shop: KnownShop
    outcome: HttpOutcome
    dice: random.Random
    rng: np.random.Generator
    pause_s: float = CHANGE_PAUSE_S

    def run(self, url: str, over: threading.Event) -> None:
        """Raises ServerError if a change is not acknowledged; it may then have been made or not."""
        kinds = {self._exchange: 45, self._reprice: 25, self._replace: 10, self._change_rule: 15, self._maintain: 5}
        with Client(url, retries=Retries(deadline_s=PATIENCE_S)) as client:
            while not over.wait(self.dice.random() * 2 * self.pause_s):
                (kind,) = self.dice.choices([*kinds], [*kinds.values()])
                kind(client)
                self.outcome.changes += 1

    def _exchange(self, client: Client) -> None:
        """New items come, and as many of the oldest go."""
        shop, number = self.shop, self.dice.randint(1, 20)
        new = range(shop.next_id, shop.next_id + number)
        items = _items_of(new, draw_codes(self.rng, number))
        shop.next_id = new.stop
        self._make(shop.items, dict(zip(new, items, strict=True)), lambda: client.put_items(_lines(new, items)))
        gone = range(shop.oldest, shop.oldest + number)
        shop.oldest = gone.stop
        one = number == 1
        self._make(
            shop.items,
            dict.fromkeys(gone),
            lambda: client.delete_item(gone[0]) if one else client.delete_items(gone),
        )

    def _reprice(self, client: Client) -> None:
        items = {item_id: replace(item, price=float(self.dice.randrange(40))) for item_id, item in self._some().items()}
        lines = [{"item_id": item_id, "price": item.price} for item_id, item in items.items()]
        self._make(self.shop.items, items, lambda: client.patch_items(lines))

    def _replace(self, client: Client) -> None:
        old = self._some()
        items = [
            replace(item, codes=tuple(codes), price=float(self.dice.randrange(40)))
            for item, codes in zip(old.values(), draw_codes(self.rng, len(old)).tolist(), strict=True)
        ]
        self._make(self.shop.items, dict(zip(old, items, strict=True)), lambda: client.put_items(_lines(old, items)))

    def _change_rule(self, client: Client) -> None:
        bands = self.shop.bands
        if bands.possible(BAND, time.monotonic()) != [None] and self.dice.random() < 0.3:
            self._make(bands, {BAND: None}, lambda: _delete_rule(client))
        else:
            low = self.dice.randrange(21)
            self._make(bands, {BAND: low}, lambda: client.put_rule(BAND, band_where(low)))

    def _maintain(self, client: Client) -> None:
        if self.dice.random() < 0.5:
            client.compact_catalog()
        else:
            client.reload_catalog()

    def _some(self) -> dict[int, Item]:
        """Some items that are there, as they are."""
        shop, now = self.shop, time.monotonic()
        chosen = self.dice.sample(range(shop.oldest, shop.next_id), self.dice.randint(1, 10))
        states = {item_id: shop.items.possible(item_id, now) for item_id in chosen}
        return {item_id: item for item_id, (item,) in states.items() if item is not None}

    def _make(self, history: ChangeHistory[K, V], values: Mapping[K, V | None], call: Callable[[], object]) -> None:
        history.send(values, time.monotonic())
        call()
        history.acknowledge(time.monotonic())
        history.forget(time.monotonic() - 2 * PATIENCE_S)


def _delete_rule(client: Client) -> None:
    """Delete the rule; the client does not send this again by itself."""
    was_sent = False
    while True:
        try:
            client.delete_rule(BAND)
        except NotFoundError:
            if not was_sent:
                raise
        except NoAnswerError as error:
            if error.code != "cut":
                raise
            was_sent = True
            continue
        return


def _items_of(item_ids: range, codes_NL: np.ndarray[Any, Any]) -> list[Item]:
    return [
        Item(codes=tuple(codes), price=row["price"], stock=row["stock"])
        for codes, row in zip(codes_NL.tolist(), rows_of(item_ids), strict=True)
    ]


def _lines(item_ids: Any, items: list[Item]) -> list[dict[str, Any]]:
    return [
        {"item_id": item_id, "codes": list(item.codes), "price": item.price, "stock": item.stock}
        for item_id, item in zip(item_ids, items, strict=True)
    ]
