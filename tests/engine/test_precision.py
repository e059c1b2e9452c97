"""Products in bfloat16: measured at the start, taken where they are faster, reported either way."""

import logging
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from leafbeam.decode import SearchResult
from leafbeam.engine import Engine, Precision, Request, Settings, tuning
from leafbeam.engine.tuning import PrecisionReport, compare_precisions
from leafbeam.errors import ArgumentError
from tests.engine.conftest import Shop
from tests.fixtures.clocks import Clock


class Machine(Clock):
    """A clock that searches advance by their seconds."""

    def search(self, seconds: float, *answers: dict[str, float]) -> Callable[[], SearchResult]:
        scores = np.full((len(answers), max(map(len, answers))), -np.inf, np.float32)
        for row, answer in zip(scores, answers, strict=True):
            row[: len(answer)] = list(answer.values())
        ids = [np.array(list(answer), dtype=object) for answer in answers]
        found = SearchResult(
            item_ids=ids,
            scores=scores,
            codes=np.zeros((*scores.shape, 1), np.int64),
            num_items=np.full(len(answers), scores.shape[1]),
            num_valid=np.array([len(answer) for answer in answers]),
        )

        def run() -> SearchResult:
            self.now += seconds
            return found

        return run


def test_times_and_answers_are_compared():
    machine = Machine()
    one = machine.search(0.04, {"a": -1.0, "b": -2.0}), machine.search(0.02, {"a": -1.25, "b": -2.0})
    full = machine.search(0.4, {"a": -1.0}, {"c": -3.0, "d": -4.0}), machine.search(0.1, {"a": -1.0}, {"d": -4.5, "e": -5.0})
    report = compare_precisions([one, full], machine)
    assert report.speedups == pytest.approx((2.0, 4.0))
    assert report.same_items == pytest.approx(4 / 5)
    assert report.score_difference == pytest.approx(0.5)
    assert str(report) == (
        "2.00 and 4.00 times as fast as float32 with one request and with several, 80.0% of the items the same, "
        "log-probabilities within 0.5"
    )


def test_the_fastest_of_three_turns_counts_and_slow_batches_end_the_comparison():
    machine, waits = Machine(), iter([9.0, 1.0, 1.0, 1.0, 4.0, 2.0])  # the first compiles, a later one is disturbed

    def search(answer: Callable[[], SearchResult]) -> SearchResult:
        machine.now += next(waits)
        return answer()

    answer = machine.search(0.0, {"a": -1.0})
    report = compare_precisions([(lambda: search(answer), lambda: search(answer)), (answer, answer)], machine)
    assert report.speedups == (1.0,)
    assert str(report).startswith("1.00 times as fast as float32 with one request, 100.0% of the items")


def test_answers_without_items_differ_in_nothing():
    machine = Machine()
    report = compare_precisions([(machine.search(1.0, {}), machine.search(2.0, {}))], machine)
    assert (report.same_items, report.score_difference, report.is_faster) == (0.0, 0.0, False)


@pytest.mark.parametrize(
    ("speedups", "is_faster"), [((1.1, 1.1), True), ((0.6, 2.2), True), ((1.0, 1.15), False), ((0.5,), False)]
)
def test_faster_is_a_tenth_by_the_mean(speedups: tuple[float, ...], is_faster: bool):
    assert PrecisionReport(speedups=speedups, same_items=1.0, score_difference=0.0).is_faster == is_faster


@pytest.mark.parametrize(("gain", "chosen"), [(0.0, "bfloat16"), (1e9, "float32")])
def test_an_engine_takes_the_faster_products_and_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gain: float, chosen: Precision
):
    monkeypatch.setattr(tuning, "_GAIN", gain)
    asked = Settings(precision="bfloat16")
    with caplog.at_level(logging.INFO, "leafbeam.engine"), Engine(shop.model, shop.trie, settings=asked) as engine:
        assert engine.precision == chosen
        report = engine.tuning.precision_report
        assert report is not None
        assert 0.5 < report.same_items <= 1.0
        assert engine.tuning.lines()["precision"] == f"{chosen}; bfloat16 is {report}"
        answers = [engine.submit(Request(history=(item,), num_items=5)).result() for item in ("é3", "é90")]
        offline = engine.recommend(Request(history=("é3",), num_items=5))
    assert offline.item_ids == answers[0].item_ids
    said = [record for record in caplog.records if f"precision: {chosen}; bfloat16 is" in record.message]
    assert len(said) == 1
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert ["stay in float32" in record.message for record in warned] == [True] * (chosen == "float32")
    with Engine(shop.model, shop.trie) as engine:
        assert (engine.precision, engine.tuning.precision_report) == ("float32", None)
        exact = [engine.submit(Request(history=(item,), num_items=5)).result() for item in ("é3", "é90")]
    is_equal = [one.scores == other.scores for one, other in zip(answers, exact, strict=True)]
    assert all(is_equal) == (chosen == "float32")
    for item, answer in zip(("é3", "é90"), answers, strict=True):
        assert len(answer.item_ids) == 5
        assert set(answer.item_ids) <= shop.allowed(deny=(item,))


def test_an_engine_that_was_not_started_measures_once(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tuning, "_GAIN", 0.0)
    engine = Engine(shop.model, shop.trie, settings=Settings(precision="bfloat16"))
    assert engine.precision == "float32"
    first = engine.recommend(Request(history=("é3",), num_items=5))
    report = engine.tuning.precision_report
    assert (engine.precision, report is not None) == ("bfloat16", True)
    # The second may leave beams out of its last round; a product of fewer rows may round otherwise.
    assert engine.recommend(Request(history=("é3",), num_items=5)).scores == pytest.approx(first.scores, abs=0.02)
    assert engine.tuning.precision_report is report
    assert first.scores != Engine(shop.model, shop.trie).recommend(Request(history=("é3",), num_items=5)).scores


def test_a_precision_that_there_is_not():
    with pytest.raises(ArgumentError, match="precision is 'float16': expected 'float32' or 'bfloat16'"):
        Settings(precision="float16")  # type: ignore[arg-type]


def test_models_that_cannot_multiply_in_bfloat16_are_refused(shop: Shop):
    model = deepcopy(shop.model).bfloat16()
    with pytest.raises(ArgumentError, match="precision='bfloat16' is of a Transformer in float32 on a CPU"):
        Engine(model, shop.trie, settings=Settings(precision="bfloat16"))
