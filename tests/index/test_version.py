"""Versions: which items are alive in which segment, and filters over both."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.errors import ArgumentError, ForeignFilterError, ItemIdError
from leafbeam.index import Bitmap, Segment, Trie, Version

SIZES = (4, 3, 5)


def two_segments(seed: int, num_base: int = 60, num_delta: int = 15) -> tuple[Version, dict[str, tuple[int, ...]]]:
    """A version with dead items in both segments, replaced ids among them, and the truth: live id -> SID."""
    rng = np.random.default_rng(seed)
    base_codes, delta_codes = (np.stack([rng.integers(0, size, n) for size in SIZES], 1) for n in (num_base, num_delta))
    base_ids = [f"b{row}" for row in range(num_base)]
    delta_ids = [f"b{row}" if row < 4 else f"d{row}" for row in range(num_delta)]  # four items have moved to the delta
    base, delta = Trie.build(base_codes, SIZES, base_ids), Trie.build(delta_codes, SIZES, delta_ids)
    base_live = (rng.random(num_base) < 0.7) & (np.arange(num_base) >= 4)
    delta_live = rng.random(num_delta) < 0.8
    truth = {base_ids[row]: tuple(base_codes[row].tolist()) for row in np.flatnonzero(base_live)}
    truth |= {delta_ids[row]: tuple(delta_codes[row].tolist()) for row in np.flatnonzero(delta_live)}
    segments = (Segment(trie=base, live=base.filter(base_live)), Segment(trie=delta, live=delta.filter(delta_live)))
    return Version(segments=segments, number=7), truth


@pytest.mark.parametrize("seed", range(5))
def test_a_version_knows_its_live_items_and_no_others(seed: int) -> None:
    version, truth = two_segments(seed)
    assert len(version) == version.num_items == len(truth)
    every = [f"b{row}" for row in range(60)] + [f"d{row}" for row in range(15)] + ["nobody"]
    assert version.knows(every).tolist() == [one in truth for one in every]
    live = sorted(truth)
    assert [tuple(sid) for sid in version.codes_of(live).tolist()] == [truth[one] for one in live]
    sids = set(truth.values())
    for sid in np.ndindex(*SIZES):
        assert (sid in version) == (sid in sids)
    dead = next(one for one in every if one not in truth)
    with pytest.raises(ItemIdError, match=f"1 of 2 item ids is unknown, '{dead}' among them: version 7"):
        version.codes_of([live[0], dead])
    assert version.nbytes > sum(segment.trie.nbytes for segment in version.segments)


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.data())
def test_filters_of_a_version_are_sets_of_live_ids(seed: int, data: st.DataObject) -> None:
    version, truth = two_segments(seed)
    ids = sorted(truth)
    some = st.lists(st.sampled_from(ids), unique=True)
    a_ids, b_ids = set(data.draw(some)), set(data.draw(some))
    a, b = version.filter(item_ids=sorted(a_ids)), version.filter(item_ids=sorted(b_ids))
    for ours, expected in ((a & b, a_ids & b_ids), (a | b, a_ids | b_ids), (a - b, a_ids - b_ids), (~a, set(ids) - a_ids)):
        assert {str(one) for one in ours.item_ids()} == expected
        assert len(ours) == len(expected)
        assert (len(ours) > 0) == bool(expected)
        assert all((one in ours) == (one in expected) for one in ids)
    assert ~~a == a
    assert hash(~~a) == hash(a)
    assert (~(a & b)) == (~a | ~b)
    assert a & ~b == a - b
    assert a | (b & ~a) == a | b


def test_parts_are_met_with_what_is_alive() -> None:
    version, truth = two_segments(1)
    everything = version.all_items
    assert {str(one) for one in everything.item_ids()} == set(truth)
    base = version.segments[0].trie
    delta = version.segments[1].trie
    part = version.filter_of([base.filter(np.ones(base.num_items, np.bool_)), delta.all_items])
    assert part == everything
    with pytest.raises(ForeignFilterError, match="1 filter for 2 segments"):
        version.filter_of([base.all_items])
    with pytest.raises(ForeignFilterError):
        version.filter_of([base.all_items, base.filter(np.ones(base.num_items, np.bool_))])


def test_a_filter_of_another_version_is_refused() -> None:
    version, truth = two_segments(1)
    again = Version(segments=version.segments, number=8)
    theirs, ours = again.filter(item_ids=sorted(truth)), version.filter(item_ids=sorted(truth))
    for call, message in (
        (lambda: ours & theirs, r"two indexes: Version\(7: .* and Version\(8: "),
        (lambda: version.request_filter(theirs), r"belongs to Version\(8: .* runs on Version\(7: "),
        (lambda: version.request_filter(version.segments[0].live), "make it again"),
    ):
        with pytest.raises(ForeignFilterError, match=message):
            call()
    assert version.request_filter(ours) is ours


def test_a_trie_is_a_version_by_itself() -> None:
    trie = Trie.build([[0, 1], [1, 0], [1, 1]], [2, 2], ["a", "b", "c"])
    version = Version.of(trie)
    assert Version.of(version) is version
    assert version.request_filter(None) == trie.all_items
    chosen = trie.filter(item_ids=["b"])
    assert version.request_filter(chosen).parts[0] is chosen.parts[0]
    assert version.num_nodes(0) == 2
    assert version.filter(item_ids=["a"]) == trie.filter(item_ids=["a"])
    with pytest.raises(ArgumentError, match="3 segments"):
        Version(segments=version.segments * 3)
    with pytest.raises(ArgumentError, match="different codebooks"):
        Version(segments=(*version.segments, Segment(trie=Trie.build([[0, 1]], [2, 3]))))


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.booleans())
def test_without_equals_difference(seed: int, shared: bool) -> None:
    rng = np.random.default_rng(seed)
    num_items = int(rng.integers(1, 200))
    codes = rng.integers(0, 3 if shared else 100, (num_items, 3))
    trie = Trie.build(codes, [100] * 3)
    before = trie.filter(rng.random(num_items) < 0.7)
    gone = np.unique(rng.integers(0, num_items, int(rng.integers(0, 9))))
    after = before.parts[0].without(gone)
    expected = (before - trie.filter_of(Bitmap.from_positions(gone, num_items))).parts[0]
    assert after.ordinals == expected.ordinals
    assert after.leaves == expected.leaves
    assert after.leaves.count == expected.leaves.count


@pytest.mark.parametrize("prefix", [(0, 1, 2), (0, 1, 2, 3), [9, 9, 9], np.zeros(3, np.int64)])
@pytest.mark.parametrize("segments", [1, 2])
def test_no_code_follows_a_whole_sid(prefix: list[int], segments: int) -> None:
    """M7: a full prefix was an IndexError."""
    version, _ = two_segments(0)
    with pytest.raises(ArgumentError, match=rf"the prefix has {len(prefix)} codes?.* has 3: expected fewer"):
        (version if segments == 2 else Version.of(version.segments[0].trie)).children(prefix)


@pytest.mark.parametrize("prefix", [["a"], [1.0], [None], "1", [0, np.float32(1)]])
def test_a_prefix_consists_of_integers(prefix: list[int]) -> None:
    """M7: others were a TypeError, a ValueError, or rounded."""
    with pytest.raises(ArgumentError, match="has to consist of integers"):
        two_segments(0)[0].children(prefix)


def test_codes_behind_a_prefix_are_those_of_live_items() -> None:
    """M7: every shorter prefix, also one outside the codebooks, has an answer."""
    version, truth = two_segments(3)
    for length in range(3):
        for prefix in [*(dict.fromkeys(sid[:length] for sid in truth.values())), (-1,) * length, (2**40,) * length]:
            codes = sorted({sid[length] for sid in truth.values() if sid[:length] == prefix})
            assert version.children(prefix).tolist() == codes
    assert Version.of(Trie.build(np.zeros((0, 2), np.int64), [3, 3])).children([]).tolist() == []
