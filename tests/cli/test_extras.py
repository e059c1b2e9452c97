"""Missing optional packages: every command and every public name ends in one message that names the extra."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from leafbeam.errors import ArgumentError, MissingExtraError
from leafbeam.extras import EXTRAS, optional_imports, require, require_device
from tests.fixtures.command_line import BLOCK

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = {
    "adbc_driver_postgresql": "adbc-driver-postgresql",
    "opentelemetry": "opentelemetry-sdk",
    "sklearn": "scikit-learn",
}

COMMANDS = (
    BLOCK
    + """
from typer.testing import CliRunner
from leafbeam.cli import app
for words in json.loads(sys.argv[2]):
    result = CliRunner().invoke(app, words)
    print(json.dumps([result.exit_code, result.stderr]))
"""
)
PUBLIC_NAMES = (
    BLOCK
    + """
import importlib, pkgutil
import leafbeam
for package in ("leafbeam", *(f"leafbeam.{module.name}" for module in pkgutil.iter_modules(leafbeam.__path__) if module.ispkg)):
    if package == "leafbeam.cli":
        continue
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", ()):
        try:
            getattr(module, name)
        except leafbeam.errors.MissingExtraError as error:
            print(json.dumps([f"{package}.{name}", str(error)]))
"""
)


def run_python(code: str, *arguments: object) -> list[list[str]]:
    words = [json.dumps(argument) for argument in arguments]
    finished = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines()]


def extra_of(message: str) -> str:
    """The extras that a message tells to install; they exist."""
    (extras,) = re.findall(r"pip install 'leafbeam\[([a-z,]+)\]'", message)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    return extras


def requirements(extra: str) -> set[str]:
    """The distributions that an extra installs, with those of the extras it includes."""
    names: set[str] = set()
    for line in PROJECT["optional-dependencies"][extra]:
        if included := re.match(r"leafbeam\[(.*)\]", line):
            names |= {name for other in included[1].split(",") for name in requirements(other)}
        else:
            names.add(re.split(r"[\[<>=;]", line)[0].strip())
    return names


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every file exists and is empty."""
    run = tmp_path_factory.mktemp("run")
    (run / "model").mkdir()
    (run / "model" / "config.json").touch()
    for name in ("source.json", "sids.parquet", "index.leafbeam", "catalog.duckdb", "rules.toml", "table.parquet"):
        (run / name).touch()
    return run


def commands(run: Path) -> dict[str, list[str]]:
    at = ["--run", str(run)]
    return {
        "make-shop": ["make-shop", "--out", str(run / "shop")],
        "fit-sids": ["fit-sids", *at],
        "fit-sids --plot": ["fit-sids", *at, "--plot", str(run / "plot.png")],
        "import": ["import", "--sids", "x.json", "--run", str(run / "other")],
        "import MODEL": ["import", "--sids", "x.json", "--model", "x", "--run", str(run / "other")],
        "train": ["train", *at],
        "evaluate": ["evaluate", *at],
        "build": ["build", *at],
        "build TABLE": ["build", str(run / "table.parquet"), "--codebook-sizes", "3"],
        "recommend": ["recommend", *at, "--history", "a"],
        "recommend --ray": ["recommend", *at, "--users", "users.parquet", "--out", str(run / "out"), "--ray"],
        "serve": ["serve", *at],
        "follow kafka": ["items", "follow", "kafka", "topic", "--group", "g"],
        "follow delta": ["items", "follow", "delta", "table", "--position", "p.json"],
        "follow iceberg": ["items", "follow", "iceberg", "shop.items", "--position", "p.json"],
        "follow postgres": ["items", "follow", "postgres", "items", "--position", "p.json"],
        "demo": ["demo", "--runs", str(run / "runs")],
        "inspect TABLE": ["inspect", str(run / "sids.parquet")],
        "inspect MODEL": ["inspect", str(run / "model")],
    }


