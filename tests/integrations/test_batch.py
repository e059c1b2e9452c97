"""Batch jobs in one process: what is written, what a killed job leaves, and what must not be mixed."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.engine import CatalogFiles, Request
from leafbeam.errors import ArgumentError, DataError, RequestError, UnknownRuleError
from leafbeam.integrations.batch import (
    BatchJob,
    PartitionResult,
    PartitionRunner,
    UserColumns,
    recommend_users,
)
from tests.integrations.batches import NUM_USERS, check_output, job_of, make_shop, make_users, model_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CatalogFiles:
    return make_shop(tmp_path_factory.mktemp("shop"))


def test_every_user_gets_the_engines_answer_in_one_file_a_partition(files: CatalogFiles, tmp_path: Path):
    histories = make_users(tmp_path / "users.parquet")
    job = job_of(files, tmp_path)
    seen: list[tuple[int, int]] = []
    done = recommend_users(job, progress=lambda one, finished, total: seen.append((finished, total)))
    assert sum(one.users for one in done) == NUM_USERS
    assert seen == [(number, 8) for number in range(1, 9)]  # 16 + 16 + 8 rows, six at a time
    assert sum(one.unknown_items for one in done) > 0
    assert sorted(os.listdir(job.out)) == ["_manifest.json", *(f"part-{number:06d}.parquet" for number in range(8))]
    check_output(job, histories)
    assert recommend_users(job) == []


def test_a_model_with_user_tokens_reads_the_user(tmp_path: Path):
    files = make_shop(tmp_path / "shop", user_tokens=9)
    histories = make_users(tmp_path / "users.parquet")
    job = job_of(files, tmp_path)
    recommend_users(job)
    check_output(job, histories)
    scores = pq.read_table(job.out).column("scores").to_pylist()
    assert scores[3] != scores[4]  # two empty histories, two users
    table = pq.read_table(tmp_path / "users.parquet")
    pq.write_table(table.set_column(0, "user_id", pa.array([0.5] * NUM_USERS)), tmp_path / "users.parquet")
    with pytest.raises(DataError, match="row 1 of row group 0: user must be an id"):
        recommend_users(dataclasses.replace(job, out=str(tmp_path / "other")))


def test_a_directory_of_files_is_one_table(files: CatalogFiles, tmp_path: Path):
    (tmp_path / "users.parquet").mkdir()
    first = make_users(tmp_path / "users.parquet" / "a.parquet")
    table = pq.read_table(tmp_path / "users.parquet" / "a.parquet")
    pq.write_table(table.slice(0, 25), tmp_path / "users.parquet" / "a.parquet")
    pq.write_table(table.slice(25), tmp_path / "users.parquet" / "b.parquet")
    job = job_of(files, tmp_path, partition_rows=1000)
    assert [one.users for one in recommend_users(job)] == [25, 15]
    check_output(job, first)


@pytest.mark.slow
def test_a_killed_job_resumes_where_it_was(files: CatalogFiles, tmp_path: Path):
    histories = make_users(tmp_path / "users.parquet", users=120)
    job = job_of(files, tmp_path, partition_rows=1)
    code = (
        "import sys, json; from leafbeam.engine import CatalogFiles, Request; from leafbeam.integrations.batch import *; "
        "given = json.loads(sys.argv[1]); "
        "given['files'] = CatalogFiles(**given['files']); given['request'] = Request(**given['request']); "
        "given['columns'] = UserColumns(**given['columns']); "
        "recommend_users(BatchJob(**given))"
    )
    words = [sys.executable, "-c", code, json.dumps(dataclasses.asdict(job))]
    child = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": os.getcwd()})
    out, over = Path(job.out), time.monotonic() + 60
    while len(list(out.glob("part-*"))) < 3:
        assert child.poll() is None, "the job ended before it could be killed"
        assert time.monotonic() < over
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert len(kept) < 120
    done = recommend_users(job)
    assert {f"part-{one.number:06d}.parquet" for one in done}.isdisjoint(kept)
    assert len(done) + len(kept) == 120
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    check_output(job, histories)


def test_answers_of_different_jobs_are_not_mixed(files: CatalogFiles, tmp_path: Path):
    make_users(tmp_path / "users.parquet")
    job = job_of(files, tmp_path)
    recommend_users(job)
    other = make_shop(tmp_path / "other", seed=5)
    rules = tmp_path / "rules.toml"
    rules.write_text('[rules]\nfresh = "not new"\n')
    for change, named in (
        ({"request": dataclasses.replace(job.request, num_items=6)}, "different request"),
        ({"files": dataclasses.replace(files, index=other.index, catalog=other.catalog)}, "different index"),
        ({"files": dataclasses.replace(files, rules=str(rules))}, "different rules_text"),
        ({"partition_rows": 7}, "different partition_rows"),
        ({"precision": "bfloat16"}, "different precision"),
    ):
        with pytest.raises(DataError, match=named):
            recommend_users(dataclasses.replace(job, **change))
    weights = Path(model_of(other)) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(DataError, match="different model"):
        recommend_users(dataclasses.replace(job, model=model_of(other)))
    make_users(tmp_path / "users.parquet", users=39)
    with pytest.raises(DataError, match="different users"):
        recommend_users(job)
    for damaged in ("{", "[" * 100_000):
        (Path(job.out) / "_manifest.json").write_text(damaged)
        with pytest.raises(DataError, match="cannot be read"):
            recommend_users(job)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(DataError, match="not the output of a batch job"):
        recommend_users(dataclasses.replace(job, out=str(tmp_path / "full")))


def write(path: Path, **columns: object) -> None:
    pq.write_table(pa.table(columns), path)


def test_invalid_tables_of_users_are_rejected_by_name(files: CatalogFiles, tmp_path: Path):
    users = tmp_path / "users.parquet"
    job = job_of(files, tmp_path)
    with pytest.raises(DataError, match="neither a Parquet file nor a directory"):
        recommend_users(job)
    users.write_bytes(b"no parquet")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        recommend_users(job)
    write(users, user_id=[1], items=[["a"]])
    with pytest.raises(DataError, match="no column 'history'; it has user_id, items"):
        recommend_users(job)
    write(users, user_id=[1], history=["item001"])
    with pytest.raises(DataError, match="expected lists of item ids"):
        recommend_users(job)
    assert not Path(job.out).exists()
    write(users, user_id=[1, 2], history=[["item001"], ["item001", None]])
    with pytest.raises(DataError, match=r"users\.parquet, row 2 of row group 0: history must hold item ids"):
        recommend_users(job)
    write(users, user_id=[1], history=[[7]])
    with pytest.raises(DataError, match=r"users\.parquet, row 1 of row group 0: .*the item ids of this index are text"):
        recommend_users(dataclasses.replace(job, out=str(tmp_path / "again")))
    pq.write_table(
        pa.table({"user_id": range(9), "history": [["item001"]] * 7 + [["item001", None]] * 2}), users, row_group_size=4
    )
    with pytest.raises(DataError, match=r"users\.parquet, row 4 of row group 1: history must hold item ids"):
        recommend_users(dataclasses.replace(job, out=str(tmp_path / "later"), partition_rows=3))


def test_a_damaged_row_group_is_named(files: CatalogFiles, tmp_path: Path):
    users = tmp_path / "users.parquet"
    make_users(users)
    data = bytearray(users.read_bytes())
    data[4 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4)
    users.write_bytes(data)
    with pytest.raises(DataError, match=r"users\.parquet cannot be read as Parquet"):
        recommend_users(job_of(files, tmp_path))


def test_denied_items_come_from_a_column(files: CatalogFiles, tmp_path: Path):
    users = tmp_path / "users.parquet"
    write(users, user_id=["u"], history=[["item001"]])
    request = Request(num_items=5)
    recommend_users(job_of(files, tmp_path, "one", request=request))
    (best,) = pq.read_table(tmp_path / "one").column("item_ids").to_pylist()
    write(users, user_id=["u"], history=[["item001"]], seen=[best[:3]])
    recommend_users(job_of(files, tmp_path, "two", request=request, columns=UserColumns(deny="seen")))
    table = pq.read_table(tmp_path / "two")
    assert table.column("user_id").to_pylist() == ["u"]
    assert table.column("item_ids").to_pylist()[0][:2] == best[3:5]


def test_invalid_settings_are_rejected(files: CatalogFiles, tmp_path: Path):
    make_users(tmp_path / "users.parquet")
    for error, call, message in (
        (ArgumentError, lambda: job_of(files, tmp_path, request=Request(history=("item001",))), "come from the table"),
        (ArgumentError, lambda: job_of(files, tmp_path, partition_rows=0), "at least 1"),
        (ArgumentError, lambda: CatalogFiles(index="i", rules="r"), "rules need a catalog"),
        (
            RequestError,
            lambda: recommend_users(job_of(files, tmp_path, request=Request(num_items=10_000))),
            "num_items must be from 1 to 256",
        ),
        (
            UnknownRuleError,
            lambda: recommend_users(job_of(files, tmp_path, "other", request=Request(rules=("stale",)))),
            "fresh",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_partition_says_how_many_users_got_fewer_items(files: CatalogFiles, tmp_path: Path):
    make_users(tmp_path / "users.parquet")
    job: BatchJob = job_of(files, tmp_path, request=Request(num_items=30, rules=("fresh",)))
    plan = job.plan()
    done: PartitionResult = PartitionRunner(job).run(plan.pending[0])
    assert done.short_answers == done.users == 6


def test_a_job_takes_boosts_caps_and_quotas(files: CatalogFiles, tmp_path: Path):
    histories = make_users(tmp_path / "users.parquet")
    request = Request(rules=("fresh",), boosts={"late": 2.0}, at_most={"new": 3}, at_least={"fresh": 1}, num_items=5)
    job = job_of(files, tmp_path, request=request)
    recommend_users(job)
    check_output(job, histories)
    assert {len(items) for items in pq.read_table(job.out).column("item_ids").to_pylist()} == {3}
    other = dataclasses.replace(job, request=dataclasses.replace(request, boosts={"late": 1.0}))
    with pytest.raises(DataError, match="different request"):
        recommend_users(other)
