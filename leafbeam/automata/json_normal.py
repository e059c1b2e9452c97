"""Schemas in the form that is compiled: keywords that hold together in one schema, and `anyOf` in place of other logic."""

import re
from dataclasses import dataclass, replace
from typing import Any

from leafbeam.automata.json_merge import merged
from leafbeam.automata.json_negation import negated, negation
from leafbeam.automata.json_notes import Notes
from leafbeam.automata.json_presence import Clauses, dependent, presence
from leafbeam.automata.json_references import Location, References, below
from leafbeam.automata.json_scope import (
    CLAUSES,
    CONDITIONS,
    CONTAINS,
    DYNAMIC,
    KNOWN,
    NOTS,
    RESTRICTING,
    Schema,
    Scope,
    list_of,
    mapping_of,
    names_of,
    span,
    types_of,
)
from leafbeam.automata.json_unevaluated import closed, unevaluated
from leafbeam.errors import counted


@dataclass(frozen=True, kw_only=True)
class Normaliser:
    """The rewriting of the schemas of one document.

    Args:
        max_inside: How often a schema may be inside itself.
    """

    references: References
    max_inside: int
    notes: Notes

    def plain(self, schema: Schema, scope: Scope) -> dict[str, Any]:
        """Return the keywords that restrict instances, in the form in which schemas are joined.

        Those of older drafts become those of 2020-12, and those of which several may hold together become lists.
        """
        for name in sorted(schema.keys() - KNOWN):
            self.notes.ignored(name, scope, "which JSON Schema does not define")
        result = without_draft_4({name: value for name, value in schema.items() if name in RESTRICTING})
        for name, anchor in DYNAMIC.items():
            if name in result and self.references.is_static(anchor, result[name]):
                self.references.resolved(result[name], below(scope.path, name), scope.base)  # an error names this keyword
                reference = {"$ref": result.pop(name)}
                whole = [*result.get("allOf", ()), reference] if "$ref" in result else None
                result |= reference if whole is None else {"allOf": whole}
        if "not" in result:
            result[NOTS] = [*result.get(NOTS, ()), result.pop("not")]
        bounds = {name: result.pop(name) for name in ("minContains", "maxContains") if name in result}
        if "contains" in result:
            result[CONTAINS] = [*result.get(CONTAINS, ()), [result.pop("contains"), *self._num_contained(bounds, scope)]]
        condition = [result.pop(name, True) for name in ("if", "then", "else")]
        if "if" in schema:
            result[CONDITIONS] = [*result.get(CONDITIONS, ()), condition]
        if "divisibleBy" in result:
            result.setdefault("multipleOf", result.pop("divisibleBy"))
        for name, part in mapping_of(result.pop("dependencies", {}), scope.below("dependencies")).items():
            kind = "dependentRequired" if isinstance(part, list | str) else "dependentSchemas"
            result[kind] = {**result.get(kind, {}), name: [part] if isinstance(part, str) else part}
        for name, others in mapping_of(result.pop("dependentRequired", {}), scope.below("dependentRequired")).items():
            clauses = dependent(name, names_of(others, scope.below("dependentRequired", name)))
            result[CLAUSES] = [*result.get(CLAUSES, ()), *sorted(map(sorted, clauses))]
        return result

    def _num_contained(self, bounds: Schema, scope: Scope) -> tuple[int, int | None]:
        """Return how many items have to match `contains`, and how many may."""
        low, _ = span({"minContains": bounds.get("minContains", 1)}, "minContains", "", scope)
        _, high = span(bounds, "", "maxContains", scope)
        dialect = mapping_of(self.references.root.schema, Scope()).get("$schema")
        is_old = isinstance(dialect, str) and re.search(r"/draft-0[0-9]/", dialect) is not None
        return max(low, 1) if is_old else low, high  # before 2019-09 there was no minContains

    def with_clauses(self, schema: Schema, scope: Scope) -> dict[str, Any]:
        """Return a schema in which what its combinations say about the names of objects alone has become clauses."""
        result = dict(schema)
        if types_of(result, scope) != ["object"]:
            return result
        clauses: Clauses = frozenset()
        for name in ("anyOf", "oneOf"):
            if name in result and (more := presence({name: result[name]})) is not None:
                del result[name]
                clauses |= more
        left: list[object] = []
        for part in result.pop(NOTS, ()):
            more = presence(part, holds=False)
            left += [part] if more is None else []
            clauses |= more or frozenset()
        if left:
            result[NOTS] = left
        if clauses:
            result[CLAUSES] = [*result.get(CLAUSES, ()), *sorted(map(sorted, clauses))]
        return result

    def without_logic(self, schema: Schema, scope: Scope) -> Schema | None:
        """Return the same schema with anyOf in place of a `not`, an `if` or a dependency; None if it has none of them."""
        outer = unevaluated(schema)
        for name in (CONDITIONS, "dependentSchemas") if outer else (NOTS, CONDITIONS, "dependentSchemas"):
            if not schema.get(name):
                continue
            rest = {key: value for key, value in schema.items() if key != name and key not in outer}
            if name == "dependentSchemas":
                parts = [
                    {"anyOf": [{"properties": {key: False}}, {"allOf": [{"required": [key]}, part]}]}
                    for key, part in mapping_of(schema[name], scope.below(name)).items()
                ]
            elif name == NOTS:
                parts = [self._negated(part, scope.below("not")) for part in schema[name]]
            else:
                parts = [
                    {"anyOf": [{"allOf": [test, then]}, {"allOf": [negation(test), otherwise]}]}
                    for test, then, otherwise in schema[name]
                ]
            return {"allOf": [rest, *parts], **outer}
        return None

    def _negated(self, part: object, scope: Scope) -> object:
        """Return a schema of instances that `part` does not allow."""
        if isinstance(part, bool):
            return not part
        schema = self.plain(mapping_of(part, scope), scope)
        if set(schema) == {"$ref"}:
            location = self.references.resolved(schema["$ref"], below(scope.path, "$ref"), scope.base)
            if location.base != scope.base or id(location.schema) in scope.open_refs:
                raise scope.error(" leads to a schema that it is part of, or to one with an $id of its own")
            inner = Scope(start=location.path, base=location.base, open_refs=(*scope.open_refs, id(location.schema)))
            return self._negated(location.schema, inner)
        parts = negated(schema, scope)
        if schema and not parts:
            raise scope.error(f" has {', '.join(map(repr, sorted(schema)))}: expected keywords whose violation can be written")
        return {"anyOf": parts} if parts else False

    def referred(self, reference: object, scope: Scope) -> tuple[Location, tuple[int, ...]]:
        """Return the schema that a `$ref` leads to, and all that are open then."""
        location = self.references.resolved(reference, below(scope.path, "$ref"), scope.base)
        times = self.references.times_inside(location, scope.open_refs)
        if times:
            self.notes.bounded("$ref", scope, self.max_inside)
        if times > self.max_inside:
            raise scope.nothing(f": {reference} leads back to itself more than {counted(self.max_inside, 'time')}", "$ref")
        return location, (*scope.open_refs, id(location.schema))

    def parts(self, schema: Schema, scope: Scope) -> tuple[list[Schema], Scope]:
        """Return the schemas that hold together: what `$ref` and `allOf` lead to, and the keywords beside them."""
        parts: list[Schema] = []
        own = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
        waiting: list[tuple[object, Scope]] = []
        if "$ref" in schema:
            location, open_refs = self.referred(schema["$ref"], scope)
            waiting.append((location.schema, Scope(start=location.path, base=location.base, open_refs=open_refs)))
            scope = replace(scope, open_refs=open_refs)
        if "allOf" in schema:
            inner = scope.below("allOf")
            waiting += [(part, inner.below(number)) for number, part in enumerate(list_of(schema["allOf"], inner))]
        for part, at in waiting:
            if part is True:
                continue
            if part is False:
                raise at.nothing(" is false and allows nothing")
            part = mapping_of(part, at)
            if self.references.inside(part, at.base, lambda at=at: at.path) != scope.base:
                raise at.error(" has an $id of its own and is joined with other schemas: leave out the $id")
            part, outer = self.plain(part, at), at
            more = [part]
            if "$ref" in part or "allOf" in part:
                more, outer = self.parts(part, at)
            if unevaluated(part):  # it does not see the other parts
                more = [closed(self.with_clauses(merged(more, at), at), at)]
            parts += more
            open_refs = (*scope.open_refs, *outer.open_refs[len(at.open_refs) :])
            scope = replace(scope, open_refs=open_refs)
        return [own, *parts], scope


def without_draft_4(schema: Schema) -> dict[str, Any]:
    """Return a schema whose exclusive bounds are numbers; in draft 4 they say whether `minimum` and `maximum` are."""
    result = dict(schema)
    for name, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if result.get(exclusive) is False:
            del result[exclusive]
        elif result.get(exclusive) is True and name in result:
            result[exclusive] = result.pop(name)
    return result
