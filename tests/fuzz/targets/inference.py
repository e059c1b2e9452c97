"""Answers of inference servers, as their clients read them: log-probabilities of every token asked for, or a named error."""

import functools

import numpy as np

from leafbeam.errors import InferenceError
from leafbeam.integrations.http_logprobs import HttpLogprobs, parse_json
from leafbeam.integrations.logprobs import TokenQuery
from leafbeam.integrations.sglang import SglangServer
from leafbeam.integrations.vllm import VllmServer

QUERIES = [TokenQuery(prefix=[5, 6], tokens_C=np.array([9, 7])), TokenQuery(prefix=[8], tokens_C=np.array([0]))]


@functools.cache
def _clients() -> tuple[HttpLogprobs, HttpLogprobs]:
    return VllmServer("http://127.0.0.1:9", model="m"), SglangServer("http://127.0.0.1:9")


def _check(client: HttpLogprobs, data: bytes) -> None:
    answers = client.read(parse_json(data), QUERIES)
    assert len(answers) == len(QUERIES)
    failures = [answer for answer in answers if isinstance(answer, InferenceError)]
    for answer, query in zip(answers, QUERIES, strict=True):
        if not isinstance(answer, InferenceError):
            assert answer.shape == query.tokens_C.shape
            assert answer.dtype == np.float32
            assert (answer < 0.1).all()
    if failures:
        raise failures[0]


def fuzz_completion_answer(data: bytes) -> None:
    """An answer of `POST /v1/completions`."""
    _check(_clients()[0], data)


def fuzz_generate(data: bytes) -> None:
    """An answer of SGLang's `POST /generate`."""
    _check(_clients()[1], data)
