"""What a client reads of a server: answers and metrics."""

from leafbeam.client import Retries, calls
from leafbeam.client.readings import Rates, Reading
from leafbeam.client.retries import Reply, attempts

_CALLS = [calls.recommend(), calls.put_items([{"item_id": 1}]), calls.find_items(), calls.get_catalog(), calls.get_metrics()]
_STATUSES = [200, 422, 429, 503]


def fuzz_answer(data: bytes) -> None:
    """An answer to the call, and with the status, that the first byte names; the rest is its body, and its `Retry-After`."""
    first, body = (data[0], data[1:]) if data else (0, b"")
    call, status = _CALLS[first % len(_CALLS)], _STATUSES[first // 16 % len(_STATUSES)]
    steps = attempts(call, Retries(attempts=1), clock=lambda: 0.0, random=lambda: 0.0, new_id=lambda: "id")
    next(steps)
    try:
        steps.send(Reply(status=status, headers={"retry-after": body[:8].decode("latin-1")}, body=body))
    except StopIteration as end:
        answer = end.value
    assert isinstance(answer, call.answer)


def fuzz_metrics(data: bytes) -> None:
    """A page of metrics."""
    reading = Reading.parse(data.decode("latin-1"), 0.0)
    Rates.between(reading, Reading(at=1.0, samples=reading.samples))
