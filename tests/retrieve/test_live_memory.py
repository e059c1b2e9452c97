"""Interactions that are counted one by one equal those that are fitted, and survive a killed process."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leafbeam.errors import ConflictError, ItemIdError, LogError
from leafbeam.live import RequestKey, disk
from leafbeam.retrieve import ItemMemory, LiveMemory, set_log_aside

NAMES = [f"item-{n}" for n in range(12)]
TEXTS = [f"word{n} word{n % 5} lamp" for n in range(12)]


def random_histories(count: int) -> list[list[int]]:
    rng = np.random.default_rng(count)
    return [rng.integers(0, 12, rng.integers(1, 7)).tolist() for _ in range(count)]


def fitted(histories: list[list[int]]) -> ItemMemory:
    return ItemMemory.fit(NAMES, np.cumsum([0, *map(len, histories)]), np.concatenate(histories), texts=TEXTS)


def events(histories: list[list[int]]) -> list[tuple[list[str], str]]:
    named = [[NAMES[row] for row in history] for history in histories]
    return [(history[:at], history[at]) for history in named for at in range(1, len(history))]


def assert_equal(memory: ItemMemory, other: ItemMemory) -> None:
    for name in NAMES:
        result, expected = (one.search([name], num_items=12) for one in (memory, other))
        scores, expected_scores = (dict(zip(one.item_ids, one.scores, strict=True)) for one in (result, expected))
        assert scores == pytest.approx(expected_scores, abs=0.02)  # transitions are stored in 255 steps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fitted(random_histories(20)).save(tmp_path / "memory")
    return tmp_path / "memory"


def test_counting_one_by_one_equals_fitting(path: Path):
    first, later = random_histories(20), random_histories(30)
    memory = ItemMemory.load(path)
    for history, item in events(later):
        memory.observe(history, item)
    assert_equal(memory, fitted(first + later))
    memory.save(path)
    assert_equal(ItemMemory.load(path), fitted(first + later))


def test_unknown_ids_of_an_event_are_left_out(path: Path):
    memory = ItemMemory.load(path)
    assert memory.observe(["unknown", "item-1"], "item-2") == 1
    assert memory.observe(["item-1"], "unknown") == 0
    assert memory.observe([], "item-2") == 0


def test_interactions_and_items_are_there_again_after_a_restart_and_a_compaction(path: Path):
    expected = fitted(random_histories(20) + random_histories(30))
    with LiveMemory.open(path) as live:
        assert live.observe(events(random_histories(30))) > 0
        live.insert(["new"], ["word7 lamp"])
    for _ in range(2):
        with LiveMemory.open(path) as live:
            assert "new" in live.memory.search(["item-7"], num_items=13).item_ids
            live.compact()
    assert path.with_name("memory.log").stat().st_size < 100
    loaded = ItemMemory.load(path)
    assert loaded.num_items == 13
    for name in NAMES:
        scores = dict(zip(*(lambda r: (r.item_ids, r.scores))(loaded.search([name], num_items=13)), strict=True))
        scores.pop("new", None)
        result = expected.search([name], num_items=12)
        assert scores == pytest.approx(dict(zip(result.item_ids, result.scores, strict=True)), abs=0.03)


def test_one_process_at_a_time_and_no_log_of_another_memory(path: Path):
    with LiveMemory.open(path) as live, pytest.raises(LogError):
        LiveMemory.open(path)
    live.close()
    fitted(random_histories(21)).save(path)  # fitted again
    with pytest.raises(LogError, match="belongs to item memory"):
        LiveMemory.open(path)
    path.with_name("memory.log").unlink()
    LiveMemory.open(path).close()


def test_the_log_of_a_memory_that_was_fitted_again_is_set_aside(path: Path):
    assert set_log_aside(path) is None
    contents: list[bytes] = []
    for seed in (21, 22):
        with LiveMemory.open(path) as live:
            live.observe(events(random_histories(30)))
        contents.append(path.with_name("memory.log").read_bytes())
        fitted(random_histories(seed)).save(path)
        assert set_log_aside(path) == path.with_name(f"memory.log.{len(contents)}")
        with LiveMemory.open(path) as live:
            assert_equal(live.memory, fitted(random_histories(seed)))
    assert [path.with_name(f"memory.log.{number}").read_bytes() for number in (1, 2)] == contents
    fitted(random_histories(23)).save(path)
    assert set_log_aside(path) is None  # a log without a record is removed
    LiveMemory.open(path).close()


def test_a_compaction_that_ended_before_the_new_log_counts_nothing_twice(path: Path):
    log = path.with_name("memory.log")
    with LiveMemory.open(path) as live:
        live.observe(events(random_histories(30)))
        before = log.read_bytes()
        live.compact()
    log.write_bytes(before)
    with LiveMemory.open(path) as live:
        assert_equal(live.memory, ItemMemory.load(path))


def test_counted_interactions_survive_a_kill(path: Path):
    program = (
        "import sys; from leafbeam.retrieve import LiveMemory\n"
        "live = LiveMemory.open(sys.argv[1], sync=False)\n"
        "while True:\n"
        "    live.observe([(['item-1'], 'item-9')]); print('counted', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(25)]
    os.kill(process.pid, signal.SIGKILL)
    counted = len(lines) + len(process.stdout.read().split(b"\n")) - 1
    process.wait()
    process.stdout.close()
    before, after = ItemMemory.load(path), LiveMemory.open(path)
    assert after.memory.counts("item-1")["item-9"] - before.counts("item-1").get("item-9", 0) >= counted - 0.1
    after.close()


def test_a_record_that_is_no_event_is_refused(path: Path):
    with LiveMemory.open(path) as live:
        live._log.append(b"[3")
    with pytest.raises(LogError, match="record 1"):
        LiveMemory.open(path)


def test_events_that_count_nothing_are_not_written(path: Path):
    log = path.with_name("memory.log")
    with LiveMemory.open(path) as live:
        before = log.stat().st_size
        long = "x" * 900_000
        nothing = [([long, "unknown"], "item-1"), (["item-1"], long), ([], "item-1"), (["a\0", "\ud800"], "item-1")]
        assert live.observe(nothing) == 0
        assert log.stat().st_size == before
        assert live.observe([(["item-1", long, "item-2"], "item-3")]) == 2
        assert log.stat().st_size < before + 200
        counts = live.memory.counts("item-3")
    with LiveMemory.open(path) as live:
        assert live.memory.counts("item-3") == counts


@pytest.mark.parametrize("event", [(["item-1", 1], "item-2"), (["item-1"], 1), ([1], "item-1")])
def test_an_event_with_ids_of_two_kinds_is_refused(path: Path, event: tuple[list[str | int], str | int]):
    with LiveMemory.open(path) as live, pytest.raises(ItemIdError, match="ids are strings, not integers"):
        live.observe([event])


def test_a_long_log_is_compacted_and_a_full_disk_postpones_that(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leafbeam.retrieve.live_memory.COMPACT_BYTES", 2000)
    log, histories = path.with_name("memory.log"), random_histories(30)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with LiveMemory.open(path) as live:
        with monkeypatch.context() as patch:
            patch.setattr(ItemMemory, "save", full)
            for event in events(histories)[:60]:
                assert live.observe([event]) > 0
        assert log.stat().st_size > 2000
        for event in events(histories)[60:] * 2:
            live.observe([event])
            assert log.stat().st_size < 2 * 60 * 60
        live.observe(events(histories) * 10)
        assert log.stat().st_size < 100
        counted = live.memory
    assert_equal(ItemMemory.load(path), counted)


@pytest.mark.parametrize("operation", ["create", "write"])
def test_a_disk_without_room_for_the_new_log_ends_no_counting(path: Path, monkeypatch: pytest.MonkeyPatch, operation: str):
    monkeypatch.setattr("leafbeam.retrieve.live_memory.COMPACT_BYTES", 2000)
    request, every = RequestKey(key="k", digest="d"), events(random_histories(30))
    create, failures = disk.create, list[Path]()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def crowded(part: Path) -> int:
        failures.append(part)
        patch.setattr(disk, operation, full)
        return full() if operation == "create" else create(part)  # type: ignore[return-value]

    with LiveMemory.open(path) as live:
        before = path.read_bytes()
        pairs = live.observe(every[:1], request)
        for event in every:
            with monkeypatch.context() as patch:
                if live._log.end > live._compact_at - 100:
                    patch.setattr(disk, "create", crowded)
                assert live.observe([event]) > 0
        with monkeypatch.context() as patch, pytest.raises((OSError, LogError), match="No space left"):  # noqa: PT012
            patch.setattr(disk, "create", crowded)
            live.compact()
        assert len(failures) > 1
        assert path.read_bytes() == before
        assert live.observe(every) > 0
        counted = live.memory
    with LiveMemory.open(path) as live:
        assert_equal(live.memory, counted)
        assert live.observe(every[:1], request) == pairs
        live.compact()
        assert path.with_name("memory.log").stat().st_size < 200
    assert sorted(found.name for found in path.parent.iterdir()) == ["memory", "memory.log"]


def test_new_texts_make_a_log_no_longer_than_interactions_do(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leafbeam.retrieve.live_memory.COMPACT_BYTES", 2000)
    with LiveMemory.open(path) as live:
        for number in range(200):
            live.insert(["item-1", "new"], [f"word{number} lamp"] * 2)
            assert path.with_name("memory.log").stat().st_size < 2 * max(2000, live.memory.nbytes)
        counted = live.memory
    with LiveMemory.open(path) as live:
        assert live.memory.item_ids.tolist() == counted.item_ids.tolist()


def test_a_repeated_request_that_counted_nothing_counts_nothing_once_its_items_are_known(path: Path):
    request, event = RequestKey(key="k", digest="d"), (["item-0"], "new")
    with LiveMemory.open(path) as live:
        assert live.observe([event], request) == 0
        live.insert(["new"], ["word1 lamp"])
        assert live.observe([event], request) == 0
        with pytest.raises(ConflictError):
            live.observe([event], RequestKey(key="k", digest="other"))
    with LiveMemory.open(path) as live:
        assert live.observe([event], request) == 0
        assert live.observe([event]) == 1


def test_a_second_writer_in_the_place_of_a_removed_log_ends_the_first(path: Path):
    with LiveMemory.open(path) as first:
        path.with_name("memory.log").unlink()
        with LiveMemory.open(path) as second:
            with pytest.raises(LogError, match="removed, replaced or changed"):
                first.observe([(["item-1"], "item-2")])
            with pytest.raises(LogError, match="removed, replaced or changed"):
                first.compact()
            assert second.observe([(["item-1"], "item-2")]) == 1


def test_a_request_that_is_repeated_counts_once_also_after_compaction_and_restart(path: Path):
    request, event = RequestKey(key="k", digest="d"), (["item-0", "item-1"], "item-2")
    with LiveMemory.open(path) as live:
        assert live.observe([event], request) == 2
        before = live.memory.counts("item-0")
        assert live.observe([event], request) == 2
        with pytest.raises(ConflictError):
            live.observe([event], RequestKey(key="k", digest="other"))
        assert live.memory.counts("item-0") == before
    for _ in range(2):
        with LiveMemory.open(path) as live:
            assert live.observe([event], request) == 2
            assert live.memory.counts("item-0") == pytest.approx(before, rel=0.02)
            live.compact()
    assert set_log_aside(path) is None  # a log of known requests alone
