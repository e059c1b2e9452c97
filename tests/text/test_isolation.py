"""A fault of one text fails its request alone, at every stage, and every request that was accepted is answered."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.decode import automaton_constraint
from leafbeam.errors import ArgumentError, LogitsError, UnavailableError
from leafbeam.text import FreeText, Regex, Sampling, TextGenerator, TextRequest, TextSettings
from leafbeam.text.tokenizer import TextTokenizer
from leafbeam.text.worker import TextWorker
from tests.fixtures.texts import LETTERS, request, running
from tests.text.gate import Gate, gathering

UNUSED = 399  # a token of the model that the tokenizer does not have: no text holds it
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"sampling": Sampling(), "seed": 5},
    "beams": {"num_texts": 3},
    "two drawn": {"num_texts": 2, "sampling": Sampling(), "seed": 5},
    "retokenized": {"retokenize": True},
}


@pytest.fixture
def broken(generator: TextGenerator) -> Any:
    """Makes the embedding of an unused token NaN or infinite, so that prompts with it have no finite logits."""
    weight = next(generator.model.parameters())  # of the embedding
    before = weight.detach().clone()

    def set_row(value: float) -> None:
        with torch.no_grad():
            weight[UNUSED] = value

    yield set_row
    with torch.no_grad():
        weight.copy_(before)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_fail_their_request_alone(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch, broken: Callable[[float], None], kind: str, value: float
) -> None:
    """T2: one of four texts of a batch has NaN or +inf, whether searched for, drawn or with beams."""
    options, batches, start = OPTIONS[kind], list[int](), generator.start

    def counted(requests: Sequence[TextRequest]) -> Any:
        batches.append(len(requests))
        return start(requests)

    monkeypatch.setattr(generator, "start", counted)
    broken(value)
    with gathering(generator, monkeypatch) as (worker, let_go):
        good = [worker.submit([request(generator, prompt=prompt, **options)]) for prompt in ("A ", "tea")]
        prompt = (*generator.tokens_of("A "), UNUSED)
        plan = {"max_tokens": 60, **options}
        bad = worker.submit([TextRequest(prompt=prompt, automaton=generator.compile(LETTERS), **plan)])
        good.append(worker.submit([request(generator, prompt="lamp", **options)]))
        let_go()
        with pytest.raises(LogitsError, match=r"request 0|NaN or \+inf"):
            bad.texts.result(30)
        for job in good:
            assert len(job.texts.result(30)[0][0].text) == 30
    assert batches == [1, 4, 3, 1]  # the others run again together


@pytest.mark.parametrize("error", [RuntimeError("client"), KeyError("client"), SystemExit("client"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [1, 5])
def test_an_exception_in_a_client_s_callback_fails_its_request_alone(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch, error: BaseException, at: int
) -> None:
    """T2: the thread goes on, the others of the batch and later requests are answered."""
    calls = [0]

    def on_pieces(_: int, pieces: tuple[str, ...]) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise error

    with gathering(generator, monkeypatch) as (worker, let_go):
        bad = worker.submit([request(generator)], on_pieces=on_pieces)
        good = worker.submit([request(generator, prompt="tea")])
        let_go()
        assert len(good.texts.result(30)[0][0].text) == 30
        with pytest.raises(type(error) if isinstance(error, Exception) else RuntimeError, match=r"client|KeyboardInterrupt"):
            bad.texts.result(30)
        assert calls[0] == at
        assert worker.submit([request(generator)]).texts.result(30)
        assert worker.is_alive


def test_a_tokenizer_that_fails_within_a_text_fails_its_request_alone(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: forced text that the tokenizer cannot read, also where it panics in the way of its library."""

    class PanicException(BaseException):
        pass

    ids = TextTokenizer._ids

    def fails(tokenizer: TextTokenizer, text: str, *, add_special: bool) -> list[int]:
        if "zebra" in text and not add_special:
            raise PanicException("index out of bounds")
        return ids(tokenizer, text, add_special=add_special)

    monkeypatch.setattr(TextTokenizer, "_ids", fails)
    with gathering(generator, monkeypatch) as (worker, let_go):
        bad = worker.submit([request(generator, Regex(pattern="[ab]zebra[a-z]{3}"), retokenize=True)])
        good = worker.submit([request(generator, Regex(pattern="[ab]lamp[a-z]{3}"), retokenize=True)])
        let_go()
        assert good.texts.result(30)[0][0].finished
        with pytest.raises(RuntimeError, match="PanicException: index"):
            bad.texts.result(30)


