"""Which decodes are captured within a budget, which batches they run, what happens when the index changes, and what is counted.

The capturer is a stand-in that replays by running: all but the capture itself is what a GPU's engine does.
"""

import inspect
import threading
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from benchmarks.serving.torch_index import TorchIndex
from leafbeam.decode.beam_search import result_of
from leafbeam.decode.results import collect_items
from leafbeam.engine import Counts, Engine, Request, Settings
from leafbeam.engine.batcher import Capacity
from leafbeam.engine.graphs.graph import CudaCapturer, Graphs, buckets_of, graphs_for
from leafbeam.engine.graphs.static_decode import Bucket, StaticDecode
from leafbeam.engine.search_widths import SearchKind
from leafbeam.errors import ArgumentError
from leafbeam.index import Segment, Version
from leafbeam.model import Vocabulary
from leafbeam.model.static_model import StaticModel
from leafbeam.ops.attention import reference
from leafbeam.ops.constrain import Scoring
from leafbeam.serve import create_app
from tests.fixtures.live_catalog import Twin, opened
from tests.fixtures.static_runs import SIZES, Asked, new_encoder_decoder, new_model, new_version, same, searched, shifted


class Plain:
    """Replays by running; every capture is written down."""

    def __init__(self, captured: list[Bucket], most: int = 1 << 30, error: Exception | None = None) -> None:
        self.captured, self.most, self.error = captured, most, error
        self.nbytes = 0

    def capture(self, decode: StaticDecode) -> Callable[[], None]:
        if decode.bucket.padded_tokens > self.most:
            assert self.error is not None
            raise self.error
        decode.run()
        self.nbytes = max(self.nbytes, decode.work_bytes)
        self.captured.append(decode.bucket)
        return decode.run

    def wait(self) -> None:
        pass


def updated(graphs: Graphs) -> bool:
    """Wait until no version is being prepared; False if that takes longer than a minute."""
    with graphs._lock:
        return graphs._lock.wait_for(lambda: graphs._preparing is None or graphs._prepared is not None, 60)


def on_cpu(captured: list[Bucket]) -> Callable[..., Graphs]:
    return partial(graphs_for, attention=reference.attention(), index=TorchIndex, capturer=lambda device: Plain(captured))


class Rack:
    """Graphs over a tiny model, and what they were asked to capture."""

    def __init__(
        self,
        version: Version,
        max_bytes: int = 1 << 30,
        index: Any = TorchIndex,
        most: int = 1 << 30,
        scorings: tuple[Scoring, ...] = ("full",),
        error: Exception | None = None,
    ) -> None:
        self.captured: list[Bucket] = []
        self.counts = Counts()
        self.model = new_model(7, Vocabulary(codebook_sizes=SIZES), num_hidden_layers=1)
        self.graphs = Graphs(
            StaticModel(self.model),
            version,
            [
                bucket
                for scoring in scorings
                for bucket in buckets_of(
                    Capacity(requests=3, tokens=64, beam_rows=64), longest=30, num_beams=6, scoring=scoring
                )
            ],
            bind=lambda version: index(version, "cpu"),
            capturer=lambda: Plain(self.captured, most, error),
            max_bytes=max_bytes,
            counts=self.counts,
        )

    def search(self, version: Version, asked: Asked, num_beams: int = 6, scoring: Any = "full") -> bool:
        """Whether a graph ran it; then it was right."""
        inputs = asked.inputs(version)
        found = self.graphs.search(inputs, num_beams=num_beams, scoring=scoring)
        if found is None:
            return False
        collect = partial(collect_items, version, inputs.requests)
        result = result_of(found[0], collect, found[1], num_beams, boosts=asked.boosts)
        same(result, searched(self.model, version, asked, num_beams, scoring))
        return True

    def asked(self, version: Version, batch: int = 2, longest: int = 20, seed: int = 0) -> Asked:
        return Asked.drawn(np.random.default_rng(seed), version, self.model.vocabulary, batch, longest, boosted=seed > 0)


@pytest.fixture
def version() -> Version:
    return new_version(np.random.default_rng(3), 80, 12)


