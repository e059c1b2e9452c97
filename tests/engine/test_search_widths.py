"""The widths of first passes: learnt from what proofs needed, and answers stay as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.engine import Engine, Request, Settings
from leafbeam.engine.search_widths import SearchKind, SearchWidths, cheapest_widths
from leafbeam.index import Trie, Version
from leafbeam.model import DecodeSession
from tests.engine.conftest import Shop

KIND = SearchKind(num_items=10, octave=0, scoring="full")


def test_an_unknown_kind_has_no_widths_until_a_few_requests_have_run() -> None:
    widths = SearchWidths()
    assert widths.of(KIND) is None
    widths.observe(KIND, np.array([[12, 9]] * 7))
    assert widths.of(KIND) is None
    widths.observe(KIND, np.array([[12, 9]]))
    assert widths.of(KIND) == (12, 9)


def test_the_first_pass_holds_what_nearly_all_requests_needed() -> None:
    assert cheapest_widths(np.array([[11], [13], [9], [12]] * 4)) == (13,)
    assert cheapest_widths(np.array([[12, 20]] * 31 + [[120, 400]])) == (12, 20)  # a rare further call is cheaper
    assert cheapest_widths(np.array([[10, 8], [30, 8]] * 16)) == (30, 8)


def test_it_costs_more_to_start_again_from_the_prompts() -> None:
    needed = np.array([[10, 10, 10]] * 24 + [[10, 10, 40]] * 8)
    assert cheapest_widths(needed) == (10, 10, 10)
    assert cheapest_widths(needed, restarts=True) == (10, 10, 40)


def test_it_learns_that_a_model_has_become_unsure() -> None:
    widths = SearchWidths()
    widths.observe(KIND, np.full((64, 2), 10))
    widths.observe(KIND, np.full((64, 2), 90))
    assert widths.of(KIND) == (90, 90)


def test_old_kinds_are_forgotten() -> None:
    widths = SearchWidths()
    kinds = [SearchKind(num_items=count, octave=0, scoring="full") for count in range(1, 301)]
    for kind in kinds:
        widths.observe(kind, np.full((8, 1), 10))
    assert widths.of(kinds[0]) is None
    assert widths.of(kinds[-1]) == (10,)


@pytest.mark.parametrize(("allowed", "octave"), [(160, 0), (120, 0), (80, -1), (20, -3), (1, -7), (0, -7)])
def test_rules_that_allow_about_the_same_share_are_of_one_kind(allowed: int, octave: int) -> None:
    version = Version.of(Trie.build([[item] for item in range(160)], [160]))
    item_filter = version.filter(item_ids=np.arange(allowed))
    assert SearchKind.of(version, item_filter, 10, "full").octave == octave
    assert SearchKind.of(version, item_filter, 10, "allowed").octave == 0  # its scores do not depend on forbidden items
    assert SearchKind.of(version, None, 10, "full").octave == 0


@pytest.fixture
def later_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The levels of which a session ran more beams."""
    levels, more_fn = list[int](), DecodeSession.more_fn

    def counted(self: DecodeSession, codes: Any, parents: Any, level: int) -> torch.Tensor:
        levels.append(level)
        return more_fn(self, codes, parents, level)

    monkeypatch.setattr(DecodeSession, "more_fn", counted)
    return levels


def requests(shop: Shop, **options: Any) -> list[Request]:
    items = [row["item_id"] for row in shop.rows]
    return [Request(history=tuple(items[i : i + 4]), **options) for i in range(0, 60, 3)]


def answers(engine: Engine, wanted: list[Request]) -> list[tuple[Any, ...]]:
    return [engine.recommend(one).item_ids for one in wanted]


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_answers_do_not_depend_on_the_widths(
    shop: Shop, scoring: Any, monkeypatch: pytest.MonkeyPatch, later_calls: list[int]
) -> None:
    asked = requests(shop, num_items=4, scoring=scoring)
    answers_by_width: list[list[tuple[Any, ...]]] = []
    for widths in (None, (1, 1), (3, 9), (1000, 1000)):
        later_calls.clear()
        monkeypatch.setattr(SearchWidths, "of", lambda self, kind, widths=widths: widths)
        answers_by_width.append(answers(Engine(shop.model, shop.trie), asked))
        assert later_calls or widths in (None, (1000, 1000))
        assert not later_calls or widths != (1000, 1000)
    assert answers_by_width[1:] == answers_by_width[:1] * 3


