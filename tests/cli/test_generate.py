"""`leafbeam generate` prints texts that obey their constraint, and names mistakes."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leafbeam.cli import app
from tests.fixtures.texts import SCHEMA
from tests.text.conftest import save_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("cli-text") / "model")


def run(*words: object, stdin: str | None = None):
    return CliRunner().invoke(app, ["generate", *map(str, words)], input=stdin)


def test_json_under_a_schema(model_dir: Path, tmp_path: Path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    result = run("--model", model_dir, "--schema", schema, "--prompt", "A lamp: ", "--prompt", "A cup: ")
    assert result.exit_code == 0, result.output
    for line in result.stdout.splitlines():
        assert json.loads(line)["name"] in ("red lamp", "tea cup")
    assert len(result.stdout.splitlines()) == 2


def test_beams_of_choices_for_the_lines_of_stdin(model_dir: Path):
    words = ("--choice", "red lamp", "--choice", "tea cup", "--beams", 4, "--texts", 2, "--json")
    result = run("--model", model_dir, *words, stdin="A \nThe \n")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["prompt"] for row in rows] == [0, 0, 1, 1]
    assert all(row["finished"] and row["text"] in ("red lamp", "tea cup") for row in rows)


def test_every_row_of_a_file_has_its_own_constraint(model_dir: Path, tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    lines = [
        {"prompt": "A ", "choices": ["red lamp", "tea cup"]},
        {"prompt": "A lamp: ", "json_schema": SCHEMA},
        {"prompt": "A ", "template": ["x", {"regex": "[0-9]{2}"}]},
    ]
    file.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    result = run("--model", model_dir, "--rows", file)
    assert result.exit_code == 0, result.output
    choice, product, template = result.stdout.splitlines()
    assert choice in ("red lamp", "tea cup")
    assert json.loads(product)["name"] in ("red lamp", "tea cup")
    assert re.fullmatch("x[0-9]{2}", template)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "has no lines"),
        ("nonsense", "line 1: expected an object with a prompt"),
        ("[" * 100_000, "line 1: expected an object with a prompt"),
        ("3", "line 1: expected an object with a prompt"),
        ('{"regex": "a"}', "line 1: expected an object with a prompt"),
        ('{"prompt": 3, "regex": "a"}', "line 1: expected an object with a prompt"),
        ('{"prompt": "a"}', "line 1: a constraint is {}"),
        ('{"prompt": "a", "regex": "a"}\n{"prompt": "a", "choices": 3}', "line 2: choices is 3"),
    ],
)
def test_a_wrong_file_of_rows_is_named(model_dir: Path, tmp_path: Path, line: str, says: str):
    (tmp_path / "rows.jsonl").write_text(line)
    result = run("--model", model_dir, "--rows", tmp_path / "rows.jsonl")
    assert (result.exit_code, says in " ".join(result.stderr.split())) == (2, True), result.stderr
    assert run("--model", model_dir, "--rows", tmp_path / "rows.jsonl", "--prompt", "A").exit_code == 2


def test_a_text_that_is_cut_off_is_named_and_the_exit_code_says_so(model_dir: Path):
    result = run("--model", model_dir, "--regex", "[a-z]{40}", "--prompt", "A", "--max-tokens", 3)
    assert result.exit_code == 1
    assert "1 text was cut off after 3 tokens" in result.stderr
    assert result.stdout.strip().isalpha()


def test_a_template_of_parts(model_dir: Path, tmp_path: Path):
    file = tmp_path / "parts.json"
    file.write_text(json.dumps(["It: ", {"free_text": {"stop": ".", "max_length": 5}}, {"choices": ["lamp", "cup"]}]))
    result = run("--model", model_dir, "--template", file, "--prompt", "A", "--temperature", 1)
    assert result.exit_code == 0, result.output
    assert re.fullmatch(r"It: [^.]{0,5}\.(lamp|cup)\n", result.stdout, re.DOTALL)
    for content, says in (("[", "cannot be read as JSON"), ('{"regex": "a"}', "list of parts"), ("[7]", "a constraint is 7")):
        file.write_text(content)
        result = run("--model", model_dir, "--template", file, "--prompt", "A")
        assert result.exit_code == 2
        assert says in " ".join(result.stderr.split())


def test_a_streamed_text_is_the_text(model_dir: Path):
    sampling = ("--temperature", 1.5, "--top-k", 40, "--seed", 3)
    words = ("--model", model_dir, "--regex", "[a-zäöü]{8,12}", "--prompt", "A", *sampling)
    streamed = run(*words, "--stream")
    assert streamed.exit_code == 0, streamed.output
    assert streamed.stdout == run(*words).stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "exactly one of --schema"),
        (("--regex", "a", "--choice", "b"), "exactly one of --schema"),
        (("--schema", "missing.json"), "is not a file"),
        (("--regex", "(a"), "brackets"),
        (("--regex", "a", "--texts", 2), "1 to --beams"),
        (("--regex", "a", "--max-tokens", 0), "max_tokens"),
        (("--regex", "a", "--top-k", 2), "pass --temperature too"),
        (("--regex", "a", "--temperature", 0), "temperature is 0"),
        (("--regex", "a", "--temperature", 1, "--beams", 2), "pass only one of them"),
        (("--regex", "a", "--stream", "--json"), "does not work with --beams or --json"),
        (("--regex", "a", "--temperature", 1, "--scoring", "full"), "scoring='full'"),
        (("--regex", "a", "--beams", 10**6), "1,000,000 texts: expected at most 100,000"),
        (("--regex", "a", "--temperature", 1, "--texts", 10**8), "expected at most 100,000"),
    ],
)
def test_mistakes_are_named(model_dir: Path, words, says):
    result = run("--model", model_dir, "--prompt", "A", *words)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


def test_a_directory_without_a_model_is_named(tmp_path: Path):
    result = run("--model", tmp_path, "--prompt", "A", "--regex", "a")
    assert result.exit_code == 2
    assert str(tmp_path) in "".join(result.stderr.split())


def test_too_little_memory_is_named(model_dir: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 32640000000 bytes")

    monkeypatch.setattr("leafbeam.text.TextGenerator.generate", fail)
    result = run("--model", model_dir, "--prompt", "A", "--regex", "a", "--beams", 1000)
    assert result.exit_code == 2
    assert "there is not enough memory for 1,000 texts at a time: lower --beams" in " ".join(result.stderr.split())
