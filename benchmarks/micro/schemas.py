"""`python -m benchmarks schemas --data DIR`: JSON Schemas as people write them, beside llguidance and xgrammar.

DIR is `maskbench/data` of guidance-ai/jsonschemabench: 11,306 schemas, most with instances that are valid and others that are
not. Or it is `tests/draft2020-12` of json-schema-org/JSON-Schema-Test-Suite, the suite of validators: its core, without what is
in folders. One row an engine:

compiled  schemas that are not refused, within `limit_s` (60) seconds and 8 GiB; the others by reason, with pointers, names and
          numbers left out. `limit_s` bounds the schema with its texts and masks; those above it are "timed_out", in each engine
valid     instances of compiled schemas that may be written, as json.dumps writes them with or without spaces. Those refused are
          counted apart where the keys in the order of the schema may be written ("order"), and where an object has a key that
          no `properties` of the schema lists ("unlisted")
invalid   instances that may be written and must not
build_ms  until the first mask, on one core, of the schemas that every engine compiles
mask_us   of each position of one valid instance, of the same schemas

Without times, nothing is said of the last two, and the row counts on a machine that does other things too: all schemas take
leafbeam and llguidance half an hour, and xgrammar several hours.

Each engine runs in a process of its own (`peers.schema_engine`); one that ends or hangs is started again for the next schema.
"""

from __future__ import annotations

import base64
import json
import random
import re
import selectors
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.failure import PeerFailure
from benchmarks.peers.vllm_cpu import ENVIRONMENT
from benchmarks.vocabulary import END, real_vocabulary
from leafbeam.errors import DataError
from leafbeam.text.tokenizer import TextTokenizer

__all__ = ["ENGINES", "Case", "Suite", "answers_of", "cases_of", "in_order", "reason_of", "runs", "summary"]

ENGINES = ("leafbeam", "llguidance", "xgrammar")
_RUNNER = Path(__file__).parents[1] / "peers" / "schema_engine.py"
_START_S, LIMIT_S = 300.0, 60.0
_TIMED_OUT = "it took too long"
_NUM_REASONS = 60
_TIMES = ("build_ms", "mask_us", "own_build_ms")


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text of an instance: `ordered` if its keys were put into the order of the schema, `test` is the instance's number."""

    test: int
    text: str
    ordered: bool


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schema with its instances: (valid, the instance) of each."""

    name: str
    schema: Any
    tests: Sequence[tuple[bool, Any]]
    texts: Sequence[Text]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What an engine said of each case: {"build_ms", "mask_us", "accepted"} or {"refused": reason}."""

    by_name: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def compiled(self) -> set[str]:
        return {name for name, answer in self.by_name.items() if "refused" not in answer}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The schemas of a run: those of a directory, or a random sample of so many."""

    data: Path
    sample: int | None = None
    seed: int = 0


def runs(
    schemas: Suite,
    tokenizer: Path | None,
    environment: Path | None,
    limit_s: float = LIMIT_S,
    engines: Sequence[str] = ENGINES,
    times: bool = True,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each engine that is there."""
    suite, cases = cases_of(schemas.data, schemas.sample, schemas.seed)
    vocabulary, end = (real_vocabulary(), END) if tokenizer is None else _tokens_of(tokenizer)
    answers: dict[str, Answers] = {}
    missing: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "vocabulary.json"
        spelled = [text if text is None else base64.b64encode(text).decode() for text in vocabulary]
        path.write_text(json.dumps({"tokens": spelled, "end": end}), encoding="utf-8")
        for name in engines:
            python = Path(sys.executable) if name == "leafbeam" else (environment or ENVIRONMENT) / "bin" / "python"
            try:
                answers[name] = answers_of(name, python, path, cases, limit_s)
            except PeerFailure as failure:
                missing[name] = failure.row
    common = set.intersection(*(engine.compiled for engine in answers.values()))
    for name in engines:
        parameters = {
            "engine": name,
            "suite": suite,
            "schemas": len(cases),
            "sample": schemas.sample,
            "seed": schemas.seed,
            "limit_s": limit_s,
            "V": len(vocabulary),
            "threads": 1,
        }
        measured = summary(cases, answers[name], common) if name in answers else missing[name]
        yield parameters, measured if times else {key: value for key, value in measured.items() if key not in _TIMES}


