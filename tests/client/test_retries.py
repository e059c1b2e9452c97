"""When a call is sent again, and what its answer means: by hand, without a clock or a socket."""

import itertools
import json
from typing import Any

import pytest

from leafbeam import errors
from leafbeam.client import Retries, calls
from leafbeam.client.calls import Call
from leafbeam.client.retries import Fault, Pause, Reply, Send, attempts
from leafbeam.errors import ArgumentError, NoAnswerError, ServerBusyError, ServerError

HEALTH = Reply(status=200, headers={}, body=b'{"alive": true}')
BUSY = Reply(status=429, headers={"retry-after": "2"}, body=b'{"error": {"type": "OverloadedError", "message": "full"}}')
CUT = Fault(code="cut", message="ended the connection")
REFUSED = Fault(code="unreachable", message="was not reached")
LATE = Fault(code="late", message="did not send its whole answer in time")


class Run:
    """A call with given outcomes. steps: what it did; the clock goes on by its pauses, and by `slow_s` for each attempt."""

    def __init__(self, call: Call[Any], *outcomes: Any, random: float = 0.5, slow_s: float = 0.0, **retries: Any) -> None:
        self.now, self.steps, self.error = 100.0, list[Any](), None
        numbers = itertools.count(1)
        steps = attempts(
            call, Retries(**retries), clock=lambda: self.now, random=lambda: random, new_id=lambda: f"id-{next(numbers)}"
        )
        left, outcome = list(outcomes), None
        try:
            while True:
                step = steps.send(outcome)
                self.steps.append(step)
                outcome = None
                if isinstance(step, Pause):
                    self.now += step.seconds
                else:
                    self.now += slow_s
                    outcome = left.pop(0)
        except StopIteration as end:
            self.answer = end.value
        except ServerError as error:
            self.error = error
        assert not left, "more outcomes than attempts"

    @property
    def pauses(self) -> list[float]:
        return [step.seconds for step in self.steps if isinstance(step, Pause)]

    @property
    def sent(self) -> list[Send]:
        return [step for step in self.steps if isinstance(step, Send)]


def test_pauses_double_from_the_first_to_the_greatest_in_part_at_random():
    faults = [REFUSED] * 6
    run = Run(calls.get_health(), *faults, HEALTH, attempts=7, first_pause_s=1, max_pause_s=6, deadline_s=100)
    assert run.pauses == [0.5, 1, 2, 3, 3, 3]
    assert run.answer.alive
    assert Run(calls.get_health(), REFUSED, HEALTH, random=0.0).pauses == [0.0]


def test_a_readiness_is_read_and_an_error_in_its_place_is_raised():
    unready = b'{"ready": false, "reason": "warming up", "index_version": null, "num_items": 0, "rules": {}, "threads": null, '
    run = Run(calls.get_readiness(), Reply(status=503, headers={}, body=unready + b'"text_model": null}'))
    assert (run.answer.ready, run.answer.reason) == (False, "warming up")
    silent = Reply(status=503, headers={}, body=b'{"error": {"type": "UnavailableError", "message": "the core is silent"}}')
    run = Run(calls.get_readiness(), silent, silent, attempts=2)
    assert isinstance(run.error, ServerBusyError)
    assert "the core is silent" in str(run.error)


