import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.catalog import Catalog
from leafbeam.errors import DataError, ItemIdError, RuleError, UnknownRuleError
from leafbeam.index import Filter, Trie

NUM_ITEMS = 700


def make_trie(item_ids) -> Trie:
    rng = np.random.default_rng(7)
    codes = np.stack([rng.integers(0, 16, len(item_ids)), rng.integers(0, 64, len(item_ids))], axis=1)
    return Trie.build(codes, [16, 64], item_ids=item_ids)


def make_items(item_ids) -> pa.Table:
    rng = np.random.default_rng(11)
    order = rng.permutation(len(item_ids))
    return pa.table(
        {
            "title": [f"thing {item_ids[i]}" for i in order],
            "item_id": [item_ids[i] for i in order],
            "price": pa.array([None if i % 50 == 0 else float(i % 40) for i in order], pa.float64()),
            "stock": [int(i % 3) for i in order],
        }
    )


NUMBERS = [1000 + 3 * i for i in range(NUM_ITEMS)]
TEXTS = [f"é{i:04d}" for i in range(NUM_ITEMS)]


@pytest.fixture(params=["numbers", "texts"])
def item_ids(request) -> list:
    return NUMBERS if request.param == "numbers" else TEXTS


@pytest.fixture(scope="module")
def new_shop(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.duckdb"
    Catalog.create(path, make_items(NUMBERS))
    return path


@pytest.fixture
def shop(tmp_path: Path, new_shop: Path) -> Path:
    return Path(shutil.copy(new_shop, tmp_path / "shop.duckdb"))


def allowed(chosen: Filter | None) -> set:
    assert chosen is not None
    return set(chosen.item_ids().tolist())


def in_another_process(path: Path, sql: str) -> None:
    code = "import duckdb, sys\nwith duckdb.connect(sys.argv[1]) as c: c.execute(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, str(path), sql], check=True)


def write(path: Path, sql: str) -> None:
    """Change the file from outside the catalog: DuckDB would refuse this if the catalog still held it open."""
    with duckdb.connect(str(path)) as connection:
        connection.execute(sql)


def test_a_rule_selects_exactly_the_items_whose_predicate_is_true(tmp_path, item_ids):
    Catalog.create(tmp_path / "c.duckdb", make_items(item_ids))
    catalog = Catalog.open(
        tmp_path / "c.duckdb", make_trie(item_ids), {"cheap": "price < 20 -- not null", "in_stock": "stock > 0"}
    )
    cheap = {item_ids[i] for i in range(NUM_ITEMS) if i % 50 and i % 40 < 20}
    in_stock = {item_ids[i] for i in range(NUM_ITEMS) if i % 3}
    assert allowed(catalog.filter(["cheap"])) == cheap
    assert allowed(catalog.filter(["in_stock"])) == in_stock
    assert allowed(catalog.filter(["in_stock", "cheap", "cheap"])) == cheap & in_stock
    assert catalog.filter([]) is None
    assert catalog.filter(["cheap", "in_stock"]) is catalog.filter(["in_stock", "cheap"])
    assert {rule.name: rule.num_items for rule in catalog.rules.report.rules} == {
        "cheap": len(cheap),
        "in_stock": len(in_stock),
    }


def test_a_rule_is_exact_after_rows_were_deleted_and_added_in_another_order(shop):
    write(shop, "DELETE FROM items WHERE stock = 1")
    write(shop, "INSERT INTO items SELECT 'again', item_id + 3, 5, 9 FROM items WHERE stock = 0")
    catalog = Catalog.open(shop, make_trie(NUMBERS), {"back": "stock = 9", "two": "stock = 2"})
    assert allowed(catalog.filter(["back"])) == {NUMBERS[i + 1] for i in range(0, NUM_ITEMS - 1, 3)}
    assert allowed(catalog.filter(["two"])) == {NUMBERS[i] for i in range(2, NUM_ITEMS, 3)}


def test_a_rule_that_selects_nothing_is_the_empty_filter(shop):
    nothing = Catalog.open(shop, make_trie(NUMBERS), {"none": "price > 1e9"}).filter(["none"])
    assert nothing is not None
    assert len(nothing) == 0


def test_rules_may_look_at_other_tables_of_the_file(shop):
    write(shop, "CREATE TABLE promo AS SELECT item_id FROM items WHERE price = 3")
    catalog = Catalog.open(shop, make_trie(NUMBERS), {"promo": "item_id IN (SELECT item_id FROM promo)"})
    assert allowed(catalog.filter(["promo"])) == {NUMBERS[i] for i in range(NUM_ITEMS) if i % 50 and i % 40 == 3}


def test_items_of_the_table_or_the_index_only_are_counted_and_reported(tmp_path):
    Catalog.create(tmp_path / "c.duckdb", make_items([*NUMBERS[:600], 5, 6, 7]))
    catalog = Catalog.open(tmp_path / "c.duckdb", make_trie(NUMBERS), {"all": "true"})
    report = catalog.rules.report
    assert (report.num_items, report.not_in_index, report.not_in_catalog) == (603, 3, 100)
    assert "3 items of the table are not in the index" in str(report)
    assert "100 items of the index are not in the table" in str(report)
    assert allowed(catalog.filter(["all"])) == set(NUMBERS[:600])


def test_an_empty_index_and_an_empty_table_are_valid(tmp_path):
    empty = pa.table({"item_id": pa.array([], pa.int64())})
    Catalog.create(tmp_path / "c.duckdb", empty)
    nothing = Trie.build(np.empty((0, 2), np.int64), [16, 64])
    for trie in (nothing, make_trie(NUMBERS), make_trie(TEXTS)):
        chosen = Catalog.open(tmp_path / "c.duckdb", trie, {"all": "true"}).filter(["all"])
        assert chosen is not None
        assert len(chosen) == 0
    Catalog.create(tmp_path / "d.duckdb", make_items(NUMBERS))
    report = Catalog.open(tmp_path / "d.duckdb", nothing, {"all": "true"}).rules.report
    assert (report.not_in_index, report.not_in_catalog) == (NUM_ITEMS, 0)


def test_ids_of_another_kind_than_the_index_has_are_an_error(shop):
    with pytest.raises(DataError, match=r"knows its items by text such as 'é0000'.* holds whole numbers"):
        Catalog.open(shop, make_trie(TEXTS))


@pytest.mark.parametrize(
    "predicate",
    [
        "price <",
        "no_such_column > 1",
        "title::DATE > now()",
        "error('no')",
        "sum(stock) > 1",
        "true); DROP TABLE items; --",
        "price < ?",
        "title",
        "(SELECT 1 FROM range(2))",
        "DROP TABLE items",
        "true); SELECT (1",
        "COLUMNS(*) IS NOT NULL",
        "COLUMNS('p.*|s.*') > 1",
    ],
)
def test_a_rule_that_cannot_be_evaluated_is_an_error_at_start(shop, predicate):
    with pytest.raises(RuleError) as caught:
        Catalog.open(shop, make_trie(NUMBERS), {"good": "true", "bad": predicate})
    assert "'bad'" in str(caught.value)
    assert predicate in str(caught.value)
    assert len(Catalog.open(shop, make_trie(NUMBERS), {"good": "true"}).filter(["good"])) == NUM_ITEMS


@pytest.mark.parametrize("kind", ["file", "exclusive", "memory"])
def test_a_rule_reads_no_file_but_the_table(shop, tmp_path, kind):
    secret = tmp_path / "secret.csv"
    secret.write_text("stock\n1\n")
    duckdb.sql("SELECT 1 AS stock").write_parquet(str(tmp_path / "secret.parquet"))
    trie = make_trie(NUMBERS)
    table = make_items(NUMBERS)
    catalog = Catalog.in_memory(table, trie) if kind == "memory" else Catalog.open(shop, trie, exclusive=kind == "exclusive")
    with catalog:
        for source in (
            f"(SELECT count(*) FROM '{secret}') > 0",
            f'(SELECT count(*) FROM "{tmp_path}/secret.parquet") > 0',
            f"stock IN (TABLE '{secret}')",
            f"stock IN (WITH t AS (FROM '{secret}') FROM t)",
            f"(SELECT count(*) FROM (SUMMARIZE '{secret}')) > 0",
            f"(SELECT count(*) FROM items JOIN '{secret}' s ON items.stock = s.stock) > 0",
            f"(SELECT count(*) FROM read_text('{secret}')) > 0",
            f"(SELECT count(*) FROM glob('{tmp_path}/*')) > 0",
        ):
            with pytest.raises(RuleError, match=r"reads rows of ('.*secret.*'|read_text|glob)"):
                catalog.add_rule("curious", source)
        for qualified in ("main.items", '"items"', f"{'memory' if kind == 'memory' else 'shop'}.main.items"):
            catalog.add_rule("ours", f"stock IN (SELECT stock FROM {qualified})")


@pytest.mark.parametrize("kind", ["file", "exclusive", "memory"])
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ('title = "shoe"', 'Referenced column "shoe" not found'),
        ("count(*) > 1", "WHERE clause cannot contain aggregates"),
        ("row_number() OVER () < 3", "WHERE clause cannot contain window functions"),
        ("title < now()", "Cannot compare values of type VARCHAR and type TIMESTAMP"),
        ("no_such(stock) > 1", "no_such does not exist"),
        ("stock < ?", "Values were not provided"),
        ("title = 'a' AND regexp_matches(title, '(')", r"missing \)"),
    ],
)
def test_a_rule_that_cannot_be_evaluated_says_why_in_every_kind_of_catalog(shop, kind, where, reason):
    """The reason was hidden by that of the statement after it, in a transaction that had ended."""
    trie = make_trie(NUMBERS)
    table = make_items(NUMBERS)
    catalog = Catalog.in_memory(table, trie) if kind == "memory" else Catalog.open(shop, trie, exclusive=kind == "exclusive")
    with catalog:
        with pytest.raises(RuleError, match=reason):
            catalog.add_rule("wrong", where)
        catalog.add_rule("right", "stock >= 0")