def test_an_engine_soon_proves_its_answers_in_one_pass(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, run = list[int](), BeamSearch.run

    def counted(self: BeamSearch, *arguments: Any, **options: Any) -> SearchResult:
        result = run(self, *arguments, **options)
        passes.append(result.passes)
        return result

    monkeypatch.setattr(BeamSearch, "run", counted)
    monkeypatch.setattr(SearchKind, "guess", 1)
    engine = Engine(shop.model, shop.trie)
    for one in requests(shop, num_items=8) * 2:
        engine.recommend(one)
    assert np.mean(passes[:4]) > 1
    assert np.mean(passes[-20:]) == 1


def test_what_was_learnt_is_kept_over_restarts(shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "widths.json"
    with Engine(shop.model, shop.trie, settings=Settings(widths_file=file)) as engine:
        for one in requests(shop, num_items=8):
            engine.submit(one).result()
    learnt = engine.search_widths.learnt
    assert [kind.num_items for kind in learnt] == [8]
    assert Engine(shop.model, shop.trie, settings=Settings(widths_file=file)).search_widths.learnt == learnt
    for damaged in ("", "[{}]", '[{"kind": {"num_items": 8, "octave": 0, "scoring": "full"}, "widths": [3]}]', "[" * 99_999):
        file.write_text(damaged)
        assert Engine(shop.model, shop.trie, settings=Settings(widths_file=file)).search_widths.learnt == {}
        assert "are learnt again" in caplog.text
        caplog.clear()


def test_a_proved_answer_does_not_wait_for_the_others_of_its_batch(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    easy, hard = (Request(history=("é1",), num_items=count) for count in (1, 40))
    monkeypatch.setattr(SearchKind, "guess", 4)
    engine = Engine(shop.model, shop.trie)
    pending = [engine._preparer.prepare(one, 0.0) for one in (easy, hard)]
    told: list[tuple[list[bool], list[Any]]] = []
    output = engine._served.offline_decoder.run(
        pending, lambda found: told.append((found.final_B.tolist(), found.search.item_ids))
    )
    assert output.search.passes > 1
    assert told[0][0] == [True, False]
    assert told[0][1][0][:1].tolist() == list(engine.recommend(easy).item_ids)


def test_a_batch_computes_what_each_of_its_requests_needs(shop: Shop) -> None:
    asked = [Request(history=("é1",), num_items=1), Request(history=("é2",), num_items=40)]
    engine = Engine(shop.model, shop.trie)
    alone = [engine.recommend(one).rows for one in asked]
    np.testing.assert_allclose([one.rows for one in engine.recommend(asked)], alone, atol=1)  # ties, by rounding
    assert alone[0] < alone[1]


def test_a_shown_search_shows_its_last_pass(shop: Shop) -> None:
    engine = Engine(shop.model, shop.trie)
    result = engine.recommend(Request(history=("é1",), num_items=3, explain=True))
    assert result.exact
    assert len(result.levels) == shop.trie.num_levels
    assert len(result.item_ids) == 3 == len(result.levels[-1].scores)


def test_requests_of_one_batch_get_as_many_items_as_each_wants(shop: Shop) -> None:
    engine = Engine(shop.model, shop.trie, settings=Settings(num_beams=24))
    alone = [engine.recommend(Request(history=("é1",), num_items=count)) for count in (2, 9)]
    together = engine.recommend([Request(history=("é1",), num_items=count) for count in (2, 9)])
    assert [one.item_ids for one in together] == [one.item_ids for one in alone]
    assert [one.num_valid for one in together] == [2, 9]
