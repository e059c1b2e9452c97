import datetime
import decimal
import math
import uuid
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from leafbeam.catalog import Catalog, PostgresTable
from leafbeam.catalog.definitions import quoted
from leafbeam.catalog.sources import ItemSource
from leafbeam.errors import DataError
from leafbeam.index import Trie
from tests.catalog import postgres

UTC = datetime.UTC
MOMENT = datetime.datetime(2024, 2, 29, 10, 30, 0, 123456)
HOSTILE = 'x"; DROP TABLE items; --'


def trie_of(item_ids) -> Trie:
    return Trie.build([[i // 16, i % 16] for i in range(len(item_ids))], [16, 16], item_ids=item_ids)


def read_back(tmp_path, source) -> list[dict]:
    """The rows as DuckDB has them, in their order."""
    Catalog.create(tmp_path / "c.duckdb", source, overwrite=True)
    with duckdb.connect(str(tmp_path / "c.duckdb")) as connection:
        return connection.sql("SELECT * FROM items ORDER BY rowid").to_arrow_table().to_pylist()


ALL_TYPES = pa.table(
    {
        "item_id": pa.array([2**63 - 1, -(2**63), 0], pa.int64()),
        "text": pa.array(["é漢字\U0001f600", "", None], pa.string()),
        "large": pa.array(["a\nb", 'c"d', None], pa.large_string()),
        "kind": pa.array(["a", "b", None]).dictionary_encode(),
        "small": pa.array([-128, 127, None], pa.int8()),
        "wide": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "real": pa.array([1.5, math.inf, None], pa.float32()),
        "double": pa.array([1e308, -0.0, None], pa.float64()),
        "money": pa.array([decimal.Decimal("12345678901234567.89"), decimal.Decimal("-0.01"), None], pa.decimal128(38, 2)),
        "yes": pa.array([True, False, None], pa.bool_()),
        "day": pa.array([datetime.date(2024, 2, 29), datetime.date(1, 1, 1), None], pa.date32()),
        "at": pa.array([MOMENT, MOMENT, None], pa.timestamp("us")),
        "zoned": pa.array([MOMENT.replace(tzinfo=UTC), MOMENT.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "tags": pa.array([["a", None], [], None], pa.list_(pa.string())),
        "both": pa.array([{"x": 1, "y": "é"}, {"x": None, "y": None}, None], pa.struct({"x": pa.int32(), "y": pa.string()})),
        HOSTILE: pa.array([1, 2, None], pa.int32()),
    }
)


@pytest.mark.parametrize("form", ["table", "reader", "parquet"])
def test_every_type_arrives_with_its_values_and_nulls(tmp_path, form):
    source = ALL_TYPES
    if form == "reader":
        source = pa.RecordBatchReader.from_batches(ALL_TYPES.schema, ALL_TYPES.to_batches(max_chunksize=1))
    elif form == "parquet":
        pq.write_table(ALL_TYPES, tmp_path / "items.parquet")
        source = tmp_path / "items.parquet"
    assert read_back(tmp_path, source) == ALL_TYPES.to_pylist()


def test_a_csv_file_has_the_types_that_its_values_have(tmp_path):
    (tmp_path / "items.csv").write_text(
        'item_id,price,name,yes,day\n1,1.5,"a, ""b""",true,2024-02-29\n2,,é漢,false,\n9223372036854775807,3,,,2024-03-01\n',
        encoding="utf-8",
    )
    assert read_back(tmp_path, tmp_path / "items.csv") == [
        {"item_id": 1, "price": 1.5, "name": 'a, "b"', "yes": True, "day": datetime.date(2024, 2, 29)},
        {"item_id": 2, "price": None, "name": "é漢", "yes": False, "day": None},
        {"item_id": 2**63 - 1, "price": 3.0, "name": None, "yes": None, "day": datetime.date(2024, 3, 1)},
    ]


@pytest.mark.parametrize("ids", [["18446744073709551615", "1"], ["1.5", "2"], ["007", "7"], ["+1", "1"], ["1e3", "1000"]])
def test_ids_of_a_csv_file_that_are_not_plain_whole_numbers_stay_text(tmp_path, ids):
    (tmp_path / "items.csv").write_text("item_id,n\n" + "".join(f"{one},{i}\n" for i, one in enumerate(ids)))
    assert [row["item_id"] for row in read_back(tmp_path, tmp_path / "items.csv")] == ids
    catalog = Catalog.open(tmp_path / "c.duckdb", trie_of(ids), {"first": "n = 0"})
    assert list(catalog.rules.filters["first"].item_ids()) == ids[:1]


@pytest.mark.parametrize("form", ["table", "reader", "parquet", "csv"])
def test_an_empty_table_is_a_table(tmp_path, form):
    empty = pa.table({"item_id": pa.array([], pa.int64()), "price": pa.array([], pa.float64())})
    source = {
        "table": empty,
        "reader": pa.RecordBatchReader.from_batches(empty.schema, []),
        "parquet": tmp_path / "items.parquet",
        "csv": tmp_path / "items.csv",
    }[form]
    pq.write_table(empty, tmp_path / "items.parquet")
    pacsv.write_csv(empty, tmp_path / "items.csv")
    assert read_back(tmp_path, source) == []
    catalog = Catalog.open(tmp_path / "c.duckdb", trie_of([5, 6]), {"all": "true"})
    assert len(catalog.rules.filters["all"]) == 0
    assert catalog.rules.report.not_in_catalog == 2


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"id": [1]}), "no column 'item_id'; it has: id"),
        (pa.table({"item_id": [1], "Price": [1], "price": [2]}), "two columns 'price'"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["item_id", "item_id"]), "two columns 'item_id'"),
        (pa.table({"item_id": [1, 1]}), "occur again"),
        (pa.table({"item_id": [1, None]}), "column 'item_id': empty in row 2"),
    ],
)
def test_an_invalid_table_is_refused_by_name_from_each_source(tmp_path, table, says):
    for call, message in (
        (lambda: Catalog.create(tmp_path / "c.duckdb", table), says),
        (
            lambda: Catalog.create(tmp_path / "c.duckdb", pa.RecordBatchReader.from_batches(table.schema, table.to_batches())),
            says,
        ),
        (lambda: Catalog.in_memory(table, trie_of([1])), says),
    ):
        with pytest.raises(DataError, match=message):
            call()
    assert not (tmp_path / "c.duckdb").exists()


