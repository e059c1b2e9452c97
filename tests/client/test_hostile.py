"""Servers that answer late, twice, wrongly, or not to the end: no call hangs, takes another's answer, or is made twice."""

import gzip
import threading
from typing import Any

import httpx
import pytest

from leafbeam.client import Retries
from leafbeam.errors import ArgumentError, InvalidRequestError, NoAnswerError, ServerError
from tests.client.both import FAST, KINDS
from tests.client.scripted_server import PATIENCE, Act, Seen, free_port, http, methods, scripted

ALIVE = {"alive": True}
CHANGED = {"inserted": 1, "updated": 0, "deleted": 0, "ignored": 0, "number": 1}
BUSY = http(429, {"error": {"type": "OverloadedError", "message": "full", "retry_after_ms": 1}}, {"retry-after": "1"})
SHORT = Retries(deadline_s=0.2, first_pause_s=0.001)
pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_busy_servers_are_asked_again_with_the_same_key_and_another_id(kind):
    with scripted(BUSY, http(503, b""), http(200, CHANGED)) as server, KINDS[kind](server.url, retries=FAST) as client:
        assert client.put_items([{"item_id": 1}]).inserted == 1
    assert methods(server.seen) == ["PUT /v1/items"] * 3
    assert len({seen.headers["idempotency-key"] for seen in server.seen}) == 1
    assert len({seen.headers["x-request-id"] for seen in server.seen}) == 3
    assert {seen.body for seen in server.seen} == {b'{"item_id":1}'}


def test_no_server_is_an_error_after_all_attempts(kind):
    with KINDS[kind](f"http://127.0.0.1:{free_port()}", retries=FAST) as client, pytest.raises(NoAnswerError) as caught:
        client.save_snapshot("a")
    assert (caught.value.code, caught.value.status) == ("unreachable", None)


def test_a_server_that_starts_late_is_reached(kind):
    late = httpx.URL(f"http://127.0.0.1:{free_port()}")
    with KINDS[kind](
        str(late), retries=Retries(deadline_s=PATIENCE, attempts=1000, first_pause_s=0.01, max_pause_s=0.02)
    ) as client:
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(client.get_health()))
        waiting.start()
        with scripted(http(200, ALIVE), port=late.port):
            waiting.join(PATIENCE)
        assert [answer.alive for answer in found] == [True]


