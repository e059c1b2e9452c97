"""Clients of vLLM's, SGLang's and OpenAI's routes, against a server of ours that answers them with a real model, or wrongly."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam.errors import ArgumentError, InferenceError
from leafbeam.integrations import sglang as sglang_module
from leafbeam.integrations.http_logprobs import HttpLogprobs, HttpOptions, OpenAIServer
from leafbeam.integrations.logprob_search import LogprobBeamSearch
from leafbeam.integrations.logprobs import TokenQuery
from leafbeam.integrations.sglang import SglangServer
from leafbeam.integrations.vllm import VllmServer

from .inference_server import LocalModel, Reply, State, inference_server
from .tiny import WORDS, Model, Shop, prompts

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sglang.md"
LENGTHS = (10, 16)
PROMPTS = [row[-n:] for row, n in zip(prompts(LENGTHS)["input_ids"].tolist(), LENGTHS, strict=True)]
QUICK = HttpOptions(timeout_s=20, retries=2)
Fault = Callable[[dict[str, Any], Any], Any]


@pytest.fixture(scope="module")
def running(model: Model) -> Iterator[State]:
    with inference_server(model) as state:
        yield state


@pytest.fixture
def server(running: State) -> Iterator[State]:
    running.fault = None
    running.bodies.clear()
    yield running
    running.fault = None


def vllm(server: State, options: HttpOptions = QUICK) -> HttpLogprobs:
    return VllmServer(server.url, model="tiny", options=options)


def sglang(server: State, options: HttpOptions = QUICK) -> HttpLogprobs:
    return SglangServer(server.url, options=options)


def openai(server: State, options: HttpOptions = QUICK) -> HttpLogprobs:
    return OpenAIServer(server.url, model="tiny", num_logprobs=-1, options=options)


CLIENTS = pytest.mark.parametrize("client", [vllm, sglang, openai])


@CLIENTS
@pytest.mark.parametrize("scoring", ["vocabulary", "full", "allowed"])
def test_a_search_over_a_server_equals_one_in_process(server: State, client: Any, scoring: Any) -> None:
    shop = Shop("version")
    filters, deny = [shop.filter(0.3), None], [None, [5, 6]]
    options: dict[str, Any] = {"code_tokens": shop.tokens, "num_beams": 12, "scoring": scoring}
    wanted = LogprobBeamSearch(shop.index, LocalModel(server.model), **options).run(PROMPTS, filters=filters, deny=deny)
    with client(server, HttpOptions(max_prompts=5, max_connections=3)) as remote:
        found = LogprobBeamSearch(shop.index, remote, **options).run(PROMPTS, filters=filters, deny=deny)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=2e-4)
    np.testing.assert_array_equal(found.num_valid, wanted.num_valid)
    for mine, theirs in zip(found.item_ids, wanted.item_ids, strict=True):
        assert len(set(mine.tolist()) & set(theirs.tolist())) >= len(theirs) - 1
    assert max(len(body.get("prompt", body.get("input_ids"))) for body in server.bodies) <= 5


def test_texts_of_tokens_are_known_by_a_table(server: State) -> None:
    """A server that ignores `return_tokens_as_token_ids`."""
    shop = Shop()

    def texts(body: dict[str, Any], answer: Any) -> Any:
        for choice in answer["choices"]:
            top = choice["logprobs"]["top_logprobs"][0]
            choice["logprobs"]["top_logprobs"] = [{f"<{name.partition(':')[2]}>": value for name, value in top.items()}]
        return answer

    server.fault = texts
    names = {f"<{token}>": token for token in range(WORDS)}
    client = OpenAIServer(server.url, model="tiny", num_logprobs=WORDS, token_ids=names, options=QUICK)
    with client:
        found = LogprobBeamSearch(shop.index, client, code_tokens=shop.tokens, num_beams=5).run(PROMPTS)
    wanted = LogprobBeamSearch(shop.index, LocalModel(server.model), code_tokens=shop.tokens, num_beams=5).run(PROMPTS)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=2e-4)


def test_wide_queries_are_asked_of_vllm_in_slices(server: State) -> None:
    wide = [TokenQuery(prefix=prompt, tokens_C=np.arange(3, 3 + 150)) for prompt in PROMPTS]
    with vllm(server) as client:
        found = client.logprobs(wide)
    for mine, theirs in zip(found, LocalModel(server.model).logprobs(wide), strict=True):
        assert not isinstance(mine, InferenceError)
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    assert sorted(len(body["logprob_token_ids"]) for body in server.bodies) == [22, 128]  # of all prompts together


def test_prompts_of_one_request_share_at_most_128_tokens(server: State) -> None:
    queries = [TokenQuery(prefix=[1, 2, first], tokens_C=np.arange(first, first + 50)) for first in (3, 3, 60, 100)]
    with vllm(server) as client:
        found = client.logprobs(queries)
    for mine, theirs in zip(found, LocalModel(server.model).logprobs(queries), strict=True):
        assert not isinstance(mine, InferenceError)
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    assert sorted(len(body["prompt"]) for body in server.bodies) == [1, 3]
    assert all(len(body["logprob_token_ids"]) <= 128 for body in server.bodies)


LIMITS = [
    "Requested logprob_token_ids of length {asked}, which is greater than max allowed: {limit}",  # vLLM 0.32
    "logprob_token_ids: List should have at most {limit} items after validation, not {asked}",
    "logprob_token_ids exceeds the limit",
]


@pytest.mark.parametrize(
    ("said", "limit"), [pytest.param(LIMITS[0], 1, marks=pytest.mark.slow), (LIMITS[1], 7), (LIMITS[2], 20), (LIMITS[0], 127)]
)
def test_a_server_with_a_smaller_limit_is_asked_in_smaller_slices(server: State, said: str, limit: int) -> None:
    """G6: found from its refusal, or passed; later searches ask in these slices at once."""
    refused: list[int] = []

    def fault(body: dict[str, Any], answer: Any) -> Any:
        asked = len(body["logprob_token_ids"])
        if asked <= limit:
            return answer
        refused.append(asked)
        message = said.format(asked=asked, limit=limit)
        return Reply(status=400, body=json.dumps({"error": {"message": message, "code": 400}}).encode())

    server.fault = fault
    queries = [TokenQuery(prefix=prompt, tokens_C=np.arange(3, 3 + size)) for prompt in PROMPTS for size in (2, 40, 150)]
    with vllm(server) as client:
        found = client.logprobs(queries)
        assert refused
        refused.clear()
        assert len(client.logprobs(queries)) == len(queries)
    with VllmServer(server.url, model="tiny", max_token_ids=limit, options=QUICK) as client:
        again = client.logprobs(queries)
    assert not refused
    for mine, other, theirs in zip(found, again, LocalModel(server.model).logprobs(queries), strict=True):
        assert not isinstance(mine, InferenceError)
        assert not isinstance(other, InferenceError)
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
        np.testing.assert_allclose(other, theirs, atol=1e-4)


@pytest.mark.parametrize(
    "said",
    [
        "token_id(s) [99999] in logprob_token_ids contain out-of-vocab token ids. Vocabulary size: 160",
        "the prompt is greater than the limit of 16 tokens",
        "logprob_token_ids is greater than max allowed: 0",
    ],
)
def test_other_refusals_are_not_asked_again_in_smaller_slices(server: State, said: str) -> None:
    """G6: nor for ever."""
    server.fault = lambda body, answer: Reply(status=400, body=said.encode())
    with vllm(server) as client:
        (answer,) = client.logprobs([TokenQuery(prefix=[5], tokens_C=np.arange(3, 9))])
    assert isinstance(answer, InferenceError)
    assert said in str(answer)
    assert len(server.bodies) <= 16


def test_too_few_log_probabilities_name_the_option(server: State) -> None:
    """G6: where the server returns fewer, and where it refuses the number."""
    query = [TokenQuery(prefix=[5, 6], tokens_C=np.arange(3, 60))]
    with OpenAIServer(server.url, model="tiny", num_logprobs=20, options=QUICK) as client:
        (answer,) = client.logprobs(query)
        assert isinstance(answer, InferenceError)
        assert answer.reason == "missing_tokens"
        assert "num_logprobs is 20: pass as many as the model has tokens, or -1" in str(answer)
        for said in ("Requested sample logprobs of 100, which is greater than max allowed: 20", "logprobs: must be at most 5"):
            server.fault = lambda body, answer, said=said: Reply(status=400, body=said.encode())
            (answer,) = client.logprobs(query)
            assert isinstance(answer, InferenceError)
            assert f"{said} (num_logprobs is 20" in str(answer)
            assert "--max-logprobs" in str(answer)


def test_a_server_that_ignores_the_tokens_asked_for_is_named(server: State) -> None:
    """G6: an older vLLM has no such field over HTTP."""

    def ignored(body: dict[str, Any], answer: Any) -> Any:
        for choice in answer["choices"]:
            choice["logprobs"]["top_logprobs"] = [{"token_id:3": -0.1}]
        return answer

    server.fault = ignored
    with vllm(server) as client:
        (answer,) = client.logprobs([TokenQuery(prefix=[5], tokens_C=np.array([9, 7]))])
    assert isinstance(answer, InferenceError)
    assert "the server ignored logprob_token_ids" in str(answer)
    assert "num_logprobs" not in str(answer)
    with pytest.raises(ArgumentError, match="max_token_ids is 0"):
        VllmServer(server.url, model="tiny", max_token_ids=0)


def test_what_is_sent(server: State) -> None:
    query = [TokenQuery(prefix=[5, 6], tokens_C=np.array([9, 7]))]
    options = HttpOptions(extra={"cache_salt": "s"}, headers={"Authorization": "Bearer key"})
    with vllm(server, options) as one, sglang(server) as two:
        one.logprobs(query)
        two.logprobs(query)
    first, second = server.bodies
    assert first["prompt"] == [[5, 6]]
    assert first["logprob_token_ids"] == [7, 9]
    assert first["cache_salt"] == "s"
    assert (first["max_tokens"], first["temperature"], first["top_p"], first["repetition_penalty"]) == (1, 0, 1, 1)
    assert second["input_ids"] == [[5, 6]]
    assert second["token_ids_logprob"] == [[9, 7]]
    assert second["return_logprob"] is True


# Servers that answer wrongly. Each fault: (body, answer) -> what is sent.


def choices_of(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else answer["choices"]


def edited(edit: Callable[[list[Any]], Any]) -> Fault:
    """The answer with its list of choices edited."""

    def fault(body: dict[str, Any], answer: Any) -> Any:
        edit(choices_of(answer))
        return answer

    return fault


def values_of(choice: Any) -> Any:
    """The entries of the only position, to change."""
    if "meta_info" in choice:
        return choice["meta_info"]["output_token_ids_logprobs"][0]
    return choice["logprobs"]["top_logprobs"][0]


def drop_a_token(choices: list[Any]) -> None:
    values = values_of(choices[0])
    if isinstance(values, list):
        values.pop()
    else:
        for name in ("token_id:7", "token_id:9"):
            values.pop(name, None)


def put(value: Any) -> Callable[[list[Any]], None]:
    def edit(choices: list[Any]) -> None:
        values = values_of(choices[0])
        if isinstance(values, list):
            values[0][0] = value
        else:
            values["token_id:9"] = value

    return edit


def without_logprobs(choices: list[Any]) -> None:
    choices[0].pop("logprobs", None)
    choices[0].get("meta_info", {}).pop("output_token_ids_logprobs", None)


def raw(body: bytes, **headers: str) -> Fault:
    return lambda request, answer: Reply(body=body, headers=headers)


def status(code: int) -> Fault:
    return lambda request, answer: Reply(status=code, body=b'{"error": {"message": "the prompt is too long"}}')


def twice(choices: list[Any]) -> None:
    choices.append(json.loads(json.dumps(choices[0])))


FAULTS: list[tuple[str, Fault]] = [
    ("missing_tokens", edited(drop_a_token)),
    ("no_logprobs", edited(without_logprobs)),
    ("duplicate", edited(twice)),
    ("missing_answer", edited(lambda choices: choices.clear())),
    ("malformed", edited(put(0.7))),
    ("malformed", edited(put(None))),
    ("malformed", edited(put("much"))),
    ("malformed", raw(b"<html>")),
    ("malformed", raw(b"[" * 100_000)),
    ("malformed", raw(b"\xff\xfe")),
    ("malformed", raw(b"not gzip", **{"Content-Encoding": "gzip"})),
    ("malformed", raw(gzip.compress(b" " * (2 << 20)), **{"Content-Encoding": "gzip"})),
    ("refused", status(400)),
    ("refused", status(500)),
    ("refused", status(503)),
    ("unreachable", lambda request, answer: Reply(hang_up=True)),
]


@CLIENTS
@pytest.mark.parametrize(("reason", "fault"), FAULTS)
def test_a_wrong_answer_is_a_named_error_and_nothing_is_returned(server: State, client: Any, reason: str, fault: Fault) -> None:
    server.fault = fault
    with client(server, HttpOptions(retries=0, max_bytes=1 << 20)) as remote:
        (answer,) = remote.logprobs([TokenQuery(prefix=[5, 6], tokens_C=np.array([9, 7]))])
    assert isinstance(answer, InferenceError)
    assert answer.reason == reason, answer


def test_a_token_that_stands_twice_in_the_json_is_refused(server: State) -> None:
    server.fault = lambda request, answer: Reply(
        body=b'{"choices": [{"index": 0, "logprobs": {"top_logprobs": [{"token_id:9": -1, "token_id:9": -2}]}}]}'
    )
    with vllm(server) as client:
        (answer,) = client.logprobs([TokenQuery(prefix=[5], tokens_C=np.array([9]))])
    assert isinstance(answer, InferenceError)
    assert answer.reason == "duplicate"


@pytest.mark.parametrize(
    "choices", [None, 3, [3], [{"index": -1}], [{"index": 5}], [{"index": True}], [{"index": "0"}], [{}], {"index": 0}]
)
def test_choices_that_are_none(server: State, choices: Any) -> None:
    server.fault = lambda request, answer: {"choices": choices}
    with vllm(server) as client:
        (answer,) = client.logprobs([TokenQuery(prefix=[5], tokens_C=np.array([9]))])
    assert isinstance(answer, InferenceError)
    assert answer.reason == "malformed"


@pytest.mark.parametrize("entries", [None, 3, [], [3], [[3]], [[[-1.0]]], {"0": []}])
def test_sglang_entries_that_are_none(server: State, entries: Any) -> None:
    server.fault = lambda request, answer: [{"meta_info": {"output_token_ids_logprobs": entries}}]
    with sglang(server) as client:
        (answer,) = client.logprobs([TokenQuery(prefix=[5], tokens_C=np.array([9]))])
    assert isinstance(answer, InferenceError)


def test_one_prompt_of_sglang_may_be_answered_without_a_list(server: State) -> None:
    server.fault = lambda request, answer: answer[0]
    with sglang(server) as client:
        (answer,) = client.logprobs([TokenQuery(prefix=[5], tokens_C=np.array([9]))])
    assert not isinstance(answer, InferenceError)


def test_choices_in_another_order_go_to_their_prompts(server: State) -> None:
    server.fault = edited(lambda choices: choices.reverse())
    queries = [TokenQuery(prefix=[first], tokens_C=np.array([9, 7])) for first in (5, 6, 8)]
    with vllm(server) as client:
        found = client.logprobs(queries)
    for mine, theirs in zip(found, LocalModel(server.model).logprobs(queries), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", [status(503), status(429), lambda request, answer: Reply(hang_up=True)])
def test_a_busy_server_is_asked_again_and_a_refusal_is_not(server: State, fault: Fault) -> None:
    failed: list[int] = []

    def once(body: dict[str, Any], answer: Any) -> Any:
        failed.append(1)
        return fault(body, answer) if len(failed) == 1 else answer

    server.fault = once
    query = [TokenQuery(prefix=[5], tokens_C=np.array([9]))]
    with vllm(server) as client:
        (answer,) = client.logprobs(query)
        assert not isinstance(answer, InferenceError)
        assert len(failed) == 2
        failed.clear()
        server.fault = lambda body, answer: failed.append(1) or status(400)(body, answer)
        (answer,) = client.logprobs(query)
    assert isinstance(answer, InferenceError)
    assert "the prompt is too long" in str(answer)
    assert len(failed) == 1


def test_a_late_answer_is_a_timeout_and_is_not_asked_again(server: State) -> None:
    go = threading.Event()
    server.fault = lambda body, answer: answer if go.wait(20) else None
    try:
        with vllm(server, HttpOptions(timeout_s=0.3)) as client:
            (answer,) = client.logprobs([TokenQuery(prefix=[5], tokens_C=np.array([9]))])
    finally:
        go.set()
    assert isinstance(answer, InferenceError)
    assert (answer.reason, len(server.bodies)) == ("timeout", 1)


def test_a_failed_request_takes_its_own_users_answer_alone(server: State) -> None:
    """One HTTP request for each prompt, and the server refuses those of the second."""
    shop = Shop()

    def fault(body: dict[str, Any], answer: Any) -> Any:
        return status(400)(body, answer) if body["prompt"][0][: LENGTHS[1]] == PROMPTS[1] else answer

    server.fault = fault
    with vllm(server, HttpOptions(max_prompts=1)) as client:
        search = LogprobBeamSearch(shop.index, client, code_tokens=shop.tokens, num_beams=4)
        with pytest.raises(InferenceError, match="too long"):
            search.run(PROMPTS)
        found = search.run(PROMPTS, allow_partial=True)
    assert found.num_valid.tolist() == [4, 0]
    assert found.failures[1].reason == "refused"


def test_a_server_that_does_not_listen_is_unreachable() -> None:
    with VllmServer("http://127.0.0.1:9", model="m", options=HttpOptions(retries=1)) as client:
        (answer,) = client.logprobs([TokenQuery(prefix=[5], tokens_C=np.array([9]))])
    assert isinstance(answer, InferenceError)
    assert answer.reason == "unreachable"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host:port", "file:///etc/passwd"])
def test_the_url_is_checked(url: str) -> None:
    with pytest.raises(ArgumentError, match="url is"):
        VllmServer(url, model="m")


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"retries": -1}, {"max_prompts": 0}, {"max_bytes": 0}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="expected numbers above 0"):
        HttpOptions(**options)
    with pytest.raises(ArgumentError, match="num_logprobs is 0"):
        OpenAIServer("http://host", model="m", num_logprobs=0)


def test_the_page_names_the_version_of_sglang_that_the_client_was_written_for() -> None:
    """G7: SGLang's answers have changed between versions."""
    versions = [re.search(r"SGLang (\d+\.\d+\.\d+)", text) for text in (sglang_module.__doc__ or "", PAGE.read_text("utf-8"))]
    first, second = (found and found[1] for found in versions)
    assert first is not None
    assert first == second