@pytest.mark.parametrize(
    ("headers", "body", "asked_s"),
    [
        ({"retry-after": "2"}, {}, 2.0),
        ({"retry-after": "2"}, {"retry_after_ms": 250}, 0.25),
        ({}, {"retry_after_ms": 250}, 0.25),
        ({"retry-after": "-1"}, {}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, {}, 0.0),
        ({"retry-after": "٣"}, {}, 0.0),
        ({"retry-after": "3"}, {"retry_after_ms": -5}, 3.0),
        ({"retry-after": "3"}, {"retry_after_ms": "soon"}, 3.0),
        ({"retry-after": "3"}, {"retry_after_ms": True}, 3.0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_gets_the_pause_that_it_asks_for(headers, body, asked_s, status):
    busy = Reply(status=status, headers=headers, body=json.dumps({"error": {"message": "full", **body}}).encode())
    run = Run(calls.put_items([{"item_id": 1}], key="k"), busy, Reply(status=200, headers={}, body=CHANGED), first_pause_s=1)
    assert run.pauses == [asked_s + 0.5]
    assert [send.call.key for send in run.sent] == ["k", "k"]
    assert [send.request_id for send in run.sent] == ["id-1", "id-2"]


CHANGED = b'{"inserted": 1, "updated": 0, "deleted": 0, "ignored": 0, "number": 1}'


def test_a_pause_beyond_the_deadline_fails_at_once():
    run = Run(calls.get_health(), BUSY, deadline_s=2.2, first_pause_s=1)
    assert isinstance(run.error, ServerBusyError)
    assert (run.pauses, run.error.retry_after_s, run.error.status) == ([], 2.0, 429)
    forever = Reply(status=503, headers={"retry-after": "9" * 400}, body=b"")
    assert Run(calls.get_health(), forever).pauses == []


def test_every_attempt_has_what_is_left_of_the_deadline():
    run = Run(calls.get_health(), CUT, CUT, HEALTH, deadline_s=10, slow_s=3, first_pause_s=2)
    assert run.pauses == [1, 2]
    assert [send.timeout_s for send in run.sent] == [10, 6, 1]


UNKEYED = [calls.save_snapshot("a"), calls.delete_snapshot("a"), calls.delete_rule("a"), calls.delete_boost("a")]
REPEATABLE = [
    calls.get_health(),
    calls.recommend([1]),
    calls.put_items([{"item_id": 1}]),
    calls.patch_items([{"item_id": 1}]),
    calls.delete_items([1]),
    calls.delete_item(1),
    calls.roll_back(),
    calls.count_interactions([]),
    calls.put_rule("a", "true"),
    calls.put_boost("a", "1"),
    calls.compact_catalog(),
]


@pytest.mark.parametrize("call", REPEATABLE, ids=lambda call: f"{call.method} {call.target}")
def test_a_lost_answer_is_asked_for_again_where_that_changes_nothing(call):
    assert (
        call.method == "GET"
        or call.target in ("/v1/recommend", "/v1/catalog/compact", "/v1/rules/a", "/v1/boosts/a")
        or call.key
    )
    for fault in (CUT, Fault(code="stale", message="sent another answer"), REFUSED):
        assert len(Run(call, fault, LATE).sent) == 2


@pytest.mark.parametrize("call", UNKEYED, ids=lambda call: f"{call.method} {call.target}")
def test_what_cannot_be_repeated_is_sent_again_only_if_nothing_was_done(call):
    run = Run(call, CUT)
    assert (len(run.sent), run.error.code, "not sent again" in str(run.error)) == (1, "cut", True)
    assert len(Run(call, REFUSED, BUSY, CUT).sent) == 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "AccessDeniedError"),
        (403, "AccessDeniedError"),
        (404, "NotFoundError"),
        (409, "InvalidRequestError"),
        (413, "InvalidRequestError"),
        (422, "InvalidRequestError"),
        (429, "ServerBusyError"),
        (503, "ServerBusyError"),
        (500, "ServerError"),
        (502, "ServerError"),
        (301, "ServerError"),
        (204, "ServerError"),
    ],
)
def test_a_failure_is_an_error_with_status_code_and_id(status, kind):
    detail = {"type": "UnknownRuleError", "message": "no rule 'x'", "reason": "unknown_rule", "lines": {"3": "wrong"}}
    reply = Reply(status=status, headers={"x-request-id": "abc"}, body=json.dumps({"error": detail}).encode())
    error = Run(calls.get_health(), reply, attempts=1).error
    assert type(error) is getattr(errors, kind)
    assert (error.status, error.code, error.reason, error.request_id) == (status, "UnknownRuleError", "unknown_rule", "abc")
    assert (error.lines, str(error)) == ({3: "wrong"}, f"GET /healthz: the server answered {status}: no rule 'x'")
    page = Reply(status=status, headers={}, body=b"<html>\xff")
    error = Run(calls.get_health(), page, attempts=1).error
    assert type(error) is getattr(errors, kind)
    assert (error.code, error.request_id, "not an answer of leafbeam" in str(error)) == (f"http_{status}", "id-1", True)


WRONG = [b"", b"[]", b'{"alive": 1}', b"null", b"\xff", b"<html>", b"[" * 100_000, b'{"alive": true', b'{"alive": true}{}']


@pytest.mark.parametrize(("call", "body"), [(calls.get_catalog(), b"{}"), *((calls.get_health(), body) for body in WRONG)])
def test_a_wrong_body_is_no_answer_and_not_asked_for_again(call, body):
    run = Run(call, Reply(status=200, headers={}, body=body))
    assert isinstance(run.error, NoAnswerError)
    assert (run.error.code, run.error.status, len(run.sent)) == ("malformed", 200, 1)


@pytest.mark.parametrize(
    "wrong",
    [{"deadline_s": 0}, {"deadline_s": float("inf")}, {"deadline_s": float("nan")}, {"attempts": 0}, {"first_pause_s": -1}],
)
def test_retries_out_of_range_are_refused(wrong):
    with pytest.raises(ArgumentError, match="expected a deadline above 0"):
        Retries(**wrong)
