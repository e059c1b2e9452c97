"""A live index equals a dictionary with the same changes, and each version of it is immutable."""

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam import BeamSearch, Trie
from leafbeam.errors import ArgumentError, CodesError, ItemIdError, LeafbeamError
from leafbeam.live import LiveIndex
from tests.live.dictionary import NEVER, START, agree, content, started, union


@pytest.fixture(params=["memory", "sync", "no sync"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> LiveIndex:
    return started(None if request.param == "memory" else tmp_path / "shop", sync=request.param == "sync")


def test_a_change_is_in_the_next_version_and_in_none_before(index: LiveIndex) -> None:
    before = index.version()
    assert index.insert([[2, 0, 5]], ["e"]) == 1
    after = index.version()
    assert index.delete(["a", "e"]) == 2
    agree(index, {key: START[key] for key in "bcd"})
    assert content(before) == START
    assert content(after) == {**START, "e": (2, 0, 5)}
    assert [before.number, after.number, index.version().number] == [0, 1, 2]
    assert (2, 0, 5) not in index.version()
    assert (0, 1, 7) in index.version()  # of "c"


def test_replace_gives_items_other_codes_and_no_version_lacks_them(index: LiveIndex) -> None:
    index.replace([[2, 1, 1], [1, 1, 1]], ["c", "a"])
    agree(index, {"b": START["b"], "d": START["d"], "c": (2, 1, 1), "a": (1, 1, 1)})
    assert index.version().number == 1


def test_a_transaction_becomes_visible_as_one_version(index: LiveIndex) -> None:
    with index.transaction() as transaction:
        transaction.insert([[1, 1, 1]], ["e"])
        transaction.delete(["a", "e"])
        transaction.insert([[2, 1, 1], [2, 1, 2]], ["a", "f"])
        transaction.replace([[0, 0, 0]], ["f"])
        assert content(index.version()) == START
        assert transaction.number is None
    agree(index, {**{key: START[key] for key in "bcd"}, "a": (2, 1, 1), "f": (0, 0, 0)})
    assert index.version().number == transaction.number == 1
    with pytest.raises(ItemIdError, match="the transaction is over"):
        transaction.delete(["b"])


def test_a_transaction_that_raises_changes_nothing(index: LiveIndex) -> None:
    def body() -> None:
        with index.transaction() as transaction:
            transaction.delete(["a"])
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        body()
    agree(index, START)
    index.delete(["a"])


def test_a_transaction_without_effect_makes_no_version(index: LiveIndex) -> None:
    with index.transaction() as transaction:
        transaction.insert([[1, 1, 1]], ["e"])
        transaction.delete(["e"])
    assert (transaction.number, index.version().number) == (0, 0)
    assert index.insert(np.empty((0, 3), np.int64), []) == index.delete([]) == 0


ROW = [0, 0, 0]
BAD: dict[str, tuple[type[LeafbeamError], str, Callable[[Any], object]]] = {
    "insert of a live id": (ItemIdError, "1 of 2 items is in .* already, 'b'", lambda s: s.insert([ROW, ROW], ["x", "b"])),
    "delete of an unknown id": (ItemIdError, "1 of 2 items is not in .*, 'x'", lambda s: s.delete(["a", "x"])),
    "replace of an unknown id": (ItemIdError, "'x' among them", lambda s: s.replace([ROW, ROW], ["a", "x"])),
    "the same id twice": (ItemIdError, "'x' occurs more than once", lambda s: s.insert([ROW, ROW], ["x", "x"])),
    "delete twice in a call": (ItemIdError, "'a' occurs more than once", lambda s: s.delete(["a", "a"])),
    "ids of another kind": (ItemIdError, "integers such as 7, but .* are strings", lambda s: s.insert([ROW], [7])),
    "ids that are no ids": (ItemIdError, "dtype float64", lambda s: s.delete([1.5])),
    "ragged ids": (ItemIdError, "flat sequence", lambda s: s.delete([["a"], ["b", "c"]])),
    "text that is no UTF-8": (ItemIdError, "flat sequence", lambda s: s.insert([ROW], ["\ud800"])),
    "too few ids": (ItemIdError, r"shape \(1,\): expected \(2,\)", lambda s: s.insert([ROW, ROW], ["x"])),
    "a code beyond its book": (CodesError, "row 1 has code 2 at level 1", lambda s: s.insert([ROW, [0, 2, 0]], ["x", "y"])),
    "a negative code": (CodesError, "code -1 at level 2", lambda s: s.replace([[0, 0, -1]], ["a"])),
    "too few levels": (CodesError, r"\(1, 2\): expected \(N, 3\)", lambda s: s.insert([[0, 0]], ["x"])),
    "ragged codes": (CodesError, "rows of different lengths: expected 3 codes", lambda s: s.insert([ROW, [0]], ["x", "y"])),
    "codes that are not whole": (CodesError, "dtype float64", lambda s: s.insert([[0.5, 0, 0]], ["x"])),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_changes_nothing_and_says_what_is_wrong(index: LiveIndex, name: str) -> None:
    kind, message, call = BAD[name]
    log_bytes = index.status.log_bytes
    with pytest.raises(kind, match=message):
        call(index)
    agree(index, START)
    assert (index.version().number, index.status.log_bytes) == (0, log_bytes)
    with index.transaction() as transaction:
        transaction.insert([[1, 1, 1]], ["e"])
        with pytest.raises(kind, match=message):
            call(transaction)
    agree(index, {**START, "e": (1, 1, 1)})


@pytest.mark.parametrize("ids", [[10, 20, 2**62], ["é", "-", "long" * 9]])
def test_an_empty_index_learns_the_kind_of_its_ids(tmp_path: Path, ids: list[Any]) -> None:
    with started(tmp_path / "shop", {}) as index:
        agree(index, {})
        index.insert([[0, 0, 0], [1, 1, 1], [0, 0, 0]], ids)
        expected = dict(zip(ids, [(0, 0, 0), (1, 1, 1), (0, 0, 0)], strict=True))
        agree(index, expected)
        assert len(index.version().segments) == 1
        with pytest.raises(ItemIdError, match="the ids of this index are"):
            index.insert([[0, 0, 0]], ["x" if isinstance(ids[0], int) else 5])
    with LiveIndex.open(tmp_path / "shop") as index:
        agree(index, expected)
        index.compact(wait=True)
        agree(index, expected)


def test_ids_that_are_row_numbers_stay_so_while_they_can() -> None:
    index = started(None, {row: (0, 1, row) for row in range(5)})
    index.insert([[0, 0, 5]], [5])
    index.compact(wait=True)
    assert index.version().segments[0].trie.items.ids is None
    index.delete([5])
    index.compact(wait=True)
    assert index.version().segments[0].trie.items.ids is None
    index.delete([0])
    index.compact(wait=True)
    agree(index, {row: (0, 1, row) for row in range(1, 5)})


def test_sequences_stay_sequences() -> None:
    trie = Trie.from_sequences([[7, 3], [7], []], vocabulary_size=10, item_ids=["ab", "a", "-"], max_length=3, packed=True)
    index = LiveIndex.create(None, trie, compaction=NEVER)
    index.insert([[1, 2, 3], []], ["xyz", "none"])
    index.insert(np.array([[5, 10, 10, 10]]), ["padded"])
    with pytest.raises(CodesError, match="4 tokens"):
        index.insert([[1, 2, 3, 4]], ["long"])
    with pytest.raises(CodesError, match="then the end code"):
        index.insert(np.array([[5, 10, 10, 9]]), ["open"])
    assert [5] in index.version()
    index.compact(wait=True)
    (base,) = index.version().segments
    rebuilt = Trie.from_sequences(
        [[7, 3], [7], [], [1, 2, 3], [], [5]], 10, ["ab", "a", "-", "xyz", "none", "padded"], max_length=3, packed=True
    )
    assert base.trie.version == rebuilt.version


@pytest.mark.parametrize("deleted", [0, 40])
def test_a_search_of_base_and_delta_finds_what_it_finds_in_the_union(deleted: int) -> None:
    rng = np.random.default_rng(3)
    sizes = [40] * 4
    rows = rng.integers(0, 40, (600, 4)).tolist()
    index = LiveIndex.create(None, Trie.build(rows[:500], sizes), compaction=NEVER)
    index.insert(rows[500:], np.arange(500, 600))
    if deleted:
        index.delete(rng.permutation(600)[:deleted])
    items = content(index.version())
    logits = [rng.standard_normal((2, 1 if level == 0 else 25, 40), np.float32) for level in range(4)]

    def run(index: Any) -> Any:
        steps = iter(logits)
        return BeamSearch(index, num_beams=25).run(lambda codes, parents: next(steps), batch_size=2)

    ours, theirs = run(index.version()), run(union(items, sizes))
    for mine, its in zip(ours.item_ids, theirs.item_ids, strict=True):
        assert mine.tolist() == its.tolist()
    np.testing.assert_array_equal(ours.scores, theirs.scores)


def test_a_version_is_freed_with_its_last_reader() -> None:
    index = started()
    gc.disable()
    try:
        held = index.version()
        for number in range(5):
            index.insert([[0, 0, number]], [f"x{number}"])
        assert index.status.versions_alive == 2
        watched = weakref.ref(held)
        del held
        assert watched() is None
        assert index.status.versions_alive == 1
        watched = weakref.ref(index.version().segments[0].trie)
        index.compact(wait=True)
        assert watched() is None
    finally:
        gc.enable()


def test_a_closed_index_can_be_read_and_not_changed(index: LiveIndex) -> None:
    index.close()
    index.close()
    agree(index, START)
    with pytest.raises(ArgumentError, match="closed"):
        index.delete(["a"])


def test_calls_that_would_deadlock_on_their_own_transaction_are_refused(index: LiveIndex) -> None:
    with index.transaction() as transaction:
        for call in (lambda: index.delete(["a"]), lambda: index.compact(wait=True), index.close):
            with pytest.raises(ArgumentError, match="has a transaction open"):
                call()
        transaction.delete(["a"])
    agree(index, {key: START[key] for key in "bcd"})


def test_two_writers_in_threads_take_turns(index: LiveIndex) -> None:
    def write(name: str) -> None:
        for number in range(30):
            index.insert([[0, 0, number]], [f"{name}{number}"])

    threads = [threading.Thread(target=write, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (index.version().number, len(index)) == (90, 94)
