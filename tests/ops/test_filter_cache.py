"""Filters on a device: sent once, changed and combined there, dropped by bytes; always the bits that the host has."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam import Trie
from leafbeam.engine.graphs.static_decode import Bucket, DeviceIndex, StaticDecode
from leafbeam.index import Bitmap, Filter, ItemColumn, Segment, Version
from leafbeam.index.filters import ItemSet
from leafbeam.model import Vocabulary
from leafbeam.model.static_model import StaticModel
from leafbeam.ops.backend import LatestBindings
from leafbeam.ops.constrain import request_filters
from leafbeam.ops.constrain.filter_cache import FilterCache
from leafbeam.ops.constrain.fixed_shape import stacks
from leafbeam.ops.constrain.fixed_shape.filter_layout import filter_words
from leafbeam.ops.constrain.triton import step as triton
from leafbeam.ops.constrain.triton.filters import BitmapMemory, to_device
from leafbeam.ops.packed_inputs import PackedInputs
from tests.fixtures.static_runs import Asked, new_model

SIZES = (6, 40, 5)


class CountingCopy:
    """In the place of the copy to a GPU: counts the bytes."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def __call__(self, array: np.ndarray, device: torch.device) -> torch.Tensor:
        self.sent.append(array.nbytes)
        return to_device(array.copy(), device)

    def since(self, before: int) -> int:
        return sum(self.sent[before:])


class Device:
    """The bitmaps of one segment of so many leaves, and what was copied there."""

    def __init__(self, size: int, max_bytes: int = 1 << 20) -> None:
        self.copy = CountingCopy()
        self.memory = BitmapMemory(size, torch.device("cpu"), self.copy)
        self.cache = FilterCache(self.memory, max_bytes=max_bytes)

    def bind(self, *bitmaps: Bitmap | None) -> int:
        """Bring bitmaps to the device, check their bits, and return the bytes that were sent."""
        before = len(self.copy.sent)
        with self.cache.rows_of(bitmaps) as rows:
            for row, bitmap in zip(rows.tolist(), bitmaps, strict=True):
                tensors = self.memory[row]
                if bitmap is None:
                    assert (row, tensors) == (0, None)
                    continue
                assert tensors is not None
                assert np.array_equal(tensors.words.numpy().view(np.uint64), bitmap.words_W)
                assert np.array_equal(tensors.before.numpy().view(np.uint32), bitmap.before_W)
        return self.copy.since(before)


def random_bitmap(rng: np.random.Generator, size: int = 5000) -> Bitmap:
    return Bitmap.from_mask(rng.random(size) < rng.random())


def test_a_bitmap_is_sent_once() -> None:
    rng, device = np.random.default_rng(0), Device(5000)
    first, second = random_bitmap(rng), random_bitmap(rng)
    assert device.bind(first, None, second, first) == first.words_W.nbytes + second.words_W.nbytes
    assert device.bind(second, None, first) == 0
    assert len(device.cache) == 2
    assert device.cache.nbytes == 2 * device.memory.row_nbytes == first.nbytes + second.nbytes


@pytest.mark.parametrize("shape", ["a & b", "a | b", "a - b", "~a", "(a & b) - (a | c)", "a & b & c & d"])
def test_expressions_of_bitmaps_on_the_device_are_evaluated_there(shape: str) -> None:
    rng, device = np.random.default_rng(1), Device(5000)
    names: dict[str, Any] = {name: random_bitmap(rng) for name in "abcd"}
    device.bind(*names.values(), Bitmap.full(5000))
    assert device.bind(eval(shape, {}, names)) == 0
    assert device.bind(eval(shape, {}, names)) == 0  # made again on the host: known as the same
    alone = Device(5000)
    assert alone.bind(eval(shape, {}, names)) == names["a"].words_W.nbytes


def test_a_change_sends_the_words_that_changed() -> None:
    rng, device = np.random.default_rng(2), Device(5000)
    rule, live = random_bitmap(rng), Bitmap.full(5000)
    device.bind(rule & live)
    for number in range(5):
        live = live.without(rng.integers(0, 5000, 2))
        if number != 2:  # one version no request has seen: the next one sends its words too
            assert 0 < device.bind(rule & live) <= 16 * 2 * (2 if number == 3 else 1)
    assert device.bind(rule & live) == 0


