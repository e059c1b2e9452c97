"""Constraints of strangers: compiled as in this process, in bounded time and memory, and the next one is not harmed."""

import json
import os
import resource
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from leafbeam.automata import Automaton, TokenTrie
from leafbeam.errors import ArgumentError, AutomatonError, UnavailableError
from leafbeam.text import CompileLimits, Regex, TextGenerator
from leafbeam.text.compiler import ConstraintCompiler
from leafbeam.text.constraints import constraint_from_json
from tests.fixtures.texts import SCHEMA


@pytest.fixture(scope="module")
def compiler(generator: TextGenerator) -> Iterator[ConstraintCompiler]:
    compiler = ConstraintCompiler(generator.tokens, CompileLimits(max_seconds=3.0, max_mb=512))
    yield compiler
    compiler.close()
    with pytest.raises(UnavailableError, match="stopping"):
        compiler.compile('{"regex": "new"}')


CONSTRAINTS = [
    {"regex": "[a-z]{2,6}( [a-z]{1,4})?"},
    {"json_schema": SCHEMA},
    {"json_schema": json.dumps(SCHEMA)},
    {"choices": ["red lamp", "tea cup"]},
    {"free_text": {}},
    {"free_text": {"stop": "\n", "max_length": 20}},
    {"template": ["a ", {"free_text": {"stop": "."}}, {"choices": ["b", "c"]}, {"template": ["d", {"regex": "e*"}]}]},
]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_automata_are_those_of_this_process(compiler: ConstraintCompiler, generator: TextGenerator, constraint):
    text = json.dumps(constraint)
    found = compiler.compile(text)
    expected = generator.compile(constraint_from_json(constraint))
    assert found.version == expected.version
    assert found.chains is not None
    assert compiler.cached(text) is found is compiler.compile(text)


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ({"regex": "(a"}, "brackets"),
        ({"regex": 7}, "expected a string"),
        ({"regex": "a{100000}"}, "max_states=50,000"),
        ({"json_schema": {"$ref": "#"}}, "leads back to itself"),
        ({"json_schema": {"required": ["a"], "type": "object", "properties": {"a": {"$ref": "#"}}}}, "requires 'a'"),
        ({"json_schema": "[" * 100_000}, "nests too deeply"),
        ({"json_schema": '{"type": "integer", "minimum": ' + "9" * 5000 + "}"}, "not JSON"),
        ({"json_schema": {"type": "string", "maxLength": 10**9, "pattern": "a"}}, "max_states"),
        ({"json_schema": {"type": "integer", "minimum": 10**400}}, "expected a number between"),
        ({"choices": []}, "at least one text"),
        ({"choices": "abc"}, "expected a list of texts"),
        ({"choices": ["\ud800"]}, "not Unicode"),
        ({"free_text": {"stop": 7}}, "expected an object"),
        ({"free_text": {"length": 7}}, "expected an object"),
        ({"template": "abc"}, "expected a list of parts"),
        ({"template": [["a"]]}, "a constraint is"),
        ({"template": []}, "at least one"),
        ({"template": [{"regex": "a?"}] * 5000}, "5,000 parts: expected at most 256"),
        ({"template": ["a", {"template": ["b"] * 256}]}, "257 parts"),
        ({"regexp": "a"}, "expected an object with one of"),
        ({"regex": "a", "choices": ["b"]}, "expected an object with one of"),
        ([], "expected an object with one of"),
    ],
)
def test_a_constraint_that_is_none_is_named(compiler: ConstraintCompiler, constraint, says):
    text = json.dumps(constraint)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(AutomatonError, match=says):
            compiler.compile(text)
    assert compiler.compile('{"regex": "ok"}').accepts(0) is False


def test_a_vocabulary_that_cannot_write_everything_has_a_compiler():
    compiler = ConstraintCompiler(TokenTrie.of([b"a", b"b"]))
    try:
        assert compiler.compile('{"regex": "[ab]"}').num_states == 2
        with pytest.raises(AutomatonError, match="can be written with this vocabulary"):
            compiler.compile('{"regex": "c"}')
    finally:
        compiler.close()


@pytest.mark.slow
def test_a_pattern_that_takes_exponential_time_or_memory_ends_the_child_alone(compiler: ConstraintCompiler):
    before = compiler.compile('{"regex": "before"}')
    bomb = json.dumps({"regex": "[ab]*a[ab]{24}"})
    for _ in range(2):
        with pytest.raises(AutomatonError, match=r"takes more than .* to compile"):
            compiler.compile(bomb)
    assert compiler.compile('{"regex": "before"}') is before
    assert not compiler.compile('{"regex": "after"}').accepts(0)


