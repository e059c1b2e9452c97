"""Products in bfloat16: measured at the start, taken where they are faster, reported either way."""

import gc
import logging
import weakref
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.decode import SearchResult
from leafbeam.engine import Engine, Precision, Request, Settings, tuning
from leafbeam.engine.tuning import PrecisionReport, compare_precisions
from leafbeam.errors import ArgumentError
from leafbeam.model import EncoderDecoder, EncoderDecoderConfig, Vocabulary
from leafbeam.ops.linear.int8 import Int8Matrix
from tests.engine.conftest import Shop
from tests.fixtures.clocks import Clock

REASON = Int8Matrix.unavailable_reason(torch.device("cpu"))
ROUNDED: list[Any] = [
    "bfloat16",
    pytest.param("int8", marks=pytest.mark.skipif(REASON is not None, reason=str(REASON))),
]


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
    report = compare_precisions("bfloat16", [one, full], machine)
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
    report = compare_precisions("bfloat16", [(lambda: search(answer), lambda: search(answer)), (answer, answer)], machine)
    assert report.speedups == (1.0,)
    assert str(report).startswith("1.00 times as fast as float32 with one request, 100.0% of the items")


def test_answers_without_items_differ_in_nothing():
    machine = Machine()
    report = compare_precisions("bfloat16", [(machine.search(1.0, {}), machine.search(2.0, {}))], machine)
    assert (report.same_items, report.score_difference, report.is_faster) == (0.0, 0.0, False)


@pytest.mark.parametrize(
    ("speedups", "is_faster"), [((1.1, 1.1), True), ((0.6, 2.2), True), ((1.0, 1.15), False), ((0.5,), False)]
)
def test_faster_is_a_tenth_by_the_mean(speedups: tuple[float, ...], is_faster: bool):
    assert PrecisionReport(precision="bfloat16", speedups=speedups, same_items=1.0, score_difference=0.0).is_faster == is_faster


@pytest.mark.parametrize("gain", [0.0, 1e9])
@pytest.mark.parametrize("precision", ROUNDED)
def test_an_engine_takes_the_faster_products_and_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gain: float, precision: Precision
):
    monkeypatch.setattr(tuning, "_GAIN", gain)
    chosen: Precision = "float32" if gain else precision
    asked = Settings(precision=precision)
    with caplog.at_level(logging.INFO, "leafbeam.engine"), Engine(shop.model, shop.trie, settings=asked) as engine:
        assert engine.precision == chosen
        report = engine.tuning.precision_report
        assert report is not None
        assert 0.5 < report.same_items <= 1.0
        assert engine.tuning.lines()["precision"] == f"{chosen}; {precision} is {report}"
        answers = [engine.submit(Request(history=(item,), num_items=5)).result() for item in ("é3", "é90")]
        offline = engine.recommend(Request(history=("é3",), num_items=5))
    assert offline.item_ids == answers[0].item_ids
    said = [record for record in caplog.records if f"precision: {chosen}; {precision} is" in record.message]
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
    with pytest.raises(ArgumentError, match="precision is 'float16': expected 'float32', 'bfloat16', 'int8' or 'fp8'"):
        Settings(precision="float16")  # type: ignore[arg-type]


def test_models_that_cannot_multiply_in_bfloat16_are_refused(shop: Shop):
    model = deepcopy(shop.model).bfloat16()
    with pytest.raises(ArgumentError, match="precision='bfloat16' needs a model in float32 on a CPU"):
        Engine(model, shop.trie, settings=Settings(precision="bfloat16"))


@pytest.mark.parametrize("precision", ROUNDED)
def test_another_model_has_the_precision_of_the_one_before(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: Precision
):
    monkeypatch.setattr(tuning, "_GAIN", 0.0)
    shop.model.save_pretrained(tmp_path)
    request = Request(history=("é3",), num_items=5, num_beams=20)
    with Engine.load(tmp_path, shop.trie, settings=Settings(precision=precision)) as engine:
        before = engine.submit(request).result()
        engine.load_model()
        assert engine.precision == precision
        assert engine.submit(request).result().scores == pytest.approx(before.scores, abs=0.02)
        assert Engine(shop.model, shop.trie).recommend(request).scores != before.scores


@pytest.mark.parametrize("precision", ROUNDED)
def test_the_matrices_that_are_not_used_are_freed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: Precision
):
    monkeypatch.setattr(tuning, "_GAIN", 0.0)
    shop.model.save_pretrained(tmp_path)
    engine = Engine.load(tmp_path, shop.trie, settings=Settings(precision=precision))
    exact = weakref.ref(engine.model)
    with engine:
        gc.collect()
        assert exact() is None


@pytest.mark.parametrize("precision", ROUNDED)
def test_an_encoder_decoder_multiplies_in_int8_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch, precision: Precision):
    monkeypatch.setattr(tuning, "_GAIN", 0.0)
    vocabulary = Vocabulary(codebook_sizes=shop.trie.codebook_sizes)
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    model = EncoderDecoder(EncoderDecoderConfig(vocab_size=vocabulary.size, **sizes), vocabulary).eval()
    if precision == "bfloat16":
        with pytest.raises(ArgumentError, match="'bfloat16' needs a decoder, and this is an encoder-decoder: choose int8"):
            Engine(model, shop.trie, settings=Settings(precision=precision))
        return
    request = Request(history=("é3",), num_items=5, num_beams=20)
    with Engine(model, shop.trie, settings=Settings(precision=precision)) as engine:
        found = engine.submit(request).result()
        assert engine.precision == "int8"
    exact = Engine(model, shop.trie).recommend(request)
    assert found.scores != exact.scores
    assert found.scores == pytest.approx(exact.scores, abs=0.1)
