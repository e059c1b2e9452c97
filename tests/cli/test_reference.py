"""docs/reference/cli.md has every command and option, settings.md every setting, as the code has them."""

from docs import cli_reference as reference
from docs import settings_reference as settings


def test_the_page_of_settings_has_those_of_the_code() -> None:
    page = settings.PAGE.read_text(encoding="utf-8")
    assert settings.written(page) == page, "out of date: run `python docs/settings_reference.py`"
    assert "`max_batch_tokens` | `32768`" in page


def test_the_page_has_the_options_of_the_code() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    assert reference.written(page) == page, "out of date: run `python docs/cli_reference.py`"


def test_every_command_has_a_section_with_every_option() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    for name, command in reference.commands().items():
        if name in ("make-shop", "demo"):  # in words, in one section
            assert f"`leafbeam {name}" in page
            continue
        for option in command.params:
            flag = option.name.upper() if option.param_type_name == "argument" else option.opts[0]
            assert option.name == "help" or f"`{flag}`" in sections[name], f"{name} {flag}"


def test_a_changed_option_is_found() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    changed = page.replace("`8000`", "`80`")
    assert changed != page
    assert reference.written(changed) == page
