"""Faults of a device while an engine replays captured searches are named, and the engine goes on where it can."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from benchmarks.serving.torch_index import RunAgain, TorchIndex
from leafbeam.catalog import Catalog
from leafbeam.engine import Engine, Request
from leafbeam.engine.graphs.static_decode import StaticDecode
from leafbeam.serve import create_app
from tests.fixtures.captured import PATIENCE, graphs_with, same, settings
from tests.fixtures.live_catalog import opened
from tests.waiting import interrupted

LOST = "CUDA error: an illegal memory access was encountered"


class Failing(RunAgain):
    """Replays that raise an error, as often as it says."""

    def __init__(self, device: torch.device, errors: list[Exception]) -> None:
        super().__init__(device)
        self.errors = errors

    def capture(self, decode: StaticDecode) -> Callable[[], None]:
        replay = super().capture(decode)

        def run() -> None:
            if self.errors:
                raise self.errors.pop()
            replay()

        return run


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("out of memory"), RuntimeError("an error of cuBLAS")], ids=["memory", "other"]
)
def test_a_replay_that_fails_is_answered_eagerly_and_its_graph_is_not_used_again(
    shop: Any, catalog: Catalog, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = []
    request = Request(history=("é1",), rules=("cheap",), num_items=4)
    expected = Engine(shop.model, catalog, settings=settings()).recommend(request)
    with Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with(partial(Failing, errors=errors))) as captured:
        assert captured.graphs is not None
        before = captured.graphs.captured
        errors.append(error)
        for _ in range(2):
            same(captured.submit(request).result(PATIENCE), expected)
        assert captured.graphs.captured == before - 1
        assert captured.unhealthy_reason is None
    counted = captured.counts.of("graphs")
    assert (counted["failed"], counted["replayed"] > 0) == (1, True)
    assert "failed and is not used again" in caplog.text
    assert captured.counts.of("failed") == dict.fromkeys(captured.counts.of("failed"), 0)


def test_a_lost_device_is_named_and_the_server_stays_up(shop: Any, catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    def lost(requests: int) -> None:
        raise RuntimeError(f"{LOST}\nCUDA kernel errors might be asynchronously reported at some other API call")

    errors: list[Exception] = []
    engine = Engine(shop.model, catalog, settings=settings(), new_graphs=graphs_with(partial(Failing, errors=errors)))
    body = {"history": ["é1"], "num_items": 3}
    with TestClient(create_app(engine)) as client:
        errors += [RuntimeError(LOST)] * 99
        with interrupted(shop.model, lost):
            answers = [client.post("/v1/recommend", json=body) for _ in range(2)]
        for answer in answers:
            assert answer.status_code == 503
            assert answer.json()["error"]["reason"] == "device_lost"
            assert answer.json()["error"]["message"] == f"the device is lost: {LOST}; try another server"
        readiness = client.get("/readyz")
        assert readiness.status_code == 503
        assert readiness.json()["reason"] == f"the device is lost, restart the server: {LOST}"
        assert client.get("/healthz").status_code == 200
        page = client.get("/metrics").text
    assert 'leafbeam_failed_total{reason="device_lost"} 1.0' in page
    assert 'leafbeam_refused_total{reason="device_lost"} 1.0' in page
    assert 'leafbeam_batch_faults_total{kind="device_lost"} 1.0' in page
    assert caplog.text.count("the device is lost, and requests get 503 until the server is restarted") == 1


def test_a_copy_of_a_version_that_fails_leaves_the_batches_to_the_eager_path(
    shop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Torn(TorchIndex):
        def fits(self, arrays: Any) -> bool:
            return True

        def replace(self, arrays: Any) -> None:
            raise torch.OutOfMemoryError("in the middle of a copy")

    live = opened(shop)
    with Engine(shop.model, live, settings=settings(), new_graphs=graphs_with(index=Torn)) as captured:
        live.insert([[1, 2, 3]], ["new"], [{"price": 1.0, "stock": 1}])
        plain = Engine(shop.model, live, settings=settings())
        request = Request(history=("é1",), rules=("cheap",), num_items=4)
        for _ in range(3):
            same(captured.submit(request).result(PATIENCE), plain.recommend(request))
            assert captured.graphs is not None
            with captured.graphs._lock:
                assert captured.graphs._lock.wait_for(
                    lambda: captured.graphs._preparing is None or captured.graphs._prepared, PATIENCE
                )
        assert captured.graphs.captured == 0
    assert caplog.text.count("cannot be copied to the graphs: batches run eagerly") == 1
