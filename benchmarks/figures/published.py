"""Values that papers report, by the path that `figures.toml` names them with. Each constant carries its source."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["published_value"]

_VALUES = {
    "static-4a": ("benchmarks.static.paper", "TABLE_4A"),
    "static-4b": ("benchmarks.static.paper", "TABLE_4B"),
    "static-share": ("benchmarks.static.paper", "SHARE_OF_INFERENCE"),
    "static-table-3": ("benchmarks.static.table_3", "PAPER"),
    "field": ("benchmarks.tiger.field", "FIELD"),
    "tiger": ("benchmarks.tiger.table_1", "PUBLISHED"),
}


def published_value(path: str) -> Any:
    """The value at NAME/KEY/KEY, or None where the paper has none. Raises KeyError for an unknown NAME."""
    name, *keys = path.split("/")
    module, constant = _VALUES[name]
    value = getattr(import_module(module), constant)
    for key in keys:
        if isinstance(value, dict):
            value = next((held for own, held in value.items() if str(own) == key), None)
        elif value is not None:
            value = value[int(key)]
    return value
