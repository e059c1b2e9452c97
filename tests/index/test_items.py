"""Look-ups by id, and that ids are distinct: integers and strings, whatever their hashes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafbeam.errors import ItemIdError
from leafbeam.index import Trie, TrieBuilder
from leafbeam.index import items as items_module
from leafbeam.index.items import ItemTable, as_id_array, hash_ids
from leafbeam.live import LiveIndex


def table_of(ids: np.ndarray) -> ItemTable:
    return ItemTable(ids=ids, order_N=np.arange(len(ids), dtype=np.uint32), leaf_indptr=None)


numbers = st.lists(st.integers(-9, 40) | st.integers(-(2**63), 2**63 - 1), max_size=40, unique=True)
words = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5), max_size=40, unique=True
)


@given(numbers, numbers)
def test_rows_of_integers(ids: list[int], wanted: list[int]) -> None:
    rows = {one: row for row, one in enumerate(ids)}
    found = table_of(np.array(ids, np.int64)).rows_of(np.array(wanted + ids, np.int64))
    assert found.tolist() == [rows.get(one, -1) for one in wanted + ids]


@given(words, words)
def test_rows_of_strings_whatever_the_widths(ids: list[str], wanted: list[str]) -> None:
    rows = {one: row for row, one in enumerate(ids)}
    encoded = np.array([one.encode() for one in ids] or [b""], "S40")[: len(ids)]
    found = table_of(encoded).rows_of(wanted + ids)
    assert found.tolist() == [rows.get(one, -1) for one in wanted + ids]


@given(words, words, st.integers(0, 2))
def test_ids_with_equal_hashes_are_told_apart(ids: list[str], wanted: list[str], bits: int) -> None:
    def worse(array: np.ndarray) -> np.ndarray:
        return hash_ids(array) & np.uint64((1 << bits) - 1)

    encoded = np.array([one.encode() for one in ids] or [b""])[: len(ids)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(items_module, "hash_ids", worse)
        table = table_of(encoded)
        table.check_unique()
        rows = {one: row for row, one in enumerate(ids)}
        assert table.rows_of(wanted + ids).tolist() == [rows.get(one, -1) for one in wanted + ids]
        if ids:
            with pytest.raises(ItemIdError, match=r"^1 item id occurs more than once"):
                table_of(np.concatenate([encoded, encoded[-1:]])).check_unique()


def test_numbers_have_different_hashes() -> None:
    ids = np.concatenate([np.arange(-50_000, 50_000), np.arange(100_000) * 2**32, np.arange(1, 60) << 57])
    assert len(np.unique(hash_ids(np.unique(ids)))) == len(np.unique(ids))


def test_strings_hash_alike_in_arrays_of_any_width() -> None:
    assert hash_ids(np.array([b"a", b"", b"ab"], "S2")).tolist() == hash_ids(np.array([b"a", b"", b"ab"], "S17")).tolist()


@pytest.mark.parametrize("ids", [["a", 1], [1, "a"], ["a", b"b"], [True, 3], ("a", np.int64(1)), [b"a", 1]])
def test_ids_of_two_types_are_refused(ids: list[object]) -> None:
    with pytest.raises(ItemIdError, match="expected all integers or all strings"):
        as_id_array(ids)  # type: ignore[arg-type]
    assert as_id_array([1, np.int64(2), np.uint8(3)]).tolist() == [1, 2, 3]
    assert as_id_array(["a", np.str_("b")]).tolist() == [b"a", b"b"]


NOT_UTF8: dict[str, tuple[Any, int]] = {
    "a byte that begins nothing": (np.array([b"a", b"\xff"]), 1),
    "a character cut in two over two ids": (np.array([b"\xc3", b"\xa9"]), 0),
    "Latin-1": ([b"cafe", b"caf\xe9", b"the"], 1),
    "half a surrogate pair": (np.array([b"ok", b"\xed\xa0\x80"]), 1),
    "every second of an array": (np.array([b"a", b"-", b"\x80", b"-"])[::2], 1),
    "behind the first slice": (np.array([b"%d" % n for n in range((1 << 20) + 2)] + [b"\xfe"]), (1 << 20) + 2),
}


@pytest.mark.parametrize("kind", NOT_UTF8)
def test_ids_of_bytes_that_are_not_utf8_are_refused_where_an_index_is_made(kind: str) -> None:
    """M5: `Trie.build` and `save` took them, and `load` said that the file is damaged."""
    ids, row = NOT_UTF8[kind]
    codes = np.arange(len(ids))[:, None]
    with pytest.raises(ItemIdError, match=f"of row {row:,} has to be UTF-8"):
        Trie.build(codes, codebook_sizes=[1 << 21], item_ids=ids)
    with pytest.raises(ItemIdError, match=f"of row {row:,} has to be UTF-8"):
        Trie.from_sequences([[n % 9] for n in range(len(ids))] if len(ids) < 9 else [[]] * len(ids), 9, item_ids=ids)
    with TrieBuilder([1 << 21]) as builder:
        builder.add([[0]], ["first"])
        with pytest.raises(ItemIdError, match=f"of row {row + 1:,} has to be UTF-8"):
            builder.add(codes, ids)


def test_ids_of_bytes_that_are_utf8_are_the_same_ids_as_text(tmp_path: Path) -> None:
    """M5: what is accepted is read back from the file."""
    texts = ["é", "日本", "a b", "\U0001f642", "-"]
    trie = Trie.build([[n] for n in range(5)], codebook_sizes=[5], item_ids=np.array([text.encode() for text in texts]))
    trie.save(tmp_path / "x")
    assert Trie.load(tmp_path / "x").item_ids.tolist() == texts


_CONTROL = ["a\nb", "\tq", "a\r", "b\x7f", "a\x00b", "é\x85", "\x1b[31m", "\x9f", "x" * 40 + "\x01"]


def all_forms(item: str) -> list[Any]:
    """The ids "ok" and `item` in every form that has them."""
    words = ["ok", item]
    return [words, tuple(words), np.array(words), np.array([word.encode() for word in words]), np.array(words, object)]


@pytest.mark.parametrize(("item", "says"), [*((control, "has a control character") for control in _CONTROL), ("", "is empty")])
def test_an_id_that_no_request_can_name_is_refused_on_the_way_in(item: str, says: str) -> None:
    """A8: by every way to build an index, and by a live one, with the row (as tables and HTTP refuse it)."""
    for ids in all_forms(item):
        with pytest.raises(ItemIdError, match=f"of row 1 {says}"):
            Trie.build([[0, 0], [0, 1]], [2, 2], item_ids=ids)
        with TrieBuilder([2, 2]) as builder:
            builder.add([[0, 0]], ["ok"])
            with pytest.raises(ItemIdError, match=f"of row 2 {says}"):
                builder.add([[0, 1], [1, 1]], ids)
        with LiveIndex.create(None, Trie.build([[0, 0]], [2, 2], item_ids=["ok"])) as live:
            with pytest.raises(ItemIdError, match=says):
                live.insert([[0, 1]], ids[1:])
            assert live.version().num_items == 1


@pytest.mark.parametrize("ids", [["b", "a\0"], ("b", "a\0\0"), [b"b", b"a\0"], np.array(["b", "a\0"], object), ["b", "\0"]])
def test_an_id_that_ends_in_nul_is_not_the_id_without_it(ids: Any) -> None:
    """A8: numpy drops NUL at the end of a text, so that it would name another item."""
    with pytest.raises(ItemIdError, match="of row 1 ends in NUL"):
        Trie.build([[0, 0], [0, 1]], [2, 2], item_ids=ids)
    index = Trie.build([[0, 0], [0, 1]], [2, 2], item_ids=["a", "b"])
    with pytest.raises(ItemIdError, match="of row 1 ends in NUL"):
        index.filter(item_ids=ids)


def test_numbers_beyond_64_bits_are_refused_by_name() -> None:
    """D2: as ids too."""
    for ids in ([2**64, 1], [1, 2**63], [-(2**70), 5], np.array([2**63, 1], np.uint64)):
        with pytest.raises(ItemIdError, match="pass them as strings"):
            Trie.build([[0, 0], [0, 1]], [2, 2], item_ids=ids)
    for other in ([True, False], [1.0, 2.0]):
        with pytest.raises(ItemIdError, match="expected integers or strings"):
            Trie.build([[0, 0], [0, 1]], [2, 2], item_ids=other)  # type: ignore[arg-type]
    with pytest.raises(ItemIdError, match="expected a flat sequence"):
        Trie.build([[0, 0]], [2, 2], item_ids=np.array([["a", "b"]], object))


@pytest.mark.parametrize("ids", [["é", "日本", "Â", "\u0100"], ["a b", " a", "a,b", 'a"b'], ["\u00a0", "\u2028", "ÿ", "~"]])
def test_ids_of_other_characters_are_kept(ids: list[str]) -> None:
    """A8"""
    index = Trie.build([[0, 0], [0, 1], [1, 0], [1, 1]], [2, 2], item_ids=ids)
    assert index.item_ids.tolist() == ids


def test_an_index_that_has_such_an_id_can_still_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A8: as over HTTP, only new ids are refused."""
    with monkeypatch.context() as patch:
        patch.setattr(items_module, "check_printable", lambda *_: None)
        old = Trie.build([[0, 0], [0, 1]], [2, 2], item_ids=["a\nb", "c"])
    with LiveIndex.create(None, old) as live:
        live.replace([[1, 1]], ["a\nb"])
        live.compact(wait=True)
        live.delete(["a\nb"])
        assert live.version().num_items == 1
