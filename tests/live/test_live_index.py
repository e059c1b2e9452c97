"""The live index is the same as a dictionary, whatever is done to it, and each version of it stays what it was."""

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
from leafbeam.live.live_index import LiveIndex
from tests.live.live import NEVER, START, agree, content, started, union


@pytest.fixture(params=["memory", "sync", "no sync"])
def segments(request: pytest.FixtureRequest, tmp_path: Path) -> LiveIndex:
    return started(None if request.param == "memory" else tmp_path / "shop", sync=request.param == "sync")


def test_a_change_is_in_the_next_version_and_in_none_before(segments: LiveIndex) -> None:
    before = segments.version()
    assert segments.insert([[2, 0, 5]], ["e"]) == 1
    after = segments.version()
    assert segments.delete(["a", "e"]) == 2
    agree(segments, {key: START[key] for key in "bcd"})
    assert content(before) == START
    assert content(after) == {**START, "e": (2, 0, 5)}
    assert [before.number, after.number, segments.version().number] == [0, 1, 2]
    assert (2, 0, 5) not in segments.version()
    assert (0, 1, 7) in segments.version()  # of "c"


def test_insert_then_delete_is_the_identity(segments: LiveIndex) -> None:
    segments.insert([[2, 0, 5], [0, 1, 7]], ["e", "f"])
    segments.delete(["f", "e"])
    agree(segments, START)
    assert len(segments.version().segments) == 1


def test_a_deleted_id_may_come_back_with_other_codes(segments: LiveIndex) -> None:
    for code in range(5):
        segments.delete(["b"])
        segments.insert([[1, 1, code]], ["b"])
        agree(segments, {**{key: START[key] for key in "acd"}, "b": (1, 1, code)})


def test_replace_gives_items_other_codes_and_no_version_lacks_them(segments: LiveIndex) -> None:
    segments.replace([[2, 1, 1], [1, 1, 1]], ["c", "a"])
    agree(segments, {"b": START["b"], "d": START["d"], "c": (2, 1, 1), "a": (1, 1, 1)})
    assert segments.version().number == 1


def test_a_transaction_comes_into_force_as_one_version(segments: LiveIndex) -> None:
    with segments.transaction() as change:
        change.insert([[1, 1, 1]], ["e"])
        change.delete(["a", "e"])
        change.insert([[2, 1, 1], [2, 1, 2]], ["a", "f"])
        change.replace([[0, 0, 0]], ["f"])
        assert content(segments.version()) == START
        assert change.number is None
    agree(segments, {**{key: START[key] for key in "bcd"}, "a": (2, 1, 1), "f": (0, 0, 0)})
    assert segments.version().number == change.number == 1
    with pytest.raises(ItemIdError, match="the transaction is over"):
        change.delete(["b"])


def test_a_transaction_that_raises_changes_nothing(segments: LiveIndex) -> None:
    def body() -> None:
        with segments.transaction() as change:
            change.delete(["a"])
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        body()
    agree(segments, START)
    segments.delete(["a"])


def test_a_transaction_without_effect_makes_no_version(segments: LiveIndex) -> None:
    with segments.transaction() as change:
        change.insert([[1, 1, 1]], ["e"])
        change.delete(["e"])
    assert (change.number, segments.version().number) == (0, 0)
    assert segments.insert(np.empty((0, 3), np.int64), []) == segments.delete([]) == 0