def test_buckets_are_what_a_batch_may_hold() -> None:
    capacity = Capacity(requests=6, tokens=400, beam_rows=40)
    found = buckets_of(capacity, longest=200, num_beams=10, scoring="allowed")
    assert {(one.batch, one.length) for one in found} == {
        *((1, length) for length in (32, 64, 128, 200)),
        *((2, length) for length in (32, 64, 128, 200)),
        *((4, length) for length in (32, 64)),
    }
    assert all((one.num_beams, one.scoring) == (10, "allowed") for one in found)
    by_item = buckets_of(capacity, longest=200, num_beams=10, scoring="allowed", positions=lambda tokens: tokens // 4)
    assert {(one.batch, one.length) for one in by_item} == {
        (size, length) for size in (1, 2, 4) for length in (32, 64, 128, 200)
    }


def test_a_batch_takes_the_cheapest_graph_that_holds_it_and_others_run_eagerly(version) -> None:
    rack = Rack(version)
    assert [(one.batch, one.length) for one in rack.captured] == [(2, 30), (1, 30)]  # largest first; 3 x 30 > 64 tokens
    assert rack.graphs.captured == 2
    assert rack.search(version, rack.asked(version, 1))
    assert rack.search(version, rack.asked(version, 2))
    assert rack.counts.of("graphs") == {
        "replayed": 2,
        "no_bucket": 0,
        "no_room": 0,
        "version": 0,
        "failed": 0,
        "not_captured": 0,
    }
    assert not rack.search(version, rack.asked(version, 3))
    assert not rack.search(version, rack.asked(version), num_beams=7)
    assert not rack.search(version, rack.asked(version), scoring="allowed")
    assert rack.counts.of("graphs")["no_bucket"] == 3


def test_both_scorings_are_replayed_and_where_memory_is_short_the_usual_one(version) -> None:
    rack = Rack(version, scorings=("allowed", "full"))
    captured = [(one.scoring, one.batch) for one in rack.captured]
    assert captured == [("full", 2), ("full", 1), ("allowed", 2), ("allowed", 1)]
    for scoring in ("full", "allowed"):
        assert rack.search(version, rack.asked(version, 1), scoring=scoring)
    full = Rack(version)
    assert Rack(version, scorings=("allowed", "full"), max_bytes=full.graphs.nbytes).captured == full.captured


@pytest.mark.parametrize("num_experts", [0, 3])
def test_an_encoder_decoder_is_captured_too_and_one_of_experts(shop, num_experts: int) -> None:
    requests = [Request(history=("é1", "é2"), num_items=5, num_beams=12, scoring=scoring) for scoring in ("full", "allowed")]
    settings = Settings(graphs=True, num_beams=12, max_batch=1)
    model = new_encoder_decoder(2, shop.model.vocabulary, num_experts=num_experts)
    with Engine(model, shop.trie, settings=settings, new_graphs=on_cpu([])) as drawn:
        found = [drawn.submit(request).result(30) for request in requests]
        assert drawn.counts.of("graphs")["replayed"] == 2
    by_hand = Engine(model, shop.trie, settings=Settings(num_beams=20)).recommend(requests)
    for result, plain in zip(found, by_hand, strict=True):
        assert result.item_ids == plain.item_ids
        np.testing.assert_allclose(result.scores, plain.scores, atol=5e-5)


def test_more_denied_items_than_there_is_room_for_run_eagerly() -> None:
    version = new_version(np.random.default_rng(3), 2000)
    rack = Rack(version)
    asked = rack.asked(version, 1)
    asked.deny[0], asked.filters[0] = np.arange(2000), None
    assert not rack.search(version, asked)
    assert rack.counts.of("graphs")["no_room"] == 1


def test_the_budget_is_kept_and_what_does_not_fit_is_not_captured(version) -> None:
    whole = Rack(version)
    assert whole.graphs.nbytes > 0
    exactly = Rack(version, max_bytes=whole.graphs.nbytes)
    assert exactly.captured == whole.captured
    less = Rack(version, max_bytes=whole.graphs.nbytes - 1)
    assert less.captured == whole.captured[1:] or less.captured == whole.captured[:1]
    assert less.graphs.nbytes < whole.graphs.nbytes
    nothing = Rack(version, max_bytes=1000)
    assert (nothing.captured, nothing.graphs.captured, nothing.graphs.nbytes) == ([], 0, 0)
    assert not nothing.search(version, nothing.asked(version))
    assert nothing.counts.of("graphs")["no_bucket"] == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: operation failed due to a previous error during capture"),  # from the end of a capture
    ],
)
def test_what_there_is_no_memory_for_is_left_out(version, caplog, error: Exception) -> None:
    rack = Rack(version, most=30, error=error)
    assert [(one.batch, one.length) for one in rack.captured] == [(1, 30)]
    assert f"Bucket(batch=2, length=30, num_beams=6, scoring='full') cannot be captured: {error}" in caplog.text
    assert rack.search(version, rack.asked(version, 1))
    with pytest.raises(RuntimeError, match=f"cannot be captured: {error}"):
        Rack(version, most=1, error=error)