def test_what_is_no_source_is_named():
    with pytest.raises(DataError, match="the items are a dict: expected a"):
        Catalog.in_memory({"item_id": [1]}, trie_of([1]))


def test_a_stream_that_breaks_off_leaves_nothing(tmp_path):
    schema = pa.schema({"item_id": pa.int64()})

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"item_id": pa.array([1, 2])})
        raise ValueError("the source went away")

    with pytest.raises(DataError, match="the source went away"):
        Catalog.create(tmp_path / "c.duckdb", pa.RecordBatchReader.from_batches(schema, batches()))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    pytest.importorskip("adbc_driver_postgresql", reason="ADBC's driver for PostgreSQL is not installed")
    with postgres.server() as uri:
        yield uri


def run(uri: str, *statements: str) -> None:
    import adbc_driver_postgresql.dbapi as dbapi

    with dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_a_postgres_table_arrives_with_its_types_values_and_nulls(database, tmp_path):
    types = {
        "item_id": ("bigint", "9223372036854775807", 2**63 - 1),
        "small": ("smallint", "-32768", -32768),
        "whole": ("integer", "7", 7),
        "real": ("real", "1.5", 1.5),
        "double": ("double precision", "1e308", 1e308),
        "exact": ("numeric(20,3)", "12345678901234567.123", decimal.Decimal("12345678901234567.123")),
        "widest": ("numeric(38,0)", "9" * 38, decimal.Decimal("9" * 38)),
        "count": ("numeric(18,0)", "9" * 18, int("9" * 18)),
        "loose": ("numeric", "1e50", 1e50),
        "not_a_number": ("numeric", "'NaN'", math.nan),
        "negative_scale": ("numeric(4,-2)", "1234", 1200.0),
        "text": ("text", "'é漢\U0001f600'", "é漢\U0001f600"),
        "short": ("varchar(5)", "'abc'", "abc"),
        "padded": ("char(4)", "'ab'", "ab  "),
        "yes": ("boolean", "true", True),
        "at": ("timestamp", "'2024-02-29 10:30:00.123456'", MOMENT),
        "zoned": ("timestamptz", "'2024-02-29 12:30:00.123456+02'", MOMENT.replace(tzinfo=UTC)),
        "rounded": ("timestamp(0)", "'2024-02-29 10:30:00'", MOMENT.replace(microsecond=0)),
        "day": ("date", "'2024-02-29'", datetime.date(2024, 2, 29)),
        "clock": ("time", "'10:30'", datetime.time(10, 30)),
        "key": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
        "json": ("jsonb", "'{\"a\": 1}'", '{"a": 1}'),
        "numbers": ("int[]", "'{1,NULL}'", [1, None]),
        "tags": ("text[]", "'{a,é}'", ["a", "é"]),
        "raw": ("bytea", "'\\x00ff'", b"\x00\xff"),
        "mood": ("mood", "'glad'", "glad"),
        "price": ("price", "3.50", decimal.Decimal("3.50")),
        "address": ("inet", "'1.2.3.4'", "1.2.3.4/32"),
        "span": ("int4range", "'[1,5)'", "[1,5)"),
        "cash": ("money", "12.5", "$12.50"),
        HOSTILE: ("integer", "1", 1),
    }
    columns = ", ".join(f"{quoted(name)} {kind}" for name, (kind, _, _) in types.items())
    run(
        database,
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0)",
        f"CREATE TABLE everything ({columns})",
        f"INSERT INTO everything VALUES ({', '.join(value for _, value, _ in types.values())})",
        "INSERT INTO everything (item_id) VALUES (5)",
    )
    full, empty = read_back(tmp_path, PostgresTable(uri=database, table="everything"))
    expected = {name: value for name, (_, _, value) in types.items()}
    assert math.isnan(full.pop("not_a_number"))
    assert math.isnan(expected.pop("not_a_number"))
    assert uuid.UUID(str(full.pop("key"))) == expected.pop("key")
    assert full == expected
    assert {name: value for name, value in empty.items() if value is not None} == {"item_id": 5}


