"""A search over shards is the search of one index: on the parity grid, over random catalogs, and beside faults."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam import BeamSearch, Trie
from leafbeam.errors import ArgumentError, ForeignFilterError, ItemIdError, LogitsError, ShardError
from leafbeam.index import Filter, ItemColumn
from leafbeam.index.shards import ShardManifest, build_shards
from leafbeam.integrations.shard import Shard
from leafbeam.integrations.shard_search import ShardedSearch
from leafbeam.integrations.shards import LocalShards, ShardedIndex
from tests.fixtures.grid import CASES, SCORINGS, Recorder, TableModel, Truth
from tests.fixtures.search_results import assert_equal


def shards_of(trie: Trie, num_shards: int, directory: Path, *, packed: bool = False) -> ShardedIndex:
    codes_NL, ids_N = trie.codes_of(trie.item_ids), trie.item_ids
    half = len(ids_N) // 2

    def chunks() -> Any:
        yield codes_NL[:half], ids_N[:half]
        yield codes_NL[half:], ids_N[half:]

    build_shards(chunks, trie.codebook_sizes, num_shards, directory, packed=packed)
    return ShardedIndex.load(directory)


def of_ids(item_ids: list[str], trie: Trie) -> Filter:
    return trie.filter(np.isin(trie.item_ids, item_ids))


def of_numbers(numbers: dict[str, float], weight: float, trie: Trie) -> ItemColumn:
    return ItemColumn.of(trie, [numbers[str(item)] for item in trie.item_ids]).scaled(weight)


@pytest.mark.parametrize("scoring", [*SCORINGS, "vocabulary"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "empty-index"])
def test_the_grid_over_shards_gives_the_beams_of_the_oracle_and_of_one_index(name: str, scoring: Any, tmp_path: Path) -> None:
    truth = Truth.of(name, "whole", scoring, 2, None)
    trie: Any = truth.catalog.index
    num_shards = min(4, trie.levels[0].num_nodes)
    with shards_of(trie, num_shards, tmp_path, packed=name.startswith("s")) as index:
        filters = [
            None if one is None else index.filter(partial(of_ids, one.parts[0].item_ids().tolist())) for one in truth.filters
        ]
        model = Recorder(truth.models)
        result = ShardedSearch(index, list(truth.widths), scoring).run(model, 2, filters, truth.deny)
    for request, expected in enumerate(truth.expected):
        count = int(result.num_valid[request])
        assert [str(item) for item in result.item_ids[request]] == [item for item, _, _ in expected]
        assert [tuple(sid) for sid in result.codes[request, :count].tolist()] == [sid for _, _, sid in expected]
        np.testing.assert_allclose(result.scores[request, :count], [score for _, score, _ in expected], rtol=1e-5, atol=2e-5)
    alone = BeamSearch(trie, list(truth.widths), scoring).run(Recorder(truth.models), 2, truth.filters, truth.deny)
    assert_equal(result, alone)


@pytest.mark.parametrize("seed", range(20))
def test_a_proof_over_shards_is_the_proof_of_one_index(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    sizes = tuple(rng.integers(2, 12, int(rng.integers(1, 5))).tolist())
    num_items = int(rng.integers(3, 600))
    codes = np.minimum(rng.geometric(0.25, (num_items, len(sizes))) - 1, np.array(sizes) - 1)
    ids = [f"i{row}" for row in range(num_items)] if seed % 2 else None
    trie = Trie.build(codes, sizes, ids)
    scoring: Any = ("full", "allowed", "vocabulary")[seed % 3]
    case = CASES["ties"].__class__(codes=codes, sizes=sizes, widths=(1,), ties=seed % 5 == 0)
    models = [TableModel(case, 3 * seed + one, has_other=scoring == "vocabulary") for one in range(3)]
    mask = rng.random(num_items) < rng.choice([0.02, 0.3, 0.9])
    numbers = dict(zip(map(str, trie.item_ids), rng.normal(size=num_items), strict=True))
    deny: Any = [None, trie.item_ids[rng.integers(0, num_items, 5)].tolist(), []]
    few = int(rng.integers(1, 15))
    with shards_of(trie, int(rng.integers(1, trie.levels[0].num_nodes + 1)), tmp_path) as index:
        allowed, boost = index.filter(partial(of_ids, trie.item_ids[mask].tolist())), None
        alone_boost = None
        if seed % 4 == 0:
            boost = [index.boost(partial(of_numbers, numbers, 1.5)), None, None]
            alone_boost = [of_numbers(numbers, 1.5, trie), None, None]
        search = ShardedSearch(index, num_items=few, scoring=scoring)
        widths = [2] * (len(sizes) - 1)
        result = search.run(Recorder(models), 3, [allowed, None, allowed], deny, boosts=boost, widths=widths)
        guessed = search.run(Recorder(models), 3, [allowed, None, allowed], deny, boosts=boost)
    alone = BeamSearch(trie, num_items=few, scoring=scoring)
    filters = [trie.filter(mask), None, trie.filter(mask)]
    expected = alone.run(Recorder(models), 3, filters, deny, boosts=alone_boost, widths=widths)
    assert_equal(result, expected)
    assert_equal(guessed, alone.run(Recorder(models), 3, filters, deny, boosts=alone_boost))
    assert result.is_proved.all()


def a_trie() -> Trie:
    return Trie.build(np.random.default_rng(0).integers(0, 7, (200, 3)), [7] * 3)


def a_model(level_of_nan: int = 9) -> Any:
    rows = np.random.default_rng(1).normal(size=(3, 7)).astype(np.float32)
    level = [0]

    def step_fn(codes: Any, parents: Any) -> Any:
        level[0] = 0 if codes is None else level[0] + 1
        logits = np.broadcast_to(rows[level[0]], ((2,) if codes is None else codes.shape) + (7,)).copy()
        if level[0] == level_of_nan:
            logits[1, 2] = np.nan
        return logits

    return step_fn


class MortalShards(LocalShards):
    """Shards of which one dies before a call, and is another object afterwards, as Ray starts an actor anew."""

    def __init__(self, directory: Path, dies: int) -> None:
        self._dies, self.deaths = dies, 0
        self.before: list[str] = []  # the calls before which it dies
        self._files = [directory / shard.file for shard in ShardManifest.load(directory).shards]
        super().__init__(list(map(Shard, self._files)))

    def call(self, method: Any, arguments: Any) -> dict[int, Any]:
        if self.before and method.__name__ == self.before[0] and self._dies in arguments:
            self.before.pop(0)
            self.deaths += 1
            self._shards[self._dies] = Shard(self._files[self._dies])
        return super().call(method, arguments)


@pytest.mark.parametrize("method", ["step", "items"])
def test_a_shard_that_dies_within_a_search_is_named_and_the_search_is_refused_or_begins_again(
    method: str, tmp_path: Path
) -> None:
    trie = a_trie()
    shards_of(trie, 3, tmp_path)
    expected = BeamSearch(trie, 20).run(a_model(), 2, [trie.filter(np.arange(200) % 2 == 0), None])
    for num_retries, deaths in ((0, 1), (1, 1), (2, 2), (1, 2)):
        link = MortalShards(tmp_path, 1)
        with ShardedIndex(link, [shard.version for shard in ShardManifest.load(tmp_path).shards]) as index:
            even = index.filter(lambda trie: trie.filter(trie.item_ids.astype(int) % 2 == 0))
            search = ShardedSearch(index, 20, num_retries=num_retries)
            link.before += [method] * deaths
            if deaths > num_retries:
                with pytest.raises(ShardError, match="shard 1: it does not know this search") as raised:
                    search.run(a_model(), 2, [even, None])
                assert raised.value.shard == 1
                link.before.clear()
            assert_equal(search.run(a_model(), 2, [even, None]), expected)  # the filter is made again where it is missing
            assert link.deaths == min(deaths, num_retries + 1)


def test_a_shard_that_comes_back_with_another_index_is_refused(tmp_path: Path) -> None:
    trie = a_trie()
    shards_of(trie, 3, tmp_path / "a")
    manifest = ShardManifest.load(tmp_path / "a")
    for before in ("begin", "step"):
        link = MortalShards(tmp_path / "a", 2)
        with ShardedIndex(link, [shard.version for shard in manifest.shards]) as index:
            Trie.build([[6, 1, 1]], [7] * 3).save(tmp_path / "a" / manifest.shards[2].file)
            link.before.append(before)
            with pytest.raises(ShardError, match=r"shard 2: its index has version \w+: expected \w+; load the shards again"):
                ShardedSearch(index, 20, num_retries=1).run(a_model(), 2)
        with pytest.raises(ShardError, match=r"shard 2 has version .* of its index, but the manifest"):
            ShardedIndex.load(tmp_path / "a")
        build_shards(lambda: [(trie.codes_of(trie.item_ids), trie.item_ids)], trie.codebook_sizes, 3, tmp_path / "a")


def test_mistakes_are_refused_as_one_index_refuses_them(tmp_path: Path) -> None:
    trie = a_trie()
    with shards_of(trie, 3, tmp_path / "a") as index, shards_of(trie, 2, tmp_path / "b") as other:
        search = ShardedSearch(index, 20)
        with pytest.raises(LogitsError, match="request 1") as of_shards:
            search.run(a_model(1), 2)
        with pytest.raises(LogitsError) as of_one:
            BeamSearch(trie, 20).run(a_model(1), 2)
        assert str(of_shards.value) == str(of_one.value)
        allowed = index.filter(item_ids=[3, 5, 5])
        of_a_trie: Any = trie.filter(item_ids=[3])
        not_a_filter: Any = lambda trie: 3  # noqa: E731
        cases: Any = [
            (ItemIdError, lambda: index.filter(item_ids=[3, 999]), "999"),
            (ItemIdError, lambda: search.run(a_model(), 2, deny=[["text"], None]), "the item ids of this index are integers"),
            (ArgumentError, lambda: index.filter(), "one of the two"),
            (ArgumentError, lambda: index.filter(not_a_filter), "the function returned 3: expected a Filter"),
            (ForeignFilterError, lambda: index.filter(lambda _: trie.filter(item_ids=[3])), "make it again"),
            (ForeignFilterError, lambda: search.run(a_model(), 2, other.filter(item_ids=[3])), "another ShardedIndex"),
            (ArgumentError, lambda: search.run(a_model(), 2, of_a_trie), r"expected a FilterHandle: make it"),
            (ArgumentError, lambda: search.run(a_model(), 2, [allowed]), "filters has 1 entry"),
            (ArgumentError, lambda: search.run(a_model(), 2, deny=[[3]]), "deny has 1 entry"),
            (ArgumentError, lambda: search.run(a_model(), 0), "batch_size must be an integer of at least 1, not 0"),
            (ArgumentError, lambda: ShardedSearch(index, num_retries=-1), "num_retries"),
            (ArgumentError, lambda: ShardedSearch(index, 3, num_items=3), "expected one of them"),
        ]
        for error, call, message in cases:
            with pytest.raises(error, match=message):
                call()
        assert len(allowed) == 2
        assert len(allowed | index.filter(item_ids=[7, 3])) == 3
        assert len(allowed & index.filter(item_ids=[7, 3])) == 1
        result = search.run(a_model(), 2, [allowed - index.filter(item_ids=[3]), allowed], deny=[[5], None])
        assert [sorted(ids.tolist()) for ids in result.item_ids] == [[], [3, 5]]
        index.remove(allowed)
        with pytest.raises(ForeignFilterError, match="was removed"):
            search.run(a_model(), 2, allowed)
    with pytest.raises(ArgumentError, match="is closed"):
        search.run(a_model(), 2)


def test_a_filter_that_one_shard_cannot_make_stays_in_no_shard(tmp_path: Path) -> None:
    shards_of(a_trie(), 3, tmp_path)
    shards = [Shard(tmp_path / shard.file) for shard in ShardManifest.load(tmp_path).shards]
    index = ShardedIndex(LocalShards(shards), [shard.trie.version for shard in shards])
    with pytest.raises(ZeroDivisionError):
        index.filter(lambda trie: trie.filter(trie.item_ids.astype(int) > 1 // (trie is not shards[2].trie)))
    assert [vars(shard)["_parts"] for shard in shards] == [{}, {}, {}]


def test_a_round_sends_each_row_of_logits_once_and_waits_once(tmp_path: Path) -> None:
    trie = a_trie()
    with shards_of(trie, 3, tmp_path) as index:
        before = index.traffic
        ShardedSearch(index, [5, 10, 20]).run(a_model(), 2)
        traffic = index.traffic - before
    assert traffic.hops == 1 + 2 + 1  # the beginning, the rounds behind the first, and the items
    rows, row = 2 * (5 + 10), 8 + 8 + 8 + 4 + 7 * 4  # request, range, score and logits
    leaves = 2 * 20 * (8 + 8 + 4)
    assert traffic.bytes_sent == rows * row + leaves
