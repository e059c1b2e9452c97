"""Writes the settings of commands into docs/reference/settings.md: `python docs/settings_reference.py`."""

import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from leafbeam.config_file import Setting, kind_in_words, settings_of
from leafbeam.serve.config import ServerConfig
from leafbeam.train import Recipe

PAGE = Path(__file__).parent / "reference" / "settings.md"
CONFIGS: Mapping[str, type] = {"serve": ServerConfig, "train": Recipe}
_PART = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end settings -->)", re.DOTALL)


def row_of(setting: Setting) -> str:
    default: Any = setting.default
    word = str(default).lower() if isinstance(default, bool) else default
    shown = "" if default in (None, (), {}) else f"`{word}`"
    name = setting.name.rpartition(".")[2]
    return f"| `{name}` | {shown} | {kind_in_words(setting.kind)} | {setting.meaning.replace('|', chr(92) + '|')} |"


def tables_of(config: type) -> str:
    """A table for the settings of each table of the file, after those above all tables."""
    parts: list[str] = []
    for table, settings in groupby(settings_of(config), key=lambda setting: setting.name.rpartition(".")[0]):
        heading = f"### [{table}]\n\n" if table else ""
        rows = "\n".join(map(row_of, settings))
        parts.append(f"{heading}| setting | default | takes | meaning |\n| --- | --- | --- | --- |\n{rows}\n")
    return "\n".join(parts)


def written(page: str) -> str:
    """The page with all settings as the code has them."""
    return _PART.sub(lambda part: f"{part[1]}\n{tables_of(CONFIGS[part[2]])}\n{part[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