ROW = [0, 0, 0]
BAD: dict[str, tuple[type[LeafbeamError], str, Callable[[Any], object]]] = {
    "insert of a live id": (ItemIdError, "1 of 2 items are in .* already, 'b'", lambda s: s.insert([ROW, ROW], ["x", "b"])),
    "delete of an unknown id": (ItemIdError, "1 of 2 items are not in .*, 'x'", lambda s: s.delete(["a", "x"])),
    "replace of an unknown id": (ItemIdError, "'x' among them", lambda s: s.replace([ROW, ROW], ["a", "x"])),
    "the same id twice": (ItemIdError, "'x' comes more than once", lambda s: s.insert([ROW, ROW], ["x", "x"])),
    "delete twice in a call": (ItemIdError, "'a' comes more than once", lambda s: s.delete(["a", "a"])),
    "ids of another kind": (ItemIdError, "integers such as 7, but .* by strings", lambda s: s.insert([ROW], [7])),
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
def test_a_bad_call_changes_nothing_and_says_what_is_wrong(segments: LiveIndex, name: str) -> None:
    kind, message, call = BAD[name]
    log_bytes = segments.status.log_bytes
    with pytest.raises(kind, match=message):
        call(segments)
    agree(segments, START)
    assert (segments.version().number, segments.status.log_bytes) == (0, log_bytes)
    with segments.transaction() as change:
        change.insert([[1, 1, 1]], ["e"])
        with pytest.raises(kind, match=message):
            call(change)
    agree(segments, {**START, "e": (1, 1, 1)})


@pytest.mark.parametrize("ids", [[10, 20, 2**62], ["é", "", "long" * 9]])
def test_an_empty_catalog_learns_the_kind_of_its_ids(tmp_path: Path, ids: list[Any]) -> None:
    with started(tmp_path / "shop", {}) as segments:
        agree(segments, {})
        segments.insert([[0, 0, 0], [1, 1, 1], [0, 0, 0]], ids)
        expected = dict(zip(ids, [(0, 0, 0), (1, 1, 1), (0, 0, 0)], strict=True))
        agree(segments, expected)
        assert len(segments.version().segments) == 1
        with pytest.raises(ItemIdError, match="the catalog knows its items by"):
            segments.insert([[0, 0, 0]], ["x" if isinstance(ids[0], int) else 5])
    with LiveIndex.open(tmp_path / "shop") as segments:
        agree(segments, expected)
        segments.compact(wait=True)
        agree(segments, expected)


def test_ids_that_are_row_numbers_stay_so_while_they_can() -> None:
    segments = started(None, {row: (0, 1, row) for row in range(5)})
    segments.insert([[0, 0, 5]], [5])
    segments.compact(wait=True)
    assert segments.version().segments[0].trie.items.ids is None
    segments.delete([5])
    segments.compact(wait=True)
    assert segments.version().segments[0].trie.items.ids is None
    segments.delete([0])
    segments.compact(wait=True)
    agree(segments, {row: (0, 1, row) for row in range(1, 5)})


def test_sequences_stay_sequences() -> None:
    trie = Trie.from_sequences([[7, 3], [7], []], vocabulary_size=10, item_ids=["ab", "a", ""], max_length=3, packed=True)
    segments = LiveIndex.create(None, trie, compaction=NEVER)
    segments.insert([[1, 2, 3], []], ["xyz", "none"])
    segments.insert(np.array([[5, 10, 10, 10]]), ["padded"])
    with pytest.raises(CodesError, match="4 tokens"):
        segments.insert([[1, 2, 3, 4]], ["long"])
    with pytest.raises(CodesError, match="then the end code"):
        segments.insert(np.array([[5, 10, 10, 9]]), ["open"])
    assert [5] in segments.version()
    segments.compact(wait=True)
    (base,) = segments.version().segments
    rebuilt = Trie.from_sequences(
        [[7, 3], [7], [], [1, 2, 3], [], [5]], 10, ["ab", "a", "", "xyz", "none", "padded"], max_length=3, packed=True
    )
    assert base.trie.version == rebuilt.version


@pytest.mark.parametrize("deleted", [0, 40])
def test_a_search_of_base_and_delta_finds_what_it_finds_in_the_union(deleted: int) -> None:
    rng = np.random.default_rng(3)
    sizes = [40] * 4
    rows = rng.integers(0, 40, (600, 4)).tolist()
    segments = LiveIndex.create(None, Trie.build(rows[:500], sizes), compaction=NEVER)
    segments.insert(rows[500:], np.arange(500, 600))
    if deleted:
        segments.delete(rng.permutation(600)[:deleted])
    items = content(segments.version())
    logits = [rng.standard_normal((2, 1 if level == 0 else 25, 40), np.float32) for level in range(4)]

    def run(index: Any) -> Any:
        steps = iter(logits)
        return BeamSearch(index, num_beams=25).run(lambda codes, parents: next(steps), batch_size=2)

    ours, theirs = run(segments.version()), run(union(items, sizes))
    for mine, its in zip(ours.item_ids, theirs.item_ids, strict=True):
        assert mine.tolist() == its.tolist()
    np.testing.assert_array_equal(ours.scores, theirs.scores)


def test_a_version_is_freed_with_its_last_reader() -> None:
    segments = started()
    gc.disable()
    try:
        held = segments.version()
        for number in range(5):
            segments.insert([[0, 0, number]], [f"x{number}"])
        assert segments.status.versions_alive == 2
        watched = weakref.ref(held)
        del held
        assert watched() is None
        assert segments.status.versions_alive == 1
        watched = weakref.ref(segments.version().segments[0].trie)
        segments.compact(wait=True)
        assert watched() is None
    finally:
        gc.enable()


def test_a_closed_catalog_can_be_read_and_not_changed(segments: LiveIndex) -> None:
    segments.close()
    segments.close()
    agree(segments, START)
    with pytest.raises(ArgumentError, match="closed"):
        segments.delete(["a"])


def test_calls_that_would_wait_for_their_own_transaction_are_refused(segments: LiveIndex) -> None:
    with segments.transaction() as change:
        for call in (lambda: segments.delete(["a"]), lambda: segments.compact(wait=True), segments.close):
            with pytest.raises(ArgumentError, match="has a transaction open"):
                call()
        change.delete(["a"])
    agree(segments, {key: START[key] for key in "bcd"})


def test_two_writers_in_threads_take_turns(segments: LiveIndex) -> None:
    def write(name: str) -> None:
        for number in range(30):
            segments.insert([[0, 0, number]], [f"{name}{number}"])

    threads = [threading.Thread(target=write, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (segments.version().number, len(segments)) == (90, 94)