def cases_of(data: Path, sample: int | None, seed: int) -> tuple[str, list[Case]]:
    """(The name of a suite, its schemas or a random sample of them)."""
    paths = sorted(data.glob("*.json"))
    if not paths:
        raise DataError(
            f"{data} has no *.json: expected maskbench/data of guidance-ai/jsonschemabench, or tests/draft2020-12 of "
            "json-schema-org/JSON-Schema-Test-Suite"
        )
    if not isinstance(_content(paths[0]), list):  # a file is a schema
        random.Random(seed).shuffle(paths)
        return "MaskBench", [_case(path.stem, _content(path)) for path in paths[:sample]]
    groups = [(f"{path.stem} {number}", group) for path in paths for number, group in enumerate(_content(path))]
    random.Random(seed).shuffle(groups)
    return "JSON-Schema-Test-Suite", [_case(name, group) for name, group in groups[:sample]]


def _content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _case(name: str, content: Any) -> Case:
    tests = [(bool(test["valid"]), test["data"]) for test in content.get("tests", [])]
    texts: list[Text] = []
    for number, (valid, value) in enumerate(tests):
        texts += [Text(test=number, text=text, ordered=False) for text in _texts(value)]
        if valid and (ordered := in_order(value, content["schema"])) is not None:
            texts += [Text(test=number, text=text, ordered=True) for text in _texts(ordered)]
    return Case(name=name, schema=content["schema"], tests=tests, texts=texts)


def _texts(value: Any) -> list[str]:
    """As Python writes a value, without spaces and with one behind each comma and colon."""
    texts = [json.dumps(value, ensure_ascii=False, separators=separators) for separators in ((",", ":"), (", ", ": "))]
    return [text.encode(errors="replace").decode() for text in dict.fromkeys(texts)]


def in_order(value: Any, schema: Any) -> Any:
    """The value with the keys of each object in the order in which the schema lists them, if that is another order.

    An object's keys are looked up in the `properties` anywhere in the schema that list all of them, the shortest first.
    """
    lists = sorted(_property_lists(schema), key=len)

    def ordered(part: Any) -> Any:
        if isinstance(part, list):
            return [ordered(item) for item in part]
        if not isinstance(part, dict):
            return part
        names = next((names for names in lists if set(part) <= set(names)), list(part))
        return {name: ordered(part[name]) for name in names if name in part}

    result = ordered(value)
    return None if json.dumps(result) == json.dumps(value) else result


