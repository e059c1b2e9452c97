"""What users are told to install exists and is ours, and names in documents exist in the code; the project's first name is read
in old files and said nowhere else."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
THIRD_PARTY = {"feast", "mistral-common", "sentence-transformers"}  # distributions of others that a message or page may name
PIP_INSTALL = re.compile(
    r"pip install (?:--(?:constraint|requirement) \S+ |-\S+ )*(?:'([^'\n]+)'|\"([^\"\n]+)\"|([\w.][\w.\[\],<>=-]*))"
)
FIRST_NAME = "ple" + "ach"
# Readers of old files, documents of their format and history, and the fixtures.
MAY_SAY_IT = re.compile(
    r"CHANGELOG|docs/(explanation/)?engineering-log|docs/reference/file-formats\.md|leafbeam/index/tensor_file\.py|"
    r"leafbeam/live/(manifest|write_ahead_log)\.py|tests/fixtures/|tests/live/test_write_ahead_log\.py"
)


def lines_with(text: str) -> list[tuple[str, str]]:
    """(file, line) of every line of the repository's text files that contains `text`, in any case."""
    words = ["git", "grep", "-I", "-i", "--untracked", "--fixed-strings", "-z", text]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", errors="replace")
    if found.returncode not in (0, 1):
        pytest.skip("this is no git checkout")
    pairs = [line.split("\0", 1) for line in found.stdout.splitlines() if "\0" in line]
    return [(file, line) for file, line in pairs]


def test_every_pip_install_names_leafbeam_with_an_extra_that_exists() -> None:
    told = [
        (file, "".join(match))
        for file, line in lines_with("pip install")
        for match in PIP_INSTALL.findall(line.replace("\\", ""))
    ]
    for file, name in told:
        package, _, extras = name.rstrip(".,").partition("[")
        if package in ("", ".", "leafbeam"):  # "." installs the checkout
            written = set(re.findall(r"[a-z]+", extras)) if not re.search(r"[({]", extras) else set()
            assert written <= EXTRAS, f"{file}: pip install {name}"
        else:
            assert re.split(r"[<>=]", package)[0] in THIRD_PARTY, f"{file}: pip install {name}"
    assert {"leafbeam[torch]", "leafbeam[automata]"} & {name for _, name in told}


def test_the_first_name_of_the_project_is_said_nowhere_but_by_readers_of_old_files() -> None:
    said = [
        f"{file}: {line.strip()}"
        for file, line in lines_with(FIRST_NAME)
        # Tests name the fixtures, and the key of their metadata.
        if not MAY_SAY_IT.match(file) and not (file.startswith("tests/") and re.search(r"FIXTURE|metadata", line))
    ]
    assert said == []


NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\(([^`]*))?`")
CAMEL = re.compile(r"[A-Z][a-z]+[A-Z]\w+")
PATH = re.compile(r"`((?:leafbeam|benchmarks|tests|docs|examples|deploy)/[\w/.-]+\.\w+)`")
RECORDS = {"log.md", "trials.md"}  # of days on which other names existed


def documents() -> dict[str, str]:
    """The text of each document, and the docstrings of each file of the package."""
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in pages if page.name not in RECORDS}
    for file in ROOT.glob("leafbeam/**/*.py"):
        texts = [
            ast.get_docstring(node) or ""
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        found[str(file.relative_to(ROOT))] = "\n".join(texts)
    return found


def definitions() -> tuple[dict[str, set[str]], set[str]]:
    """Of each class of the package, the names of its fields and of `__init__`'s parameters; and all names of the repository."""
    fields: dict[str, set[str]] = {}
    names: set[str] = set(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
    for folder in ("leafbeam", "benchmarks", "tests", "examples"):
        for file in ROOT.glob(f"{folder}/**/*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    own = fields.setdefault(node.name, set())
                    own |= {
                        part.target.id
                        for part in node.body
                        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
                    }
                    makers = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
                    own |= {argument.arg for maker in makers for argument in (*maker.args.args, *maker.args.kwonlyargs)}
                    own |= {"**"} if node.bases else set()
                names |= {
                    str(value)
                    for value in (getattr(node, key, None) for key in ("name", "id", "attr", "arg", "asname"))
                    if isinstance(value, str)
                }
    return fields, {part for name in names for part in name.split(".")}


@pytest.mark.slow
def test_classes_methods_and_arguments_in_documents_and_docstrings_exist() -> None:
    """Pages that say what is not so: `SequenceSearch(head=)`, `JaxSearch`."""
    fields, names = definitions()
    wrong: list[str] = []
    for file, text in documents().items():
        for name, arguments in NAME.findall(text):
            parts = name.split(".")
            if any(CAMEL.fullmatch(part) and part not in names for part in parts):
                wrong.append(f"{file}: {name}")
            if parts[0] in fields and any(part not in names for part in parts[1:]):
                wrong.append(f"{file}: {name}")
            own = fields.get(parts[-1], {"**"})
            if "**" not in own:
                wrong += [f"{file}: {name}({word}=)" for word in re.findall(r"(?:^|, )(\w+)=", arguments) if word not in own]
    assert wrong == []


def test_files_in_documents_exist() -> None:
    missing = [
        f"{file}: {path}" for file, text in documents().items() for path in PATH.findall(text) if not (ROOT / path).exists()
    ]
    assert missing == []
