"""Messages of PostgreSQL's logical replication: what they say, and damaged ones."""

import pytest

from leafbeam.errors import DataError
from leafbeam.feeds.pgoutput import Begin, Commit, Decoder, RowChange, Truncation

COLUMNS = b"R" + (7).to_bytes(4, "big") + b"public\0items\0d" + (2).to_bytes(2, "big")
COLUMNS += b"\1item_id\0" + (20).to_bytes(4, "big") + b"\xff" * 4 + b"\0title\0" + (25).to_bytes(4, "big") + b"\xff" * 4
TUPLE = (2).to_bytes(2, "big") + b"t" + (2).to_bytes(4, "big") + b"17"
MESSAGES = {
    "columns": COLUMNS,
    "begin": b"B" + bytes(20),
    "commit": b"C" + bytes(25),
    "insert": b"I" + (7).to_bytes(4, "big") + b"N" + TUPLE + b"n",
    "update": b"U" + (7).to_bytes(4, "big") + b"K" + TUPLE + b"n" + b"N" + TUPLE + b"u",
    "delete": b"D" + (7).to_bytes(4, "big") + b"K" + TUPLE + b"n",
    "truncate": b"T" + (1).to_bytes(4, "big") + b"\0" + (7).to_bytes(4, "big"),
}


def decoder() -> Decoder:
    """One that knows the columns."""
    reading = Decoder(lambda type_id, text: int(text) if type_id == 20 else text.decode())
    reading.decode(COLUMNS)
    return reading


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_that_is_cut_or_has_more_is_refused(name: str) -> None:
    assert decoder().decode(MESSAGES[name]) is not None
    for damaged in [MESSAGES[name][:end] for end in range(len(MESSAGES[name]))] + [MESSAGES[name] + b"\0"]:
        with pytest.raises(DataError):
            decoder().decode(damaged)


def test_what_is_wrong_with_a_message_is_named() -> None:
    wrong = [
        (MESSAGES["insert"].replace(b"17", b"1x"), r"column 'item_id' is b'1x', which cannot be read"),
        (MESSAGES["insert"][:-1] + b"q", r"column 'title' begins with b'q': expected n, t or u"),
        (MESSAGES["insert"].replace(b"\0\2t", b"\0\3t"), "a row of public.items has 3 values: expected 2"),
        (b"I" + (8).to_bytes(4, "big") + b"N" + TUPLE + b"n", "it changes table 8, whose columns did not come before it"),
        (COLUMNS.replace(b"title", b"item_id"), "two columns of public.items have the same name"),
        (COLUMNS.replace(b"title", b"tit\xffe"), "a name is .*: expected UTF-8"),
        (b"S" + bytes(8), "it begins with b'S': expected a message of pgoutput's protocol 1"),
    ]
    for message, text in wrong:
        with pytest.raises(DataError, match=text):
            decoder().decode(message)


def test_what_messages_say() -> None:
    events = {name: decoder().decode(message) for name, message in MESSAGES.items() if name != "columns"}
    assert events == {
        "begin": Begin(lsn=0),
        "commit": Commit(end=0, at=946684800.0),
        "insert": RowChange(table_id=7, new={"item_id": 17, "title": None}),
        "update": RowChange(table_id=7, old={"item_id": 17}, new={"item_id": 17}, is_whole=False),
        "delete": RowChange(table_id=7, old={"item_id": 17}),
        "truncate": Truncation(table_ids=(7,)),
    }
    assert [decoder().decode(kind + b"anything") for kind in (b"Y", b"O", b"M")] == [None] * 3


def test_a_whole_row_before_fills_what_did_not_change() -> None:
    before = TUPLE + b"t" + (3).to_bytes(4, "big") + b"tea"
    message = b"U" + (7).to_bytes(4, "big") + b"O" + before + b"N" + TUPLE + b"u"
    assert decoder().decode(message) == RowChange(
        table_id=7, old={"item_id": 17, "title": "tea"}, new={"item_id": 17, "title": "tea"}
    )
