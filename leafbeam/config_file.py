"""Configs: frozen dataclasses that are read from TOML files and `name=value`, written as TOML, and listed in documents."""

import dataclasses
import difflib
import inspect
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from leafbeam.errors import ArgumentError, short_repr

T = TypeVar("T")
_ENTRY = re.compile(r"    (\w+): (.*(?:\n {5,}.*)*)")
_WIDTH = 110
_WORDS: Mapping[object, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value of a config.

    Args:
        name: The names of the fields that lead to it, joined by dots: `engine.max_batch`.
        kind: The type annotation of its field.
        default: The value if none is set.
        meaning: Its description in the `Args:` of the docstring.
    """

    name: str
    kind: object
    default: object
    meaning: str


def settings_of(config: type) -> Iterator[Setting]:
    """Yield the settings of a config: first its own, then those of the dataclasses in it.

    >>> from leafbeam.serve import ServerConfig
    >>> next(setting.default for setting in settings_of(ServerConfig) if setting.name == "engine.max_batch")
    16
    """
    kinds, meanings = get_type_hints(config), meanings_of(config)
    fields = dataclasses.fields(config)
    for field in sorted(fields, key=lambda field: dataclasses.is_dataclass(kinds[field.name])):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind):
            for inner in settings_of(cast("type", kind)):
                yield dataclasses.replace(inner, name=f"{field.name}.{inner.name}")
        else:
            yield Setting(name=field.name, kind=kind, default=_default(field), meaning=meanings.get(field.name, ""))


def changes_of(config: object) -> dict[str, object]:
    """Return the settings of a config that differ from their defaults."""
    values = ((setting, _value(config, setting.name)) for setting in settings_of(type(config)))
    return {setting.name: value for setting, value in values if value != setting.default}


def load_config(base: T, path: Path | None = None, words: Sequence[str] = (), **options: object) -> T:
    """Return a config with values from a file, from words and from options; each overrides those before it.

    Args:
        base: The config that is changed. If any value of a table is given, its other values are the defaults of its class, not
            those of `base`.
        path: A file of TOML, with a table for each field that is a dataclass.
        words: Texts such as `engine.max_batch=32`, with the names of `Setting`; `rules.cheap=price < 3` sets an entry of a
            table of names and texts, whose other entries stay.
        options: Values or whole tables by name, with two underscores in place of each dot; None changes nothing.

    Raises:
        ArgumentError: If the file is not TOML, a setting is unknown or there twice, or a value has the wrong type or is out of
            range.
    """
    config: type[T] = type(base)
    kinds = {setting.name: setting.kind for setting in settings_of(config)}
    from_file = {} if path is None else _converted_all(kinds, _file_values(config, path), str(path))
    from_words = _converted_all(kinds, _word_values(config, words, kinds), "--set")
    values: dict[str, object] = {}
    for name, value in (*from_file.items(), *from_words.items()):
        table, _, entry = name.partition(".")
        if name in kinds:
            values[name] = value
        else:
            values[table] = {**cast("Mapping[str, object]", values.get(table, getattr(base, table))), entry: value}
    values |= {name.replace("__", "."): value for name, value in options.items() if value is not None}
    return _made(config, "", values, base)


def to_toml(config: object) -> str:
    """Return a config as TOML, with a comment above each setting; a setting without a value is a comment itself."""
    lines: list[str] = []
    tables: dict[str, list[str]] = {}
    for setting in settings_of(type(config)):
        table, _, name = setting.name.rpartition(".")
        value = _value(config, setting.name)
        meaning = textwrap.wrap(setting.meaning, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        if isinstance(value, Mapping):
            pairs = cast("Mapping[str, object]", value).items()
            tables[name] = [*meaning, *(f"{_written(key)} = {_written(inner)}" for key, inner in pairs)]
        else:
            entry = f"# {name} =" if value is None else f"{name} = {_written(value)}"
            (tables.setdefault(table, []) if table else lines).extend([*meaning, entry])
    for table, entries in tables.items():
        lines += ["", f"[{table}]", *entries]
    return "\n".join(lines) + "\n"


def kind_in_words(kind: object) -> str:
    """Return a type annotation in words, such as "a whole number" or "auto, on or off"."""
    if get_origin(kind) is Literal:
        *names, last = map(str, get_args(kind))
        return f"{', '.join(names)} or {last}"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(kind_in_words(inner) for inner in get_args(kind) if _is_plain(inner))
    if get_origin(kind) is tuple:
        return f"a list; each value is {kind_in_words(get_args(kind)[0])}"
    return _WORDS.get(kind, "a table of names and texts")


def meanings_of(kind: type) -> dict[str, str]:
    """Return what the docstring of a class says of its fields, under `Args:` or `Attributes:`."""
    entries = re.split(r"\n(?:Args|Attributes):\n", inspect.getdoc(kind) or "", maxsplit=1)[1:]
    return {name: " ".join(text.split()) for part in entries for name, text in _ENTRY.findall(part.partition("\n\n")[0])}


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory()


def _value(config: object, name: str) -> object:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def _file_values(config: type, path: Path) -> Iterator[tuple[str, object]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # also if the file is not UTF-8
        raise ArgumentError(f"{path} is not TOML: {error}") from error
    except RecursionError as error:
        raise ArgumentError(f"{path} is nested too deeply: expected settings, and tables of settings") from error
    yield from _flat(config, content, "")


def _word_values(config: type, words: Sequence[str], kinds: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise ArgumentError(f"--set {word!a:.200}: expected NAME=VALUE, such as {next(iter(kinds))}=...")
        parent, _, entry = name.partition(".")
        kind = str if entry and get_origin(kinds.get(parent)) is Mapping else kinds.get(name)
        yield from _flat(config, {name: _parsed(text, kind, name)}, "")


def _converted_all(kinds: Mapping[str, object], stated: Iterator[tuple[str, object]], where: str) -> dict[str, object]:
    """Return the values of one source by name. Raises ArgumentError for a name that is unknown or there twice."""
    values: dict[str, object] = {}
    tables = dict.fromkeys(name.rpartition(".")[0] for name in kinds if "." in name)
    for name, value in stated:
        parent, _, entry = name.partition(".")
        if name in values:
            raise ArgumentError(f"{where}: {name} is set twice: keep one of the two")
        if name in tables:
            inner = next(other for other in kinds if other.startswith(f"{name}."))
            raise ArgumentError(f"{where}: {name} is a table of settings, such as {inner}, not {short_repr(value)}")
        if name not in kinds and not (entry and get_origin(kinds.get(parent)) is Mapping):
            names = [*kinds, *tables]
            near = difflib.get_close_matches(name, names, n=3) or [other for other in kinds if other.endswith(f".{name}")]
            hint = f"; did you mean {' or '.join(near)}?" if near else ": --print-config lists all settings"
            raise ArgumentError(f"{where}: there is no setting {short_repr(name)}{hint}")
        values[name] = _converted(value, kinds.get(name, str), name, where)
    return values


def _flat(config: type, content: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    kinds = get_type_hints(config)
    for name, value in content.items():
        kind = kinds.get(name)
        if dataclasses.is_dataclass(kind) and isinstance(value, dict):
            yield from _flat(cast("type", kind), cast("dict[str, object]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _parsed(text: str, kind: object, name: str) -> object:
    """Return a text read as a value of TOML, or the text itself if it is not one or the setting's is text, without quotes."""
    try:
        content = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    except RecursionError as error:
        raise ArgumentError(f"--set {name}: the value is nested too deeply: expected {kind_in_words(kind)}") from error
    value = content["value"] if list(content) == ["value"] else text
    is_text = any(inner in (str, Path) for inner in (kind, *get_args(kind)))
    return text if is_text and not isinstance(value, str | list | dict) else value


def _made(config: type, prefix: str, values: Mapping[str, object], base: Any = None) -> Any:
    """Return a config with the values whose names begin with a prefix, and the others from `base` or the defaults."""
    changes: dict[str, Any] = {}
    kinds = get_type_hints(config)
    for field in dataclasses.fields(config):
        name = f"{prefix}{field.name}"
        if name in values:
            changes[field.name] = values[name]
        elif dataclasses.is_dataclass(kinds[field.name]) and any(other.startswith(f"{name}.") for other in values):
            changes[field.name] = _made(cast("type", kinds[field.name]), f"{name}.", values)
    return config(**changes) if base is None else dataclasses.replace(base, **changes)


def _is_plain(kind: object) -> bool:
    return kind in _WORDS or get_origin(kind) in (Literal, tuple, Union, UnionType)


def _converted(value: object, kind: object, name: str, where: str) -> object:
    """Return a value of TOML converted to the type of its field. Raises ArgumentError if it does not fit."""
    inner = [part for part in get_args(kind) if _is_plain(part)] if get_origin(kind) in (Union, UnionType) else [kind]
    for one in inner:
        if get_origin(one) is Literal and value in get_args(one):
            return value
        if get_origin(one) is tuple and isinstance(value, list):
            part_kind = get_args(one)[0]
            return tuple(_converted(part, part_kind, name, where) for part in cast("list[object]", value))
        if get_origin(one) is Mapping and isinstance(value, dict):
            if all(isinstance(part, str) for part in cast("dict[str, object]", value).values()):
                return cast("dict[str, str]", value)
        elif one is Path and isinstance(value, str) and value:
            return Path(value)
        elif one is float and isinstance(value, int | float) and not isinstance(value, bool):
            if abs(value) <= sys.float_info.max or isinstance(value, float):
                return float(value)
        elif type(value) is one and (one is not int or -(2**63) <= value < 2**63):
            return value
    raise ArgumentError(f"{where}: {name} is {short_repr(value)}: expected {kind_in_words(kind)}")


def _written(value: object) -> str:
    """Return a value as TOML. Raises ArgumentError for text that is not valid Unicode, which TOML does not have."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_written(part) for part in cast('tuple[object, ...]', value))}]"
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{short_repr(text)} is not valid Unicode, so TOML cannot hold it: choose another") from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
