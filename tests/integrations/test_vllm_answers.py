"""What is asked of vLLM's engine in process, and what becomes of answers that it should not give."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leafbeam.errors import ArgumentError, InferenceError
from leafbeam.integrations.logprobs import TokenQuery
from leafbeam.integrations.vllm import VllmModel

VOCABULARY = 1000


class ClientError(Exception):
    """What vLLM raises for a request that it refuses."""


def flat(tokens: Sequence[int], values: Sequence[float]) -> SimpleNamespace:
    return SimpleNamespace(token_ids=list(tokens), logprobs=list(values), start_indices=[0], end_indices=[len(tokens)])


def output(logprobs: Any) -> SimpleNamespace:
    return SimpleNamespace(outputs=[SimpleNamespace(logprobs=logprobs)])


class Engine:
    """Answers as vLLM does: the token that it would choose, then those asked for. calls: the lists of what was asked."""

    def __init__(self, fault: Callable[[list[Any]], Any] | None = None, **config: Any) -> None:
        options: dict[str, Any] = {"logprobs_mode": "raw_logprobs", "max_model_len": 64, "max_logprobs": 20} | config
        self.model_config = SimpleNamespace(get_vocab_size=lambda: VOCABULARY, **options)
        self.fault, self.calls = fault, list[list[Any]]()

    def generate(self, prompts: list[Any], params: Any, *, use_tqdm: bool, lora_request: Any) -> Any:
        each = params if isinstance(params, list) else [params] * len(prompts)
        self.calls.append([one.get("logprob_token_ids", "all") for one in each])
        assert not use_tqdm
        answers: list[Any] = []
        for prompt, one in zip(prompts, each, strict=True):
            assert one["max_tokens"] == 1
            tokens = one.get("logprob_token_ids", list(range(VOCABULARY)))
            assert "logprob_token_ids" not in one or len(tokens) <= 128
            first = prompt["prompt_token_ids"][0]
            answers.append(
                output(flat([7, *tokens], [-9.5, *(-9.5 if token == 7 else value_of(first, token) for token in tokens)]))
            )
        return answers if self.fault is None else self.fault(answers)


def value_of(first: int, token: int) -> float:
    return -8.0 - (first * 31 + token) % 17 / 10


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = ModuleType("vllm.exceptions")
    exceptions.VLLMClientError = ClientError  # type: ignore[attr-defined]
    package = ModuleType("vllm")
    package.SamplingParams = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.exceptions", exceptions)


def query(first: int, *tokens: int) -> TokenQuery:
    return TokenQuery(prefix=[first, 2], tokens_C=np.array(tokens, np.int64))


def wide(first: int, count: int = 300) -> TokenQuery:
    return query(first, *range(100, 100 + count))


def assert_answered(queries: Sequence[TokenQuery], answers: Sequence[Any]) -> None:
    for one, answer in zip(queries, answers, strict=True):
        assert not isinstance(answer, InferenceError)
        np.testing.assert_allclose(answer, [value_of(one.prefix[0], token) for token in one.tokens_C.tolist()], atol=1e-6)


@pytest.mark.parametrize(
    ("queries", "max_logprobs", "sizes"),
    [
        ([query(1, 3, 4), query(5, 9), query(6, 3, 4)], -1, [[2, 1, 2]]),
        ([wide(1), wide(5)], -1, [["all", "all"]]),
        ([wide(1), wide(5)], 20, [[128, 128, 44] * 2]),
        ([query(1, 3), wide(5)], -1, [[1, 128, 128, 44]]),  # one batch: two more requests cost less than another batch
        ([query(1, 3), *(wide(n) for n in range(20))], -1, [[1], ["all"] * 20]),
    ],
)
def test_a_level_is_one_batch_unless_many_requests_are_saved(
    queries: list[TokenQuery], max_logprobs: int, sizes: list[Any]
) -> None:
    engine = Engine(max_logprobs=max_logprobs)
    assert_answered(queries, VllmModel(engine).logprobs(queries))
    assert [[one if one == "all" else len(one) for one in call] for call in engine.calls] == sizes


def refuse(_: list[Any]) -> Any:
    raise ClientError("the cache is full")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda answers: answers[:-1], "missing_answer"),
        (lambda answers: answers * 2, "missing_answer"),
        (lambda answers: [], "missing_answer"),
        (refuse, "refused"),
    ],
)
def test_a_batch_that_is_answered_in_part_or_twice_is_an_error(fault: Callable[[list[Any]], Any], reason: str) -> None:
    with pytest.raises(InferenceError) as raised:
        VllmModel(Engine(fault)).logprobs([query(1, 3, 4), query(5, 9)])
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (output(None), "no_logprobs"),
        (SimpleNamespace(outputs=[]), "no_logprobs"),
        (output(flat([3], [-1.0])), "missing_tokens"),
        (output(flat([], [])), "missing_tokens"),
        (output(flat([3, 4, 3], [-1.0, -1.0, -2.0])), "duplicate"),
        (output(flat([3, 4], [12.5, 3.0])), "malformed"),
        (output(flat([3, 4], [-1.0, float("nan")])), "malformed"),
        (output(flat([3, 4], [-0.1, -0.1])), "malformed"),
    ],
)
def test_a_wrong_answer_fails_its_query_alone(answer: Any, reason: str) -> None:
    queries = [query(1, 3, 4), query(5, 9)]
    failed, answered = VllmModel(Engine(lambda answers: [answer, *answers[1:]])).logprobs(queries)
    assert isinstance(failed, InferenceError)
    assert failed.reason == reason
    assert_answered(queries[1:], [answered])


def test_what_vllm_would_refuse_is_not_asked() -> None:
    engine = Engine()
    long = TokenQuery(prefix=[1] * 64, tokens_C=np.array([5]))
    for refused in (long, query(1, VOCABULARY), query(VOCABULARY, 1)):
        failed, answered = VllmModel(engine).logprobs([refused, query(5, 9)])
        assert isinstance(failed, InferenceError)
        assert failed.reason == "refused"
        assert_answered([query(5, 9)], [answered])
    assert {len(call) for call in engine.calls} == {1}
    with pytest.raises(ArgumentError, match="logprobs_mode is 'raw_logits'"):
        VllmModel(Engine(logprobs_mode="raw_logits"))
