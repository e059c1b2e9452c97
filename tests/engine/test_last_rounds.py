"""When the last round leaves beams out, and that answers stay as they are."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.engine import Engine, Request, Settings
from leafbeam.engine.last_rounds import LastRounds
from leafbeam.model import AnyVocabulary, DecodeSession, ModelConfig, Transformer
from tests.engine.conftest import Shop


def needed(*counts: int) -> np.ndarray:
    return np.array(counts, np.int64)


def test_an_unknown_kind_runs_all_beams() -> None:
    assert not LastRounds().pays("kind", batch=8, num_beams=512, num_kept=10)


def test_a_second_call_must_save_more_rows_than_it_costs() -> None:
    rounds = LastRounds()
    for _ in range(50):
        rounds.observe("kind", needed_B=needed(12, 20), num_kept=10)
    assert not rounds.pays("kind", batch=1, num_beams=50, num_kept=10)  # saves 30 rows, 32 needed
    assert rounds.pays("kind", batch=2, num_beams=50, num_kept=10)
    assert rounds.pays("kind", batch=1, num_beams=128, num_kept=10)


def test_no_second_call_is_needed_so_every_row_left_out_pays() -> None:
    rounds = LastRounds()
    rounds.observe("kind", needed_B=needed(7, 10), num_kept=10)
    assert rounds.pays("kind", batch=1, num_beams=11, num_kept=10)


def test_it_learns_that_a_model_has_become_unsure() -> None:
    rounds = LastRounds()
    rounds.observe("kind", needed_B=needed(10), num_kept=10)
    for _ in range(20):
        rounds.observe("kind", needed_B=needed(128), num_kept=10)
    assert not rounds.pays("kind", batch=1, num_beams=128, num_kept=10)


def test_old_kinds_are_forgotten() -> None:
    rounds = LastRounds()
    for kind in range(100):
        rounds.observe(kind, needed_B=needed(10), num_kept=10)
    assert not rounds.pays(0, batch=1, num_beams=128, num_kept=10)
    assert rounds.pays(99, batch=1, num_beams=128, num_kept=10)


@dataclass(frozen=True, kw_only=True, eq=False)
class Counted:
    """A model whose calls of the last level are counted: (beams of each request, whether in parts)."""

    model: Transformer
    last: list[tuple[int, bool]] = field(default_factory=list)

    @property
    def vocabulary(self) -> AnyVocabulary:
        return self.model.vocabulary

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return self.model.device

    def start(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor | None = None) -> "CountedRounds":
        return CountedRounds(self.model.start(tokens_BT, lengths_B), self.last)


class CountedRounds:
    def __init__(self, session: DecodeSession, last: list[tuple[int, bool]]) -> None:
        self._session, self._last, self._level = session, last, 0

    def step_fn(self, codes: Any, parents: Any) -> torch.Tensor:
        if self._level == 2:
            self._last.append((codes.shape[1], False))
        self._level += 1
        return self._session.step_fn(codes, parents)

    def last_step_fn(self, codes: Any, parents: Any) -> torch.Tensor:
        self._last.append((codes.shape[1], True))
        return self._session.last_step_fn(codes, parents)


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
def test_answers_in_two_calls_are_those_in_one(shop: Shop, scoring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = requests(shop, num_items=4, num_beams=24, scoring=scoring)
    found: dict[bool, list[tuple[Any, ...]]] = {}
    for pays in (True, False):
        model = Counted(model=shop.model)
        monkeypatch.setattr(LastRounds, "pays", lambda self, kind, pays=pays, **sizes: pays)
        found[pays] = answers(Engine(model, shop.trie), wanted)
        assert {in_parts for _, in_parts in model.last} <= {pays}
        assert scoring == "allowed" or model.last
    assert found[True] == found[False]


def test_a_sure_model_soon_runs_fewer_beams_in_its_last_round(shop: Shop) -> None:
    model = Counted(model=sure_of_last_codes(shop))
    engine = Engine(model, shop.trie)
    for one in requests(shop, num_items=3, num_beams=64):
        engine.recommend(one)
    assert model.last[0][1] is False  # nothing was known then
    in_parts = [beams for beams, parts in model.last if parts]
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
