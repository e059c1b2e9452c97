"""The schemas of one document by their names: JSON pointers, anchors and URIs (JSON Schema 2020-12, 8.2; RFC 6901)."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from leafbeam.errors import AutomatonError, short_repr

_MAPPINGS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SCHEMAS = (
    *("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ESCAPED = re.compile(r"~(?![01])")
_PLAIN = re.compile(r"[A-Za-z0-9_.$-]*")


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
    return "/".join([path, *(_escaped(str(name)) for name in names)])


@lru_cache(4096)
def _escaped(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    name = name.replace("~", "~0").replace("/", "~1")
    return "".join(c if ord(c) > 127 else quote(c, safe="~!$&'()*+,;=:@?") for c in name)


class References:
    """The targets of a schema's references.

    Other documents are not read. An `$id` or `$anchor` where no schema is expected (under `const`, `default`, unknown keywords)
    is not a name, but pointers may lead there. Raises AutomatonError if two schemas have the same name.
    """

    def __init__(self, root: Any) -> None:
        self._resources: dict[str, Location] = {"": Location(schema=root, path="#", base="")}
        self._anchors: dict[tuple[str, str], Location] = {}
        self._next: dict[int, list[Location]] = {}  # what the references anywhere in a schema of the document lead to
        self._reached_from: dict[int, dict[int, Location]] = {}
        self._circles: dict[int, set[int]] = {}
        self._loops = set[int]()  # the schemas known to lead back to themselves
        self._dynamic: dict[tuple[str, object], set[int]] = {}  # the schemas with an anchor of that keyword and name
        self._resolved: dict[tuple[str, str], Location] = {}
        self._bases: dict[int, str] = {}  # of schemas with an $id, by their Python id
        self.root = Location(schema=root, path="#", base=self._collect(root))

    def inside(self, schema: Mapping[str, object], base: str, path: Callable[[], str]) -> str:
        """Return the base URI inside a schema, from the base URI around it; `path` returns its pointer, for an error."""
        if "$id" in schema and _is_resource(schema) and id(schema) not in self._bases:
            raise AutomatonError(f"{path()} has an $id where no schema is expected: move it to $defs", pointer=path())
        return self._bases.get(id(schema), base)

    def resolved(self, reference: object, path: str, base: str) -> Location:
        """Return the schema that a `$ref` refers to. Raises AutomatonError."""
        if not isinstance(reference, str):
            raise self._unknown(reference, path)
        if (reference, base) not in self._resolved:
            self._resolved[reference, base] = self._resolve(reference, path, base)
        return self._resolved[reference, base]

    def is_static(self, anchor: str, reference: object) -> bool:
        """Return whether a dynamic reference is an ordinary one, because at most one schema has an anchor of its name."""
        name = urldefrag(reference)[1] if anchor == "$dynamicAnchor" and isinstance(reference, str) else True
        return len(self._dynamic.get((anchor, name), ())) < 2

    def _resolve(self, reference: str, path: str, base: str) -> Location:
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

    def open_within(self, schema: Any, base: str, open_refs: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return how often a part is inside each circle of references that it leads to, by the circle's smallest Python id."""
        open_refs = [schema for schema in open_refs if schema in self._loops or schema not in self._circles]
        if not open_refs:
            return ()
        times: dict[int, int] = {}
        for target in self._targets(schema, base):
            for reached in self._reached(target).values():
                if number := self.times_inside(reached, open_refs):
                    times[min(self._circle(reached))] = number
        return tuple(sorted(times.items()))

    def times_inside(self, target: Location, open_refs: Sequence[int]) -> int:
        """Return how many of the open references lead to schemas that `target` is in a circle with."""
        circle = self._circle(target)
        return sum(schema in circle for schema in open_refs)

    def _circle(self, location: Location) -> set[int]:
        """Return the schemas that a schema leads to and that lead back to it, and the schema, by their Python ids."""
        own = id(location.schema)
        if own not in self._circles:
            reached = self._reached(location)
            self._circles[own] = {own, *(other for other, target in reached.items() if own in self._reached(target))}
            if own in reached:
                self._loops.add(own)
        return self._circles[own]

    def _reached(self, location: Location) -> dict[int, Location]:
        """Return the schemas that references anywhere in a schema of the document lead to, and in those, by Python id."""
        reached = self._reached_from.get(id(location.schema))
        if reached is None:
            reached, waiting = dict[int, Location](), [location]
            while waiting:
                part = waiting.pop()
                if id(part.schema) not in self._next:
                    self._next[id(part.schema)] = self._targets(part.schema, part.base)
                for target in self._next[id(part.schema)]:
                    if id(target.schema) not in reached:
                        reached[id(target.schema)] = target
                        waiting.append(target)
            self._reached_from[id(location.schema)] = reached
        return reached

    def _targets(self, schema: Any, base: str) -> list[Location]:
        """Return what the references anywhere in a schema lead to."""
        found: list[Location] = []
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                for reference in [part[key] for key in _REFERENCES if isinstance(part.get(key), str)]:
                    with suppress(AutomatonError):
                        found.append(self.resolved(reference, "#", base))
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part
        return found

    def _unknown(self, reference: object, path: str) -> AutomatonError:
        return AutomatonError(
            f"{path} is {short_repr(reference)}: expected a pointer into this schema, like '#/$defs/item', or an $anchor or "
            "$id in it; other documents are not read",
            pointer=path,
        )

    def _collect(self, root: Any) -> str:
        """Record the names of all schemas of a document; return the base URI of the root."""
        waiting: list[tuple[Any, str, tuple[object, ...]]] = [(root, "", ())]
        while waiting:
            schema, base, names = waiting.pop()
            if not isinstance(schema, dict):
                continue
            for key in ("$dynamicAnchor", "$recursiveAnchor"):
                if isinstance(schema.get(key), str | bool):
                    self._dynamic.setdefault((key, schema[key]), set()).add(id(schema))
            if "$id" in schema or "$anchor" in schema or "$dynamicAnchor" in schema:
                base = self._record(schema, below("#", *names), base)
            for key in _MAPPINGS:
                if isinstance(parts := schema.get(key), dict):
                    waiting += [(part, base, (*names, key, name)) for name, part in parts.items()]
            for key in _LISTS:
                if isinstance(parts := schema.get(key), list):
                    waiting += [(part, base, (*names, key, number)) for number, part in enumerate(parts)]
            waiting += [(schema[key], base, (*names, key)) for key in _SCHEMAS if key in schema]
        return self._bases.get(id(root), "")

    def _record(self, schema: Mapping[str, Any], path: str, base: str) -> str:
        """Record the names of a schema; return its base URI."""
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
