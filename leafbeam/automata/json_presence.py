"""Which properties an object must, may and must not have together, as a conjunction of clauses.

A clause is a list of (name, whether it is present), of which one has to hold: `required: [a]` is the clause [(a, true)],
`dependentRequired: {a: [b]}` is [(a, false), (b, true)]. `oneOf` of two `required`, and others about names alone, become
clauses too, so that an automaton of objects decides them while it writes one property after another.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

Literal = tuple[str, bool]
Clause = frozenset[Literal]
Clauses = frozenset[Clause]

FALSE: Clauses = frozenset([frozenset[Literal]()])
_MAX_CLAUSES = 200
_NAMED = {"required", "properties", "not", "allOf", "anyOf", "oneOf", "type"}


def presence(schema: object, *, holds: bool = True) -> Clauses | None:
    """Return what a schema says about the names of an object, or its negation; None if it says more."""
    if isinstance(schema, bool):
        return frozenset() if schema is holds else FALSE
    if not isinstance(schema, Mapping) or not set(schema) <= _NAMED:
        return None
    parts = [_keyword(name, schema[name], holds) for name in schema]
    return _conjunction(parts) if holds else _disjunction(parts)


def _keyword(name: str, value: object, holds: bool) -> Clauses | None:
    if name == "type":
        return (frozenset() if holds else FALSE) if value == "object" else None
    if name == "not":
        return presence(value, holds=not holds)
    if name == "required":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            return None
        return all_present(value) if holds else frozenset([frozenset((one, False) for one in value)])
    if name == "properties":
        return _properties(value, holds)
    if not isinstance(value, list) or not value:
        return None
    parts = [presence(part, holds=holds) for part in value]
    if name == "allOf":
        return _conjunction(parts) if holds else _disjunction(parts)
    if name == "anyOf":
        return _disjunction(parts) if holds else _conjunction(parts)
    if not holds:
        return None
    negated = [presence(part, holds=False) for part in value]
    return _conjunction([_disjunction(parts), *(_disjunction(pair) for pair in combinations(negated, 2))])


def _properties(value: object, holds: bool) -> Clauses | None:
    if not isinstance(value, Mapping) or not all(isinstance(part, bool) or part == {} for part in value.values()):
        return None
    absent = [name for name, part in value.items() if part is False]
    if holds:
        return frozenset(frozenset([(name, False)]) for name in absent)
    return frozenset([frozenset((name, True) for name in absent)])


def all_present(names: Iterable[str]) -> Clauses:
    return frozenset(frozenset([(name, True)]) for name in names)


def dependent(name: str, required: Iterable[str]) -> Clauses:
    """Return the clauses of `required`, which hold if an object has `name`."""
    return frozenset(frozenset([(name, False), (other, True)]) for other in required if other != name)


def _conjunction(parts: Sequence[Clauses | None]) -> Clauses | None:
    result: Clauses = frozenset()
    for part in parts:
        if part is None:
            return None
        result |= part
    return _simple(result)


def _disjunction(parts: Sequence[Clauses | None]) -> Clauses | None:
    result = FALSE
    for part in parts:
        if part is None or len(result) * len(part) > _MAX_CLAUSES**2:
            return None
        product = _simple(frozenset(one | two for one in result for two in part))
        if product is None:
            return None
        result = product
    return result


def _simple(clauses: Clauses) -> Clauses | None:
    """Return clauses without those that always hold or follow from others; None if there are too many."""
    kept: list[Clause] = []
    for clause in sorted(clauses, key=len):
        if any((name, not present) in clause for name, present in clause) or any(other <= clause for other in kept):
            continue
        kept.append(clause)
        if len(kept) > _MAX_CLAUSES:
            return None
    return frozenset(kept)


def assigned(clauses: Clauses, name: str, present: bool) -> Clauses | None:
    """Return what is left to decide once a name is present or absent; None if no decision can be right any more."""
    left: list[Clause] = []
    for clause in clauses:
        if (name, present) in clause:
            continue
        rest = clause - {(name, not present)}
        if not rest:
            return None
        left.append(rest)
    return frozenset(left)


def hold_without(clauses: Clauses, names: Iterable[str]) -> bool:
    """Return whether the clauses hold if all these names are absent and no others are left."""
    absent = set(names)
    return all(any(not present and name in absent for name, present in clause) for clause in clauses)
