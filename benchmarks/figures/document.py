"""Figures within a Markdown document: between `<!-- figure: NAME -->` and `<!-- end figure -->`, a block or within a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Problem", "differences", "filled", "stray_numbers"]

_FENCED = r"^ *```.*?^ *```$"
_FIGURE = re.compile(
    rf"{_FENCED}|<!-- figure: (?P<name>[a-z0-9-]+) -->(?P<text>.*?)<!-- end figure -->", re.DOTALL | re.MULTILINE
)
_MARK = re.compile(r"<!-- (?:figure: [^\n]*?|end figure) -->")
_UNIT = r"(?:%|x\b(?!\s*\d)|\u00d7|(?:ms|µs|us|ns|s|h|B|bytes?|[KMG]i?B|seconds?|minutes?|hours?|times)\b)"
_NUMBER = re.compile(rf"(?<![\w.^])(?:\d[\d,]*\.\d+|\.\d+|\d[\d,]*(?=\s?{_UNIT}))(?:\s?{_UNIT})?")
_CODE = re.compile(rf"{_FENCED}|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong where in a document."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def filled(text: str, render: Callable[[str], str]) -> str:
    """The document with every figure written anew."""

    def written(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        found = render(match["name"])
        block = "\n" in found or match["text"].startswith("\n")
        inside = f"\n\n{found}\n\n" if block else found
        return f"<!-- figure: {match['name']} -->{inside}<!-- end figure -->"

    return _FIGURE.sub(written, text)


def differences(file: str, text: str, render: Callable[[str], str]) -> list[Problem]:
    """Figures that say something else than their rows, and marks that have no partner."""
    problems: list[Problem] = []
    for match in _FIGURE.finditer(text):
        if match["name"] is None:
            continue
        expected, line = render(match["name"]), _line(text, match.start())
        found = match["text"].strip("\n")
        if found != expected:
            old, new = _first_difference(found, expected)
            message = f"figure {match['name']!r} differs from its rows (`make figures`): has {old!r}, the rows give {new!r}"
            problems.append(Problem(file=file, line=line, message=message))
        if "\n" not in match["text"] and text[: match.start()].endswith(("\n", "\n\n")):
            message = f"figure {match['name']!r} begins a line, so that hosts show the line as HTML: put a word before it"
            problems.append(Problem(file=file, line=line, message=message))
    alone = _FIGURE.sub(_blank, text)
    for match in _MARK.finditer(alone):
        message = f"{match[0]} has no partner: a figure begins with <!-- figure: NAME --> and ends with <!-- end figure -->"
        problems.append(Problem(file=file, line=_line(text, match.start()), message=message))
    return problems


def stray_numbers(file: str, text: str, settings: Sequence[str], names: Sequence[str] = ()) -> list[Problem]:
    """Numbers with a unit, and decimals, that are neither in a figure, nor in code, nor in a phrase of settings or names.

    A setting that is not in the text is a problem too.
    """
    problems: list[Problem] = []
    bare = _CODE.sub(_blank, _FIGURE.sub(_blank, text))
    for phrase in settings:
        if phrase not in bare:
            problems.append(Problem(file=file, line=1, message=f"the setting {phrase!r} of figures.toml is not in the text"))
    for phrase in (*settings, *names):
        bare = bare.replace(phrase, " " * len(phrase))
    for match in _NUMBER.finditer(bare):
        message = f"{match[0]!r} comes from no row: make it a figure of figures.toml, or list its phrase among the settings"
        problems.append(Problem(file=file, line=_line(text, match.start()), message=message))
    return problems


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _first_difference(old: str, new: str) -> tuple[str, str]:
    """The first lines that differ."""
    old_lines, new_lines = old.split("\n"), new.split("\n")
    for index in range(max(len(old_lines), len(new_lines))):
        pair = (old_lines[index : index + 1] or [""])[0], (new_lines[index : index + 1] or [""])[0]
        if pair[0] != pair[1]:
            return pair
    return "", ""


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
