"""What users are told to install exists and is ours; the project's first name is read in old files and said nowhere else."""

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
