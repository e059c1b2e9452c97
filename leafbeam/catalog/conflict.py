"""A search for the rules of a request that together allow no item."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from leafbeam.catalog.expression import Expression
from leafbeam.index import Filter, Version
from leafbeam.index.items import ItemIds

FilterOf = Callable[[Expression], Filter]

_CHUNK = 4096  # words that are compared at once: most pairs share an item in the first of them


def conflict_of(expression: Expression, filter_of: FilterOf) -> tuple[str, ...]:
    """Return the smallest set of parts of an expression that no item satisfies together, or () if some item satisfies all.

    The set is a single part if that part is empty, else the first pair of parts that share no item, else a larger set
    that needs each of its parts. A part is a rule's name, or an expression in parentheses.

    Cost: a pass over the bitmaps for each part and each pair; most passes end after a few words.
    """
    if len(filter_of(expression)):
        return ()
    if expression.kind == "minus" and not len(filter_of(expression.parts[0])):
        return conflict_of(expression.parts[0], filter_of)
    if expression.kind != "and":
        return (expression.text,)
    filters = [filter_of(part) for part in expression.parts]
    for part, selected in zip(expression.parts, filters, strict=True):
        if not len(selected):
            return conflict_of(part, filter_of)
    for left, right in combinations(range(len(filters)), 2):
        if _are_disjoint(filters[left], filters[right]):
            return expression.parts[left].text, expression.parts[right].text
    return tuple(expression.parts[index].text for index in _irreducible(filters))


def conflict_with_exclusions(
    version: Version,
    listed: Filter,
    expression: Expression | None,
    filters: Mapping[str, Filter],
    excluded: Mapping[str, ItemIds],
) -> tuple[str, ...]:
    """Return the smallest set of parts that no item satisfies together, as `conflict_of` does, with the excluded ids as
    further parts.

    Args:
        version: The version of the index to which the filters belong.
        listed: The items that may be returned when the request names no rules.
        expression: The rules of the request.
        filters: The filter of each rule.
        excluded: The ids that the request excludes, by the name of the part, such as "- history". A rule's name cannot begin
            with a minus.
    """
    parts = () if expression is None else expression.parts if expression.kind == "and" else (expression,)
    of_name = dict(filters)
    for name, item_ids in excluded.items():
        of_name[name] = listed.deny(version.deny_ids(item_ids))
        parts = (*parts, Expression(kind="name", name=name))
    return conflict_of(Expression(kind="and", parts=parts), lambda part: part.evaluate(of_name.__getitem__))


def _irreducible(filters: Sequence[Filter]) -> list[int]:
    """Return the indices of filters that have no item in common, as few as possible: without any one of them they would
    have some.
    """
    kept: list[int] = []
    common: Filter | None = None  # of the filters kept
    end = len(filters)
    while common is None or len(common):
        shared = common
        for index in range(end):  # the last filter that empties the intersection cannot be left out
            shared = filters[index] if shared is None else shared & filters[index]
            if not len(shared):
                kept.append(index)
                common = filters[index] if common is None else common & filters[index]
                end = index
                break
        else:
            raise AssertionError("the filters share an item")
    return sorted(kept)


def _are_disjoint(left: Filter, right: Filter) -> bool:
    """Return whether two filters of one version have no item in common."""
    for left_part, right_part in zip(left.parts, right.parts, strict=True):
        left_W, right_W = left_part.ordinals.words_W, right_part.ordinals.words_W
        for begin in range(0, len(left_W), _CHUNK):
            if (left_W[begin : begin + _CHUNK] & right_W[begin : begin + _CHUNK]).any():
                return False
    return True
