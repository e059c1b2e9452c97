"""Lines: the items of a batch as a client sends them, one a line, and what is wrong with each.

An item is an object: `item_id`, maybe `codes` (its Semantic ID) or `vector`, and attributes under the names of their columns.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import msgspec

from leafbeam.errors import BatchError, DataError, counted, short_repr
from leafbeam.ids import WRONG_IN_IDS
from leafbeam.json_reader import check_keys

MAX_LINES = 10_000
_MAX_ID_BYTES = 256  # every id takes as much memory as the longest
_MAX_TEXT_BYTES = 64 << 10  # of an attribute, because one answer shows those of many items
_MAX_VALUES = 1_000_000  # of a body; as objects they take some 100 MB
_TINY = re.compile(rb"[eE]-[0-9]{3}|[.0]{300}")  # how a number looks that may be too small for a float64
_RESERVED = ("item_id", "codes", "vector")


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemLine:
    """One item. number: its line, counted from 1. codes, vector: None if the line has none. attributes: the other fields."""

    number: int
    item_id: int | str
    codes: list[int] | None = None
    vector: list[float] | None = None
    attributes: Mapping[str, object] = field(default_factory=dict[str, object])


class JsonError(DataError):
    """A body that cannot be read as JSON."""


class Lines:
    """The items of a batch, each once, and what is wrong with its lines, by number.

    Attributes:
        items: The items without a problem so far.
        problems: The problems of the other lines, by number.

    Raises:
        DataError: If there are no lines, or more than 10,000.

    Examples:
        >>> lines = Lines.of_json_lines(b'{"item_id": "a", "price": 3}\\n{"price": 4}')
        >>> lines.items[0].attributes, lines.problems
        ({'price': 3}, {2: 'it has no item_id'})
    """

    def __init__(self, contents: Iterable[tuple[int, object]]) -> None:
        self.items: list[ItemLine] = []
        self.problems: dict[int, str] = {}
        self.num_lines = 0
        first: dict[int | str, int] = {}
        for number, content in contents:
            self.num_lines += 1
            if self.num_lines > MAX_LINES:
                raise DataError(f"a batch may have up to {MAX_LINES:,} lines, but this one has more: send it in parts")
            line = _item_of(number, content)
            if isinstance(line, ItemLine) and first.setdefault(line.item_id, number) != number:
                # both lines, because a client that sends a part of a file numbers them differently
                before, line = first[line.item_id], f"item {short_repr(line.item_id)} is on more than one line: keep one"
                self.problems[before] = line
            if isinstance(line, ItemLine):
                self.items.append(line)
            else:
                self.problems[number] = line
        if not self.num_lines:
            raise DataError("the body has no line: send one item or more")
        self.items = [item for item in self.items if item.number not in self.problems]

    @classmethod
    def of_json_lines(cls, body: bytes) -> "Lines":
        """Return the objects of a body, one a line; empty lines are left out."""
        _check_values(body)
        return cls(_decoded(body))

    @classmethod
    def of_json(cls, body: bytes) -> "Lines":
        """Return the object of a body, or the objects of its list. Raises JsonError if the body is not JSON."""
        _check_values(body)
        try:
            content = _decoder_of(body).decode(body)
            rows = cast("list[object]", content) if isinstance(content, list) else [content]
            check_keys(body, sum(map(_num_keys, rows)))
        except (ValueError, RecursionError) as error:  # a DecodeError is a ValueError
            raise JsonError(f"the body cannot be read as JSON: {str(error)[:160]}") from None
        return cls.of_rows(rows)

    @classmethod
    def of_rows(cls, rows: Iterable[object]) -> "Lines":
        """Return items that are mappings already."""
        return cls(enumerate(rows, 1))

    def check(self, problem_of: Callable[[ItemLine], str | None]) -> None:
        """Drop the items with which something is wrong, and note it."""
        problems = {item.number: problem for item in self.items if (problem := problem_of(item)) is not None}
        self.problems |= problems
        self.items = [item for item in self.items if item.number not in problems]

    def raise_problems(self) -> None:
        """Raise BatchError if anything is wrong."""
        if self.problems:
            raise BatchError(self.problems, self.num_lines)


class _NoJson(str):
    """A text that says why a line is not JSON."""


def _decoded(body: bytes) -> Iterator[tuple[int, object]]:
    decoder = _decoder_of(body)
    for number, line in enumerate(io.BytesIO(body), 1):
        if line.strip():
            try:
                content = decoder.decode(line)
                check_keys(line, _num_keys(content))
            except (ValueError, RecursionError) as error:  # a DecodeError is a ValueError
                content = _NoJson(f"it cannot be read as JSON: {str(error)[:160]}")
            yield number, content


def _decoder_of(body: bytes) -> "msgspec.json.Decoder[object]":
    """Return what decodes a body; a number that would become 0 is a mistake, as one that would become infinite is."""
    return msgspec.json.Decoder(float_hook=_not_vanished) if _TINY.search(body) else msgspec.json.Decoder()


def _not_vanished(text: str) -> float:
    number = float(text)
    if number == 0 and re.match(r"-?[0.]*[1-9]", text):
        raise ValueError(f"{short_repr(text)} is too small for a 64-bit number: write it as text")
    return number


def _num_keys(content: object) -> int:
    """Return the number of keys of an object, 0 for any other value."""
    return len(cast("dict[str, object]", content)) if isinstance(content, dict) else 0


def _check_values(body: bytes) -> None:
    if body.count(b",") + body.count(b"[") + body.count(b"{") > _MAX_VALUES:
        raise DataError(f"a batch has up to {_MAX_VALUES:,} values: send it in parts")


def _item_of(number: int, content: object) -> ItemLine | str:
    """Return the item of a line, or what is wrong with it."""
    if isinstance(content, _NoJson):
        return content
    if not isinstance(content, Mapping):
        return f"expected an object with item_id, not {short_repr(content)}"
    item_id, codes, vector = content.get("item_id"), content.get("codes"), content.get("vector")
    if item_id is None:
        return "it has no item_id"
    if (problem := _problem_of_id(item_id)) is not None:
        return problem
    if codes is not None and not (isinstance(codes, list) and all(type(code) is int for code in codes)):
        return f"codes must be a list of whole numbers such as [3, 17], not {short_repr(codes)}"
    if vector is not None and not (isinstance(vector, list) and all(type(value) in (int, float) for value in vector)):
        return f"vector must be a list of numbers, not {short_repr(vector)}"
    if codes is not None and vector is not None:
        return "it has codes and a vector: expected one of them, or none"
    attributes = {name: value for name, value in content.items() if name not in _RESERVED}
    for name, value in attributes.items():
        if (num_bytes := _num_text_bytes(value)) > _MAX_TEXT_BYTES:
            return f"{short_repr(name)} has {counted(num_bytes, 'byte')} of text: expected at most {_MAX_TEXT_BYTES:,}"
    return ItemLine(number=number, item_id=item_id, codes=codes, vector=vector, attributes=attributes)


def _num_text_bytes(value: object) -> int:
    """Return the number of bytes of all texts in a value."""
    num_bytes, parts = 0, [value]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            num_bytes += len(part.encode("utf-8", "surrogatepass"))
        elif isinstance(part, list):
            parts += cast("list[object]", part)
        elif isinstance(part, dict):
            for entry in cast("dict[object, object]", part).items():
                parts += entry
    return num_bytes


def _problem_of_id(item_id: object) -> str | None:
    if type(item_id) is int:
        return None if -(2**63) <= item_id < 2**63 else "item_id is beyond 64 bits: send it as text"
    if type(item_id) is not str or not item_id or "\0" in item_id:
        return f"item_id must be a whole number, or text without NUL, not {short_repr(item_id)}"
    try:
        length = len(item_id.encode())
    except UnicodeEncodeError:
        return "item_id must be valid Unicode"
    return None if length <= _MAX_ID_BYTES else f"item_id has {counted(length, 'byte')}: expected at most {_MAX_ID_BYTES}"


def problem_of_new_id(item_id: int | str) -> str | None:
    """Return what is wrong with a new id. Ids that the index already has are not checked: they may be changed and removed."""
    if isinstance(item_id, str):
        for problem, pattern in WRONG_IN_IDS.items():
            if re.search(pattern, item_id):
                return f"item_id must not contain {problem} but is {short_repr(item_id)}"
    return None
