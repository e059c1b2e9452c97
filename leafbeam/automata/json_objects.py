"""The language of objects: listed properties in their order, then others, whose names are a language.

Before each listed name, a node of the network knows which clauses about names are left and how many members are written. For
a schema without such clauses that is one node a property.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_presence import FALSE, Clauses, assigned, hold_without
from leafbeam.automata.json_scope import Scope
from leafbeam.automata.json_values import COLON, COMMA, add_texts, text_of
from leafbeam.automata.network import END, START, Language, Network


@dataclass(frozen=True, kw_only=True)
class Members:
    """The members of objects.

    Args:
        listed: The language of each listed property, in the order in which they are written.
        others: The languages of the names and of the values of further members, which follow.
        clauses: What holds of the listed names.
        low, high: The bounds of the number of members. Others may repeat a name, so all of them count once for `low`.
    """

    listed: Mapping[str, Language]
    others: Sequence[tuple[ByteDFA, Language]]
    clauses: Clauses
    low: int
    high: int | None


@dataclass(frozen=True)
class _Written:
    """What is known before listed property `number`: the clauses left, and the members so far, up to the bounds."""

    number: int
    clauses: Clauses
    for_low: int
    for_high: int
    has_other: bool = False


def add_object(members: Members, network: Network, scope: Scope) -> Network:
    """Return the network, which is new, with the objects of these members. Raises AutomatonError above its limit of states."""
    return _Objects(members, network, scope).added()


class _Objects:
    def __init__(self, members: Members, network: Network, scope: Scope) -> None:
        self._members, self._network, self._scope = members, network, scope
        self._names = list(members.listed)
        self._before: dict[_Written, int] = {}  # the node before a name
        self._behind: dict[_Written, int] = {}  # the node behind a value
        self._waiting: list[_Written] = []

    def added(self) -> Network:
        network, first = self._network, _Written(0, self._members.clauses, 0, 0)
        if first.clauses & FALSE:
            return network
        network.add_text(START, b"{", self._before_name(first))
        if self._may_end(first):
            network.add_text(START, b"{}", END)
        while self._waiting:
            written = self._waiting.pop()
            if written.number < len(self._names):
                self._add_listed(written)
            else:
                self._add_others(written)
        return network

    def _before_name(self, written: _Written) -> int:
        if written not in self._before:
            self._before[written] = self._network.node()
            self._waiting.append(written)
        return self._before[written]

    def _behind_value(self, written: _Written) -> int:
        if written not in self._behind:
            node = self._behind[written] = self._network.node()
            add_texts(self._network, node, COMMA, self._before_name(written))
            if self._may_end(written):
                self._network.add_text(node, b"}", END)
        return self._behind[written]

    def _may_end(self, written: _Written) -> bool:
        return written.for_low >= self._members.low and hold_without(written.clauses, self._names[written.number :])

    def _add_listed(self, written: _Written) -> None:
        name, node = self._names[written.number], self._before[written]
        if (clauses := assigned(written.clauses, name, False)) is not None:
            after = _Written(written.number + 1, clauses, written.for_low, written.for_high)
            self._network.skip(node, self._before_name(after))
        language = self._members.listed[name]
        clauses = assigned(written.clauses, name, True)
        if clauses is None or language.is_empty or self._is_full(written):
            return
        after = _Written(written.number + 1, clauses, *self._counts(written))
        colon = self._network.node()
        self._network.add_text(node, text_of(name, self._scope.below("properties", name)), colon)
        self._add_value(colon, language, self._behind_value(after))

    def _add_others(self, written: _Written) -> None:
        if not self._members.others or self._is_full(written):
            return
        for_low, for_high = self._counts(written)
        after = _Written(written.number, written.clauses, written.for_low if written.has_other else for_low, for_high, True)
        behind = self._behind_value(after)
        for names, values in self._members.others:
            colon = self._network.node()
            self._network.add(self._before[written], names, colon)
            self._add_value(colon, values, behind)

    def _add_value(self, colon: int, language: Language, to: int) -> None:
        value = self._network.node()
        add_texts(self._network, colon, COLON, value)
        self._network.add(value, language, to)

    def _is_full(self, written: _Written) -> bool:
        return self._members.high is not None and written.for_high >= self._members.high

    def _counts(self, written: _Written) -> tuple[int, int]:
        low, high = self._members.low, self._members.high
        return min(written.for_low + 1, low), 0 if high is None else written.for_high + 1
