import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafbeam.engine.batcher import Batcher, BatchSize, Capacity, QueueEntry, RequestSize
from leafbeam.errors import OverloadedError


def batcher(requests: int = 3, *, max_queue: int = 100, tokens: int = 1000, beam_rows: int = 1000, **dials) -> Batcher[str]:
    return Batcher(Capacity(requests=requests, tokens=tokens, beam_rows=beam_rows), max_queue=max_queue, **dials)


def requests_of(taken) -> tuple[list[str], list[str]]:
    batch, expired = taken
    return ([] if batch is None else batch.requests), expired


def add(queue: Batcher, request, *, now: float = 0.0, free_in_s: float = 0.0, workers: int = 1, **fields) -> QueueEntry:
    size = RequestSize(arrived=now, **fields)
    queue.admit(size, now, free_in_s=free_in_s, workers=workers)
    return queue.enqueue(request, size)


def a_second_each(size: BatchSize) -> float:
    return float(size.requests)


def test_requests_with_the_key_of_the_first_join_its_batch_in_order():
    queue = batcher(3)
    for work in ("a1", "b1", "a2", "b2", "a3", "a4"):
        add(queue, work, key=work[0])
    assert [requests_of(queue.next_batch(0.0)) for _ in range(4)] == [
        (["a1", "a2", "a3"], []),
        (["b1", "b2"], []),
        (["a4"], []),
        ([], []),
    ]


def test_the_request_with_the_least_slack_runs_first():
    queue = batcher(2)
    for work, deadline in (("a1", 9.0), ("a2", 5.0), ("b1", 3.0), ("a3", 7.0), ("b2", 99.0)):
        add(queue, work, key=work[0], deadline=deadline)
    assert [requests_of(queue.next_batch(0.0))[0] for _ in range(3)] == [["b1", "b2"], ["a2", "a3"], ["a1"]]


def test_slack_is_the_deadline_minus_the_predicted_duration():
    queue = batcher(1, p95=lambda size: size.tokens / 10)
    add(queue, "short", key=0, tokens=1, deadline=10.0)
    add(queue, "long", key=0, tokens=50, deadline=12.0)
    assert [requests_of(queue.next_batch(0.0))[0] for _ in range(2)] == [["long"], ["short"]]


def test_expired_requests_are_dropped_from_every_position():
    queue = batcher(3)
    for work, deadline in (("a1", 5.0), ("b1", 1.0), ("a2", 2.0), ("a3", 9.0)):
        add(queue, work, key=work[0], deadline=deadline)
    assert requests_of(queue.next_batch(2.0)) == (["a1", "a3"], ["b1", "a2"])
    assert len(queue) == 0


def test_a_request_expires_before_its_deadline_by_its_predicted_duration():
    queue = batcher(1, p95=a_second_each)
    add(queue, "a", key=0, deadline=5.0)
    assert queue.expires_at() == 4.0
    assert queue.drop_expired(3.9) == []
    assert queue.drop_expired(4.0) == ["a"]


def test_a_full_queue_rejects_until_a_batch_leaves():
    queue = batcher(1, max_queue=2, p95=a_second_each)
    add(queue, "1", key=0)
    add(queue, "2", key=0)
    with pytest.raises(OverloadedError, match="the queue is full with 2 requests") as refusal:
        add(queue, "3", key=0, free_in_s=0.5)
    assert (refusal.value.reason, refusal.value.retry_after_s) == ("queue_full", 2.5)
    queue.next_batch(0.0)
    add(queue, "3", key=0)
    assert queue.clear() == ["2", "3"]
    assert len(queue) == 0


def test_an_unreachable_deadline_is_rejected_with_a_retry_time():
    queue = batcher(1, p95=a_second_each)
    for _ in range(3):
        add(queue, "before", key=0, deadline=105.0, now=100.0)
    add(queue, "in time", key="other", deadline=105.2, now=100.0, free_in_s=0.5)
    with pytest.raises(OverloadedError, match=r"about 5,500 ms .* deadline is in 5,400 ms") as refusal:
        add(queue, "late", key=0, deadline=105.4, now=100.0, free_in_s=0.5)
    assert refusal.value.reason == "deadline_unreachable"
    assert refusal.value.retry_after_s == pytest.approx(0.1)
    add(queue, "two workers", key=0, deadline=105.4, now=100.0, free_in_s=0.5, workers=2)
    add(queue, "ahead of them all", key=0, deadline=102.0, now=100.0, free_in_s=0.5)