def test_a_rule_changes_no_setting_of_the_database(shop, tmp_path):
    log = f"enable_logging('QueryLog', storage='file', storage_path='{tmp_path}/log')"  # would end the process
    with Catalog.open(shop, make_trie(NUMBERS), hold_s=600) as catalog:
        for _ in range(2):
            for function in ("enable_logging()", log, '"Enable_Profiling"()', "query('FROM enable_' || 'logging()')"):
                for where in (f"(SELECT count(*) FROM {function}) >= 0", f"exists(WITH t AS (FROM {function}) FROM t)"):
                    with pytest.raises(RuleError, match=r"reads rows of (enable_logging|enable_profiling|query)\(\)"):
                        catalog.add_rule("curious", where)
            with pytest.raises(RuleError, match="other than SELECT"):
                catalog.add_rule("curious", f"exists(FROM (PIVOT (FROM {log}) ON message USING count(*)))")
            catalog.update(NUMBERS[:1], [{"stock": 9}])  # keeps the file open
        catalog.add_rule("ours", "stock = 9 AND 1 IN (SELECT i FROM range(3) t(i)) AND title IN (SELECT title FROM items)")
        assert catalog.rules.filters["ours"].item_ids().tolist() == NUMBERS[:1]


@pytest.mark.parametrize(
    ("name", "predicate"),
    [("x", 7), ("x", ""), ("x", {"where": "true", "when": 1}), ("", "true"), ("a b", "true"), ("é", "true")],
)
def test_an_invalid_name_or_predicate_is_a_rule_error(shop, name, predicate):
    with pytest.raises(RuleError):
        Catalog.open(shop, make_trie(NUMBERS), {name: predicate})


