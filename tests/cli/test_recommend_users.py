"""`leafbeam recommend --users`: the command line of a batch job."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.fixtures.command_line import call
from tests.integrations.batches import make_shop, make_users


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with what `build` would have left there."""
    run = tmp_path_factory.mktemp("run")
    make_shop(run)
    make_users(run / "users.parquet")
    return run


def test_a_table_of_users_becomes_a_table_of_items(run: Path, tmp_path: Path):
    words = ("--run", run, "--users", run / "users.parquet", "--out", tmp_path / "out", "--items", "4", "--rules", "fresh")
    result = call("recommend", *words)
    assert result.exit_code == 0, result.output
    assert "40 users in 3 partitions" in result.stdout.replace("\n", " ")
    assert "ids of histories are not in the index" in result.stdout
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == 40
    assert all(
        len(items) <= 4 and all(int(one[4:]) % 3 == 0 for one in items) for items in table.column("item_ids").to_pylist()
    )
    assert "is complete" in call("recommend", *words).stdout.replace("\n", " ")
    other = call("recommend", *words, "--keep-history")
    assert other.exit_code == 2
    assert "different request" in other.stderr.replace("\n", " ")


def test_columns_of_users_may_have_any_name(run: Path, tmp_path: Path):
    users = pq.read_table(run / "users.parquet")
    renamed = {"user_id": "who", "history": "had"}
    pq.write_table(users.rename_columns([renamed.get(name, name) for name in users.column_names]), tmp_path / "who.parquet")
    words = ("--run", run, "--users", tmp_path / "who.parquet", "--items", "2")
    refused = call("recommend", *words, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "user_id" in refused.stderr
    assert "--user-column and --history-column" in refused.stderr.replace("\n", " ")
    named = call("recommend", *words, "--out", tmp_path / "named", "--user-column", "who", "--history-column", "had")
    assert named.exit_code == 0, named.stderr
    assert pq.read_table(tmp_path / "named").num_rows == 40


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--users", "u.parquet"), "pass both --users"),
        (("--out", "o", "--history", "a"), "pass both --users"),
        (("--users", "u.parquet", "--out", "o", "--user", "b"), "and --users TABLE"),
        (("--users", "u.parquet", "--out", "o", "--deny", "b"), "works only with --history and --user"),
        (("--user", "b", "--ray"), "work only with --users"),
        (("--user", "b", "--workers", "2"), "work only with --users"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run: Path, words: tuple[str, ...], message: str):
    result = call("recommend", "--run", run, *words)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


def test_a_file_that_is_not_there_is_named(run: Path, tmp_path: Path):
    result = call("recommend", "--run", run, "--users", tmp_path / "nobody.parquet", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "nobody.parquet is neither a Parquet file" in result.stderr.replace("\n", " ")
