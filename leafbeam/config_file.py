"""Configs: frozen dataclasses whose fields are read from TOML and from `name=value`, written as TOML, and documented."""

import dataclasses
import difflib
import inspect
import json
import re
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
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "the path of a file"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value of a config.

    Args:
        name: The names of the fields that lead to it, with dots between them: `engine.max_batch`.
        kind: The annotation of its field.
        default: The value where none is set.
        meaning: The text of its docstring's `Args:`.
    """

    name: str
    kind: Any
    default: Any
    meaning: str


def settings_of(config: type) -> Iterator[Setting]:
    """Yield the settings of a config, those of the dataclasses in it after its own.

    >>> from leafbeam.serve import ServerConfig
    >>> next(setting.default for setting in settings_of(ServerConfig) if setting.name == "engine.max_batch")
    16
    """
    kinds, meanings = get_type_hints(config), _meanings(config)
    fields = dataclasses.fields(config)
    for field in sorted(fields, key=lambda field: dataclasses.is_dataclass(kinds[field.name])):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind):
            for inner in settings_of(cast("type", kind)):
                yield dataclasses.replace(inner, name=f"{field.name}.{inner.name}")
        else:
            yield Setting(name=field.name, kind=kind, default=_default(field), meaning=meanings.get(field.name, ""))


def changes_of(config: Any) -> dict[str, Any]:
    """Return the settings of a config that differ from their defaults."""
    found = {setting.name: _value(config, setting.name) for setting in settings_of(type(config))}
    defaults = {setting.name: setting.default for setting in settings_of(type(config))}
    return {name: value for name, value in found.items() if value != defaults[name]}


def load_config(base: T, path: Path | None = None, words: Sequence[str] = (), **options: Any) -> T:
    """Return a config with the values of a file, changed by words, and those changed by options.

    Args:
        base: The config that is changed. A table of which any value is stated has the defaults of its class for the others.
        path: A file of TOML; a field that is a dataclass is a table of it.
        words: Values as `name=value` with the names of `Setting`: `engine.max_batch=32`.
        options: Values, or whole tables, by names with two underscores in place of each dot; None changes nothing.

    Raises:
        ArgumentError: For a file that is not TOML, a setting that is not there, a value of another type or out of range.
    """
    config: type[T] = type(base)
    stated = {} if path is None else {name: (value, str(path)) for name, value in _file_values(config, path)}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ArgumentError(f"--set {word}: expected NAME=VALUE, such as {next(settings_of(config)).name}=...")
        stated[name.strip()] = (_parsed(text.strip()), "--set")
    kinds = {setting.name: setting.kind for setting in settings_of(config)}
    values: dict[str, Any] = {}
    for name, (value, where) in stated.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=3) or [other for other in kinds if other.endswith(f".{name}")]
            hint = f"; did you mean {' or '.join(near)}?" if near else ": `--print-config` lists all"
            raise ArgumentError(f"{where}: there is no setting {short_repr(name)}{hint}")
        values[name] = _converted(value, kinds[name], name, where)
    values |= {name.replace("__", "."): value for name, value in options.items() if value is not None}
    return _made(config, "", values, base)


def to_toml(config: Any) -> str:
    """Return a config as TOML with a comment for each setting; settings without a value are comments altogether."""
    lines: list[str] = []
    tables: dict[str, list[str]] = {}
    for setting in settings_of(type(config)):
        table, _, name = setting.name.rpartition(".")
        value = _value(config, setting.name)
        meaning = textwrap.wrap(setting.meaning, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        if isinstance(value, Mapping):
            pairs = cast("Mapping[str, Any]", value).items()
            tables[name] = [*meaning, *(f"{json.dumps(key)} = {_written(inner)}" for key, inner in pairs)]
        else:
            entry = f"# {name} =" if value is None else f"{name} = {_written(value)}"
            (tables.setdefault(table, []) if table else lines).extend([*meaning, entry])
    for table, entries in tables.items():
        lines += ["", f"[{table}]", *entries]
    return "\n".join(lines) + "\n"


def kind_in_words(kind: Any) -> str:
    """Return the values that an annotation admits: "a whole number", "auto, on or off"."""
    if get_origin(kind) is Literal:
        *names, last = map(str, get_args(kind))
        return f"{', '.join(names)} or {last}"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(kind_in_words(inner) for inner in get_args(kind) if _is_plain(inner))
    if get_origin(kind) is tuple:
        return f"a list, each {kind_in_words(get_args(kind)[0])}"
    return _WORDS.get(kind, "a table of names and texts")


def _meanings(config: type) -> dict[str, str]:
    _, _, entries = (inspect.getdoc(config) or "").partition("\nArgs:\n")
    return {name: " ".join(text.split()) for name, text in _ENTRY.findall(entries.partition("\n\n")[0])}


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory()


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def _file_values(config: type, path: Path) -> Iterator[tuple[str, Any]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # also of text that is not UTF-8
        raise ArgumentError(f"{path} is not TOML: {error}") from error
    yield from _flat(config, content, "")


def _flat(config: type, content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    kinds = get_type_hints(config)
    for name, value in content.items():
        kind = kinds.get(name)
        if dataclasses.is_dataclass(kind) and isinstance(value, dict):
            yield from _flat(cast("type", kind), cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _parsed(text: str) -> Any:
    """Return a value of TOML; text that is none is itself, so that texts need no quotes."""
    try:
        content = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    return content["value"] if list(content) == ["value"] else text


def _made(config: type, prefix: str, values: Mapping[str, Any], base: Any = None) -> Any:
    """Return a config with the values whose names begin with a prefix; the others are those of `base`, or the defaults."""
    changes: dict[str, Any] = {}
    kinds = get_type_hints(config)
    for field in dataclasses.fields(config):
        name = f"{prefix}{field.name}"
        if name in values:
            changes[field.name] = values[name]
        elif dataclasses.is_dataclass(kinds[field.name]) and any(other.startswith(f"{name}.") for other in values):
            changes[field.name] = _made(cast("type", kinds[field.name]), f"{name}.", values)
    return config(**changes) if base is None else dataclasses.replace(base, **changes)


def _is_plain(kind: Any) -> bool:
    return kind in _WORDS or get_origin(kind) in (Literal, tuple, Union, UnionType)


def _converted(value: Any, kind: Any, name: str, where: str) -> Any:
    """Return a value of TOML as its field has it."""
    inner = [part for part in get_args(kind) if _is_plain(part)] if get_origin(kind) in (Union, UnionType) else [kind]
    for one in inner:
        if get_origin(one) is Literal and value in get_args(one):
            return value
        if get_origin(one) is tuple and isinstance(value, list):
            part_kind = get_args(one)[0]
            return tuple(_converted(part, part_kind, name, where) for part in cast("list[Any]", value))
        if get_origin(one) is Mapping and isinstance(value, dict):
            if all(isinstance(part, str) for part in cast("dict[str, Any]", value).values()):
                return cast("dict[str, str]", value)
        elif one is Path and isinstance(value, str) and value:
            return Path(value)
        elif one is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif type(value) is one:
            return cast("Any", value)
    raise ArgumentError(f"{where}: {name} is {short_repr(value)}: expected {kind_in_words(kind)}")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_written(part) for part in cast('tuple[Any, ...]', value))}]"
    return json.dumps(str(value), ensure_ascii=False)
