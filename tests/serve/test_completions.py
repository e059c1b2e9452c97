"""The routes that OpenAI's clients use, driven by the official client and by hostile ones."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from leafbeam.automata.lazy_dfa import LazyDFA
from leafbeam.engine import Request
from leafbeam.serve import Server
from leafbeam.text import Choices, Template, TextGenerator
from tests.fixtures.texts import SCHEMA
from tests.serve.conftest import TEXT_MODEL as MODEL


def under(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "product", "strict": True, "schema": schema}}


FORMAT = under(SCHEMA)


@pytest.fixture(scope="module")
def client(text_server: Server) -> Any:
    openai = pytest.importorskip("openai", reason="the official client of OpenAI is not installed")
    with openai.OpenAI(base_url=f"{text_server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


# The official client.


def test_a_chat_answers_under_a_schema(client: Any):
    messages = [{"role": "system", "content": "JSON."}, {"role": "user", "content": "A lamp."}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, response_format=FORMAT, seed=3, max_tokens=80)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.role == "assistant"
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 10
    again = client.chat.completions.create(model=MODEL, messages=messages, response_format=FORMAT, seed=3, max_tokens=80)
    assert again.choices[0].message.content == choice.message.content


def test_texts_under_patterns_and_choices(client: Any):
    answer = client.completions.create(
        model=MODEL, prompt=["A ", "The "], n=3, temperature=0.8, top_p=0.9, extra_body={"guided_regex": "[a-z]{3,5}[0-9]"}
    )
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert all(re.fullmatch("[a-z]{3,5}[0-9]", choice.text) for choice in answer.choices)
    beams = client.completions.create(
        model=MODEL, prompt="A ", n=2, extra_body={"guided_choice": ["red lamp", "tea cup", "tea"], "beam_width": 3}
    )
    assert len(beams.choices) == 2
    assert all(choice.text in ("red lamp", "tea cup", "tea") for choice in beams.choices)


def test_a_template_of_parts(client: Any):
    parts = ["It is ", {"free_text": {"stop": ".", "max_length": 9}}, " ", {"choices": ["lamp", "cup"]}]
    answer = client.completions.create(model=MODEL, prompt=[5, 6], extra_body={"guided_template": parts}, seed=1)
    assert re.fullmatch(r"It is [^.]{0,9}\. (lamp|cup)", answer.choices[0].text, re.DOTALL)


def test_greedy_texts_equal_those_in_python(client: Any, text_server: Server):
    assert text_server.text is not None
    from leafbeam.text import FreeText

    (texts,) = text_server.text.generator.generate(["A red "], FreeText(), max_tokens=20).texts
    answer = client.completions.create(model=MODEL, prompt="A red ", temperature=0, max_tokens=20)
    assert answer.choices[0].text == texts[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20


def test_forced_text_is_appended_at_once_where_a_client_asks(client: Any, text_dir: Path):
    parts = ["A red lamp: ", {"choices": ["lamp and tea", "cup and tea"]}]
    options: dict[str, Any] = {"model": MODEL, "prompt": ["A", "The "], "temperature": 0}
    answer = client.completions.create(**options, extra_body={"guided_template": parts, "retokenize": True})
    template = Template(parts=["A red lamp: ", Choices(texts=["lamp and tea", "cup and tea"])])
    wanted = TextGenerator.load(text_dir).generate(["A", "The "], template, retokenize=True)
    assert [choice.text for choice in answer.choices] == [one.text for (one,) in wanted.texts]


@pytest.mark.parametrize("seed", [1, 2])
def test_streams_are_the_text_piece_by_piece(client: Any, seed: int):
    options: dict[str, Any] = {"model": MODEL, "seed": seed, "max_tokens": 60, "n": 2}
    options["extra_body"] = {"guided_regex": "[a-zäö日]{8,20}"}
    whole = client.completions.create(prompt="A ", **options)
    pieces = {0: "", 1: ""}
    reasons, usage = {}, None
    for chunk in client.completions.create(prompt="A ", stream=True, stream_options={"include_usage": True}, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert list(pieces.values()) == [choice.text for choice in whole.choices]
    assert reasons == {0: "stop", 1: "stop"}
    assert usage == whole.usage
    messages = [{"role": "user", "content": "A lamp."}]
    chat = client.chat.completions.create(messages=messages, **{**options, "n": 1})
    chunks = list(client.chat.completions.create(messages=messages, stream=True, **{**options, "n": 1}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == chat.choices[0].message.content
    assert len(chunks) > 4
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_stop_ends_the_text_before_it(client: Any):
    options: dict[str, Any] = {"model": MODEL, "prompt": "A ", "seed": 5, "extra_body": {"guided_regex": "([a-d]{1,4}; ){8}"}}
    whole = client.completions.create(**options).choices[0]
    cut = client.completions.create(stop=["; ", "zz"], **options).choices[0]
    assert cut.text == whole.text.split("; ")[0]
    assert cut.finish_reason == "stop"
    streamed = client.completions.create(stop="; ", stream=True, **options)
    assert "".join(choice.text for chunk in streamed for choice in chunk.choices) == cut.text


@pytest.mark.parametrize(
    "form",
    [
        {"guided_json": {"type": "object"}},
        {"guided_json": '{"type": "object"}'},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json": {"type": "object"}}},
        {"structured_outputs": {"json_object": True}},
    ],
    ids=["guided_json", "text of guided_json", "json_object", "structured json", "structured json_object"],
)
def test_an_object_without_a_schema_is_written_to_a_depth_that_the_answer_says(client: Any, form: dict[str, Any]):
    answer = client.completions.create(model=MODEL, prompt="A ", seed=3, temperature=0, max_tokens=40, extra_body=form)
    assert answer.choices[0].text.startswith("{")
    notes = [{"treatment": "bounded", "keyword": "", "pointer": "#/additionalProperties", "depth": 2}]
    assert answer.schema_notes == notes
    options: dict[str, Any] = {"model": MODEL, "prompt": "A ", "seed": 3, "temperature": 0, "max_tokens": 40}
    chunks = list(client.completions.create(stream=True, extra_body=form, **options))
    assert [chunk.schema_notes for chunk in chunks if hasattr(chunk, "schema_notes")] == [notes]
    assert chunks[-1].schema_notes == notes


@pytest.mark.parametrize(
    ("guided", "structured"),
    [
        ({"guided_json": {"enum": ["ab", 7]}}, {"json": {"enum": ["ab", 7]}}),
        ({"guided_regex": "[ab]{4}"}, {"regex": "[ab]{4}"}),
        ({"guided_choice": ["abc", "b"]}, {"choice": ["abc", "b"]}),
    ],
    ids=["json", "regex", "choice"],
)
def test_structured_outputs_are_the_constraints_of_vllm(client: Any, guided: dict[str, Any], structured: dict[str, Any]):
    options: dict[str, Any] = {"model": MODEL, "prompt": "A ", "seed": 3}
    expected = client.completions.create(**options, extra_body=guided).choices[0].text
    assert client.completions.create(**options, extra_body={"structured_outputs": structured}).choices[0].text == expected


def test_recommendations_are_choices_with_item_ids(client: Any, text_server: Server):
    answer = client.completions.create(
        model="items", prompt=[1003, 1004], n=5, extra_body={"rules": ["cheap", "in_stock"], "deny_item_ids": [1001]}
    )
    assert text_server.engine is not None
    expected = text_server.engine.recommend(
        Request(history=(1003, 1004), num_items=5, rules=("cheap", "in_stock"), deny_item_ids=(1001,))
    )
    assert [choice.item_id for choice in answer.choices] == list(expected.item_ids)
    assert [choice.text for choice in answer.choices] == [str(one) for one in expected.item_ids]
    assert [choice.score for choice in answer.choices] == pytest.approx(list(expected.scores), abs=1e-4)
    assert answer.system_fingerprint == expected.index_version
    none = client.completions.create(model="items", prompt="", n=5, extra_body={"rules": ["none"]})
    assert none.choices == []  # a short answer


def test_models_are_listed(client: Any):
    assert [model.id for model in client.models.list()] == [MODEL, "items"]


def test_errors_are_those_that_the_client_knows(client: Any):
    import openai

    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4", prompt="A")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as broken:
        client.completions.create(model=MODEL, prompt="A", extra_body={"guided_regex": "(a"})
    assert (broken.value.code, broken.value.type) == ("AutomatonError", "invalid_request_error")
    assert "brackets" in broken.value.message
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=MODEL, prompt="A", temperature="hot")
    assert wrong.value.param == "temperature"


# Hostile and mistaken clients.

BASE: dict[str, Any] = {"model": MODEL, "prompt": "A"}
ITEMS: dict[str, Any] = {"model": "items", "prompt": []}
BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({}, "model"),
    ({"model": 7}, "model: expected str"),
    ({"model": MODEL}, "prompt"),
    ({**BASE, "prompt": []}, "prompt"),
    ({**BASE, "prompt": ["A", 7]}, "prompt"),
    ({**BASE, "prompt": [[]]}, "no tokens"),
    ({**BASE, "prompt": [1, 10**9]}, "outside the model"),
    ({**BASE, "prompt": ["A"] * 9}, "at most 8 texts"),
    ({**BASE, "prompt": "A" * 5000}, "positions"),
    ({**BASE, "max_tokens": 0}, "max_tokens"),
    ({**BASE, "max_tokens": 10**6}, "positions"),
    ({**BASE, "n": 0}, "n: expected at least 1"),
    ({**BASE, "n": 10**9}, "at most 8 texts"),
    ({**BASE, "n": 8, "max_tokens": 500}, "at most 4,000"),
    ({**BASE, "n": 2, "temperature": 0}, "temperature 0"),
    ({**BASE, "temperature": -1}, "temperature is -1"),
    ({**BASE, "temperature": 1e999}, "JSON"),
    ({**BASE, "top_p": 0}, "top_p"),
    ({**BASE, "top_k": -1}, "top_k"),
    ({**BASE, "seed": 2**70}, "seed"),
    ({**BASE, "beam_width": 0}, "beam_width"),
    ({**BASE, "beam_width": -3}, "beam_width"),
    ({**BASE, "beam_width": 9}, "texts"),
    ({**BASE, "beam_width": 2, "temperature": 1}, "temperature"),
    ({**BASE, "beam_width": 2, "stop": "x"}, "stop"),
    ({**BASE, "beam_width": 2, "stream": True}, "stream"),
    ({**BASE, "beam_width": 2, "n": 3}, "n: at most beam_width"),
    ({**BASE, "stop": ""}, "stop is empty"),
    ({**BASE, "retokenize": True, "beam_width": 2}, "retokenize"),
    ({**BASE, "retokenize": 1}, "retokenize"),
    ({**BASE, "stop": ["a"] * 5}, "up to 4"),
    ({**BASE, "logprobs": 5}, "logprobs: not supported"),
    ({**BASE, "logit_bias": {str(n): 1.0 for n in range(50_000)}}, "logit_bias: not supported"),
    ({**BASE, "response_format": {"type": "x" * 90_000}}, "expected json_schema, json_object or text"),
    ({**BASE, "tools": []}, "no such field"),
    ({**BASE, "response_format": {"type": "jsonobject"}}, "json_object"),
    ({**BASE, "guided_json": 7}, "guided_json"),
    ({**BASE, "guided_json": {"type": "thing"}}, "expected one or several of"),
    ({**BASE, "guided_json": {}, "guided_regex": "a"}, "name one of"),
    ({**BASE, "structured_outputs": {"json": {}, "regex": "a"}}, "name one of"),
    ({**BASE, "structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "name one of"),
    ({**BASE, "structured_outputs": {"json": 7}}, "structured_outputs.json"),
    ({**BASE, "structured_outputs": {"whitespace_pattern": " "}}, "no such field"),
    ({**BASE, "response_format": {"type": "json_schema"}}, "needs the field"),
    ({**BASE, "guided_choice": []}, "at least one text"),
    ({**BASE, "guided_choice": [7]}, "guided_choice"),
    ({**BASE, "guided_choice": ["a"], "guided_regex": "a"}, "name one of"),
    ({**BASE, "guided_regex": "[ab]*a[ab]{24}"}, "to compile"),
    ({**BASE, "guided_regex": "((((a{99}){99}){99}){99}){99}"}, "max_states"),
    ({**BASE, "guided_template": [{"regex": 7}]}, "expected a string"),
    ({**BASE, "guided_template": [[]]}, "a constraint is"),
    ({**BASE, "response_format": under({"$ref": "#"})}, "back to itself"),
    ({**BASE, "response_format": under(7)}, "expected a schema object"),
    ({**BASE, "response_format": under({"type": "string", "maxLength": 10**8, "pattern": "a"})}, "bound them more tightly"),
    ({**ITEMS, "prompt": "P1"}, "prompt: expected a list of item ids"),
    ({**ITEMS, "prompt": ["P1"]}, "ids"),
    ({**ITEMS, "n": 0}, "num_items"),
    ({**ITEMS, "n": 10**6}, "num_items"),
    ({**ITEMS, "stream": True}, "stream"),
    ({**ITEMS, "temperature": 1}, "temperature"),
    ({**ITEMS, "rules": ["unknown"]}, "unknown"),
    ({**ITEMS, "guided_regex": "a"}, "no such field"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "says"), BAD_BODIES, ids=[str(n) for n in range(len(BAD_BODIES))])
def test_a_wrong_body_gets_400_in_the_shape_of_openai(text_http: httpx.Client, body: dict[str, Any], says: str):
    answer = text_http.post("/v1/completions", content=json.dumps(body), headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert says in error["message"], error
    assert len(answer.content) < 2000


PLACES: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": under({"type": "object", "properties": {"a/b": {"$recursiveRef": "#"}}, "$recursiveAnchor": True,
                                "$defs": {"q": {"$recursiveAnchor": True}}})},
     "response_format.json_schema.schema#/properties/a~1b/$recursiveRef", "expected one schema with this $recursiveAnchor"),
    ({"response_format": under({"type": "array", "items": {"type": "string", "pattern": "^(?i)a$"}})},
     "response_format.json_schema.schema#/items/pattern", "#/items/pattern: "),
    ({"response_format": under({"$ref": "#/$defs/x"})}, "response_format.json_schema.schema#/$ref", "points to nothing"),
    ({"response_format": under(7)}, "response_format.json_schema.schema#", "expected a schema object"),
    ({"guided_regex": "(a"}, "guided_regex", "brackets"),
    ({"guided_choice": []}, "guided_choice", "at least one text"),
    ({"guided_template": [{"json_schema": {"type": "thing"}}]}, "guided_template", "#/type"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "says"), PLACES, ids=[param for _, param, _ in PLACES])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_error_of_a_constraint_names_its_place(
    text_http: httpx.Client, path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    """T11: as a field of the body and an escaped JSON pointer; the second time from the cache of refused constraints."""
    prompt = {"prompt": "A"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "A"}]}
    for _ in range(2):
        answer = text_http.post(path, json={"model": MODEL, **prompt, **fields})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "AutomatonError", param)
        assert says in error["message"]


def test_a_schema_that_grows_beyond_its_limit_while_a_text_is_written_fails_alone(
    text_http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of a schema are found when a text reaches them, so that the limit may be met then."""
    body = {"model": MODEL, "prompt": "A", "max_tokens": 90, "response_format": under({"type": "string", "minLength": 80})}
    with monkeypatch.context() as patch:
        patch.setattr(LazyDFA, "enlarge", lambda self, code: (_ for _ in ()).throw(self._too_large()))
        answer = text_http.post("/v1/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "AutomatonError")
        assert "unrolls to more than max_states" in error["message"]
        assert text_http.post("/v1/completions", json={"model": MODEL, "prompt": "A", "max_tokens": 3}).status_code == 200
    assert text_http.post("/v1/completions", json=body).status_code == 200


RAW = [b"", b"{", b"[]", b"null", b'{"model": "\xff"}', b'{"model": "\\ud800"}', b'{"a":' * 50_000, b"[" * 500_000]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("raw", RAW, ids=[str(n) for n in range(len(RAW))])
def test_what_is_no_body_gets_a_named_error(text_http: httpx.Client, path: str, raw: bytes):
    answer = text_http.post(path, content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_deep_schemas_and_templates(text_http: httpx.Client):
    deep = '{"type":"array","items":' * 400 + '{"type":"null"}' + "}" * 400
    body = f'{{"model":"{MODEL}","prompt":"A","response_format":{{"type":"json_schema","json_schema":{{"schema":{deep}}}}}}}'
    answer = text_http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    deep = '[{"template":' * 400 + '["a"]' + "}]" * 400
    body = f'{{"model":"{MODEL}","prompt":"A","guided_template":{deep}}}'
    answer = text_http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400)


def test_bodies_that_are_too_long_and_other_types(text_http: httpx.Client):
    answer = text_http.post("/v1/completions", json={**BASE, "prompt": "A" * (1 << 20)})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_long"
    answer = text_http.post("/v1/completions", data={"model": MODEL})
    assert answer.status_code == 400
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    answer = text_http.get("/v1/completions")
    assert answer.status_code == 405
    assert answer.json()["error"]["type"] == "invalid_request_error"


CHATS: list[tuple[Any, str]] = [
    ([], ""),
    ("hello", "messages: expected array"),
    ([{"role": "user"}], "content"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image_url"),
    ([{"role": "user", "content": "x"}] * 102, "too many"),
]


@pytest.mark.parametrize(("messages", "says"), CHATS)
def test_messages_that_no_prompt_can_be_made_of(text_http: httpx.Client, messages: Any, says: str):
    answer = text_http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, "max_tokens": 2})
    if messages == []:
        assert answer.status_code == 200  # this template has a prompt for it
        return
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_messages_of_parts_are_their_text(text_http: httpx.Client):
    parts = [{"type": "text", "text": "A "}, {"type": "text", "text": "lamp."}]
    texts = [
        text_http.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": content}], "max_completion_tokens": 9, "seed": 1},
        ).json()["choices"][0]["message"]["content"]
        for content in ("A lamp.", parts)
    ]
    assert texts[0] == texts[1]


def test_a_chat_with_the_recommender_is_refused_by_name(text_http: httpx.Client):
    answer = text_http.post("/v1/chat/completions", json={"model": "items", "messages": []})
    assert answer.status_code == 400
    assert "/v1/recommend" in answer.json()["error"]["message"]