def test_an_unknown_rule_is_refused_with_the_known_names(shop):
    catalog = Catalog.open(shop, make_trie(NUMBERS), {"cheap": "price < 20", "in_stock": "stock > 0"})
    with pytest.raises(UnknownRuleError, match="unknown rule 'fresh'; the rules of this catalog are: cheap, in_stock"):
        catalog.filter(["cheap", "fresh"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[rules\n", "not a TOML file"),
        ("fresh = 'true'", "it holds: fresh"),
        ("", "it holds: nothing"),
        ("[rules]\na = 'true'\n[rule]\nb = 'true'", "it holds: rules, rule"),
    ],
)
def test_a_rules_file_of_another_shape_is_an_error(shop, tmp_path, text, says):
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(RuleError, match=says):
        Catalog.open(shop, make_trie(NUMBERS), tmp_path / "rules.toml")


def test_a_missing_rules_file_is_an_error(shop, tmp_path):
    with pytest.raises(RuleError, match="cannot read the rules"):
        Catalog.open(shop, make_trie(NUMBERS), tmp_path / "none.toml")


def test_reload_sees_what_another_process_wrote_and_a_pinned_request_does_not(shop, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("[rules]\ncheap = 'price < 20'\ngone = 'stock = 0'\n")
    catalog = Catalog.open(shop, make_trie(NUMBERS), rules)
    pinned = catalog.rules
    before = allowed(pinned.filter(["cheap"]))
    write(shop, "UPDATE items SET price = 99 WHERE price < 10")
    rules.write_text("[rules]\ncheap = 'price < 20'\nnew = 'stock = 1'\n")
    report = catalog.reload()
    assert report.ok, report
    assert allowed(catalog.filter(["cheap"])) == {i for i in before if (i - 1000) // 3 % 40 >= 10}
    assert allowed(catalog.filter(["new"])) == {NUMBERS[i] for i in range(1, NUM_ITEMS, 3)}
    with pytest.raises(UnknownRuleError):
        catalog.filter(["gone"])
    assert allowed(pinned.filter(["cheap"])) == before
    assert (pinned.generation, catalog.rules.generation) == (1, 2)


def test_a_rule_that_fails_at_reload_keeps_its_last_good_filter_and_says_so(shop, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("[rules]\nmalformed = 'price < 20'\nmissing = 'stock = 0'\nraises = 'stock = 1'\nfine = 'true'\n")
    catalog = Catalog.open(shop, make_trie(NUMBERS), rules)
    before = {name: allowed(chosen) for name, chosen in catalog.rules.filters.items()}
    write(shop, "DELETE FROM items WHERE stock = 0; ALTER TABLE items DROP COLUMN stock")
    rules.write_text(
        "[rules]\nmalformed = 'price <'\nmissing = 'stock = 0'\nraises = \"error('no')\"\nfine = 'true'\nnever = 'nope'\n"
    )
    report = catalog.reload()
    assert not report.ok
    assert {rule.name: (rule.kept, rule.error is None) for rule in report.rules} == {
        "malformed": (True, False),
        "missing": (True, False),
        "raises": (True, False),
        "fine": (False, True),
        "never": (False, False),
    }
    for name in ("malformed", "missing", "raises"):
        assert allowed(catalog.filter([name])) == before[name] - before["missing"]  # those rows are gone
    assert len(catalog.filter(["fine"])) < NUM_ITEMS
    assert "as before: rule 'missing' cannot be evaluated: stock = 0" in str(report)
    with pytest.raises(UnknownRuleError, match="rule 'never' is not available"):
        catalog.filter(["never"])
    rules.write_text("[rules]\nmissing = 'price = 1'\n")
    assert catalog.reload().ok
    assert allowed(catalog.filter(["missing"])) == {NUMBERS[i] for i in range(NUM_ITEMS) if i % 3 and i % 50 and i % 40 == 1}


@pytest.mark.parametrize("fault", ["toml", "truncated", "gone", "duplicates", "no table", "text ids"])
def test_a_reload_that_cannot_read_at_all_changes_nothing(shop, tmp_path, fault):
    rules = tmp_path / "rules.toml"
    rules.write_text("[rules]\ncheap = 'price < 20'\n")
    catalog = Catalog.open(shop, make_trie(NUMBERS), rules)
    before = catalog.rules
    if fault == "toml":
        rules.write_text("[rules")
    elif fault == "truncated":
        os.truncate(shop, 9000)
    elif fault == "gone":
        shop.unlink()
    elif fault == "duplicates":
        write(shop, "INSERT INTO items SELECT * FROM items LIMIT 3")
    elif fault == "no table":
        write(shop, "DROP TABLE items")
    else:
        write(shop, "ALTER TABLE items ALTER item_id TYPE VARCHAR")
    report = catalog.reload()
    assert not report.ok
    assert report.error
    assert "nothing was changed" in str(report)
    assert catalog.rules is before


def test_the_file_is_free_for_a_writer_between_loads(shop):
    catalog = Catalog.open(shop, make_trie(NUMBERS), {"cheap": "price < 20"})
    catalog.lookup(NUMBERS[:2])
    catalog.reload()
    in_another_process(shop, "UPDATE items SET price = 1")
    assert catalog.reload().rules[0].num_items == NUM_ITEMS


def test_a_reload_waits_for_a_writer_and_then_gives_up_with_the_old_rules(shop):
    catalog = Catalog.open(shop, make_trie(NUMBERS), {"cheap": "price < 20"}, wait_s=0.2)
    code = (
        "import duckdb, sys\nwith duckdb.connect(sys.argv[1]) as c:\n"
        "    c.execute('UPDATE items SET price = 1'); print('open', flush=True); sys.stdin.readline()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(shop)], **pipes) as writer:
        assert writer.stdout.readline() == "open\n"
        report = catalog.reload()
        assert report.error is not None
        assert "waited 0.2 s for another process" in report.error
        threading.Timer(0.3, lambda: (writer.stdin.write("\n"), writer.stdin.flush())).start()
        assert Catalog.open(shop, make_trie(NUMBERS), {"cheap": "price < 20"}, wait_s=20).rules.report.rules[0].num_items == 700


def test_a_file_put_in_the_place_of_the_old_one_is_seen_at_reload(shop):
    catalog = Catalog.open(shop, make_trie(NUMBERS), {"all": "true"})
    Catalog.create(shop, make_items(NUMBERS[:30]), overwrite=True)
    assert catalog.reload().rules[0].num_items == 30


@pytest.mark.slow
@settings(max_examples=20)
@given(st.permutations(range(8)), st.permutations(range(8)))
def test_rows_that_moved_are_mapped_again(before, after):
    """The ids are their own row numbers at first: the table looks the same from every side but one."""
    trie = Trie.build([[i] for i in range(8)], [8])

    def table(order):
        return pa.table({"item_id": list(order), "mine": [i in (1, 2, 5) for i in order]})

    for first in (before, range(8)):
        with Catalog.in_memory(table(first), trie, {"mine": "mine"}) as catalog:
            assert catalog.reload(table(after)).ok
            assert allowed(catalog.filter(["mine"])) == {1, 2, 5}


@pytest.mark.parametrize("size", [0, 1, 5000, 20_000, 270_000])
def test_a_truncated_file_is_a_named_error(shop, size):
    os.truncate(shop, size)
    with pytest.raises(DataError, match=str(shop.name)):
        Catalog.open(shop, make_trie(NUMBERS), {"all": "true"})


def test_a_file_without_a_proper_table_of_items_is_a_named_error(tmp_path):
    cases = {
        "CREATE TABLE other AS SELECT 1 AS item_id": "no table 'items'",
        "CREATE VIEW items AS SELECT 1 AS item_id": "has to be a table, not a view",
        "CREATE TABLE items AS SELECT 1 AS id": "no column 'item_id'",
        "CREATE TABLE items AS SELECT 1.5::DOUBLE AS item_id": "has to hold whole numbers or text",
        "CREATE TABLE items AS SELECT unnest([1, 2, 2, NULL]) AS item_id": "has 1 row without item_id",
        "CREATE TABLE items AS SELECT unnest([1, 2, 2, 3]) AS item_id": r"these occur again: 2 \(2 rows\)",
        "CREATE TABLE items AS SELECT 18446744073709551615::UBIGINT AS item_id": "fit 64-bit",
    }
    for number, (sql, says) in enumerate(cases.items()):
        path = tmp_path / f"{number}.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(sql)
        with pytest.raises(DataError, match=says):
            Catalog.open(path, make_trie(NUMBERS), {"all": "true"})


def test_create_reads_parquet_and_csv_like_a_table(tmp_path, item_ids):
    table = make_items(item_ids)
    pq.write_table(table, tmp_path / "items.parquet")
    pacsv.write_csv(table, tmp_path / "items.csv")
    for suffix in ("parquet", "csv"):
        Catalog.create(tmp_path / f"{suffix}.duckdb", str(tmp_path / f"items.{suffix}"))
        catalog = Catalog.open(tmp_path / f"{suffix}.duckdb", make_trie(item_ids), {"cheap": "price < 20"})
        assert catalog.rules.report.not_in_catalog == 0
        assert catalog.lookup(table["item_id"].to_pylist()).sort_by("title").column("title") == table.sort_by("title")["title"]


def test_create_refuses_an_invalid_source_and_leaves_no_file(tmp_path):
    (tmp_path / "items.txt").write_text("item_id\n1\n")
    (tmp_path / "bad.parquet").write_text("item_id\n1\n")
    sources = {
        "no column 'item_id'": pa.table({"id": [1]}),
        "occur again": pa.table({"item_id": [1, 1]}),
        "column 'item_id': empty in row 2": pa.table({"item_id": [1, None]}),
        "there is no file": tmp_path / "none.csv",
        "a file that ends in": tmp_path / "items.txt",
        "cannot be read as Parquet": tmp_path / "bad.parquet",
    }
    for says, source in sources.items():
        with pytest.raises(DataError, match=says):
            Catalog.create(tmp_path / "c.duckdb", source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.parquet", "items.txt"]


def test_create_does_not_replace_a_file_unasked(shop):
    with pytest.raises(DataError, match="already there"):
        Catalog.create(shop, make_items(NUMBERS))


def test_lookup_gives_rows_in_the_order_asked_with_nulls_for_the_unknown(shop):
    catalog = Catalog.open(shop, make_trie(NUMBERS))
    rows = catalog.lookup([NUMBERS[5], 4, NUMBERS[3], NUMBERS[5]], columns=["title", "price"]).to_pylist()
    assert rows == [
        {"item_id": NUMBERS[5], "title": f"thing {NUMBERS[5]}", "price": 5.0},
        {"item_id": 4, "title": None, "price": None},
        {"item_id": NUMBERS[3], "title": f"thing {NUMBERS[3]}", "price": 3.0},
        {"item_id": NUMBERS[5], "title": f"thing {NUMBERS[5]}", "price": 5.0},
    ]
    assert catalog.lookup(np.array(NUMBERS[:2])).column_names == ["item_id", "title", "price", "stock"]
    assert catalog.lookup([]).num_rows == 0
    with pytest.raises(DataError, match="no column 'colour'"):
        catalog.lookup(NUMBERS[:1], columns=["colour"])
    for ids in (["one"], [1, "x"], [2**70]):
        with pytest.raises(ItemIdError):
            catalog.lookup(ids)


def test_a_column_with_a_hostile_name_is_looked_up_as_a_name(tmp_path):
    Catalog.create(tmp_path / "c.duckdb", pa.table({"item_id": [1], 'x"; DROP TABLE items; --': ["y"]}))
    catalog = Catalog.open(tmp_path / "c.duckdb", make_trie([1, 2]))
    assert catalog.lookup([1]).to_pylist() == [{"item_id": 1, 'x"; DROP TABLE items; --': "y"}]


def test_a_rule_set_stays_consistent_while_another_thread_reloads(shop):
    """Both rules always select the same items, so a half-replaced set of filters would show two sizes."""
    catalog = Catalog.open(shop, make_trie(NUMBERS), {"a": "price < 20", "b": "NOT (price >= 20)"})
    torn: list[tuple[int, int]] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            rules = catalog.rules
            sizes = len(rules.filters["a"]), len(rules.filters["b"])
            both = rules.filter(["a", "b"])
            if sizes[0] != sizes[1] or both is None or len(both) != sizes[0]:
                torn.append(sizes)

    watcher = threading.Thread(target=look)
    watcher.start()
    for price in (5, 50):
        write(shop, f"UPDATE items SET price = {price} WHERE price = 3 OR price = 5 OR price = 50")
        for _ in range(3):
            assert catalog.reload().ok
    stop.set()
    watcher.join()
    assert torn == []