@pytest.mark.parametrize(
    ("blocked", "expected"),
    [
        (
            sorted(set(EXTRAS) - {"rich", "typer"}),
            {
                "make-shop": "catalog",
                "fit-sids": "train",
                "fit-sids --plot": "plot",
                "import": "catalog",
                "import MODEL": "catalog,torch",
                "train": "train",
                "evaluate": "train",
                "build": "catalog",
                "build TABLE": "catalog",
                "recommend": "catalog,torch",
                "recommend --ray": "catalog,torch",
                "serve": "serve",
                "follow kafka": "kafka",
                "follow delta": "delta",
                "follow iceberg": "iceberg",
                "follow postgres": "postgres",
                "demo": "train,serve",
                "inspect TABLE": "catalog",
                "inspect MODEL": "torch",
            },
        ),
        (
            ["torch"],
            {"train": "train", "import MODEL": "torch", "recommend": "torch", "serve": "serve", "inspect MODEL": "torch"},
        ),
        (["duckdb"], {"build": "catalog", "recommend": "catalog", "serve": "serve", "demo": "train,serve"}),
        (["sklearn"], {"fit-sids": "train", "evaluate": "train", "demo": "train,serve"}),
        (["starlette"], {"serve": "serve", "demo": "train,serve"}),
        (
            ["matplotlib", "ray", "confluent_kafka", "deltalake", "pyiceberg", "psycopg"],
            {
                "fit-sids --plot": "plot",
                "recommend --ray": "ray",
                "follow kafka": "kafka",
                "follow delta": "delta",
                "follow iceberg": "iceberg",
                "follow postgres": "postgres",
            },
        ),
    ],
    ids=["cli alone", "no torch", "no duckdb", "no sklearn", "no starlette", "none that one command alone needs"],
)
def test_every_command_names_the_extra_before_it_works(run: Path, blocked: list[str], expected: dict[str, str]) -> None:
    calls = commands(run)
    answers = run_python(COMMANDS, blocked, [calls[name] for name in expected])
    found = {}
    for name, (exit_code, message) in zip(expected, answers, strict=True):
        assert exit_code == 2, (name, message)
        assert message.startswith("Error: ")
        assert len(message.strip().splitlines()) == 1, message
        found[name] = extra_of(message)
    assert found == expected


@pytest.mark.parametrize("blocked", [["typer"], ["rich"], sorted(EXTRAS)])
def test_the_command_without_typer_or_rich_names_the_extra_cli(blocked: list[str]) -> None:
    code = BLOCK + "from leafbeam.__main__ import main\nmain()"
    finished = subprocess.run([sys.executable, "-c", code, json.dumps(blocked)], capture_output=True, text=True)
    assert finished.returncode == 2
    assert finished.stderr.startswith("Error: the `leafbeam` command needs ")
    assert len(finished.stderr.splitlines()) == 1
    assert extra_of(finished.stderr) == "cli"


@pytest.mark.slow
def test_with_the_core_alone_every_public_name_loads_or_names_its_extra() -> None:
    missing = dict(run_python(PUBLIC_NAMES, sorted(EXTRAS)))
    assert not [name for name in missing if name.startswith(("leafbeam.index", "leafbeam.live", "leafbeam.automata"))]
    assert not {"leafbeam.Trie", "leafbeam.BeamSearch", "leafbeam.Filter", "leafbeam.Sampler"} & set(missing)
    extras = {name: extra_of(message) for name, message in missing.items()}
    assert extras["leafbeam.engine.Engine"] in ("catalog", "torch")
    assert extras["leafbeam.serve.serve"] == "serve"
    assert extras["leafbeam.catalog.Catalog"] == "catalog"
    assert extras["leafbeam.model.load_model"] == "torch"


@pytest.mark.slow
def test_with_every_extra_every_public_name_loads() -> None:
    assert run_python(PUBLIC_NAMES, []) == []


def test_each_optional_package_belongs_to_the_extra_that_installs_it() -> None:
    for module, extra in EXTRAS.items():
        distribution = DISTRIBUTIONS.get(module, module.replace("_", "-"))
        assert distribution in requirements(extra), f"{distribution} is not installed by leafbeam[{extra}]"


def test_an_extra_is_named_for_each_missing_package_or_as_the_caller_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "duckdb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"^this needs torch, duckdb, .* pip install 'leafbeam\[catalog,torch\]'$"):
        require("this", "torch", "duckdb", "numpy")
    with pytest.raises(MissingExtraError, match=r"^this needs torch, .* pip install 'leafbeam\[serve\]'$"):
        require("this", "torch", extra="serve")
    with pytest.raises(MissingExtraError, match=r"leafbeam\[ray\]"), optional_imports("this", "ray"):
        raise ModuleNotFoundError("No module named 'starlette.types'", name="starlette.types")
    with pytest.raises(ModuleNotFoundError, match="of_ours"), optional_imports("this"):
        raise ModuleNotFoundError("No module named 'of_ours'", name="of_ours")


@pytest.mark.parametrize("device", ["cuda", "cuda:99", "nonsense"])
def test_a_device_that_this_machine_lacks_is_refused(device: str) -> None:
    torch = pytest.importorskip("torch")
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ArgumentError, match=f"device '{device}' cannot be used"):
        require_device(device)


def test_a_cpu_build_of_torch_says_that_it_is_one() -> None:
    torch = pytest.importorskip("torch")
    require_device("cpu")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA")
    with pytest.raises(ArgumentError, match="built for the CPU alone: install a build of torch with CUDA"):
        require_device("cuda")
