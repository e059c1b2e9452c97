"""Load: arrivals, lengths and summaries, a client against a real server socket, and traffic in simulated time."""

import asyncio
import json

import numpy as np
import pytest

from benchmarks.serving import load
from benchmarks.serving.load import Answered, Planned
from benchmarks.serving.load_client import send_all
from benchmarks.serving.traffic_simulation import Clients, simulate
from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.settings import Settings


def test_poisson_arrivals_have_their_rate_and_independent_gaps():
    rng = np.random.default_rng(0)
    times = load.arrivals(rng, load.steady(200), 50)
    assert abs(len(times) - 10_000) < 4 * 100
    gaps = np.diff(times)
    assert abs(gaps.std() / gaps.mean() - 1) < 0.05
    assert (gaps > 0).all()
    assert times[-1] < 50
    assert len(load.arrivals(rng, load.steady(0), 5)) == 0


def answered(status: int, seconds: float, **body: object) -> Answered:
    return Answered(at=0, late=0, status=status, seconds=seconds, body=dict(body))


def test_a_summary_counts_goodput_refusals_and_errors_apart():
    stages = {"queue": 1.0, "total": 3.0}
    answers = [answered(200, 0.01 * i, batch_size=2, timings_ms=stages) for i in range(1, 11)]
    answers += [
        answered(429, 0.001, error={"retry_after_ms": 5}),
        answered(503, 0.001, error={}),
        answered(0, 60),
        answered(500, 1),
    ]
    found = load.summary(answers, seconds=2, slo_s=0.05)
    assert (found["sent"], found["refused"], found["refused_with_a_time"], found["errors"]) == (14, 2, 1, 2)
    assert found["goodput_per_s"] == 2.5
    assert found["answered_per_s"] == 5
    assert found["latency_ms"]["p50"] == 55
    assert found["stages_ms"]["total"] == {"p50": 3, "p99": 3}
    assert found["statuses"] == {"0": 1, "200": 10, "429": 1, "500": 1, "503": 1}


def test_the_client_is_open_loop_and_reports_what_broke():
    open_at_once = 0

    async def scenario() -> list[Answered]:
        under_way = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal under_way, open_at_once
            while head := await reader.read(65536):
                body = json.loads(head.split(b"\r\n\r\n", 1)[1])
                if body["num"] == 3:
                    break
                under_way += 1
                open_at_once = max(open_at_once, under_way)
                await asyncio.sleep(0.2 if body["num"] < 3 else 0)
                under_way -= 1
                text = json.dumps({"item_ids": [body["num"]], "batch_size": 1}).encode()
                status = b"200 OK" if body["num"] != 4 else b"429 Too Many Requests"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: " + str(len(text)).encode() + b"\r\n\r\n" + text)
                if body["num"] == 5:  # closes an idle connection, which the client must not use again
                    break
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            plan = [Planned(at=0.01 * num if num < 5 else 0.1 * num, body={"num": num}) for num in range(7)]
            answers = await send_all([f"http://127.0.0.1:{port}"], plan)
            await asyncio.sleep(0.05)  # for the server to see that the client is gone
            return answers

    answers = asyncio.run(scenario())
    assert open_at_once >= 3
    by_item = {one.body.get("item_ids", ["broken"])[0]: one for one in answers}
    assert set(by_item) == {0, 1, 2, "broken", 4, 5, 6}
    assert by_item["broken"].status == 0
    assert by_item["broken"].body["error"]["type"] == "IncompleteReadError"
    assert by_item[4].status == 429
    assert by_item[0].seconds >= 0.2
    assert by_item[5].seconds < by_item[0].seconds


def test_a_request_goes_to_the_path_of_its_servers_url():
    lines: list[str] = []

    async def scenario() -> list[Answered]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            lines.append((await reader.readline()).decode())
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            plan = [Planned(at=0.0, body={}), Planned(at=0.0, body={})]
            return await send_all([url, f"{url}/v1/completions"], plan)

    answers = asyncio.run(scenario())
    assert sorted(lines) == ["POST /v1/completions HTTP/1.1\r\n", "POST /v1/recommend HTTP/1.1\r\n"]
    found = load.summary(answers, seconds=1.0, slo_s=10.0)
    assert found["goodput_per_s"] == 2
    assert "batch_size_mean" not in found


def batch_seconds(size: BatchSize) -> float:
    return 0.001 + 1e-5 * size.padded_tokens + 1e-5 * size.beam_rows


def outcome_of(rate: float, *, seed: int = 0, **clients):
    windows = iter([(1.0, rate / 2, False), (4.0, rate, True)])
    return simulate(windows, Settings(slo_s=0.2), batch_seconds, clients=Clients(**clients), seed=seed)


@pytest.mark.parametrize("rate", [20.0, 150.0, 900.0])
def test_every_request_ends_once(rate):
    one = outcome_of(rate, impatient=0.1)
    ended = one.in_time.total() + one.late + one.left.total() + one.gave_up
    assert one.offered.total() == ended > 0
    assert len(one.latencies) == one.in_time.total() + one.late
    assert (one.left.total() > 0) == (rate > 100)  # a quiet server answers before anybody leaves


def test_a_quiet_server_answers_all_and_a_flooded_one_keeps_its_goodput():
    quiet, flooded = outcome_of(40.0, impatient=0.0), outcome_of(900.0, impatient=0.0)
    assert quiet.in_time == quiet.offered
    assert quiet.latency(0.99) < 0.2
    assert not quiet.refused
    assert flooded.gave_up > 0
    assert flooded.goodput > 1.5 * quiet.goodput
    # Nothing is worked on that is late: who is accepted is answered in time, but for noise.
    assert flooded.late < 0.05 * flooded.in_time.total()


def test_the_seed_decides_everything():
    assert vars(outcome_of(300.0)) == vars(outcome_of(300.0))
    assert vars(outcome_of(300.0)) != vars(outcome_of(300.0, seed=1))
