"""The rules of ids: an id is a signed whole number of 64 bits, or text."""

import re
from collections.abc import Iterable
from typing import TypeGuard

ID_KINDS = {"i": "integers", "S": "strings"}  # the kinds of ids in words, by the `kind` of an id array's dtype

WHOLE_NUMBER = "0|-?[1-9][0-9]{0,18}"  # a pattern with one spelling for each number; the number may be beyond 64 bits

# Soft hyphens, direction marks, byte order marks and blanks without width are invisible, so two ids that differ only in
# them look the same. Joiners (U+200C, U+200D) are needed inside words and emoji, but never at the beginning or the end.
UNSEEN = "[\u00ad\u200b\u200e\u200f\u2060-\u2069\u202a-\u202e\ufeff]|^[\u200c\u200d]|[\u200c\u200d]$"
# Formats without types lose these around an id: tabs and all blanks, but no line breaks and no other control characters.
BLANKS = " \t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
WRONG_IN_IDS = {  # patterns that both Python and pyarrow can read
    "control characters, such as line breaks,": "[\\x00-\\x1f\\x7f\u0080-\u009f\u2028\u2029]",
    "characters that cannot be seen, such as blanks without width,": UNSEEN,
}


def is_id(value: object) -> TypeGuard[int | str]:
    """Return whether a value is an integer or text, and not a boolean.

    >>> is_id("7"), is_id(7), is_id(True), is_id(7.0)
    (True, True, False, False)
    """
    return isinstance(value, int | str) and not isinstance(value, bool)


def kind_of_id(item_id: int | str) -> str:
    """Return the key of an id's kind in `ID_KINDS`."""
    return "S" if isinstance(item_id, str) else "i"


def first_of_other_kind(item_ids: Iterable[int | str], kind: str | None) -> int | str | None:
    """Return the first id that is not of a kind, or None if there is none. A kind of None admits both kinds."""
    return None if kind is None else next((item_id for item_id in item_ids if kind_of_id(item_id) != kind), None)


def is_possible(item_id: int | str, max_bytes: int) -> bool:
    """Return whether an index could have an id: not beyond int64 or `max_bytes`, and without NUL or half a surrogate pair.

    It is called before a client's ids become an array, because each id of an array takes as much memory as the longest.
    """
    if isinstance(item_id, int):
        return -(2**63) <= item_id < 2**63
    try:
        return "\0" not in item_id and len(item_id.encode()) <= max_bytes
    except UnicodeEncodeError:
        return False


def parse_id(text: str, kind: str | None) -> int | str | None:
    """Return the id of a kind that a text stands for, or None if there is no such id. Without a kind the id is the text.

    >>> parse_id("12", "i"), parse_id("12", "S"), parse_id("012", "i")
    (12, '12', None)
    """
    if kind != "i":
        return text
    number = int(text) if re.fullmatch(WHOLE_NUMBER, text) else None
    return number if number is not None and is_possible(number, 0) else None