@pytest.mark.parametrize(
    "act",
    [
        Act(hang=True),
        Act(data=b"HTTP/1.1 200 OK\r\ncontent-le", hang=True),
        Act(data=b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n", hang=True),
        Act(data=b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"alive": ', hang=True),
    ],
    ids=["silent", "head", "no body", "half a body"],
)
def test_a_late_answer_ends_the_call_and_is_not_asked_for_again(kind, act):
    with scripted(act) as server, KINDS[kind](server.url, retries=SHORT) as client:
        with pytest.raises(NoAnswerError) as caught:
            client.get_health()
        assert (caught.value.code, len(server.seen)) == ("late", 1)


def test_a_body_in_drops_does_not_outlast_the_deadline(kind):
    endless = Act(data=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", drop=b"1\r\n \r\n", hang=True)
    with scripted(endless) as server, KINDS[kind](server.url, retries=SHORT) as client:
        with pytest.raises(NoAnswerError) as caught:  # without a deadline, this would not end
            client.get_health()
        assert caught.value.code == "late"


CUT = [
    Act(hang_up=True),
    Act(data=b"HTTP/1.1 200 OK\r\ncontent-le", hang_up=True),
    Act(data=b'HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{"inserted": 1, ', hang_up=True),
    Act(data=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\r\n", hang_up=True),
    Act(data=b"no HTTP at all\r\n\r\n", hang_up=True),
]


@pytest.mark.parametrize("act", CUT, ids=["nothing", "head", "half a body", "half a chunk", "no HTTP"])
def test_an_answer_that_is_cut_is_asked_for_again_only_where_that_is_safe(kind, act):
    with scripted(act, http(200, CHANGED)) as server, KINDS[kind](server.url, retries=FAST) as client:
        assert client.put_items([{"item_id": 1}], key="k").inserted == 1
        assert [seen.headers["idempotency-key"] for seen in server.seen] == ["k", "k"]
    with scripted(act) as server, KINDS[kind](server.url, retries=FAST) as client:
        with pytest.raises(NoAnswerError, match="not sent again") as caught:
            client.delete_rule("cheap")
        assert (caught.value.code, methods(server.seen)) == ("cut", ["DELETE /v1/rules/cheap"])


def test_a_second_answer_is_not_taken_for_that_of_the_next_request(kind):
    """The server sends the answer to the first request twice, with its id, as leafbeam does."""

    def twice(seen: Seen) -> Act:
        answer = http(200, CHANGED, {"x-request-id": seen.headers["x-request-id"]})
        return Act(data=answer.data * 2)

    second = {**CHANGED, "inserted": 2}
    with scripted(twice, http(200, second), http(200, second)) as server, KINDS[kind](server.url, retries=FAST) as client:
        assert client.put_items([{"item_id": 1}]).inserted == 1
        assert client.put_items([{"item_id": 1}, {"item_id": 2}], key="b").inserted == 2
    assert {seen.headers["idempotency-key"] for seen in server.seen[1:]} == {"b"}


def test_ids_that_a_proxy_gave_are_taken(kind):
    with scripted(http(200, ALIVE, {"x-request-id": "proxy-1"})) as server, KINDS[kind](server.url) as client:
        assert client.get_health().alive


@pytest.mark.parametrize(
    "act",
    [
        http(200, b"<html>hello</html>"),
        http(200, b'{"inserted": "1"}'),
        http(200, b"[" * 100_000),
        http(200, gzip.compress(b" " * 1_000_000), {"content-encoding": "gzip"}),
    ],
    ids=["page", "types", "nested", "compressed"],
)
def test_a_wrong_body_is_named_and_the_client_goes_on(kind, act):
    with scripted(act, http(200, CHANGED)) as server, KINDS[kind](server.url, retries=FAST) as client:
        with pytest.raises(NoAnswerError) as caught:
            client.put_items([{"item_id": 1}], key="k")
        assert (caught.value.code, "key='k'" in str(caught.value)) == ("malformed", True)
        assert client.put_items([{"item_id": 1}]).inserted == 1


def test_an_endless_body_is_cut_off(kind, monkeypatch):
    monkeypatch.setattr("leafbeam.client.transport.MAX_ANSWER_BYTES", 1 << 20)
    long = http(200, b" " * (2 << 20))
    with (
        scripted(long) as server,
        KINDS[kind](server.url) as client,
        pytest.raises(NoAnswerError, match="more than 1,048,576 bytes"),
    ):
        client.get_health()


def test_a_redirect_is_not_followed(kind):
    moved = http(307, b"", {"location": "http://127.0.0.1:1/"})
    with scripted(moved) as server, KINDS[kind](server.url) as client, pytest.raises(ServerError, match="answered 307"):
        client.get_health()


def test_a_mistake_in_an_import_is_named_by_its_place_in_the_whole(kind):
    wrong = http(422, {"error": {"type": "BatchError", "message": "1 of 2 lines", "lines": {"2": "it has no item_id"}}})
    done: list[Any] = []
    says = r"items 3 to 4 of the import.*line 4: it has no item_id"
    with (
        scripted(http(200, CHANGED), wrong) as server,
        KINDS[kind](server.url) as client,
        pytest.raises(InvalidRequestError, match=says) as caught,
    ):
        client.import_items(({"item_id": n} for n in range(5)), chunk_items=2, key="i", on_chunk=done.append)
    assert caught.value.lines == {4: "it has no item_id"}
    assert [seen.headers["idempotency-key"] for seen in server.seen] == ["i-0-2", "i-2-2"]
    assert [one.inserted for one in done] == [1]


def test_chunks_are_bounded_in_items_and_bytes_and_read_one_at_a_time(kind):
    read: list[int] = []

    def items() -> Any:
        for number in range(10):
            read.append(number)
            yield {"item_id": number, "title": "x" * (100 if number == 7 else 10)}

    reads: list[int] = []

    def answer(seen: Seen) -> Act:
        reads.append(len(read))
        return http(200, {**CHANGED, "inserted": seen.body.count(b"\n") + 1})

    with scripted(*[answer] * 6) as server, KINDS[kind](server.url) as client:
        assert client.import_items(items(), chunk_items=4, chunk_bytes=100).num_items == 10
    assert [seen.body.count(b"\n") + 1 for seen in server.seen] == [2, 2, 2, 1, 1, 2]
    assert reads == [3, 5, 7, 8, 9, 10]  # at most one item ahead
    with scripted(*[answer] * 3) as server, KINDS[kind](server.url) as client:
        assert client.import_items(items(), chunk_items=4).num_items == 10
    assert [seen.body.count(b"\n") + 1 for seen in server.seen] == [4, 4, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.put_items([{"item_id": 1, "price": object()}]),
        lambda client: client.import_items([{"item_id": 1}, {"item_id": {1: object()}}]),
        lambda client: client.import_items([], chunk_items=0),
        lambda client: client.get_item(""),
        lambda client: client.get_item("\ud800"),
        lambda client: client.find_items("\ud800"),
        lambda client: client.recommend(rules="cheap"),
        lambda client: client.recommend(["\ud800"]),
    ],
)
def test_what_cannot_be_sent_is_not_sent(kind, call):
    with scripted() as server, KINDS[kind](server.url) as client:
        with pytest.raises(ArgumentError):
            call(client)
        assert server.seen == []


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://a", "http://", "http://[", "http://a/?b=c", "http://a:x"])
def test_what_is_no_address_is_refused(kind, url):
    with pytest.raises(ArgumentError, match="expected one such as http"):
        KINDS[kind](url)


@pytest.mark.parametrize("key", ["", " ", "é", "a\nb"])
def test_what_is_no_key_is_refused_and_not_shown(kind, key):
    with pytest.raises(ArgumentError, match="leafbeam keys add"):
        KINDS[kind]("http://a", key=key)