def test_a_version_of_equal_sizes_is_brought_in_without_a_capture(version) -> None:
    rack = Rack(version)
    before = len(rack.captured)
    new = shifted(version)
    assert rack.search(version, rack.asked(version))
    assert not rack.search(new, rack.asked(new))  # it is prepared beside the batches
    assert updated(rack.graphs)
    assert rack.search(new, rack.asked(new))
    assert rack.search(new, rack.asked(new, seed=1))
    assert not rack.search(version, rack.asked(version))  # a request that still holds the old one
    assert updated(rack.graphs)
    assert rack.search(new, rack.asked(new, seed=2))
    assert len(rack.captured) == before
    assert rack.counts.of("graphs") == {
        "replayed": 4,
        "no_bucket": 0,
        "no_room": 0,
        "version": 2,
        "failed": 0,
        "not_captured": 0,
    }


def test_deletions_are_the_filters_to_say(version) -> None:
    rack = Rack(version)
    base, delta = version.segments
    left = Segment(trie=base.trie, live=base.trie.filter(np.arange(base.trie.num_items) % 3 > 0))
    new = Version(segments=(left, delta), number=version.number + 1)
    assert rack.search(new, rack.asked(new))
    assert rack.search(version, rack.asked(version))
    assert rack.counts.of("graphs")["version"] == 0


def test_a_version_of_other_sizes_is_captured_again(version) -> None:
    rack = Rack(version)
    before = list(rack.captured)
    larger = Version(segments=new_version(np.random.default_rng(4), 3000).segments, number=99)
    assert not rack.search(larger, rack.asked(larger))
    assert updated(rack.graphs)
    assert rack.captured == 2 * before
    assert rack.search(larger, rack.asked(larger))
    assert rack.counts.of("graphs") == {
        "replayed": 1,
        "no_bucket": 0,
        "no_room": 0,
        "version": 1,
        "failed": 0,
        "not_captured": 0,
    }


def test_while_a_batch_runs_its_version_stays(version) -> None:
    rack = Rack(version)
    new = shifted(version)
    entered, go_on = threading.Event(), threading.Event()
    decode, run = rack.graphs._captured.decodes[-1]

    def slow() -> None:
        entered.set()
        assert go_on.wait(20)
        run()

    rack.graphs._captured.decodes[-1] = (decode, slow)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(rack.search(version, rack.asked(version))))
    thread.start()
    assert entered.wait(20)
    assert not rack.search(new, rack.asked(new))
    assert updated(rack.graphs)
    assert not rack.search(new, rack.asked(new))  # it is ready, and waits for the batch
    go_on.set()
    thread.join(20)
    assert answers == [True]
    assert rack.search(new, rack.asked(new))


def test_a_version_that_cannot_be_prepared_is_run_eagerly(version, caplog) -> None:
    class Broken(TorchIndex):
        def prepare(self, version: Version) -> Any:
            raise MemoryError("no room")

    rack = Rack(version, index=Broken)
    new = shifted(version)
    assert not rack.search(new, rack.asked(new))
    assert updated(rack.graphs)
    assert not rack.search(new, rack.asked(new))  # once is enough
    assert caplog.text.count("batches run eagerly") == 1
    assert rack.search(version, rack.asked(version))


def test_after_a_capture_that_failed_the_next_version_is_tried(version, caplog) -> None:
    class Fickle(TorchIndex):
        made = 0

        def __init__(self, version: Version, device: str, **options: int) -> None:
            Fickle.made += 1
            if Fickle.made == 2:
                raise RuntimeError("a fault of the device")
            super().__init__(version, device)

    rack = Rack(version, index=Fickle)
    larger = Version(segments=new_version(np.random.default_rng(4), 3000).segments, number=99)
    for _ in range(2):
        assert not rack.search(larger, rack.asked(larger))
        assert updated(rack.graphs)
    assert caplog.text.count("cannot be updated to version 99") == 1
    assert rack.graphs.captured == 0
    after = Version(segments=larger.segments, number=100)
    assert not rack.search(after, rack.asked(after))
    assert updated(rack.graphs)
    assert rack.search(after, rack.asked(after))
    assert rack.search(larger, rack.asked(larger))  # of the same tries


@pytest.mark.parametrize("beams", [3, 64])
def test_a_graph_is_the_first_pass_of_a_proof(shop, catalog, monkeypatch: pytest.MonkeyPatch, beams: int) -> None:
    monkeypatch.setattr(Settings, "captured_widths", (beams,))
    monkeypatch.setattr(SearchKind, "guess", 2)
    requests = [
        Request(history=tuple(f"é{i}" for i in range(count)), rules=rules, num_items=2)
        for count in (0, 3, 9)
        for rules in ((), ("cheap",))
    ]
    drawn = Engine(shop.model, catalog, settings=Settings(graphs=True, max_batch=2), new_graphs=on_cpu([]))
    with drawn:
        found = [drawn.submit(request).result(30) for request in requests]
    assert drawn.counts.of("graphs")["replayed"] >= 6
    for result, plain in zip(found, Engine(shop.model, catalog).recommend(requests), strict=True):
        assert result.exact
        assert result.item_ids == plain.item_ids
        np.testing.assert_allclose(result.scores, plain.scores, atol=5e-5)
    if beams == 3:  # some of them needed a second pass
        assert max(result.rows for result in found) > 1 + 2 * beams


