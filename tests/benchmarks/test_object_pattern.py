"""The pattern that peers get has the language of the schema that leafbeam gets."""

from typing import Any

import numpy as np
import pytest

from benchmarks.micro.automaton import _FIELDS
from benchmarks.object_pattern import object_pattern
from benchmarks.serving.language import SCHEMA
from leafbeam.automata import Automaton, TokenTrie

BYTES = TokenTrie.of([bytes([byte]) for byte in range(256)])


@pytest.mark.parametrize("schema", [SCHEMA, _FIELDS], ids=["bounds", "fields"])
def test_the_pattern_has_the_language_of_the_schema(schema: dict[str, Any]) -> None:
    """Both automata are walked side by side: the same bytes are legal wherever both are."""
    ours, peers = Automaton.from_json_schema(schema, BYTES), Automaton.from_regex(object_pattern(schema), BYTES)
    known, waiting = {(0, 0)}, [(0, 0)]
    while waiting:
        pair = waiting.pop()
        legal = [automaton.legal(np.array([state]))[1] for automaton, state in zip((ours, peers), pair, strict=True)]
        assert legal[0].tolist() == legal[1].tolist()
        assert ours.accepts(pair[0]) == peers.accepts(pair[1])
        after = [
            automaton.step(np.full(len(codes), state), codes).tolist()
            for automaton, state, codes in zip((ours, peers), pair, legal, strict=True)
        ]
        for new in set(zip(*after, strict=True)) - known:
            known.add(new)
            waiting.append(new)
    assert len(known) > 40
