"""Makes Markdown of leafbeam's docstrings for mkdocstrings: examples become code, `name: text` becomes a list."""

import re
from typing import Any

from griffe import Extension

_FIELD = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


class Docstrings(Extension):
    """Rewrites each docstring as griffe finds it."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """The docstring with fenced examples and bold field names."""
    paragraphs: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        if lines and lines[0].startswith(">>> "):
            code = "\n".join(re.sub(r"\s*# doctest: .*", "", line) for line in lines)
            paragraphs.append(f"```pycon\n{code}\n```")
        elif lines and all(line.startswith("    ") for line in lines):
            paragraphs.append(paragraph)
        else:
            paragraphs.append(_fields(lines))
    return "\n\n".join(paragraphs)


def _fields(lines: list[str]) -> str:
    """Lines that begin with `name: ` as items of a list; other lines as they are."""
    out: list[str] = []
    for line in lines:
        found = _FIELD.match(line)
        if found:
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            if out and not out[-1].startswith(("- ", "  ")):
                out.append("")
            out.append(f"- {names}: {line[found.end() :]}")
        elif out and out[-1].startswith(("- ", "  ")) and out[-1]:
            out.append("  " + line.strip())
        else:
            out.append(line)
    return "\n".join(out)
