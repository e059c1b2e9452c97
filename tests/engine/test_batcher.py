import pytest
from hypothesis import given
from hypothesis import strategies as st

from pleach.engine import Batcher
from pleach.errors import ArgumentError, OverloadedError


def test_the_oldest_decides_and_its_like_come_along_in_order():
    batcher: Batcher[str] = Batcher(max_batch=3, max_queue=10)
    for work in ("a1", "b1", "a2", "b2", "a3", "a4"):
        batcher.add(work, key=work[0])
    assert batcher.take(0.0) == (["a1", "a2", "a3"], [])
    assert batcher.take(0.0) == (["b1", "b2"], [])
    assert batcher.take(0.0) == (["a4"], [])
    assert batcher.take(0.0) == ([], [])


def test_late_work_is_put_aside_wherever_it_waits():
    batcher: Batcher[str] = Batcher(max_batch=3, max_queue=10)
    for work, deadline in (("a1", 5.0), ("b1", 1.0), ("a2", 2.0), ("a3", 9.0)):
        batcher.add(work, key=work[0], deadline=deadline)
    assert batcher.take(2.0) == (["a1", "a3"], ["b1", "a2"])
    assert len(batcher) == 0


def test_a_full_queue_refuses_and_has_room_again_after_a_batch():
    batcher: Batcher[int] = Batcher(max_batch=1, max_queue=2)
    batcher.add(1, key=0)
    batcher.add(2, key=0)
    with pytest.raises(OverloadedError, match="2 requests are waiting already"):
        batcher.add(3, key=0)
    batcher.take(0.0)
    batcher.add(3, key=0)
    assert batcher.clear() == [2, 3]
    assert len(batcher) == 0


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 5)])
def test_sizes_below_one_are_refused(sizes):
    with pytest.raises(ArgumentError):
        Batcher(max_batch=sizes[0], max_queue=sizes[1])


@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 20)), st.none()), max_size=60),
    st.integers(1, 4),
)
def test_all_work_leaves_once_in_order_of_its_key_and_nobody_is_left_waiting(events, max_batch):
    """Events: an arrival (key, patience), or None, the worker taking a batch; time is the number of the event."""
    batcher: Batcher[tuple[int, int, int]] = Batcher(max_batch=max_batch, max_queue=1000)
    waiting: list[tuple[int, int, int]] = []
    for now, event in enumerate([*events, *[None] * 60]):
        if event is not None:
            key, patience = event
            work = (now, key, now + patience)
            waiting.append(work)
            batcher.add(work, key=key, deadline=now + patience)
            continue
        batch, late = batcher.take(now)
        assert late == [work for work in waiting if work[2] <= now]
        waiting = [work for work in waiting if work[2] > now]
        assert batch == [work for work in waiting if work[1] == waiting[0][1]][:max_batch]
        waiting = [work for work in waiting if work not in batch]
        assert len(batcher) == len(waiting)
    assert waiting == []
