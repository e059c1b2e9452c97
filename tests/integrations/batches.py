"""A small shop on disk and a table of its users, for the tests of batch jobs and of Ray."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.engine import CatalogFiles, Engine, Request
from leafbeam.index import Trie
from leafbeam.integrations.batch import BatchJob
from leafbeam.model import Vocabulary
from tests.fixtures.shops import small_model, write_shop

SIZES = (6, 5, 4)
NUM_USERS = 40


def make_shop(directory: Path, *, seed: int = 0, items: int = 50, user_tokens: int = 0) -> CatalogFiles:
    """A model, an index, a catalog in which every third item is new, and a rule for those."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = Vocabulary(codebook_sizes=SIZES, num_users=user_tokens)
    fields = {"intermediate_size": 24, "num_key_value_heads": 2, "max_position_embeddings": 40, "initializer_range": 0.3}
    codes = np.unique(np.random.default_rng(seed).integers(0, SIZES, (items, 3)), axis=0)
    ids = [f"item{number:03d}" for number in range(len(codes))]
    table = pa.table({"item_id": ids, "new": [row % 3 == 0 for row in range(len(ids))]})
    trie = Trie.build(codes, codebook_sizes=SIZES, item_ids=ids)
    rules = '[rules]\nfresh = "new"\n[boosts]\nlate = "CAST(substr(item_id, 5) AS INTEGER) / 10"\n'
    return write_shop(directory, small_model(vocabulary, seed=7, **fields), trie, table, rules)


def make_users(path: Path, *, users: int = NUM_USERS, row_group_size: int = 16) -> list[list[str] | None]:
    """Users with histories of up to 15 items, among them nobody's, unknown ones and null."""
    rng = np.random.default_rng(1)
    histories: list[list[str] | None] = [
        [f"item{number:03d}" for number in rng.integers(0, 60, rng.integers(0, 16))] for _ in range(users)
    ]
    histories[3], histories[4] = None, []
    table = pa.table({"user_id": pa.array(range(1000, 1000 + users)), "history": pa.array(histories, pa.list_(pa.string()))})
    pq.write_table(table, path, row_group_size=row_group_size)
    return histories


def model_of(files: CatalogFiles) -> str:
    """Return the model that `make_shop` has put beside the index."""
    return str(Path(str(files.index)).parent / "model")


def job_of(files: CatalogFiles, directory: Path, out: str = "out.parquet", **fields: object) -> BatchJob:
    request = Request(num_items=5, num_beams=8, rules=("fresh",))
    settings: dict[str, object] = {"request": request, "partition_rows": 6}
    users, where = str(directory / "users.parquet"), str(directory / out)
    settings |= {"model": model_of(files), "files": files} | fields
    return BatchJob(users=users, out=where, **settings)  # type: ignore[arg-type]


def check_output(job: BatchJob, histories: list[list[str] | None], rule: str | None = "fresh") -> None:
    """The output is one row a user, in their order, and what the engine answers each of them alone, under the job's rule."""
    table = pq.read_table(job.out)
    engine = Engine.load(job.model, job.files)
    assert table.column("user_id").to_pylist() == list(range(1000, 1000 + len(histories)))
    for row, history in enumerate(histories):
        alone = engine.recommend(replace(job.request, history=tuple(history or ()), user=1000 + row))
        assert table.column("item_ids")[row].as_py() == list(alone.item_ids)
        np.testing.assert_allclose(table.column("scores")[row].as_py(), alone.scores, atol=1e-5)
        assert table.column("num_history_used")[row].as_py() == alone.num_history_used
        assert table.column("index_version")[row].as_py() == alone.index_version
        assert not set(alone.item_ids) & set(history or ())
    fresh = {one for one in engine.trie.item_ids.tolist() if int(one[4:]) % 3 == 0}
    if rule is not None:
        assert {one for items in table.column("item_ids").to_pylist() for one in items} <= fresh
    assert engine.recommend([Request(num_items=1)])[0].num_valid == 1