@pytest.mark.slow
def test_a_fault_that_passes_refuses_no_constraint_for_good(generator: TextGenerator):
    compiler = ConstraintCompiler(generator.tokens)
    compiler.start()
    constraint = json.dumps({"regex": "[a-f]{4}"})
    blocking = Path(compiler._directory.name) / "automaton.leafbeam"
    blocking.mkdir()  # the system says no, as it does where a disk is full
    with pytest.raises(UnavailableError, match=r"cannot be written .*: try again"):
        compiler.compile(constraint)
    blocking.rmdir()
    assert compiler._child is not None
    os.kill(compiler._child.pid, signal.SIGSTOP)
    killing = threading.Timer(0.3, os.kill, (compiler._child.pid, signal.SIGKILL))
    killing.start()
    with pytest.raises(UnavailableError, match="was killed: try again"):
        compiler.compile(constraint)
    killing.join()
    shutil.rmtree(compiler._directory.name)  # as programs do that clean /tmp
    assert compiler.compile(constraint).accepts(0) is False
    compiler.close()


@pytest.mark.slow
def test_time_in_which_other_programs_run_does_not_count(generator: TextGenerator):
    with closing(ConstraintCompiler(generator.tokens, CompileLimits(max_seconds=1.0, max_mb=4096))) as compiler:
        compiler.start()
        child = compiler._child
        assert child is not None
        ended, used = resource.getrusage(resource.RUSAGE_CHILDREN), psutil.Process(child.pid).cpu_times()
        plan = (0.3, signal.SIGSTOP), (2.0, signal.SIGCONT)
        sleeps = [threading.Timer(seconds, os.kill, (child.pid, kind)) for seconds, kind in plan]
        for sleep in sleeps:
            sleep.start()
        with pytest.raises(AutomatonError, match="takes more than 1 s of a processor to compile"):
            compiler.compile(json.dumps({"regex": "[ab]*a[ab]{24}"}))
        for sleep in sleeps:
            sleep.join()
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = now.ru_utime + now.ru_stime - ended.ru_utime - ended.ru_stime  # the limit counts the system's time too
        assert seconds - used.user - used.system > 0.7


def test_a_child_that_does_not_start_in_time_is_named(generator: TextGenerator):
    compiler = ConstraintCompiler(generator.tokens, CompileLimits(max_start_seconds=0.01))
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"did not start within 0\.01 s"):
            compiler.start()
    compiler.close()


def test_a_child_that_does_not_answer_is_ended_and_the_next_constraint_gets_another(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
):
    compiler.start()
    child = compiler._child
    assert child is not None
    monkeypatch.setattr("leafbeam.text.compiler._GRACE_S", -2.9)
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.1 s"):
        compiler.compile('{"regex": "stopped"}')
    assert child.poll() == -signal.SIGKILL
    monkeypatch.undo()
    assert not compiler.compile('{"regex": "stopped"}').accepts(0)


@pytest.mark.parametrize("use", ["compile", "cached", "an error"])
def test_the_cache_forgets_what_was_used_least_recently(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """T4: a hit counts, by whichever method, also of a constraint that is refused each time."""
    small, automaton = (
        ConstraintCompiler(generator.tokens, CompileLimits(cache_mb=1)),
        generator.compile(Regex(pattern="[a-z]+")),
    )

    def compile_or_refuse(constraint: str) -> Automaton:
        if constraint == "0" and use == "an error":
            raise AutomatonError("no constraint")
        return automaton

    monkeypatch.setattr(small, "_compile", compile_or_refuse)
    number = (1 << 20) // automaton.nbytes
    with suppress(AutomatonError):
        small.compile("0")
    for index in range(1, number + 20):
        small.compile(f"{index}")
        with suppress(AutomatonError):  # used again and again
            small.compile("0") if use == "compile" else small.cached("0")
    assert "0" in small._cache
    assert small.cached(f"{index}") is automaton
    assert small.cached("1") is None
    assert number / 3 < len(small._cache) <= number
    small.close()


def test_short_constraints_that_are_none_fill_no_memory(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    small = ConstraintCompiler(generator.tokens, CompileLimits(cache_mb=1))

    def refuse(constraint: str) -> Automaton:
        raise AutomatonError("a message, much longer than what the client sends")

    monkeypatch.setattr(small, "_compile", refuse)
    for index in range(2000):
        with pytest.raises(AutomatonError):
            small.compile(f"{index}")
    assert 500 < len(small._cache) < 1000
    small.close()


def test_limits_are_above_zero():
    with pytest.raises(ArgumentError, match="max_seconds must be above 0"):
        CompileLimits(max_seconds=0)
