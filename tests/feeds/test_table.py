"""Delta and Iceberg tables, from their files to a real server: rows, differences of versions, and positions that survive."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leafbeam.client import Client
from leafbeam.errors import FeedError
from leafbeam.feeds import Followed, SourceColumns, TableFeed, VersionedTable, follow
from leafbeam.feeds.table import Position
from tests.feeds.crashes import DyingClient, DyingFeed, Killed, Point, in_index
from tests.fixtures.lakes import DeltaFiles, IcebergFiles
from tests.serve.running import live

SCHEMA = pa.schema(
    [
        ("item_id", pa.int64()),
        ("codes", pa.list_(pa.int64())),
        ("title", pa.string()),
        ("price", pa.int64()),
        ("stock", pa.int64()),
    ]
)
Row = dict[str, Any]


def row(item: int, price: int | None = 1, **more: Any) -> Row:
    return {"item_id": item, "codes": [item % 8, item % 16], "title": f"new {item}", "price": price, "stock": 1, **more}


def arrow(rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


@dataclass(kw_only=True)
class MemoryTable:
    """A table whose versions are a list: for what does not depend on the format."""

    versions: list[pa.Table]
    name: str = "table in memory"
    table_id: str = "m"
    read: list[int] = field(default_factory=list[int])

    def newest(self) -> int | None:
        return len(self.versions) - 1 if self.versions else None

    def rows(self, version: int, columns: Any) -> pa.Table:
        self.read.append(version)
        return self.versions[version] if columns is None else self.versions[version].select(columns)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(params=["delta", "iceberg"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaFiles | IcebergFiles:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    if request.param == "iceberg":
        pytest.importorskip("sqlalchemy")
    return (DeltaFiles if request.param == "delta" else IcebergFiles)(tmp_path)


def run(source: VersionedTable, position: Path, client: Any, *, skip_bad: bool = False, **options: Any) -> Followed:
    with closing(TableFeed(source, position, **options)) as feed:
        return follow(feed, client, once=True, skip_bad=skip_bad, wait_s=0)


def counts(done: Followed) -> tuple[int, int, int, int]:
    return done.inserted, done.updated, done.deleted, done.skipped


def test_rows_and_then_differences_are_made(files: DeltaFiles | IcebergFiles, shop: Any, tmp_path: Path) -> None:
    position = tmp_path / "position.json"
    with live(shop) as url, Client(url) as client:
        files.write(arrow([row(2000), row(2001), row(2002), row(1000)]))
        assert counts(run(files.source(), position, client, max_changes=3)) == (3, 1, 0, 0)
        assert counts(run(files.source(), position, client)) == (0, 0, 0, 0)
        files.write(arrow([row(2000), row(2001, None), row(2003), row(1000)]))
        files.write(arrow([row(2000), row(2001, None), row(2004), row(1000)]))
        assert counts(run(files.source(), position, client)) == (1, 1, 1, 0)
        assert in_index(client, [2000, 2001, 2002, 2003, 2004]) == [True, True, False, False, True]
        assert [client.get_item(item).attributes["price"] for item in (2000, 2001)] == [1, None]
        assert json.loads(position.read_text())["to"] is None
        wide = pa.schema([*SCHEMA, ("colour", pa.string())])
        files.write(arrow([{**row(2000), "colour": "red"}], wide))
        with pytest.raises(FeedError, match=r"1 of its changes cannot be applied.*colour"):
            run(files.source(), position, client)
        columns = SourceColumns(names=("codes", "title", "price", "stock"))
        assert counts(run(files.source(), position, client, columns=columns)) == (0, 1, 3, 0)


@pytest.mark.slow
def test_a_table_may_be_followed_from_now(files: DeltaFiles | IcebergFiles, shop: Any, tmp_path: Path) -> None:
    files.write(arrow([row(2000), row(2001)]))
    TableFeed(files.source(), tmp_path / "position.json", start="now").close()
    files.write(arrow([row(2000), row(2002)]))
    with live(shop) as url, Client(url) as client:
        assert counts(run(files.source(), tmp_path / "position.json", client, start="now")) == (1, 0, 0, 0)


@pytest.mark.parametrize("break_it", ["no table", "no files"])
def test_a_table_that_cannot_be_read_is_named(files: DeltaFiles | IcebergFiles, tmp_path: Path, break_it: str) -> None:
    if break_it == "no files":
        files.write(arrow([row(1)]))
        TableFeed(files.source(), tmp_path / "p.json", start="now").close()
        files.write(arrow([row(2)]))
        for path in tmp_path.rglob("*.parquet"):
            path.unlink()
    with pytest.raises(FeedError, match="cannot be read"), closing(TableFeed(files.source(), tmp_path / "p.json")) as feed:
        feed.read(0)


def versions() -> list[pa.Table]:
    first = [row(2000 + n) for n in range(5)]
    return [arrow(first), arrow([*first[1:3], row(2003, 7), row(2004), row(2005)])]


@pytest.mark.slow
def test_a_follower_that_is_killed_at_any_point_loses_and_doubles_nothing(shop: Any, tmp_path: Path) -> None:
    def shifted(table: pa.Table, by: int) -> pa.Table:
        return table.set_column(0, "item_id", pa.array([item + by for item in table["item_id"].to_pylist()]))

    with live(shop) as url, Client(url) as client:
        number = repeated = 0
        for number in range(80):
            first, later = (shifted(table, 10 * number) for table in versions())
            table, dying, position = MemoryTable(versions=[first]), DyingClient(client), tmp_path / f"{number}.json"
            run(table, position, client, max_changes=2)
            table.versions.append(later)
            dying.point = point = Point(number)
            try:
                with closing(TableFeed(table, position, max_changes=2)) as feed:
                    follow(DyingFeed(feed, point), dying, once=True, wait_s=0)  # type: ignore[arg-type]
                break
            except Killed:
                table.versions.append(shifted(arrow([row(2009)]), 10 * number))  # a newer one came meanwhile
                dying.point = Point(1 << 60)
                run(table, position, dying, max_changes=2)
            dying.check_once()
            repeated += sum(len(answers) - 1 for answers in dying.answers.values())
            ids = [2000 + n + 10 * number for n in range(10)]
            assert in_index(client, ids) == [False] * 9 + [True]
        assert number > 8
        assert repeated >= 3


def test_differences_are_exact(tmp_path: Path) -> None:
    nan = float("nan")
    schema = pa.schema([("item_id", pa.string()), ("x", pa.float64()), ("y", pa.list_(pa.int64()))])
    before = [{"item_id": "a", "x": nan, "y": [1]}, {"item_id": "b", "x": None, "y": None}, {"item_id": "c", "x": 0.0, "y": []}]
    after = [
        {"item_id": "a", "x": nan, "y": [1]},
        {"item_id": "b", "x": None, "y": None},
        {"item_id": "c", "x": 0.0, "y": None},
    ]
    table = MemoryTable(versions=[arrow(before, schema)])
    feed = TableFeed(table, tmp_path / "p.json", start="now")
    table.versions.append(arrow(after, schema))
    batch = feed.read(0)
    assert batch is not None
    assert [(change.operation, change.row) for change in batch.changes] == [("put", {"item_id": "c", "x": 0.0, "y": None})]
    feed.commit(batch)
    assert feed.read(0) is None
    assert feed.is_at_end
    table.versions.append(arrow([], schema))
    batch = feed.read(0)
    assert batch is not None
    assert [(change.operation, change.row["item_id"]) for change in batch.changes] == [("delete", one) for one in "abc"]


def test_rows_that_are_no_items_are_named(tmp_path: Path) -> None:
    twice = MemoryTable(versions=[arrow([row(1), row(1, 2)])])
    with pytest.raises(FeedError, match="version 0: two rows have the item_id 1"):
        TableFeed(twice, tmp_path / "a.json").read(0)
    with pytest.raises(FeedError, match="no column 'sku'; it has: item_id"):
        TableFeed(MemoryTable(versions=[arrow([row(1)])]), tmp_path / "b.json", columns=SourceColumns(item_id="sku")).read(0)
    batch = TableFeed(MemoryTable(versions=[arrow([{"price": 3}, row(1)])]), tmp_path / "c.json").read(0)
    assert batch is not None
    assert len(batch.changes) == 1
    ((place, problem),) = batch.bad.items()
    assert place == "version 0, item_id None"
    assert "expected a whole number or text as item id" in problem


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "table_id": 3}',
        '{"format": 1, "table_id": "m", "row": "x"}',
        "[" * 10**5,
    ],
)
def test_a_damaged_position_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(FeedError, match="is not a position in a followed table"):
        TableFeed(MemoryTable(versions=[]), tmp_path / "p.json")


def test_a_position_is_of_one_table(tmp_path: Path) -> None:
    Position(table_id="other", columns=None).save(tmp_path / "p.json")
    with pytest.raises(FeedError, match="the position of another table"):
        TableFeed(MemoryTable(versions=[]), tmp_path / "p.json")
    assert TableFeed(MemoryTable(versions=[]), tmp_path / "new.json").read(0) is None
    with pytest.raises(FeedError, match="cannot write the position"):
        TableFeed(MemoryTable(versions=[]), tmp_path / "no" / "p.json")
    shutil.rmtree(tmp_path / "no", ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class OneVersion:
    """A table with one version, in memory."""

    table: pa.Table
    name: str = "a table"
    table_id: str = "one"

    def newest(self) -> int:
        return 0

    def rows(self, version: int, columns: Any) -> pa.Table:
        return self.table if columns is None else self.table.select(columns)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    "item_ids", [pa.array([1, 2, 3], pa.uint64()), pa.array([1, 2, 3], pa.uint8()), pa.array(["a", "b", "c"])]
)
@pytest.mark.parametrize(
    ("column", "bad"),
    [
        (pa.array([0, 1, 1000], pa.timestamp("ns")), []),
        (pa.array([0, 1001, 1000], pa.timestamp("ns", "Europe/Paris")), []),
        (pa.array([0, 7, 1000], pa.time64("ns")), []),
        (pa.array([0, 2**62, 5], pa.timestamp("us")), [1]),
        (pa.array([0, 1, None], pa.timestamp("us")), []),
        (pa.array([1, 2, 3], pa.uint64()), []),
    ],
)
def test_a_value_that_json_cannot_hold_makes_its_row_bad_and_no_other(
    tmp_path: Path, column: pa.Array, bad: list[int], item_ids: pa.Array
) -> None:
    """A10: as over HTTP, with pandas and without."""
    feed = TableFeed(OneVersion(table=pa.table({"item_id": item_ids, "seen": column})), tmp_path / "position.json")
    with closing(feed):
        batch = feed.read(0)
    assert batch is not None
    ids = item_ids.to_pylist()
    assert [change.row["item_id"] for change in batch.changes] == [one for row, one in enumerate(ids) if row not in bad]
    assert len(batch.bad) == len(bad)
    for place, problem in batch.bad.items():
        assert repr(ids[bad[0]]) in place
        assert "cannot be read exactly" in problem
    assert all(isinstance(change.row.get("seen"), int | str | None) for change in batch.changes)