def test_an_idle_worker_admits_every_request_whatever_the_estimate():
    """A far too high estimate would otherwise reject every request, and no batch would run to correct it."""
    queue = batcher(1, p95=lambda size: 1e6)
    add(queue, "a", key=0, deadline=1.0)
    assert queue.drop_expired(0.99) == []
    assert requests_of(queue.next_batch(0.99)) == (["a"], [])


def test_a_batch_closes_after_its_batching_delay():
    queue = batcher(3, wait_s=2.0)
    add(queue, "1", key=0, now=1.0, deadline=50.0)
    add(queue, "2", key=0, now=2.0, deadline=40.0)
    assert queue.closes_at(2.0) == 3.0
    assert requests_of(queue.next_batch(2.9)) == ([], [])
    batch = queue.next_batch(3.0)[0]
    assert batch is not None
    assert (batch.requests, batch.closed) == (["2", "1"], "quota")


def test_a_full_batch_closes_at_once():
    queue = batcher(2, wait_s=2.0)
    add(queue, "1", key=0)
    add(queue, "2", key=0)
    assert queue.closes_at(0.0) == 0.0
    batch = queue.next_batch(0.0)[0]
    assert batch is not None
    assert (batch.requests, batch.closed) == (["1", "2"], "full")


def test_a_batch_closes_when_slack_runs_out_before_its_batching_delay():
    queue = batcher(3, wait_s=20.0, guard_s=0.1, p95=a_second_each)
    add(queue, "1", key=0, deadline=10.0)
    assert queue.closes_at(0.0) == pytest.approx(8.9)
    assert requests_of(queue.next_batch(8.8)) == ([], [])
    batch = queue.next_batch(8.95)[0]
    assert batch is not None
    assert (batch.requests, batch.closed) == (["1"], "slack")


def test_a_batch_of_several_closes_while_all_of_them_can_be_in_time():
    queue = batcher(3, wait_s=20.0, guard_s=0.1, p95=a_second_each)
    for work in "12":
        add(queue, work, key=0, deadline=10.0)
    assert queue.closes_at(0.0) == pytest.approx(7.9)
    assert requests_of(queue.next_batch(7.8)) == ([], [])
    batch = queue.next_batch(7.95)[0]
    assert batch is not None
    assert (batch.requests, batch.closed) == (["1", "2"], "slack")


def test_a_draining_queue_closes_batches_at_once():
    queue = batcher(3, wait_s=20.0)
    add(queue, "1", key=0)
    batch = queue.next_batch(0.0, ending=True)[0]
    assert batch is not None
    assert batch.closed == "ending"


def test_a_batch_stays_within_padded_tokens_and_beam_rows():
    queue = batcher(10, tokens=100, beam_rows=50)
    for work, tokens in (("long", 30), ("longer", 60), ("short", 5), ("shorter", 4)):
        add(queue, work, key=0, tokens=tokens, num_beams=10)
    # long and longer would be 2 x 60 tokens; long, short and shorter are 3 x 30.
    batch = queue.next_batch(0.0)[0]
    assert batch is not None
    assert (batch.requests, batch.size.padded_tokens, batch.size.tokens) == (["long", "short", "shorter"], 90, 39)
    for number in range(7):
        add(queue, str(number), key=0, tokens=1, num_beams=20)
    assert requests_of(queue.next_batch(0.0))[0] == ["longer"]
    assert [len(requests_of(queue.next_batch(0.0))[0]) for _ in range(4)] == [2, 2, 2, 1]


def test_a_batch_stays_within_its_maximum_duration_and_every_deadline():
    queue = batcher(10, max_batch_s=3.0, p95=a_second_each)
    for number in range(5):
        add(queue, str(number), key=0, deadline=100.0)
    assert requests_of(queue.next_batch(0.0))[0] == ["0", "1", "2"]
    queue = batcher(10, p95=a_second_each)
    for deadline in (4.5, 2.5, 100.0):
        add(queue, f"due at {deadline}", key=0, deadline=deadline)
    assert requests_of(queue.next_batch(0.0))[0] == ["due at 2.5", "due at 4.5"]


