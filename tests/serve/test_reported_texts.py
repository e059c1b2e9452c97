"""Requests for texts that people reported other servers to answer wrongly."""

from typing import Any

import httpx
import pytest

from tests.serve.conftest import TEXT_MODEL


def choices(text_http: httpx.Client, **body: Any) -> list[tuple[str, str]]:
    answer = text_http.post("/v1/completions", json={"model": TEXT_MODEL, "prompt": "A ", **body})
    assert answer.status_code == 200, answer.text
    return [(choice["text"], choice["finish_reason"]) for choice in answer.json()["choices"]]


@pytest.mark.parametrize("way", [{"temperature": 0}, {"seed": 3}, {"beam_width": 4}, {"seed": 4, "retokenize": True}])
def test_a_text_ends_where_nothing_may_follow(text_http: httpx.Client, way: dict[str, Any]) -> None:
    """Public report: after the whole pattern the model writes on (outlines 659, vllm 29632)."""
    for constraint in ({"guided_regex": "[YN]"}, {"guided_choice": ["Y", "N"]}, {"guided_regex": "abc[0-9]{3}"}):
        (choice,) = choices(text_http, **constraint, **way, max_tokens=300)
        assert choice[1] == "stop"
        assert len(choice[0]) == (6 if constraint.get("guided_regex") == "abc[0-9]{3}" else 1)


def test_a_text_does_not_end_as_soon_as_it_may(text_http: httpx.Client) -> None:
    """Public report: texts end at the first place where the pattern matches (outlines 1121)."""
    ends = {choices(text_http, guided_regex="once[a-z ]*", max_tokens=40, seed=seed)[0] for seed in range(12)}
    assert max(len(text) for text, _ in ends) > 20
    assert len(ends) == 12


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(["a", "ab", "abc"], 3), (["", "a"], 2), (["a", "a"], 1), (["a"], 1), ([""], 1), (["é", "e\u0301", "日本"], 3)],
)
def test_a_choice_may_begin_another_be_empty_or_come_twice(text_http: httpx.Client, texts: list[str], expected: int) -> None:
    """Public report: a choice that begins another is never chosen, or ends the longer one."""
    found = choices(text_http, guided_choice=texts, beam_width=8, n=4)
    assert sorted(found) == sorted((text, "stop") for text in set(texts))
    assert len(found) == expected


@pytest.mark.parametrize("limit", [1, 3])
def test_a_text_that_is_cut_off_says_so(text_http: httpx.Client, limit: int) -> None:
    """Public report: half a JSON object is called finished."""
    ((text, reason),) = choices(text_http, guided_regex="abcdefghijkl", max_tokens=limit)
    assert reason == "length"
    assert "abcdefghijkl".startswith(text)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 3, "max_completion_tokens": 5}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"structured_outputs": {"grammar": ""}}, "grammar"),
    ],
)
def test_what_would_be_left_out_of_a_chat_is_refused(text_http: httpx.Client, body: dict[str, Any], param: str) -> None:
    """Public report: a format that is not known ends the server (vllm 11828); fields are left out silently."""
    messages = [{"role": "user", "content": "A lamp."}]
    answer = text_http.post("/v1/chat/completions", json={"model": TEXT_MODEL, "messages": messages, **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    same = {"max_tokens": 4, "max_completion_tokens": 4}
    assert text_http.post("/v1/chat/completions", json={"model": TEXT_MODEL, "messages": messages, **same}).status_code == 200
