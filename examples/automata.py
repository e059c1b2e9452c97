"""Decoding under a regular language: every sequence is an instance of a JSON Schema. Needs leafbeam[automata]."""

import json

import numpy as np

from leafbeam.automata import Automaton, TokenTrie
from leafbeam.decode import SequenceSearch

vocabulary = [
    None,
    *(bytes([byte]) for byte in range(256)),
]  # yours: the bytes of each token; None for specials, such as the end
tokens = TokenTrie.of(vocabulary)
review = Automaton.from_json_schema(
    {
        "type": "object",
        "properties": {"stars": {"type": "integer", "minimum": 1, "maximum": 5}, "genre": {"enum": ["art", "comic"]}},
        "required": ["stars", "genre"],
    },
    tokens,
)
rng = np.random.default_rng(0)


def model(codes, parents):
    """Logits of the next token for each beam. Yours; noise here."""
    return rng.normal(size=(1, len(vocabulary)) if codes is None else (*codes.shape, len(vocabulary)))


search = SequenceSearch(review, end_code=0, num_codes=len(vocabulary), num_beams=4, max_tokens=40)
result = search.run(model)
for sequence, finished in zip(result.tokens[0], result.finished[0], strict=True):
    text = b"".join(vocabulary[token] or b"" for token in sequence).decode()
    print(text)
    assert finished
    assert json.loads(text)["stars"] in range(1, 6)
