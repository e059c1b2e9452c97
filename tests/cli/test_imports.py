"""Start-up: what a command imports before its paths and options are checked. Counts modules instead of seconds."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import typer

from leafbeam.cli import evaluate, options, run, train
from leafbeam.ops.constrain import Scoring
from leafbeam.train import Architecture, Part, PresetName

HEAVY = ("duckdb", "starlette", "numba", "numpy", "pandas", "pyarrow", "scipy", "sklearn", "torch")

# One process runs all calls, so that the slowest of them is not paid for twenty times; a module stays in the list once loaded.
RUN = """
import json, sys
from typer.testing import CliRunner
from leafbeam.cli import app
loaded = {}
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == (0 if "--help" in words else 2), (words, result.output)
    loaded[" ".join(words)] = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
print(json.dumps(loaded))
"""


def run_python(code: str, *arguments: str, cwd: Path | None = None) -> str:
    finished = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_importing_leafbeam_loads_nothing_but_the_standard_library() -> None:
    loaded = run_python(f"import sys, leafbeam; print([name for name in {(*HEAVY, 'rich', 'typer')} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_the_process_that_compiles_constraints_loads_no_torch() -> None:
    """It took 1.6 s of a processor to start, three quarters of it for torch, at every `leafbeam generate`."""
    code = f"import sys, leafbeam.text.compile_child; print([name for name in {HEAVY} if name in sys.modules])"
    assert not set(ast.literal_eval(run_python(code))) & {"torch", "duckdb", "pyarrow", "pandas", "starlette", "sklearn"}


@pytest.mark.slow
def test_a_program_with_an_engine_ends_without_a_word() -> None:
    code = "from leafbeam.engine import Engine; from leafbeam.serve import Server; import leafbeam.cli.output"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


def test_help_wrong_paths_and_wrong_options_load_no_heavy_module(tmp_path: Path) -> None:
    run = ["--run", str(tmp_path / "nothing")]
    commands = ("fit-sids", "train", "evaluate", "build", "recommend", "serve", "inspect", "make-shop", "demo")
    calls = [
        ["--help"],
        *([command, "--help"] for command in commands),
        *([command, *run] for command in ("fit-sids", "train", "evaluate", "build", "serve")),
        ["recommend", "--history", "a", *run],
        ["recommend", "--users", "nobody.parquet", "--out", "out", *run],
        ["build", str(tmp_path / "nothing.parquet")],
        ["inspect", str(tmp_path / "nothing")],
        ["demo", "--data", str(tmp_path / "nothing")],
        ["fit-sids", "--format", "xml"],
        ["fit-sids", "--codebooks", "x"],
        ["fit-sids", "--collision-strategy", "glue"],
        ["train", "--preset", "huge"],
        ["train", "--width", "33"],
        ["evaluate", "--part", "train"],
        ["evaluate", "--users", "0"],
        ["recommend", "--scoring", "half"],
        ["recommend"],
        ["serve", "--port", "many"],
        ["inspect", "--plan", "x"],
        ["inspect"],
    ]
    loaded = json.loads(run_python(RUN, json.dumps(calls), json.dumps(HEAVY), cwd=tmp_path))  # where no run is
    assert {call: names for call, names in loaded.items() if names} == {}


@pytest.mark.parametrize(
    ("command", "name", "values"),
    [
        (train.train, "size", PresetName),
        (train.train, "architecture", Architecture),
        (evaluate.evaluate, "part", Part),
        (evaluate.evaluate, "scoring", Scoring),
    ],
)
def test_options_offer_every_value_of_the_library(command: object, name: str, values: object) -> None:
    kind = get_type_hints(command)[name]
    offered = next(part for part in (kind, *get_args(kind)) if get_origin(part) is Literal)  # some have a default of None
    assert set(get_args(offered)) == set(get_args(values))


def test_options_and_sources_agree_on_formats() -> None:
    assert isinstance(options.RunOption.__metadata__[0], typer.models.OptionInfo)
    for name in get_args(options.Format):
        assert run.Source(path=Path(), kind=name).kind == name