def test_many_changed_words_are_sent_as_a_whole() -> None:
    rng, device = np.random.default_rng(3), Device(5000)
    live = Bitmap.full(5000)
    device.bind(live)
    live = live.without(np.arange(0, 5000, 64))
    assert device.bind(live) == live.words_W.nbytes
    for _ in range(40):  # more versions than are remembered
        live = live.without(rng.integers(0, 5000, 1))
    assert device.bind(live) == live.words_W.nbytes


def test_bitmaps_used_longest_ago_are_dropped_by_bytes_and_what_was_bound_stays_right() -> None:
    rng = np.random.default_rng(4)
    bitmaps = [random_bitmap(rng) for _ in range(6)]
    device = Device(5000, max_bytes=3 * bitmaps[0].nbytes)
    with device.cache.rows_of(bitmaps[:1]) as rows:
        held = device.memory[int(rows[0])]
    for bitmap in bitmaps[:3]:
        device.bind(bitmap)
    device.bind(bitmaps[0])
    device.bind(bitmaps[3])  # in the place of bitmaps[1]
    assert device.bind(bitmaps[0], bitmaps[2], bitmaps[3]) == 0
    assert len(device.cache) == 3
    assert device.bind(bitmaps[1]) > 0
    device.bind(*bitmaps)  # a batch that needs more gets it
    assert len(device.cache) == 6
    device.bind(*(random_bitmap(rng) for _ in range(6)))
    assert held is not None
    assert np.array_equal(held.words.numpy().view(np.uint64), bitmaps[0].words_W)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_done_to_bitmaps_the_device_has_their_bits(seed: int) -> None:
    rng = np.random.default_rng([seed, 7])
    size = int(rng.choice([1, 64, 700, 5000]))
    device = Device(size, max_bytes=int(rng.integers(1, 9)) * 12 * (size // 64 + 1))
    pool = [Bitmap.full(size), random_bitmap(rng, size)]
    for _ in range(150):
        left, right = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        made = (
            left & right,
            left | right,
            left - right,
            ~left,
            left.without(rng.integers(0, size, 1)),
            random_bitmap(rng, size),
        )[int(rng.integers(6))]
        pool = [*pool[-7:], made]
        chosen: list[Bitmap | None] = [pool[int(rng.integers(len(pool)))] for _ in range(int(rng.integers(1, 5)))]
        device.bind(*chosen, None)


def test_changes_of_items_that_share_leaves_send_words_of_leaves() -> None:
    rng = np.random.default_rng(5)
    trie = Trie.build(rng.integers(0, 9, (4000, 3)), (9, 9, 9))
    assert trie.items.leaf_indptr is not None
    device = Device(trie.num_leaves)
    rule, live = trie.filter(rng.random(4000) < 0.2), trie.all_items
    item_filter = rule & live
    device.bind(item_filter.parts[0].leaves)
    for _ in range(3):
        live = trie.filter_of(live.ordinals.without(rng.choice(4000, 2)))
        item_filter = rule & live
        assert 0 <= device.bind(item_filter.parts[0].leaves) <= 2 * 2 * 16
    less = ItemSet.without(item_filter.parts[0], np.flatnonzero(item_filter.ordinals.has(np.arange(4000)))[:1])
    assert device.bind(less.leaves) <= 16


def versions(rng: np.random.Generator) -> tuple[Version, Version]:
    """A version with a delta, and one in which more items of the base are deleted."""
    table = np.stack([rng.integers(0, size, 600) for size in SIZES], axis=1)
    base, delta = Trie.build(table[:500], SIZES, np.arange(500)), Trie.build(table[500:], SIZES, np.arange(500, 600))
    live = base.filter(rng.random(500) < 0.9)
    fewer = base.filter_of(live.ordinals.without(np.flatnonzero(live.ordinals.has(np.arange(500)))[:1]))
    first, second = (
        Version(segments=(Segment(trie=base, live=of), Segment(trie=delta)), number=n) for n, of in ((1, live), (2, fewer))
    )
    return first, second


def test_requests_after_the_first_send_no_bitmaps_to_a_gpu() -> None:
    rng, copy = np.random.default_rng(6), CountingCopy()
    first, second = versions(rng)
    arrays = triton.bind(first, "cpu", copy=copy)
    rule = [segment.trie.filter(rng.random(segment.trie.num_items) < 0.3) for segment in first.segments]

    def sent(arrays: triton.VersionArrays, version: Version, deny: Sequence[Any] | None = None) -> int:
        filters: list[Filter | None] = [version.filter_of(rule), None]
        before = len(copy.sent)
        triton.bind_filters(arrays, request_filters(version, 2, filters, deny))
        return copy.since(before)

    assert sent(arrays, first) > 0
    assert sent(arrays, first) == sent(arrays, first, [[3, 510], [7]]) == 0
    before = len(copy.sent)
    arrays = triton.bind(second, like=arrays)
    assert copy.since(before) == 0  # the tries are the same
    assert 0 < sent(arrays, second) <= 2 * 16  # one word of the live items, one of the rule's
    assert sent(arrays, second) == sent(arrays, first) == 0
    grown = Version(segments=(second.segments[0], Segment(trie=Trie.build([[1, 1, 1]], SIZES, [700]))), number=3)
    arrays = triton.bind(grown, like=arrays)
    rule[1] = grown.segments[1].trie.filter([True])
    assert sent(arrays, grown) <= 8 + 8  # the new delta's words, not the base's


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_requests_after_the_first_make_no_words_for_fixed_shapes(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(backend)
    ops: Any = importlib.import_module(f"leafbeam.ops.constrain.fixed_shape.{backend}")
    made: list[Bitmap | None] = []
    words = stacks.filter_words
    monkeypatch.setattr(
        stacks, "filter_words", lambda layout, leaves, sizes: [made.append(leaves), words(layout, leaves, sizes)][1]
    )
    rng = np.random.default_rng(7)
    first, second = versions(rng)
    arrays = ops.bind(first)
    parts = [segment.trie.filter(rng.random(segment.trie.num_items) < 0.3) for segment in first.segments]
    requests = request_filters(first, 2, [first.filter_of(parts)] * 2, [[1], None])
    made.clear()
    ops.bind_filters(arrays, requests)
    assert len(made) == 2
    ops.bind_filters(arrays, requests)
    assert len(made) == 2
    again = ops.bind(second, like=arrays)
    ops.bind_filters(again, requests)
    assert len(made) == 2
    ops.bind_filters(again, request_filters(second, 2, [second.filter_of(parts)] * 2, None))
    assert len(made) == 2  # a few words of the base's filter are sent


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sizes", [(3, 1000, 4), (40, 3, 9, 9), (60, 60)])
def test_a_changed_filter_of_fixed_shapes_sends_the_words_that_changed(
    backend: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layouts with masks, with listed and short ranges, and with shared leaves: each row is that of a new filter."""
    pytest.importorskip(backend)
    ops: Any = importlib.import_module(f"leafbeam.ops.constrain.fixed_shape.{backend}")
    rng = np.random.default_rng(len(sizes))
    trie = Trie.build(np.stack([rng.integers(0, size, 20_000) for size in sizes], axis=1), sizes)
    arrays, live = ops.bind(trie, num_filters=4), trie.all_items.ordinals
    rules = [trie.filter(rng.random(20_000) < share) for share in (0.3, 0.02)]
    filters, sent = arrays.stacks[0].filters, list[int]()

    def requests() -> list[Filter]:
        return request_filters(trie, 2, [rule & trie.filter_of(live) for rule in rules], None)

    ops.bind_filters(arrays, requests())
    asarray = type(arrays.xp).asarray
    monkeypatch.setattr(
        type(arrays.xp), "asarray", lambda xp, array, device: [sent.append(array.nbytes), asarray(xp, array, device)][1]
    )
    ops.bind_filters(arrays, requests())
    nothing_changed, made = sum(sent), list[Any]()
    monkeypatch.setattr(filters, "_row_of", made.append)
    for number in range(6):
        live = live.without(rng.choice(20_000, 2))
        sent.clear()
        ops.bind_filters(arrays, requests())
        changed, now = sum(sent), filters.stacks
        sent.clear()
        rows = ops.bind_filters(arrays, requests()).levels[0][0].slot_B
        assert sum(sent) == nothing_changed
        assert filters.stacks is now
        assert nothing_changed < changed < nothing_changed + filters.row_nbytes / 2  # of two filters
        for row, request in zip(np.asarray(rows).tolist(), requests(), strict=True):
            expected = filter_words(arrays.layouts[0], request.parts[0].leaves, arrays.capacity.segments[0])
            for name, words in expected.items():
                assert np.array_equal(np.asarray(now[name][row]).view(np.uint32), words), (name, number)
    assert not made


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_threads_share_the_latest_version_and_what_it_has_of_the_one_before(backend: str) -> None:
    first, second = versions(np.random.default_rng(8))
    bindings = LatestBindings(1 << 20)
    bound = bindings.of(first).on(backend, "cpu").arrays
    assert bindings.of(first).on(backend, "cpu").arrays is bound
    assert bindings.of(second).on(backend, "cpu").arrays is bound  # filters say what is deleted
    grown = Version(segments=(second.segments[0], Segment(trie=Trie.build([[1, 1, 1]], SIZES, [700]))), number=3)
    after = bindings.of(grown).on(backend, "cpu").arrays
    assert after is not bound
    for level, earlier in zip(after.levels, bound.levels, strict=True):
        assert level[0] is earlier[0]
        assert level[1] is not earlier[1]
    bindings.release()
    assert bindings.of(first).on(backend, "cpu").arrays is not bound


def test_a_captured_batch_is_one_copy_and_after_the_first_no_bitmaps_and_no_boosts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, copy, sends = np.random.default_rng(9), CountingCopy(), list[int]()
    send = PackedInputs.send
    monkeypatch.setattr(PackedInputs, "send", lambda inputs: [sends.append(inputs.nbytes), send(inputs)][1])
    first, second = versions(rng)
    index = DeviceIndex(first, "cpu", copy=copy)
    model = StaticModel(new_model(1, Vocabulary(codebook_sizes=SIZES), num_hidden_layers=1))
    decode = StaticDecode(model, index, Bucket(batch=2, length=8, num_beams=3, scoring="full"))
    rule = [segment.trie.filter(rng.random(segment.trie.num_items) < 0.3) for segment in first.segments]

    parts = tuple(np.float32(rng.random(segment.trie.num_items)) for segment in first.segments)
    boost = ItemColumn(parts=parts, index=first)

    def load(version: Version, deny: list[Any] | None = None, boosts: list[ItemColumn | None] | None = None) -> int:
        tokens_BT, lengths_B = Vocabulary(codebook_sizes=SIZES).prompts([np.array([[1, 2, 3]]), np.empty((0, 3), np.int64)])
        filters: list[Any] = [version.filter_of(rule), None]
        before, sends[:] = len(copy.sent), []
        asked = Asked(tokens_BT=tokens_BT, lengths_B=lengths_B, filters=filters, deny=deny or [None, None], boosts=boosts)
        assert decode.load(asked.inputs(version))
        assert sends == [decode.nbytes - sum(tensor.nbytes for tensor in decode.outputs)]
        return copy.since(before)

    assert load(first) > 0
    assert load(first) == load(first, [[3, 510], [7]]) == 0
    assert 0 < load(second) <= 2 * 16
    assert load(second) == load(first) == 0
    tables = sum(4 + 4 * sum(level.num_codes for level in segment.trie.levels) for segment in first.segments)
    assert load(first, boosts=[boost, None]) == tables
    assert load(second, boosts=[None, boost.scaled(0.3)]) == load(first) == 0


@pytest.mark.parametrize("way", ["upload", "patch", "combine"])
def test_a_bitmap_whose_copy_failed_is_not_taken_for_one_that_is_there(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, device = np.random.default_rng(10), Device(5000, max_bytes=3 * 12 * 79)
    first, second = random_bitmap(rng), random_bitmap(rng)
    device.bind(first, second)
    made = {"upload": random_bitmap(rng), "patch": first.without(np.array([7])), "combine": first & second}[way]

    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("no memory for a bitmap")

    with monkeypatch.context() as context:
        context.setattr(BitmapMemory, way, fail)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                device.bind(made, first)
    assert device.bind(first, made) >= 0  # its bits are compared
    assert len(device.cache) <= 3