def _property_lists(schema: Any) -> Iterator[list[str]]:
    """The names of every `properties` anywhere in a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield list(schema["properties"])
        for part in schema.values():
            yield from _property_lists(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _property_lists(part)


def _has_unlisted(value: Any, listed: set[str]) -> bool:
    if isinstance(value, list):
        return any(_has_unlisted(item, listed) for item in value)
    if not isinstance(value, dict):
        return False
    return not set(value) <= listed or any(_has_unlisted(part, listed) for part in value.values())


def reason_of(said: str) -> str:
    """A refusal without what differs between schemas: pointers, quoted parts and numbers.

    >>> reason_of("#/properties/a has not, which is not supported")
    '# has not, which is not supported'
    """
    said = re.sub(r"#[/\w$%~.!&()*+;=@:-]*[\w$%~]", "#", said)
    said = re.sub(r"'[^']*'|\"[^\"]*\"", "'x'", said)
    return re.sub(r"[0-9][0-9,.]*", "N", said)[:110]


def summary(cases: Sequence[Case], answers: Answers, common: set[str]) -> dict[str, Any]:
    """The row of one engine."""
    refused = Counter(reason_of(answer["refused"]) for answer in answers.by_name.values() if "refused" in answer)
    valid: Counter[str] = Counter()
    invalid: Counter[str] = Counter()
    wrong: list[str] = []
    for case in cases:
        answer = answers.by_name[case.name]
        if "refused" in answer:
            continue
        listed = {name for names in _property_lists(case.schema) for name in names}
        for number, (is_valid, value) in enumerate(case.tests):
            said = [
                (text.ordered, accepted)
                for text, accepted in zip(case.texts, answer["accepted"], strict=True)
                if text.test == number
            ]
            accepted = any(yes for ordered, yes in said if not ordered)
            if not is_valid:
                invalid["accepted" if accepted else "refused"] += 1
                wrong += [case.name] if accepted else []
            elif accepted:
                valid["accepted"] += 1
            else:
                by_order = any(yes for ordered, yes in said if ordered)
                valid["order" if by_order else "unlisted" if _has_unlisted(value, listed) else "refused"] += 1
    built = [answers.by_name[name]["build_ms"] for name in common]
    masks = [micros for name in common for micros in answers.by_name[name]["mask_us"]]
    return {
        "compiled": len(answers.compiled),
        "timed_out": sum(answer.get("refused") == _TIMED_OUT for answer in answers.by_name.values()),
        "compiled_share": round(len(answers.compiled) / len(cases), 4),
        "valid": {name: valid[name] for name in ("accepted", "order", "unlisted", "refused")},
        "invalid": {name: invalid[name] for name in ("accepted", "refused")},
        "invalid_accepted_of": sorted(set(wrong))[:20],
        "common": len(common),
        "build_ms": _percentiles(built),
        "mask_us": _percentiles(masks),
        "own_build_ms": _percentiles([answers.by_name[name]["build_ms"] for name in answers.compiled]),
        "reasons": dict(refused.most_common(_NUM_REASONS)),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    p50, p99 = np.percentile(np.array(values), [50, 99])
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3), "max": round(max(values), 3)}


def _tokens_of(directory: Path) -> tuple[Sequence[bytes | None], int]:
    """(The bytes of each token, the end token) of a model's directory with tokenizer.json."""
    tokenizer = TextTokenizer.load(directory)
    return tokenizer.token_bytes, tokenizer.end


def answers_of(name: str, python: Path, vocabulary: Path, cases: Sequence[Case], limit_s: float = LIMIT_S) -> Answers:
    """Return the answers of an engine, each within `limit_s` seconds."""
    if not python.exists():
        raise PeerFailure("missing", f"{python} is not there: `make peers` creates it")
    answers, waiting = Answers(), list(cases)
    while waiting:
        with _process(name, python, vocabulary) as child:
            if _line(child, _START_S) is None:
                raise PeerFailure("missing", f"{name} does not start: it needs the package {name} in {python}")
            while waiting:
                case = waiting.pop(0)
                _send(child, {"schema": case.schema, "texts": [text.text for text in case.texts]})
                answer = _line(child, limit_s)
                answers.by_name[case.name] = answer or {"refused": "it crashed" if child.poll() else _TIMED_OUT}
                if answer is None:
                    break
    return answers


@contextmanager
def _process(name: str, python: Path, vocabulary: Path) -> Generator[subprocess.Popen[str]]:
    command = [str(python), str(_RUNNER), name, str(vocabulary)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def _send(child: subprocess.Popen[str], case: Mapping[str, Any]) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(case) + "\n")
        child.stdin.flush()
    except BrokenPipeError:
        child.wait(10)


def _line(child: subprocess.Popen[str], limit_s: float) -> dict[str, Any] | None:
    """The next answer, None if there is none in time."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        line = child.stdout.readline() if selector.select(limit_s) else ""
    return json.loads(line) if line else None
