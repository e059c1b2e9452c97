"""When the last round leaves beams out, and that answers stay as they are."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.engine import Engine, Request, Settings
from leafbeam.engine.decoder import LastRounds, RoundKind
from leafbeam.model import DecodeSession, Transformer
from tests.engine.conftest import Shop


def learned(batch: int, num_beams: int, needed: list[int]) -> int | None:
    rounds, kind = LastRounds(), RoundKind(batch=batch, num_beams=num_beams, num_kept=10, scoring="full")
    for count in needed:
        rounds.observe(kind, np.array([3, count]))
    return rounds.num_first(kind)


def test_an_unknown_kind_runs_all_beams() -> None:
    assert learned(8, 512, []) is None
    assert learned(8, 512, [10]) is None


def test_the_first_call_runs_what_nearly_all_batches_needed() -> None:
    assert learned(1, 128, [11, 13, 9, 12] * 4) == 13
    assert learned(1, 11, [7, 10] * 4) == 10  # one row less, and never a second call
    assert learned(1, 128, [12] * 15 + [120]) == 12  # a rare second call is cheaper than its rows in every first one


def test_a_second_call_must_save_more_rows_than_it_costs() -> None:
    half = [10, 50] * 8
    assert learned(1, 50, half) is None
    assert learned(4, 50, half) == 10


def test_it_learns_that_a_model_has_become_unsure() -> None:
    assert learned(1, 128, [10] * 16) == 10
    assert learned(1, 128, [10] * 16 + [128] * 16) is None


def test_old_kinds_are_forgotten() -> None:
    rounds = LastRounds()
    kinds = [RoundKind(batch=1, num_beams=beams, num_kept=10, scoring="full") for beams in range(11, 311)]
    for kind in kinds:
        for _ in range(4):
            rounds.observe(kind, np.array([10]))
    assert rounds.num_first(kinds[0]) is None
    assert rounds.num_first(kinds[-1]) == 10


@pytest.fixture
def last_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of every call of the last level, which alone has four codes: (beams of each request, whether in parts)."""
    calls: list[tuple[int, bool]] = []
    step_fn, last_step_fn = DecodeSession.step_fn, DecodeSession.last_step_fn

    def whole(self: DecodeSession, codes: Any = None, parents: Any = None) -> torch.Tensor:
        logits = step_fn(self, codes, parents)
        calls.extend([(logits.shape[1], False)] if logits.shape[-1] == 4 else [])
        return logits

    def in_parts(self: DecodeSession, codes: Any, parents: Any) -> torch.Tensor:
        calls.append((codes.shape[1], True))
        return last_step_fn(self, codes, parents)

    monkeypatch.setattr(DecodeSession, "step_fn", whole)
    monkeypatch.setattr(DecodeSession, "last_step_fn", in_parts)
    return calls


def sure_of_last_codes(shop: Shop) -> Transformer:
    """The shop's model with one likely code of the last level: the logits of the others are far below."""
    model = deepcopy(shop.model)
    rows = model.vocabulary.tokens_at(torch.arange(4), 2)
    with torch.no_grad():
        model.head_weight[rows[1:]] = 0.0
        model.head_weight[rows[0]] *= 200.0
    return model


def requests(shop: Shop, **options: Any) -> list[Request]:
    items = [row["item_id"] for row in shop.rows]
    return [Request(history=tuple(items[i : i + 4]), **options) for i in range(0, 60, 3)]


def answers(engine: Engine, wanted: list[Request]) -> list[tuple[Any, ...]]:
    return [engine.recommend(one).item_ids for one in wanted]


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_answers_in_two_calls_are_those_in_one(
    shop: Shop, scoring: Any, monkeypatch: pytest.MonkeyPatch, last_calls: list[tuple[int, bool]]
) -> None:
    wanted = requests(shop, num_items=4, num_beams=24, scoring=scoring)
    found: list[list[tuple[Any, ...]]] = []
    for num_first in (None, 1, 9, 1000):
        last_calls.clear()
        monkeypatch.setattr(LastRounds, "num_first", lambda self, kind, first=num_first: first)
        found.append(answers(Engine(shop.model, shop.trie), wanted))
        assert {in_parts for _, in_parts in last_calls} == {num_first is not None}
    assert found[1:] == found[:1] * 3


def test_a_sure_model_soon_runs_fewer_beams_in_its_last_round(shop: Shop, last_calls: list[tuple[int, bool]]) -> None:
    engine = Engine(sure_of_last_codes(shop), shop.trie)
    for one in requests(shop, num_items=3, num_beams=64):
        engine.recommend(one)
    assert last_calls[0][1] is False  # nothing was known then
    in_parts = [beams for beams, parts in last_calls if parts]
    assert in_parts
    assert np.mean(in_parts) < 32


def test_a_shown_search_keeps_all_its_beams(shop: Shop) -> None:
    engine = Engine(shop.model, shop.trie)
    result = engine.recommend(Request(history=("é1",), num_items=3, num_beams=24, explain=True))
    assert len(result.levels[-1].scores) == 24
    assert len(result.item_ids) == 3


def test_requests_of_one_batch_get_as_many_items_as_each_wants(shop: Shop) -> None:
    engine = Engine(shop.model, shop.trie, settings=Settings(num_beams=24))
    alone = [engine.recommend(Request(history=("é1",), num_items=count)) for count in (2, 9)]
    together = engine.recommend([Request(history=("é1",), num_items=count) for count in (2, 9)])
    assert [one.item_ids for one in together] == [one.item_ids for one in alone]
    assert [one.num_valid for one in together] == [2, 9]