def test_a_prompt_that_the_tokenizer_cannot_read_is_a_named_error() -> None:
    """T2: the package tokenizers raises Exception itself, or panics."""

    class Panics:
        def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
            return {"a": 0}

        def encode(self, text: str, *, add_special_tokens: bool) -> Any:
            raise type("PanicException", (BaseException,), {})("index out of bounds")

    with pytest.raises(ArgumentError, match="cannot read the text 'tea': index out of bounds"):
        TextTokenizer(Panics(), end=0).encode("tea")


def test_a_fault_of_the_worker_itself_answers_what_was_accepted_and_goes_on(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: here its clock fails, which no job is to blame for."""
    fails = threading.Event()

    def clock() -> float:
        if fails.is_set() and threading.current_thread().name == "leafbeam-text":
            raise OSError("no clock")
        return 0.0

    gate = Gate(monkeypatch)
    with running(generator, clock=clock) as worker:
        jobs = [worker.submit([request(generator)])]
        assert gate.waiting.wait(20)
        jobs += [worker.submit([request(generator)]) for _ in range(3)]
        fails.set()
        gate.open.set()
        for job in jobs:
            with pytest.raises(OSError, match="no clock"):
                job.texts.result(30)
        fails.clear()
        assert worker.submit([request(generator)]).texts.result(30)


def test_stopping_answers_every_job_of_a_thread_that_hangs_or_never_ran(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: what was accepted is answered, whatever the thread does."""
    never_started = TextWorker(generator, TextSettings())
    job = never_started.submit([request(generator)])
    never_started.stop(0.01)
    with pytest.raises(UnavailableError, match="has stopped"):
        job.texts.result(0)
    gate = Gate(monkeypatch)
    hangs = TextWorker(generator, TextSettings(max_batches=1))
    hangs.start()
    jobs = [hangs.submit([request(generator, FreeText())]) for _ in range(2)]
    assert gate.waiting.wait(20)
    thread = hangs._thread
    assert thread is not None
    monkeypatch.setattr(thread, "join", lambda timeout: None)
    hangs.stop(0.01)
    for job in jobs:
        with pytest.raises(UnavailableError, match="has stopped"):
            job.texts.result(0)
    monkeypatch.undo()
    gate.open.set()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("scoring", "options"),
    [
        ("allowed", {}),
        ("full", {}),
        ("allowed", {"num_beams": 3}),
        ("full", {"num_beams": 3}),
        ("allowed", {"sampling": Sampling()}),
    ],
    ids=["greedy", "greedy, full", "beams", "beams, full", "drawn"],
)
@pytest.mark.parametrize("pattern", ["[a-c]", "[a-c]{2}", "(a|b)c"])
def test_a_model_that_excludes_every_legal_token_is_a_named_error(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch, scoring: str, options: dict[str, Any], pattern: str
) -> None:
    """T3: -inf for all legal tokens, with and without a choice among them."""
    tokens = generator.tokens
    excluded = [token for token in range(len(tokens)) if tokens.bytes_of(token)[:1] in (b"a", b"b", b"c")]
    head = automaton_constraint.cpu.head

    def without(*arguments: Any, **keywords: Any) -> Any:
        found = head(*arguments, **keywords)
        codes, logits = found.legal_codes.code_C, found.logit_C
        logits[np.isin(codes, excluded)] = -np.inf
        if scoring == "allowed":
            found.lse_R[:] = -np.inf
        return found

    monkeypatch.setattr(automaton_constraint.cpu, "head", without)
    with pytest.raises(LogitsError, match=r"request 0 in round \d+ exclude every legal code by -inf"):
        generator.generate(["A "], Regex(pattern=pattern), scoring=scoring, **options)
