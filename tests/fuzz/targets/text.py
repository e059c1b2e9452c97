"""Files beside a language model, and bodies of the routes for OpenAI's clients up to the compiler of constraints."""

import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.ecma_pattern import rust_pattern
from leafbeam.automata.json_schema import schema_language
from leafbeam.serve.completion_schema import ChatBody, CompletionBody, ItemCompletionBody, TextOptions
from leafbeam.serve.engine_routes import request_of
from leafbeam.serve.exchange import decode_body
from leafbeam.text import ChatTemplate, TextTokenizer
from leafbeam.text.constraints import constraint_from_json

_BODIES: list[Any] = [msgspec.json.Decoder(kind) for kind in (CompletionBody, ChatBody, ItemCompletionBody)]


def fuzz_tokenizer(data: bytes) -> None:
    """A tokenizer.json: the bytes of its tokens, and a text there and back."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "tokenizer.json").write_bytes(data)
        (directory / "config.json").write_text('{"eos_token_id": 0}')
        tokenizer = TextTokenizer.load(directory)
        trie = tokenizer.trie(tokenizer.size + 2)
        assert len(tokenizer.token_bytes) == tokenizer.size == len(trie) - 2
        tokens = tokenizer.encode("a b\n\u00e9 {}")
        assert all(0 <= token < tokenizer.size for token in tokens)
        tokenizer.decode(tokens)


def fuzz_chat_template(data: bytes) -> None:
    """A tokenizer_config.json."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "tokenizer_config.json").write_bytes(data)
        ChatTemplate.load(name)


def fuzz_completion(data: bytes) -> None:
    """A body, the first byte of which says of which route; its constraint is read, not compiled."""
    kind = data[:1]
    body = decode_body(data[1:], "application/json", _BODIES[kind[0] % len(_BODIES) if kind else 0])
    if isinstance(body, ItemCompletionBody):
        request_of(body.to_recommend())
        return
    assert isinstance(body, TextOptions)
    body.check()
    constraint_from_json(json.loads(body.constraint))
    assert body.num_texts >= 1
    assert body.sampling is None or body.sampling.temperature > 0
    if isinstance(body, CompletionBody):
        assert all(isinstance(prompt, (str, list)) for prompt in body.prompts)
    else:
        assert isinstance(body, ChatBody)
        assert all(isinstance(message.to_dict()["content"], str) for message in body.messages)


def fuzz_json_schema(data: bytes) -> None:
    """The text of a JSON Schema: a text of its instances is JSON. Patterns, whose time is not bounded, are left out."""
    if b"pattern" in data:
        return
    text = _first_text(schema_language(data.decode("utf-8", "replace"), 2_000))
    json.loads(text)


def fuzz_schema_pattern(data: bytes) -> None:
    """A pattern of a JSON Schema, to Rust's syntax."""
    rust_pattern(data.decode("utf-8", "replace"))


def _first_text(language: ByteDFA) -> bytes:
    """One of the shortest texts of a language, found breadth first."""
    class_256, indptr, label_E, next_E = language.edges
    texts = {0: b""}
    for state in range(language.num_states):  # they are numbered breadth first
        if language.accepting_X[state]:
            return texts[state]
        for edge in range(indptr[state], indptr[state + 1]):
            byte = int(np.flatnonzero(class_256 == label_E[edge])[0])
            texts.setdefault(int(next_E[edge]), texts[state] + bytes([byte]))
    raise AssertionError("a language without texts")
