"""JSON read strictly: an object that has a key twice is refused, where other readers keep its last value."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from leafbeam.errors import short_repr

Json = Mapping[str, Any]  # an object of JSON, whose values are checked where they are used
_MAX_SHOWN = 80  # characters of a path


class DoubledKeyError(ValueError):
    """An object of JSON has a key twice. path: of the key from the outermost value, such as `items[2].price`."""

    def __init__(self, key: str, path: str) -> None:
        self.path = path[:_MAX_SHOWN]
        where = "" if path == key else f" (at {short_repr(self.path)[1:-1]})"
        super().__init__(f"{short_repr(key)} occurs twice{where}: keep one")


def parse_json(
    text: str | bytes,
    *,
    parse_constant: Callable[[str], object] | None = None,
    parse_float: Callable[[str], object] | None = None,
) -> Any:
    """Return the value that a text of JSON holds.

    Raises DoubledKeyError for a key that occurs twice in one object, another ValueError for what is not JSON, RecursionError.

    >>> parse_json('{"rules": [{"name": 1, "name": 2}]}')
    Traceback (most recent call last):
    ...
    leafbeam.json_reader.DoubledKeyError: 'name' occurs twice (at rules[0].name): keep one
    """
    doubled: list[tuple[dict[str, object], str]] = []

    def fields_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            doubled.append((fields, _first_repeated(pairs)))
        return fields

    value = json.loads(text, object_pairs_hook=fields_of, parse_constant=parse_constant, parse_float=parse_float)
    if doubled:
        raise _error_of(value, {id(fields): key for fields, key in doubled})
    return value


def check_keys(text: bytes, num_keys: int) -> None:
    """Check that no object in a text of JSON has a key twice, by the number of keys that a lenient reader kept of some objects.

    Cost: a few counts of bytes where these are all objects, and no text in them looks like a key; else that of `parse_json`.
    Raises DoubledKeyError, another ValueError, RecursionError.
    """
    # Each pair of key and value has a colon of its own, behind a quote or a blank.
    if text.count(b":") > num_keys and sum(map(text.count, (b'":', b" :", b"\n:", b"\r:", b"\t:"))) > num_keys:
        parse_json(text)


def _first_repeated(pairs: list[tuple[str, object]]) -> str:
    seen: set[str] = set()
    return next(key for key, _ in pairs if key in seen or seen.add(key))


def _error_of(value: object, key_by_id: dict[int, str]) -> DoubledKeyError:
    """Return the error of the first of these objects that is still in a value: the outermost always is."""
    names: list[str] = []
    walks: list[Iterator[tuple[str, object]]] = [iter([("", value)])]
    while True:
        for name, node in walks[-1]:
            if isinstance(node, dict | list):
                names.append(name)
                if (key := key_by_id.get(id(cast("object", node)))) is not None:
                    return DoubledKeyError(key, "".join([*names, f".{key}"]).removeprefix("."))
                walks.append(_children_of(node))
                break
        else:
            walks.pop()
            names.pop()


def _children_of(node: object) -> Iterator[tuple[str, object]]:
    if isinstance(node, dict):
        return ((f".{key}", child) for key, child in cast("dict[str, object]", node).items())
    return ((f"[{number}]", child) for number, child in enumerate(cast("list[object]", node)))
