"""The worker of texts: jobs share batches without changing each other, and the queue, deadlines and cancellations are kept."""

import threading

import pytest

from leafbeam.errors import ArgumentError, LogitsError, OverloadedError, RequestError, UnavailableError
from leafbeam.text import Choices, FreeText, Sampling, TextGenerator, TextRequest, TextSettings
from leafbeam.text.stepwise_run import StepwiseRun
from leafbeam.text.worker import TextWorker
from tests.fixtures.texts import CONSTRAINTS, LETTERS, PROMPTS, request, running
from tests.openmp_threads import has_ended, needs_openmp, openmp_threads
from tests.text.gate import Gate, gathering


def test_jobs_in_batches_give_the_texts_of_each_alone(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    batches = []
    start = generator.start
    monkeypatch.setattr(generator, "start", lambda requests: (batches.append(len(requests)), start(requests))[1])
    gate = Gate(monkeypatch)
    plans = [
        dict(constraint=constraint, prompt=prompt, **options)
        for prompt, constraint in zip(PROMPTS, CONSTRAINTS.values(), strict=True)
        for options in ({}, {"sampling": Sampling(), "seed": 5}, {"num_texts": 3}, {"max_tokens": 2}, {"retokenize": True})
    ]
    with running(generator) as worker:
        jobs = [worker.submit([request(generator, **plan)]) for plan in plans]
        gate.open.set()
        found = [job.texts.result(30)[0] for job in jobs]
    monkeypatch.undo()
    assert max(batches) > 2
    assert len(batches) < len(plans)
    for plan, texts in zip(plans, found, strict=True):
        run = generator.start([request(generator, **plan)])
        while run.advance():
            pass
        assert [text.tokens for text in texts] == [text.tokens for text in run.texts[0]]
        assert [text.finished for text in texts] == [text.finished for text in run.texts[0]]


def test_a_job_may_have_several_prompts_and_hears_of_its_own_pieces(generator: TextGenerator):
    heard: dict[int, str] = {0: "", 1: ""}

    def on_pieces(prompt: int, pieces: tuple[str, ...]) -> None:
        heard[prompt] += pieces[0]

    with running(generator) as worker:
        other = worker.submit([request(generator, prompt="other")])
        job = worker.submit([request(generator), request(generator, prompt="tea", constraint=FreeText())], on_pieces=on_pieces)
        texts = job.texts.result(30)
        assert other.texts.result(30)
    assert heard == {0: texts[0][0].text, 1: texts[1][0].text}


def test_a_full_queue_refuses_and_says_when_to_come_back(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(monkeypatch)
    with running(generator, max_queue=2, max_rows=1, max_batches=1) as worker:
        first = worker.submit([request(generator)])
        assert gate.waiting.wait(20)
        jobs = [worker.submit([request(generator)]) for _ in range(2)]
        with pytest.raises(OverloadedError, match="wait already") as refused:
            worker.submit([request(generator)])
        assert refused.value.reason == "queue_full"
        assert 1 <= refused.value.retry_after_s <= 60
        gate.open.set()
        assert all(job.texts.result(30) for job in (first, *jobs))


def test_a_short_text_does_not_wait_for_a_long_one(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(monkeypatch)
    with running(generator, max_rows=1) as worker:
        long = worker.submit([request(generator, FreeText(), max_tokens=400)])
        assert gate.waiting.wait(20)
        short = worker.submit([request(generator, Choices(texts=["x"]), max_tokens=3)])
        gate.open.set()
        assert short.texts.result(30)[0][0].text == "x"
        assert not long.texts.done()
        long.texts.cancel()


def test_a_deadline_cuts_a_running_text_off_and_refuses_one_that_waits(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
):
    gate, now = Gate(monkeypatch), [100.0]
    pieces: list[str] = []
    with running(generator, clock=lambda: now[0], max_rows=1, max_batches=1, timeout_s=10) as worker:
        slow = worker.submit([request(generator, FreeText(), max_tokens=400)], on_pieces=lambda _, new: pieces.extend(new))
        assert gate.waiting.wait(20)
        waits = worker.submit([request(generator)])
        now[0] = 111.0
        gate.open.set()
        (texts,) = slow.texts.result(30)
        assert not texts[0].finished
        assert len(texts[0].tokens) <= 2
        assert "".join(pieces) == texts[0].text
        with pytest.raises(OverloadedError, match="time was over") as late:
            waits.texts.result(30)
        assert late.value.reason == "late"


def test_a_search_of_many_beams_that_is_late_fails(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    gate, now = Gate(monkeypatch), [0.0]
    with running(generator, clock=lambda: now[0], timeout_s=10) as worker:
        job = worker.submit([request(generator, num_texts=4)])
        assert gate.waiting.wait(20)
        now[0] = 11.0
        gate.open.set()
        with pytest.raises(UnavailableError, match="many beams"):
            job.texts.result(30)


def test_a_cancelled_job_ends_and_leaves_the_others(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(monkeypatch)
    with running(generator) as worker:
        jobs = [worker.submit([request(generator, max_tokens=400, constraint=FreeText())]) for _ in range(2)]
        kept = worker.submit([request(generator)])
        assert gate.waiting.wait(20)
        for job in jobs:
            job.texts.cancel()
        gate.open.set()
        assert kept.texts.result(30)
    assert worker.num_running == worker.num_waiting == 0


def test_a_fault_fails_its_batch_and_the_next_one_runs(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    with running(generator) as worker:
        with monkeypatch.context() as patched:
            patched.setattr(StepwiseRun, "advance", lambda run: (_ for _ in ()).throw(LogitsError("NaN")))
            with pytest.raises(LogitsError):
                worker.submit([request(generator)]).texts.result(30)
        with monkeypatch.context() as patched:
            patched.setattr(generator, "start", lambda requests: (_ for _ in ()).throw(MemoryError()))
            with pytest.raises(MemoryError):
                worker.submit([request(generator)]).texts.result(30)
        assert worker.submit([request(generator)]).texts.result(30)


def test_one_job_s_fault_fails_no_other_job_of_its_batch(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    heard, bad = [""], tuple(generator.tokens_of("tea"))
    advance = StepwiseRun.advance

    def fails_later(run: StepwiseRun) -> bool:
        if run.model_calls == 5 and any(one.prompt == bad for one in run.requests):
            raise LogitsError("NaN")
        return advance(run)

    def on_pieces(_: int, pieces: tuple[str, ...]) -> None:
        heard[0] += pieces[0]

    monkeypatch.setattr(StepwiseRun, "advance", fails_later)
    with gathering(generator, monkeypatch) as (worker, let_go):
        drawn = request(generator, prompt="A red ", sampling=Sampling(), seed=5)
        stream = worker.submit([drawn], on_pieces=on_pieces)
        guilty = worker.submit([request(generator, prompt="tea", sampling=Sampling(), seed=6)])
        other = worker.submit([request(generator, prompt="The ", sampling=Sampling(temperature=5e-324), seed=7)])
        let_go()
        with pytest.raises(LogitsError):
            guilty.texts.result(30)
        ((text,),), ((cold,),) = stream.texts.result(30), other.texts.result(30)
    assert heard == [text.text]
    run = generator.start([drawn])
    while run.advance():
        pass
    assert run.texts[0][0].text == text.text
    assert len(cold.text) == 30


def test_a_batch_that_cannot_begin_is_tried_job_by_job(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    gate, start = Gate(monkeypatch), generator.start

    def starts_one(requests: list[TextRequest]):
        if len(requests) > 1:
            raise MemoryError
        return start(requests)

    monkeypatch.setattr(generator, "start", starts_one)
    with running(generator, max_batches=1) as worker:
        jobs = [worker.submit([request(generator)])]
        assert gate.waiting.wait(20)
        jobs += [worker.submit([request(generator)]) for _ in range(3)]
        gate.open.set()
        assert all(job.texts.result(30) for job in jobs)


def test_what_no_batch_can_hold_is_refused_at_once(generator: TextGenerator):
    worker = TextWorker(generator, TextSettings(max_rows=3, max_tokens=200))
    for error, call, message in (
        (RequestError, lambda: worker.submit([request(generator, num_texts=2), request(generator, num_texts=2)]), "4 texts"),
        (RequestError, lambda: worker.submit([request(generator, max_tokens=300)]), "tokens, prompts included: at most 200"),
        (ArgumentError, lambda: worker.submit([request(generator, max_tokens=3000)]), "positions"),
        (
            ArgumentError,
            lambda: worker.submit([TextRequest(prompt=(100_000,), automaton=generator.compile(LETTERS))]),
            "outside the model",
        ),
        (ArgumentError, lambda: TextSettings(max_queue=0), "max_queue must be above 0"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_stopping_answers_what_was_accepted_and_refuses_the_rest(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(monkeypatch)
    with running(generator) as worker:
        job = worker.submit([request(generator)])
        assert gate.waiting.wait(20)
        stopping = threading.Thread(target=worker.stop, args=(20,))
        stopping.start()
        while not worker._is_stopping:
            threading.Event().wait(0.001)
        with pytest.raises(UnavailableError, match="stopping"):
            worker.submit([request(generator)])
        gate.open.set()
        stopping.join(20)
        assert job.texts.result(0)


def test_what_is_not_over_within_the_grace_fails(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(monkeypatch)
    worker = TextWorker(generator, TextSettings(max_rows=1, max_batches=1))
    worker.start()
    jobs = [worker.submit([request(generator, FreeText(), max_tokens=400)]) for _ in range(3)]
    assert gate.waiting.wait(20)
    threading.Timer(0.2, gate.open.set).start()
    worker.stop(0.01)
    assert not worker.is_alive
    for job in jobs:
        with pytest.raises(UnavailableError, match="has stopped"):
            job.texts.result(0)


@needs_openmp
def test_no_thread_waits_for_the_one_that_started_the_worker(generator: TextGenerator):
    waiting = openmp_threads(2)[1]
    with running(generator):
        assert has_ended(waiting)
