"""A request that fails its batch fails alone: the others get what they would get without it."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.engine import Engine, Request, Result
from leafbeam.errors import LogitsError
from tests.engine.conftest import ITEM_IDS, Shop
from tests.waiting import busy

PATIENCE = 60
LAST_CODE = 3  # of the last level, whose embedding only prompts read: beams end there


def items_with(shop: Shop, is_bad: bool) -> list[str]:
    return [item for item, codes in zip(ITEM_IDS, shop.codes_NL, strict=True) if (codes[2] == LAST_CODE) == is_bad]


@contextmanager
def poisoned(shop: Shop, value: float) -> Generator[None]:
    """While open, prompts with an item whose last code is `LAST_CODE` give logits that are not finite."""
    codes = shop.codes_NL[shop.codes_NL[:, 2] == LAST_CODE][:1]
    tokens_BT, lengths_B = shop.model.vocabulary.prompts([codes])
    token = int(tokens_BT[0, : lengths_B[0]][-1])
    weight = shop.model.model.embed_tokens.weight
    with torch.no_grad():
        before = weight[token].clone()
        weight[token] = value
    try:
        yield
    finally:
        with torch.no_grad():
            weight[token] = before


def answer_in_one_batch(shop: Shop, engine: Engine, requests: list[Request]) -> list[Result | Exception]:
    with busy(shop.model, lambda: engine.submit(Request())) as first:
        futures = [engine.submit(request) for request in requests]
    first.result(PATIENCE)
    return [future.exception(PATIENCE) or future.result() for future in futures]


def plain(result: Any) -> tuple[Any, ...]:
    return result.item_ids, result.scores, result.codes, result.num_valid


@pytest.mark.parametrize(
    ("value", "fields"),
    [(np.nan, {}), (np.inf, {}), (-np.inf, {}), (np.nan, {"scoring": "allowed"}), (np.nan, {"rules": ("cheap",)})],
    ids=["nan", "inf", "-inf", "allowed", "rule"],
)
@pytest.mark.parametrize("bad_at", [(2,), (0, 3), (0, 1, 2, 3)])
def test_logits_that_are_not_finite_fail_their_request_alone(
    shop: Shop, engine: Engine, value: float, bad_at: tuple[int, ...], fields: dict[str, Any]
) -> None:
    """A11: one of four requests in a batch, or some, or all; the answers of the others are equal to the bit."""
    good, bad = items_with(shop, False), items_with(shop, True)
    requests = [Request(history=((bad if n in bad_at else good)[n],), **fields) for n in range(4)]
    with engine, poisoned(shop, value):
        results = answer_in_one_batch(shop, engine, requests)
        alone = answer_in_one_batch(shop, engine, [one for n, one in enumerate(requests) if n not in bad_at])
    for n in bad_at:
        error = results[n]
        assert isinstance(error, LogitsError)
        assert "the logits of this request, beam 0 at level 0 hold NaN or +inf" in str(error)
    answered = [plain(result) for n, result in enumerate(results) if n not in bad_at]
    assert answered == [plain(result) for result in alone]
    assert engine.counts.of("failed")["error"] == len(bad_at)


@pytest.mark.parametrize("num_bad", [1, 2])
def test_an_error_without_a_name_is_narrowed_down_to_its_requests(
    shop: Shop, engine: Engine, monkeypatch: pytest.MonkeyPatch, num_bad: int
) -> None:
    """A11: an exception of the model, of a prompt's making, of whatever one request brings."""
    good, bad = items_with(shop, False), items_with(shop, True)
    tokens_BT, lengths_B = shop.model.vocabulary.prompts([shop.codes_NL[shop.codes_NL[:, 2] == LAST_CODE][:1]])
    token, start = int(tokens_BT[0, : lengths_B[0]][-1]), shop.model.start

    def refuse(tokens_BT: Any, lengths_B: Any = None, **options: Any) -> Any:
        if (tokens_BT == token).any():
            raise ZeroDivisionError("of one request")
        return start(tokens_BT, lengths_B, **options)

    requests = [Request(history=((bad if n in (1, 4)[:num_bad] else good)[n],)) for n in range(6)]
    with engine:
        monkeypatch.setattr(shop.model, "start", refuse)
        results = answer_in_one_batch(shop, engine, requests)
        monkeypatch.undo()
    failed = [n for n, result in enumerate(results) if isinstance(result, ZeroDivisionError)]
    assert failed == [1, 4][:num_bad]
    assert all(result.num_valid == 10 for n, result in enumerate(results) if n not in failed)
    assert engine.counts.of("failed")["error"] == num_bad


def test_an_offline_error_names_the_request_by_its_place_in_the_list(shop: Shop, engine: Engine) -> None:
    """A11: not by its place in a batch, which the caller does not know."""
    good, bad = items_with(shop, False), items_with(shop, True)
    requests = [Request(history=(good[n % 20],), num_beams=20 + n % 2) for n in range(300)]
    requests[277] = Request(history=(bad[0],))
    with (
        poisoned(shop, float("nan")),
        pytest.raises(LogitsError, match="the logits of request 277, beam 0 at level 0") as caught,
    ):
        engine.recommend(requests)
    assert caught.value.request == 277
