"""Parts of JSON between two nodes of a network: values, and lists with commas. One space may follow each comma and colon."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_scope import Scope
from leafbeam.automata.json_text import NUMBER, STRING, integers
from leafbeam.automata.network import END, START, Language, Network
from leafbeam.automata.regex import compile_fixed
from leafbeam.errors import short_repr

COMMA, COLON = (b",", b", "), (b":", b": ")
FIXED = {"boolean": (b"true", b"false"), "null": (b"null",)}


def add_list(
    network: Network, brackets: bytes, add: Callable[[int, int, int], None], low: int, high: int | None, loop: int
) -> None:
    """Join two nodes by a list of `low` to `high` parts in brackets, with commas between them.

    add(number, node, to) joins two nodes by part `number` (from 0). If high is None, there is no bound, and part `loop` - 1 and
    all later parts have the same language.
    """
    opening, closing = brackets[:1], brackets[1:]
    if low == 0:
        network.add_text(START, brackets, END)
    last = loop if high is None else high
    before = network.node()
    network.add_text(START, opening, before)
    for number in range(last):
        done = network.node()
        add(number, before, done)
        if number + 1 >= low:
            network.add_text(done, closing, END)
        if number + 1 == last and high is None:
            add_texts(network, done, COMMA, before)
        elif number + 1 < last:
            before = network.node()
            add_texts(network, done, COMMA, before)


def counted_list(network: Network, first: Sequence[Language], rest: Language, low: int, high: int | None) -> Network:
    """Return the network, which is new, with the lists of `low` to `high` items; behind the first ones they are counted."""
    node, parts = network.node(), [*first] or [rest]
    network.add_text(START, b"[", node)
    if low == 0:
        network.add_text(START, b"[]", END)
    for number, part in enumerate(parts, 1):
        done = network.node()
        network.add(node, part, done)
        if low <= number:
            network.add_text(done, b"]", END)
        if number == len(parts):
            more, comma = network.like(), network.node()
            before = more.node()
            add_texts(more, START, COMMA, before)
            more.add(before, rest, END)
            least, most = max(low - number, 1), None if high is None else high - number
            network.add_repeated(done, more, comma, least, most)
            network.add_text(comma, b"]", END)
        else:
            node = network.node()
            add_texts(network, done, COMMA, node)
    return network


def add_counted_list(
    network: Network,
    item: Callable[[int, bool], Language],
    items: tuple[int, int | None, int],
    matching: tuple[int, int | None],
) -> None:
    """Join START and END by a list of some items, of which some match.

    Args:
        item: Returns the language of item `number` (from 0) if it matches, and if it does not or need not.
        items: As in `add_list`: the smallest and largest number of items, and `loop`.
        matching: The smallest and largest number of items that match.
    """
    (low, high, loop), (low_matching, high_matching) = items, matching
    last = loop if high is None else high
    before: dict[tuple[int, int], int] = {(0, 0): network.node()}  # the node before an item, behind so many that match
    behind: dict[tuple[int, int], int] = {}
    network.add_text(START, b"[", before[0, 0])
    if not low and not low_matching:
        network.add_text(START, b"[]", END)
    waiting = [(0, 0)]
    while waiting:
        number, count = waiting.pop()
        for is_match in (True, False):
            total = min(count + is_match, low_matching) if high_matching is None else count + is_match
            after = min(number + 1, last), total
            if (number == last and high is not None) or (high_matching is not None and total > high_matching):
                continue
            if after not in behind:
                done = behind[after] = network.node()
                if after[0] >= low and total >= low_matching:
                    network.add_text(done, b"]", END)
                if after not in before:
                    before[after] = network.node()
                    waiting.append(after)
                add_texts(network, done, COMMA, before[after])
            network.add(before[number, count], item(min(number, loop - 1), is_match), behind[after])


@lru_cache(maxsize=64)
def any_scalar(types: tuple[str, ...], max_states: int) -> ByteDFA:
    """Return the language of all JSON values of some types, arrays and objects not among them. It is built once.

    Raises AutomatonError above the limit of states.
    """
    patterns = {"string": STRING, "number": NUMBER, "integer": integers(None, None)}
    network = Network(max_states, "any JSON value")
    for name in types:
        add_texts(network, START, FIXED.get(name, ()), END)
        if name in patterns:
            network.add(START, compile_fixed(patterns[name]), END)
    return network.language()


@lru_cache(maxsize=16)
def any_value(depth: int, max_states: int) -> ByteDFA:
    """Return the language of all JSON values in which lists and objects nest at most so deeply. It is built once.

    Raises AutomatonError above the limit of states.
    """
    network = Network(max_states, "any JSON value")
    for texts in FIXED.values():
        add_texts(network, START, texts, END)
    names = compile_fixed(STRING)
    for language in (compile_fixed(NUMBER), names):
        network.add(START, language, END)
    if depth:
        inner = any_value(depth - 1, max_states)
        parts = Network(max_states, "any JSON value")
        add_list(parts, b"[]", lambda _, node, to: parts.add(node, inner, to), 0, None, 1)
        network.add(START, parts, END)
        members = Network(max_states, "any JSON value")

        def add(_: int, node: int, to: int) -> None:
            colon, value = members.node(), members.node()
            members.add(node, names, colon)
            add_texts(members, colon, COLON, value)
            members.add(value, inner, to)

        add_list(members, b"{}", add, 0, None, 1)
        network.add(START, members, END)
    return network.language()


def unique_list(network: Network, values: Sequence[ByteDFA], low: int, high: int | None) -> Network:
    """Return the lists of `low` to `high` different values, each of one language, in the order of the languages."""
    most = len(values) if high is None else min(high, len(values))
    before = [[network.node() for _ in range(most + 1)] for _ in range(len(values) + 1)]  # before value n, behind so many
    network.add_text(START, b"[", before[0][0])
    if not low:
        network.add_text(START, b"[]", END)
    for number, value in enumerate(values):
        for count in range(min(number, most) + 1):
            network.skip(before[number][count], before[number + 1][count])
            if count < most:
                done = network.node()
                network.add(before[number][count], value, done)
                add_texts(network, done, COMMA, before[number + 1][count + 1])
                if count + 1 >= low:
                    network.add_text(done, b"]", END)
    return network


def add_texts(network: Network, node: int, texts: Sequence[bytes], to: int) -> None:
    for text in texts:
        network.add_text(node, text, to)


def add_value(network: Network, node: int, value: object, to: int, scope: Scope) -> None:
    """Join two nodes by the texts of one JSON value."""
    if isinstance(value, Mapping | list):
        parts: list[object] = [pair for item in value.items() for pair in item] if isinstance(value, Mapping) else value
        if not parts:
            network.add_text(node, b"{}" if isinstance(value, Mapping) else b"[]", to)
            return
        closing, between = (b"}", (COLON, COMMA)) if isinstance(value, Mapping) else (b"]", (COMMA, COMMA))
        before = network.node()
        network.add_text(node, b"{" if isinstance(value, Mapping) else b"[", before)
        for number, part in enumerate(parts):
            done = network.node()
            is_name = isinstance(value, Mapping) and number % 2 == 0
            add_value(network, before, str(part) if is_name else part, done, scope)
            if number + 1 == len(parts):
                network.add_text(done, closing, to)
            else:
                before = network.node()
                add_texts(network, done, between[number % 2], before)
        return
    network.add_text(node, text_of(value, scope), to)


def text_of(value: object, scope: Scope) -> bytes:
    """Return a JSON text of a value. Raises AutomatonError if it has none."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise scope.error(f": the value {short_repr(value)} has no JSON text: {error}") from error