def test_an_engine_with_graphs_answers_as_without_and_counts(shop, catalog) -> None:
    captured: list[Bucket] = []
    settings = Settings(graphs=True, num_beams=12, max_batch=2, workers=2)
    drawn = Engine(shop.model, catalog, settings=settings, new_graphs=on_cpu(captured))
    requests = [
        Request(history=tuple(f"é{i}" for i in range(count)), rules=rules, deny_item_ids=("é7",), num_items=6, num_beams=12)
        for count in (0, 3, 9)
        for rules in ((), ("cheap",), ("none",))
    ]
    with TestClient(create_app(drawn)) as client:
        found = [one.result(30) for one in [drawn.submit(request) for request in requests]]
        assert drawn.submit(Request(num_items=3, num_beams=12, scoring="allowed")).result(30).item_ids
        drawn.submit(Request(num_items=3, num_beams=9)).result(30)
        page = client.get("/metrics").text
    by_hand = Engine(shop.model, catalog, settings=Settings(num_beams=20)).recommend(requests)
    for result, plain in zip(found, by_hand, strict=True):
        assert result.item_ids == plain.item_ids
        np.testing.assert_allclose(result.scores, plain.scores, atol=5e-5)
    counted = drawn.counts.of("graphs")
    assert counted["replayed"] >= 6
    assert counted["no_bucket"] == 1
    assert f'leafbeam_graphs_total{{how="replayed"}} {counted["replayed"]}.0' in page
    assert f"leafbeam_graphs_captured {len(captured)}.0" in page
    assert len(captured) == 4 * 2  # 1 and 2 requests of up to 32 and 37 tokens, in both scorings; for all workers


def test_graphs_are_for_a_gpu(shop) -> None:
    with pytest.raises(
        ArgumentError, match="a Transformer or an EncoderDecoder on a CUDA device, and this is a Transformer on cpu"
    ):
        Engine(shop.model, shop.trie, settings=Settings(graphs=True))


def test_torch_is_asked_for_a_graph_in_the_right_order(version, monkeypatch) -> None:
    """torch.cuda's functions replaced by ones that note who called them, with the arguments that the real ones take."""
    told: list[str] = []
    real = inspect.signature(torch.cuda.graph.__init__)

    @contextmanager
    def graph(*arguments: Any, **named: Any) -> Any:
        bound = real.bind(None, *arguments, **named)
        told.append(f"begin {bound.arguments['pool']} {bound.arguments['stream']} {bound.arguments['capture_error_mode']}")
        yield
        told.append("end")

    free = iter([160, 100])
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "own")
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: told.append("wait"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 1000))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: told.append("replay")))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    capturer = CudaCapturer(torch.device("cuda"))
    decode: Any = SimpleNamespace(run=lambda: told.append("run"))
    replay = capturer.capture(decode)
    assert told == ["wait", "run", "wait", "begin pool own thread_local", "run", "end"]
    assert capturer.nbytes == 60
    replay()
    assert told[-1] == "replay"


def test_over_a_catalog_that_changes_answers_are_those_without_graphs(shop) -> None:
    rng = np.random.default_rng(1)
    live = opened(shop)
    twin = Twin(shop, live, rng)
    changes = [twin.delete, twin.insert, twin.update, twin.insert, twin.replace, lambda: live.compact(wait=True), twin.insert]
    settings = Settings(graphs=True, num_beams=15, max_batch=2)
    captured: list[Bucket] = []
    with Engine(shop.model, live, settings=settings, new_graphs=on_cpu(captured)) as drawn:
        plain = Engine(shop.model, live, settings=Settings(num_beams=20))
        for change in changes * 2:
            change()
            request = Request(history=tuple(twin.some()), filter="cheap | in_stock", num_items=8, num_beams=15)
            for _ in range(2):  # by hand while the version is brought in, then replayed
                result, same = drawn.submit(request).result(30), plain.recommend([request])[0]
                assert result.item_ids == same.item_ids
                np.testing.assert_allclose(result.scores, same.scores, atol=5e-5)
                assert (result.index_version, result.rules_generation) == (same.index_version, same.rules_generation)
                assert drawn.graphs is not None
                assert updated(drawn.graphs)
    counted = drawn.counts.of("graphs")
    assert counted["replayed"] >= 14
    assert 0 < counted["version"] <= 14