def test_rules_over_a_postgres_table_select_what_postgres_would(database, tmp_path):
    run(
        database,
        'CREATE SCHEMA "the ""shop"""',
        'CREATE TABLE "the ""shop"""."items; DROP" AS SELECT i AS item_id, (i % 40)::numeric(8,2) AS price, '
        "CASE WHEN i % 7 = 0 THEN NULL ELSE i % 3 END AS stock FROM generate_series(1, 5000) i",
    )
    source = PostgresTable(uri=database, schema='the "shop"', table="items; DROP", columns=("price", "item_id"))
    trie = Trie.build(np.arange(5000)[:, None] % 64, [64], item_ids=np.arange(1, 5001))
    with Catalog.in_memory(source, trie, {"cheap": "price < 20"}) as catalog:
        assert set(catalog.rules.filters["cheap"].item_ids().tolist()) == {i for i in range(1, 5001) if i % 40 < 20}
        with pytest.raises(DataError, match="no column 'stock'"):
            catalog.lookup([1], ["stock"])
        # Later the same table becomes the whole catalog again.
        run(database, 'UPDATE "the ""shop"""."items; DROP" SET price = 39 - price')
        report = catalog.reload(PostgresTable(uri=database, schema='the "shop"', table="items; DROP"))
        assert report.ok, report
        assert set(catalog.rules.filters["cheap"].item_ids().tolist()) == {i for i in range(1, 5001) if i % 40 >= 20}
        catalog.add_rule("out", "stock IS NULL")
        assert len(catalog.rules.filters["out"]) == 5000 // 7


