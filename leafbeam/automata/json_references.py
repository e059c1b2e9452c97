"""The schemas of one document by their names: JSON pointers, anchors and URIs (JSON Schema 2020-12, 8.2; RFC 6901)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from leafbeam.errors import AutomatonError, short_repr

_MAPPINGS = ("$defs", "definitions", "properties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")
_ESCAPED = re.compile(r"~(?![01])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """A schema, its JSON pointer as the fragment of a URI, and the base URI of its references."""

    schema: Any
    path: str
    base: str


def below(path: str, *names: object) -> str:
    """Return the pointer of a part of what `path` points to.

    >>> below("#/properties", "a/b", 3)
    '#/properties/a~1b/3'
    """
    escaped = (str(name).replace("~", "~0").replace("/", "~1") for name in names)
    return "/".join(
        [path, *("".join(c if ord(c) > 127 else quote(c, safe="~!$&'()*+,;=:@?") for c in name) for name in escaped)]
    )


class References:
    """The targets of a schema's references.

    Other documents are not read. An `$id` or `$anchor` where no schema is expected (under `const`, `default`, unknown keywords)
    is not a name, but pointers may lead there. Raises AutomatonError if two schemas have the same name.
    """

    def __init__(self, root: Any) -> None:
        self._resources: dict[str, Location] = {"": Location(schema=root, path="#", base="")}
        self._anchors: dict[tuple[str, str], Location] = {}
        self._bases: dict[int, str] = {}  # of schemas with an $id, by their Python id
        self.root = Location(schema=root, path="#", base=self._collect(root, "#", ""))

    def inside(self, schema: Mapping[str, object], path: str, base: str) -> str:
        """Return the base URI inside a schema, from the base URI around it."""
        if _is_resource(schema) and id(schema) not in self._bases:
            raise AutomatonError(f"{path} has an $id where no schema is expected: move it to $defs", pointer=path)
        return self._bases.get(id(schema), base)

    def resolved(self, reference: object, path: str, base: str) -> Location:
        """Return the schema that a `$ref` refers to. Raises AutomatonError."""
        if not isinstance(reference, str):
            raise self._unknown(reference, path)
        uri, fragment = urldefrag(reference)
        uri = _joined(base, uri)
        try:
            fragment = unquote(fragment, errors="strict")
        except UnicodeDecodeError:
            raise self._unknown(reference, path) from None
        if uri not in self._resources:
            raise self._unknown(reference, path)
        if fragment and not fragment.startswith("/"):
            if (uri, fragment) not in self._anchors:
                raise AutomatonError(f"{path}: {short_repr(reference)} names no $anchor of this schema", pointer=path)
            return self._anchors[uri, fragment]
        resource = self._resources[uri]
        for name in fragment.split("/")[1:]:
            part = _part(resource.schema, name)
            if part is None:
                raise AutomatonError(f"{path}: {short_repr(reference)} points to nothing in this schema", pointer=path)
            base = self._bases.get(id(resource.schema), resource.base)
            resource = Location(schema=part[0], path=below(resource.path, part[1]), base=base)
        return resource

    def _unknown(self, reference: object, path: str) -> AutomatonError:
        return AutomatonError(
            f"{path} is {short_repr(reference)}: expected a pointer into this schema, like '#/$defs/item', or an $anchor or "
            "$id in it; other documents are not read",
            pointer=path,
        )

    def _collect(self, schema: Any, path: str, base: str) -> str:
        """Record the names of a schema and of the schemas in it; return its base URI."""
        if not isinstance(schema, Mapping):
            return base
        outer = base
        if _is_resource(schema):
            base = _joined(base, urldefrag(schema["$id"])[0])
            self._bases[id(schema)] = base
            self._note(self._resources, base, Location(schema=schema, path=path, base=outer))
        names = [schema.get("$anchor"), schema.get("$dynamicAnchor")]
        if isinstance(name := schema.get("$id"), str) and name.startswith("#"):  # before draft 2019-09
            names.append(name[1:])
        for anchor in names:
            if isinstance(anchor, str) and anchor:
                self._note(self._anchors, (base, anchor), Location(schema=schema, path=path, base=outer))
        for key in _MAPPINGS:
            if isinstance(parts := schema.get(key), Mapping):
                for name, part in parts.items():
                    self._collect(part, below(path, key, name), base)
        for key in _LISTS:
            if isinstance(parts := schema.get(key), list):
                for number, part in enumerate(parts):
                    self._collect(part, below(path, key, number), base)
        for key in _SCHEMAS:
            self._collect(schema.get(key), below(path, key), base)
        return base

    def _note(self, names: dict[Any, Location], name: Any, location: Location) -> None:
        if name in names and names[name].schema is not location.schema:
            shown = name if isinstance(name, str) else name[1]
            raise AutomatonError(
                f"{location.path} has the name {short_repr(shown)} of {names[name].path}: expected one of its own",
                pointer=location.path,
            )
        names[name] = location


def _is_resource(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("$id"), str) and urldefrag(schema["$id"])[0] != ""


def _joined(base: str, uri: str) -> str:
    return urljoin(base, uri) if uri else base


def _part(schema: object, name: str) -> tuple[object, str] | None:
    """Return (the part of that name, its name without escapes), or None if there is no such part."""
    if _ESCAPED.search(name):
        return None
    name = name.replace("~1", "/").replace("~0", "~")
    if isinstance(schema, Mapping):
        return (schema[name], name) if name in schema else None
    if isinstance(schema, list) and re.fullmatch(r"0|[1-9][0-9]*", name) and int(name) < len(schema):
        return schema[int(name)], name
    return None
