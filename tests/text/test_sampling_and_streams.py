"""Drawn texts do not depend on the batch; streams give the same text, in whole characters; a stop ends a text exactly."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from leafbeam.decode import SequenceSampler
from leafbeam.model import TextSession, TextTokens
from leafbeam.text import Choices, JsonSchema, Regex, Sampling, TextGenerator
from leafbeam.text.growing_text import BegunStop
from tests.fixtures.texts import CONSTRAINTS, PROMPTS, check

WORDS = Regex(pattern="[a-zäöü日本 ]{6,20}")
DRAWN = Sampling(temperature=1.3, top_p=0.98)


@pytest.mark.parametrize("sampling", [DRAWN, Sampling(top_k=5), Sampling(temperature=0.2)])
def test_drawn_texts_depend_on_prompt_constraint_and_seed_alone(generator: TextGenerator, sampling: Sampling):
    together = generator.generate(
        PROMPTS, list(CONSTRAINTS.values()), max_tokens=60, sampling=sampling, num_samples=4, seed=[5, 6, 7]
    )
    assert together.calls_saved >= 0
    for prompt, seed, (name, constraint), texts in zip(PROMPTS, (5, 6, 7), CONSTRAINTS.items(), together.texts, strict=True):
        alone = generator.generate([prompt], constraint, max_tokens=60, sampling=sampling, num_samples=4, seed=seed)
        assert [text.tokens for text in alone.texts[0]] == [text.tokens for text in texts]
        for one, other in zip(alone.texts[0], texts, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-3)
            check(name, one.text)


def test_texts_without_forced_tokens_are_drawn_as_sequences_are(generator: TextGenerator):
    letters = Regex(pattern="[a-z ]{6,20}")
    automaton, prompts = generator.compile(letters), torch.tensor([generator.tokenizer.encode("A ")])
    session = generator.model.start(prompts, vocabulary=TextTokens(size=generator.num_tokens, num_tokens=30))
    shape = {"end_code": generator.tokenizer.end, "num_codes": generator.num_tokens, "max_tokens": 30}
    sampler = SequenceSampler(automaton, sampling=DRAWN, num_samples=4, seed=11, **shape)
    drawn = sampler.run(session.step_fn)
    (texts,) = generator.generate(["A "], letters, max_tokens=30, sampling=DRAWN, num_samples=4, seed=11).texts
    assert [list(text.tokens) for text in texts] == [tokens.tolist() for tokens in drawn.tokens[0]]
    assert [text.score for text in texts] == pytest.approx(drawn.scores[0].tolist(), abs=1e-3)


def test_fewer_samples_and_fewer_tokens_are_the_beginning_of_more(generator: TextGenerator):
    options = {"sampling": DRAWN, "seed": 11}
    (many,) = generator.generate(["A "], WORDS, max_tokens=30, num_samples=5, **options).texts
    (few,) = generator.generate(["A "], WORDS, max_tokens=4, num_samples=2, **options).texts
    assert [text.tokens for text in few] == [text.tokens[:4] for text in many[:2]]
    assert len({text.text for text in many}) > 1


def test_a_prompt_may_be_tokens(generator: TextGenerator):
    tokens = generator.tokenizer.encode("A lamp")
    assert generator.generate([tokens], WORDS).texts == generator.generate(["A lamp"], WORDS).texts


@pytest.mark.parametrize("sampling", [None, DRAWN])
@pytest.mark.parametrize("name", [*CONSTRAINTS, "words", "bytes"])
def test_the_pieces_of_a_stream_are_the_text(generator: TextGenerator, name: str, sampling: Sampling | None):
    cut_inside = Choices(texts=["日本語の".encode()[:-1], "ü".encode()[:1]])  # texts that end inside a character
    constraint = {**CONSTRAINTS, "words": WORDS, "bytes": cut_inside}[name]
    (whole,) = generator.generate(["naïve "], constraint, max_tokens=40, sampling=sampling, seed=2).texts[0]
    stream = generator.stream("naïve ", constraint, max_tokens=40, sampling=sampling, seed=2)
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert all(pieces)
    assert stream.generation == whole
    if name == "words":
        assert len(pieces) > 3
        assert "\ufffd" not in whole.text


@pytest.mark.parametrize("sampling", [None, DRAWN])
def test_a_text_ends_before_its_first_stop(generator: TextGenerator, sampling: Sampling | None):
    constraint = Regex(pattern="([a-e]{1,3}(, |; )){6}")
    options = {"max_tokens": 60, "sampling": sampling, "seed": 4}
    (whole,) = generator.generate(["A "], constraint, **options).texts[0]
    assert whole.finished
    stops = [", ", "; ", ";"]
    first = min(at for stop in stops if (at := whole.text.find(stop)) >= 0)
    (cut,) = generator.generate(["A "], constraint, stop=stops, **options).texts[0]
    assert cut.text == whole.text[:first]
    assert whole.text[first:].startswith(str(cut.stop))
    assert not cut.finished
    assert whole.tokens[: len(cut.tokens)] == cut.tokens
    stream = generator.stream("A ", constraint, stop=stops, **options)
    assert "".join(stream) == cut.text
    (never,) = generator.generate(["A "], constraint, stop=["xyz", whole.text + "a"], **options).texts[0]
    assert never == whole


@given(pieces=st.lists(st.text("ab", max_size=5), max_size=8), stop=st.text("ab", min_size=1, max_size=7))
@example(pieces=["aa", "b", "aab", "a"], stop="aabaaa")
def test_the_end_of_a_text_that_may_begin_a_stop_is_held_back(pieces: list[str], stop: str):
    begun, text = BegunStop(stop.encode()), ""
    for piece in pieces:
        text += piece
        if stop in text:  # it ends there
            return
        assert begun.read(piece.encode()) == max(n for n in range(len(text) + 1) if stop.startswith(text[len(text) - n :]))


def test_each_drawn_text_stops_where_its_own_stop_is(generator: TextGenerator):
    constraint = Regex(pattern="[ab]{12}")
    (whole,) = generator.generate(["A "], constraint, sampling=Sampling(), num_samples=6).texts
    (cut,) = generator.generate(["A "], constraint, sampling=Sampling(), num_samples=6, stop=["ab"]).texts
    assert [text.text for text in cut] == [text.text.split("ab")[0] for text in whole]
    assert [text.stop for text in cut] == ["ab" if "ab" in text.text else None for text in whole]


def test_a_stream_that_is_left_early_computes_no_more(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    calls = []
    original = TextSession.hidden_after
    monkeypatch.setattr(TextSession, "hidden_after", lambda *texts: (calls.append(1), original(*texts))[1])
    stream = iter(generator.stream("A ", WORDS, sampling=DRAWN))
    next(stream)
    before = len(calls)
    del stream
    assert 1 <= len(calls) == before <= 3


def test_a_schema_can_be_drawn(generator: TextGenerator):
    schema = JsonSchema(schema={"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}})
    (texts,) = generator.generate(["A "], schema, sampling=DRAWN, num_samples=8).texts
    assert all(text.finished for text in texts)