def test_a_view_an_empty_table_and_a_partitioned_one_are_read(database, tmp_path):
    run(
        database,
        "CREATE TABLE articles (sku text PRIMARY KEY, n int)",
        "INSERT INTO articles VALUES ('é1', 1), ('é2', NULL)",
        "CREATE VIEW shop_view AS SELECT sku AS item_id, n FROM articles",
        "CREATE TABLE nothing (item_id text, n int)",
        "CREATE TABLE parts (item_id int, n int) PARTITION BY RANGE (n)",
        "CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "INSERT INTO parts VALUES (3, 4)",
    )
    rows = read_back(tmp_path, PostgresTable(uri=database, table="shop_view"))
    assert sorted(rows, key=str) == [{"item_id": "é1", "n": 1}, {"item_id": "é2", "n": None}]
    assert read_back(tmp_path, PostgresTable(uri=database, table="nothing")) == []
    assert read_back(tmp_path, PostgresTable(uri=database, table="parts")) == [{"item_id": 3, "n": 4}]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"table": "no such"}, "public.no such does not exist"),
        ({"table": "articles", "schema": "other"}, "other.articles does not exist"),
        ({"table": "articles"}, "no column 'item_id'; it has: sku, n"),
        ({"table": "nothing", "columns": ("item_id", "m")}, "no column 'm'; it has: item_id, n"),
        ({"table": "nothing", "columns": ("n",)}, "no column 'item_id'"),
        ({"table": "nan"}, "NaN"),
    ],
)
def test_an_unreadable_postgres_table_is_a_named_error(database, tmp_path, table, says):
    run(
        database,
        "CREATE TABLE IF NOT EXISTS articles (sku text PRIMARY KEY, n int)",
        "CREATE TABLE IF NOT EXISTS nothing (item_id text, n int)",
        "CREATE TABLE IF NOT EXISTS nan (item_id int, n numeric(5,2))",
        "INSERT INTO nan VALUES (1, 'NaN')",
    )
    with pytest.raises(DataError, match=says):
        Catalog.create(tmp_path / "c.duckdb", PostgresTable(uri=database, **table))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("numeric", ["7", "8.00", "-9"], [7, 8, -9]),
        ("numeric(20,0)", ["7", str(2**63 - 1)], [7, 2**63 - 1]),
        ("numeric(10,2)", ["7"], [7]),
        ("text", ["7", "b"], ["7", "b"]),
        ("numeric", ["7.5"], "numbers with a fraction in row 1"),
        ("numeric(20,0)", ["7", str(2**63)], "numbers beyond 64 bits including the sign in row 2"),
        ("numeric", ["7", "'NaN'"], "cannot be read"),
        ("double precision", ["7"], "of the type number: ids are whole numbers or text"),
        ("text", ["'a'", "E'b\\nc'"], "control characters, such as line breaks, in row 2"),
        ("int", ["NULL"], "empty in row 1"),
    ],
)
def test_ids_of_postgres_are_checked_as_those_of_files(database, tmp_path, kind, values, expected):
    """D2, D8: numeric ids are whole numbers if they have no fraction, and never rounded."""
    rows = ", ".join(f"({value if kind != 'text' or value.endswith(chr(39)) else repr(value)})" for value in values)
    run(database, "DROP TABLE IF EXISTS ids", f"CREATE TABLE ids (item_id {kind})", f"INSERT INTO ids VALUES {rows}")
    source = PostgresTable(uri=database, table="ids")
    if isinstance(expected, list):
        assert [row["item_id"] for row in read_back(tmp_path, source)] == expected
        return
    with pytest.raises(DataError) as caught:
        Catalog.create(tmp_path / "c.duckdb", source)
    assert expected in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://shop:hunter2@localhost:1/shop",
        "postgresql://shop:hunter2@@localhost:1/shop",
        "host=localhost port=1 user=shop password=hunter2",
        "host=localhost port=1 password='hunter2",
        "postgresql://shop:hunter2@localhost:99999999/shop?x=hunter2",
        "hunter2",
    ],
)
def test_no_connection_is_a_named_error_without_the_password(tmp_path, uri):
    pytest.importorskip("adbc_driver_postgresql", reason="ADBC's driver for PostgreSQL is not installed")
    source = PostgresTable(uri=uri, table="items")
    with pytest.raises(DataError, match=r"cannot read PostgreSQL's public\.items") as caught:
        Catalog.create(tmp_path / "c.duckdb", source)
    assert "hunter2" not in str(caught.value) + repr(source) + repr(caught.value.__cause__)


@pytest.mark.parametrize("name", ["id", "ID", "Item_ID", "itemId", "item id", "item"])
def test_a_column_that_is_called_nearly_item_id_is_named(tmp_path: Path, name: str) -> None:
    """D11: of Arrow tables and files."""
    table = pa.table({"title": ["tea"], name: ["a"]})
    pq.write_table(table, tmp_path / "items.parquet")
    (tmp_path / "items.csv").write_text(f"title,{name}\ntea,a\n")
    for source in (table, tmp_path / "items.parquet", tmp_path / "items.csv"):
        with pytest.raises(DataError, match=f"has no column 'item_id'; .*: rename the column '{name}' to 'item_id'"):
            Catalog.create(tmp_path / "items.duckdb", source)


@pytest.mark.parametrize("name", [" title", "title ", "title\u00a0", "ti\ttle", "ti\ntle", "ti\u2028tle"])
@pytest.mark.parametrize("kind", ["table", "stream", "parquet", "csv"])
def test_names_that_no_rule_could_be_typed_with_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    """D12: one policy in every format, as `items import` has it."""
    table = pa.table({"item_id": ["a"], name: ["x"]})
    source: ItemSource = table.to_reader() if kind == "stream" else table
    if kind in ("parquet", "csv"):
        source = tmp_path / f"items.{kind}"
        pq.write_table(table, source) if kind == "parquet" else source.write_text(f'item_id,"{name}"\na,x\n')
    with pytest.raises(DataError, match=r"blanks around the name of the column|such as a line break or tab, in the name"):
        Catalog.create(tmp_path / "items.duckdb", source)
