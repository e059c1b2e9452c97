"""docs/reference/cli.md has every command and option, settings.md every setting, as the code has them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load("cli_reference")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_settings_has_those_of_the_code() -> None:
    settings = load("settings_reference")
    page = settings.PAGE.read_text(encoding="utf-8")
    assert settings.written(page) == page, "out of date: run `python docs/settings_reference.py`"
    assert "`max_batch_tokens` | `32768`" in page


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
