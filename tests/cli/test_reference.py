"""docs/reference/cli.md has every command and option, as the code has them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "cli_reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_options_of_the_code(reference: ModuleType) -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    assert reference.written(page) == page, "out of date: run `python docs/cli_reference.py`"


def test_every_command_has_a_section_with_every_option(reference: ModuleType) -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    for name, command in reference.commands().items():
        if name in ("make-shop", "demo"):  # in words, in one section
            assert f"`leafbeam {name}" in page
            continue
        for option in command.params:
            flag = option.name.upper() if option.param_type_name == "argument" else option.opts[0]
            assert option.name == "help" or f"`{flag}`" in sections[name], f"{name} {flag}"


def test_a_changed_option_is_found(reference: ModuleType) -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    changed = page.replace("`8000`", "`80`")
    assert changed != page
    assert reference.written(changed) == page
