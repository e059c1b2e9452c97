"""Tables in JSON: an object a line, a list of objects, or an object from ids to objects (LC-Rec, LETTER)."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from leafbeam.errors import DataError, short_repr
from leafbeam.files import open_regular

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


def read_json_table(path: Path, id_name: str) -> tuple[pa.Table, bool]:
    """The rows, null where an object lacks a field; and whether ids are JSON's keys, which may stand for whole numbers.

    id_name: the column that keys become. Raises DataError, OSError.
    """
    rows, is_keyed = read_json(path), False
    if isinstance(rows, dict) and all(isinstance(row, dict) for row in rows.values()):
        is_keyed = True
        rows = [{**cast("dict[str, Any]", row), id_name: key} for key, row in rows.items()]
    elif isinstance(rows, dict):
        rows = [rows]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected objects of fields, one an item")
    objects = cast("list[dict[str, Any]]", rows)
    names = dict.fromkeys(name for row in objects for name in row)
    columns: dict[str, Any] = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in objects])
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise DataError(f"{path}: the values of {short_repr(name)} are not of one type ({error})") from error
    return pa.table(columns), is_keyed


def read_json(path: Path) -> Any:
    """The content of a file, a list of the lines' content where it has one a line. Raises DataError, OSError."""
    with open_regular(path) as file:
        try:
            if path.suffix == ".json":
                return json.load(file, object_pairs_hook=_unique)
            return [json.loads(line, object_pairs_hook=_unique) for line in file if line.strip()]
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read as JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{short_repr(next(key for key in keys if keys.count(key) > 1))} is there twice: keep one")
    return found