def test_a_cancelled_request_is_removed_once():
    queue = batcher(3)
    places = [add(queue, work, key=work[0], deadline=5.0) for work in ("a1", "a2", "b1")]
    assert queue.remove(places[0])
    assert not queue.remove(places[0])
    assert queue.remove(places[2])
    assert requests_of(queue.next_batch(0.0)) == (["a2"], [])
    assert not queue.remove(places[1])


arrivals = st.tuples(
    st.just("arrival"), st.integers(0, 2), st.integers(1, 60), st.integers(1, 3), st.one_of(st.none(), st.integers(0, 30))
)
events = st.one_of(arrivals, st.tuples(st.just("take")), st.tuples(st.just("cancel"), st.integers(0, 100)))


@given(
    st.lists(events, max_size=60),
    st.integers(1, 4),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([None, 0.02, 0.5]),
    st.integers(5, 40),
)
def test_every_request_leaves_the_queue_once_and_no_batch_exceeds_its_bounds(
    script, requests, wait_s, second_per_token, max_queue
):
    """A script of arrivals, workers that ask for a batch and cancellations, one a second; then workers until nothing waits."""

    def p95(size: BatchSize) -> float:
        return 0.0 if second_per_token is None else 0.5 + second_per_token * size.tokens

    budget = 6.0
    capacity = Capacity(requests=requests, tokens=120, beam_rows=9)
    queue: Batcher[int] = Batcher(capacity, max_queue=max_queue, wait_s=wait_s, guard_s=0.1, max_batch_s=budget, p95=p95)
    waiting, gone = {}, set()
    for now, event in enumerate([*script, *[("take",)] * 200]):
        if event[0] == "arrival":
            _, key, tokens, num_beams, patience = event
            deadline = float("inf") if patience is None else float(now + patience)
            try:
                entry = add(
                    queue,
                    now,
                    key=(key, num_beams),
                    tokens=tokens,
                    num_beams=num_beams,
                    now=float(now),
                    deadline=deadline,
                    free_in_s=now % 3,
                )
            except OverloadedError as refusal:
                refused = (refusal.reason, refusal.retry_after_s >= 0)
            else:
                refused, waiting[now] = None, entry
            is_full = len(waiting) >= max_queue and now not in waiting
            assert refused in ([("queue_full", True)] if is_full else [None, ("deadline_unreachable", True)])
            assert refused is None or is_full or second_per_token is not None
        elif event[0] == "cancel":
            for one in list(waiting)[event[1] : event[1] + 1]:
                assert queue.remove(waiting.pop(one))
                gone.add(one)
        else:
            closes_at = queue.closes_at(float(now))
            batch, late = queue.next_batch(float(now))
            assert late == sorted(
                (work for work, entry in waiting.items() if entry.latest <= now), key=lambda work: waiting[work].order
            )
            for work in late:
                gone.add(work)
                del waiting[work]
            if batch is None:
                assert not waiting or closes_at > now or late
                assert all(now < entry.latest - 0.1 and now < entry.size.arrived + wait_s for entry in waiting.values())
                continue
            chosen = [waiting.pop(work) for work in batch.requests]
            assert not gone & set(batch.requests)
            gone.update(batch.requests)
            assert len({entry.size.key for entry in chosen}) == 1
            assert [entry.order for entry in chosen] == sorted(entry.order for entry in chosen)
            # Nobody of this kind has less slack than the one that leads.
            rest = [entry for entry in waiting.values() if entry.size.key == chosen[0].size.key]
            assert all(chosen[0].order < entry.order for entry in rest)
            if wait_s == 0:
                assert all(chosen[0].order < entry.order for entry in waiting.values())
            size = batch.size
            assert (size.requests, size.tokens) == (len(chosen), sum(entry.size.tokens for entry in chosen))
            assert capacity.holds(size) or len(chosen) == 1
            if len(chosen) > 1:
                assert p95(size) <= budget
                assert all(now + p95(size) <= entry.size.deadline for entry in chosen)
        assert len(queue) == len(waiting)
    assert waiting == {}
