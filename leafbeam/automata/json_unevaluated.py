"""`unevaluatedProperties` and `unevaluatedItems`, which describe what other keywords of the same instance do not.

They see the keywords beside them and in what `$ref`, `allOf` and the alternative that holds lead to. So alternatives are chosen
first, and each is joined with what is beside it. Then all that is left are keywords of one schema, for which `closed` writes
`additionalProperties` and `items`. What `not` and a failed `if` say does not count, so those are joined afterwards.

Where several alternatives hold, each is written with the properties of that alternative alone.
"""

from leafbeam.automata.json_scope import CONDITIONS, Schema, Scope

_NAMES = ("unevaluatedProperties", "unevaluatedItems")
_BRANCHES = ("anyOf", "oneOf", "dependentSchemas", CONDITIONS)


def unevaluated(schema: Schema) -> dict[str, object]:
    """Return the two keywords of a schema, if it has them."""
    return {name: schema[name] for name in _NAMES if name in schema}


def closed(schema: Schema, scope: Scope) -> dict[str, object]:
    """Return a schema without the two keywords. Raises AutomatonError if it has alternatives left."""
    if branches := [name for name in _BRANCHES if name in schema]:
        raise scope.error(
            f" has {next(iter(unevaluated(schema)))} beside {branches[0].lstrip(chr(0))}, and is joined with others: "
            "write them into one schema"
        )
    result = {name: value for name, value in schema.items() if name not in _NAMES}
    if "unevaluatedProperties" in schema:
        result.setdefault("additionalProperties", schema["unevaluatedProperties"])
    if "unevaluatedItems" in schema:
        is_list = isinstance(schema.get("items"), list)  # before draft 2020-12
        result.setdefault("additionalItems" if is_list else "items", schema["unevaluatedItems"])
    return result
