"""An index in shards over real Ray actors, beside one index; actors that are killed within a search."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam import BeamSearch, Trie
from leafbeam.errors import ArgumentError, IndexFileError, ItemIdError, ShardError
from leafbeam.index.shards import ShardManifest, build_shards
from leafbeam.integrations.shard_search import ShardedSearch
from tests.fixtures.grid import CASES, Recorder, TableModel
from tests.fixtures.ray_warnings import RAY_WARNINGS
from tests.fixtures.search_results import assert_equal

pytest.importorskip("ray", reason="Ray is not installed: pip install 'leafbeam[ray]'", exc_type=ImportError)
pytestmark = [
    pytest.mark.slow,
    *RAY_WARNINGS,
]


CASE = CASES["ties-filtered"].__class__(codes=np.random.default_rng(0).integers(0, 6, (300, 3)), sizes=(6, 6, 6), widths=(1,))
TRIE = Trie.build(CASE.codes, CASE.sizes, [f"i{row}" for row in range(300)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    build_shards(lambda: [(CASE.codes, TRIE.item_ids)], CASE.sizes, 3, folder)
    return folder


@pytest.fixture(scope="module")
def index(cluster: Any, directory: Path) -> Generator[Any]:
    from leafbeam.integrations.ray_shards import load_shards_on_ray

    with load_shards_on_ray(directory, cpus_per_shard=0.1) as index:
        yield index


def pid_of(cluster: Any, index: Any, shard: int) -> int:
    return cluster.get(index.link.actors[shard].__ray_call__.remote(lambda _: os.getpid()))


def model() -> Recorder:
    return Recorder([TableModel(CASE, 1), TableModel(CASE, 2)])


def half(trie: Trie) -> Any:
    return trie.filter([int(item[1:]) % 2 == 0 for item in trie.item_ids])


def test_shards_on_ray_give_the_answers_and_the_proof_of_one_index(index: Any) -> None:
    deny: Any = [["i4", "i5"], None]
    result = ShardedSearch(index, num_items=10).run(model(), 2, [index.filter(half), None], deny)
    assert_equal(result, BeamSearch(TRIE, num_items=10).run(model(), 2, [half(TRIE), None], deny))
    assert result.is_proved.all()
    with pytest.raises(ItemIdError, match="the item ids of this index are text"):
        ShardedSearch(index, num_items=10).run(model(), 2, deny=[[4], None])
    with pytest.raises(KeyError, match="no such column"):
        index.filter(lambda trie: {}["no such column"])


class Killing:
    """A model that kills an actor at its second call."""

    def __init__(self, pid: int) -> None:
        self.pid, self.model, self.calls = pid, model(), 0

    def __call__(self, codes: Any, parents: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            os.kill(self.pid, signal.SIGKILL)
        return self.model(codes, parents)


def test_an_actor_that_is_killed_within_a_search_is_named_and_the_search_refused_or_repeated(cluster: Any, index: Any) -> None:
    even = index.filter(half)
    expected = BeamSearch(TRIE, 20).run(model(), 2, [half(TRIE), None])
    with pytest.raises(ShardError, match=r"^shard 1 \(shard-0001.leafbeam\): it has ended, and Ray starts it again") as raised:
        ShardedSearch(index, 20).run(Killing(pid_of(cluster, index, 1)), 2, [even, None])
    assert raised.value.shard == 1
    index.wait(1)
    assert_equal(ShardedSearch(index, 20).run(model(), 2, [even, None]), expected)
    killing = Killing(pid_of(cluster, index, 2))
    assert_equal(ShardedSearch(index, 20, num_retries=1).run(killing, 2, [even, None]), expected)
    assert killing.calls == 2 + 3


def test_an_actor_that_hangs_is_named(cluster: Any, directory: Path) -> None:
    from leafbeam.integrations.ray_shards import load_shards_on_ray

    with load_shards_on_ray(directory, cpus_per_shard=0.1, timeout_s=5) as index:
        pid = pid_of(cluster, index, 0)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ShardError, match=r"shard 0 \(shard-0000.leafbeam\): it has not answered for 5 s"):
                ShardedSearch(index, 20).run(model(), 2)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_files_that_are_missing_and_wrong_options_are_refused(cluster: Any, directory: Path, tmp_path: Path) -> None:
    from leafbeam.integrations.ray_shards import load_shards_on_ray

    manifest = ShardManifest.load(directory)
    manifest.write(tmp_path)
    with pytest.raises(IndexFileError, match=r"shard-0000\.leafbeam"):
        load_shards_on_ray(tmp_path, cpus_per_shard=0.1)
    with pytest.raises(ArgumentError, match="timeout_s=0"):
        load_shards_on_ray(directory, timeout_s=0)
