"""What a request prefers: its boosts as one column, its caps and quotas as a policy."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from leafbeam.decode.boosts import MOST_NATS, largest_boost
from leafbeam.decode.policy import Cap, Policy, Quota
from leafbeam.errors import RequestError
from leafbeam.index import Filter, ItemColumn, Version

if TYPE_CHECKING:
    from leafbeam.engine.request import Request

_KEPT = 32  # sums of several boosts, of one segment each

_SumKey = tuple[tuple[int, ...], tuple[float, ...]]  # the ids of the columns, and their weights


class Rules(Protocol):
    """The boosts and groups of a rule set."""

    @property
    def version(self) -> Version: ...

    def boost(self, name: str) -> ItemColumn: ...

    def groups(self, column: str) -> ItemColumn: ...

    def filter(self, rules: str, /) -> Filter | None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Objectives:
    """The boost, caps and quotas of a request.

    Args:
        boost: The number that is added to the score of each item.
        policy: The caps and quotas of the list.
        quotas: The names of the quotas, in the order of the policy.
    """

    boost: ItemColumn | None = None
    policy: Policy | None = None
    quotas: tuple[str, ...] = ()


class ObjectivesReader:
    """Resolves the names of a request against a rule set. Sums of several boosts are kept for the next request. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: OrderedDict[_SumKey, tuple[Sequence[ItemColumn], ItemColumn]] = OrderedDict()

    def read(self, request: Request, rules: Rules | None) -> Objectives:
        """Return what a request wants.

        Cost: none for one boost, whatever its weight. For several boosts, a pass over the items of each segment whose numbers
        are new or whose weights were not in this relation lately.

        Raises:
            RequestError: If there is no catalog, or the numbers contradict each other.
            UnknownRuleError: If a boost, a column or a rule is unknown.
        """
        if not request.has_objectives:
            return Objectives()
        if rules is None:
            raise RequestError("boosts, at_most and at_least need a catalog of items, and this engine has none")
        caps = tuple(Cap(groups=rules.groups(column), most=most) for column, most in request.at_most.items())
        quotas = tuple(Quota(items=_items_of(rules, name), least=least) for name, least in request.at_least.items())
        boost = self._boost(request.boosts, rules) if request.boosts else None
        if boost is not None and (largest := largest_boost(boost, rules.version)) > MOST_NATS:
            names = ", ".join(request.boosts)
            raise RequestError(
                f"the boosts of an item add up to {largest:g} ({names}): expected at most {MOST_NATS:,.0f} nats. "
                "Lower the weights: a few nats prefer an item, and 100 put it first"
            )
        return Objectives(
            boost=boost,
            policy=Policy(num_items=request.num_items, caps=caps, quotas=quotas) if caps or quotas else None,
            quotas=tuple(request.at_least),
        )

    def _boost(self, weights: Mapping[str, float], rules: Rules) -> ItemColumn:
        columns = [rules.boost(name) for name in weights]
        if len(columns) == 1:
            (weight,) = weights.values()
            return columns[0].scaled(weight)
        largest = max(map(abs, weights.values())) or 1.0
        ratios = tuple(weight / largest for weight in weights.values())
        parts = [self._sum(parts, ratios) for parts in zip(*(column.segments for column in columns), strict=True)]
        return ItemColumn.joined(parts, columns[0].index).scaled(largest)

    def _sum(self, columns: tuple[ItemColumn, ...], weights: tuple[float, ...]) -> ItemColumn:
        """Return the weighted sum of columns of one segment, which outlives the versions of a live index."""
        key = tuple(map(id, columns)), weights
        with self._lock:
            known = self._sums.get(key)
            if known is not None:
                self._sums.move_to_end(key)
        if known is None:  # two threads may both make it; they make the same
            scaled = [column.scaled(weight) for column, weight in zip(columns, weights, strict=True)]
            known = columns, functools.reduce(ItemColumn.plus, scaled)  # the columns are kept, so that their ids stay theirs
            with self._lock:
                self._sums[key] = known
                while len(self._sums) > _KEPT:
                    self._sums.popitem(last=False)
        return known[1]


def _items_of(rules: Rules, name: str) -> Filter:
    items = rules.filter(name)
    return rules.version.all_items if items is None else items
