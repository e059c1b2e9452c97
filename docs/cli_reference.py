"""Writes each command's description and options into docs/reference/cli.md: `python docs/cli_reference.py`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from leafbeam.cli import app

PAGE = Path(__file__).parent / "reference" / "cli.md"
_PART = re.compile(r"(<!-- options: ([\w -]+) -->\n).*?(<!-- end options -->)", re.DOTALL)


def commands() -> dict[str, Any]:
    """The commands by name, those of a group after its name."""
    return dict(_commands_of("", typer.main.get_command(app)))


def _commands_of(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner:
        yield name, command
    for part, one in inner.items():
        yield from _commands_of(f"{name} {part}".strip(), one)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def default_of(option: Any) -> str:
    """The default in words, or as on the command line; empty where leaving the option out does nothing."""
    if isinstance(option.show_default, str):
        return option.show_default
    if option.required:
        return "required"
    return "" if option.default in (None, "") or option.default is False else f"`{option.default}`"


def row_of(option: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in option.opts)
    if option.param_type_name == "argument":
        flags = f"`{option.name.upper()}`"
    return f"| {flags} | {cell(default_of(option))} | {cell(option.help)} |"


def options_of(command: Any) -> str:
    """A command's description, and a table of its arguments and options; each group of `--help` begins with its name."""
    lines = [cell(paragraph) + "\n" for paragraph in command.help.split("\n\n")]
    lines += ["| option | default | meaning |", "| --- | --- | --- |"]
    groups: dict[str | None, list[str]] = {}
    for option in command.params:
        if option.name != "help":
            hidden = "Not shown by --help" if getattr(option, "hidden", False) else None
            groups.setdefault(hidden or option.rich_help_panel, []).append(row_of(option))
    for name, rows in groups.items():
        lines += [f"| **{name}** | | |", *rows] if name else rows
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """The page with the parts of all commands as the code has them."""
    return _PART.sub(lambda part: f"{part[1]}\n{options_of(commands()[part[2]])}\n{part[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
