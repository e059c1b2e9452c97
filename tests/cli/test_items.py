"""`leafbeam items`: the same commands on a run's directory, and on its server."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.catalog import Catalog
from leafbeam.cli.items import KEY
from leafbeam.cli.run import RunDirectory
from leafbeam.engine import CatalogFiles, Engine
from leafbeam.ingest import set_aside
from leafbeam.model import load_model
from leafbeam.retrieve import ItemMemory
from leafbeam.serve import Access
from leafbeam.serve.changes import open_changed
from tests.fixtures.items_run import IDS, TITLES, call, ids_of, served
from tests.serve.running import thread


def add_replace_and_remove(run: Path, *place: str) -> None:
    assert "new was added" in call("add", "new", "title=old tea", "price=2.5", *place).stdout
    assert "new was replaced" in call("add", "new", "title=tea", "--codes", "1,2,0", *place).stdout
    wrong = call("remove", "new", "nothing", *place)
    assert (wrong.exit_code, "the index does not have it" in wrong.stderr) == (2, True)
    assert ids_of(run) == {*IDS, "new"}
    removed = call("remove", "new", "i0", "nothing", "--missing-ok", *place)
    assert "2 items removed, 1 was not there" in removed.stdout
    assert ids_of(run) == IDS - {"i0"}


def test_items_of_a_run_are_added_replaced_and_removed(run: Path) -> None:
    add_replace_and_remove(run, "--run", str(run))


@pytest.mark.slow
def test_items_of_a_server_are_added_replaced_and_removed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(run, monkeypatch) as url:
        add_replace_and_remove(run, "--url", url)
        outside = call("remove", "i1", "--run", str(run))
        assert (outside.exit_code, "--url http://127.0.0.1:8000" in outside.stderr) == (2, True)
        assert ("one writer at a time)" in outside.stderr, "read_only" in outside.stderr) == (True, False)
        monkeypatch.delenv(KEY)
        refused = call("remove", "i1", "--url", url)
        assert (refused.exit_code, "401" in refused.stderr) == (2, True)
    assert ids_of(run) == IDS - {"i0"}


def test_an_item_put_with_text_alone_is_found_through_texts_like_its_own_and_by_the_model(run: Path) -> None:
    paths = RunDirectory(run)
    ItemMemory.fit(sorted(IDS), np.array([0]), np.empty(0, np.int64), texts=TITLES).save(paths.memory)
    with ExitStack() as opened:
        files = CatalogFiles(index=paths.trie, catalog=paths.catalog, rules=paths.rules, memory=paths.memory)
        changed = open_changed(files, paths.live, opened, encoder=paths.load_encoder())
        engine = Engine(load_model(paths.model), changed.source, memory=changed.memory)
        server = opened.enter_context(thread(engine, writer=changed.writer, access=Access(changes="local")))
        with httpx.Client(base_url=server.url, timeout=120) as client:
            put = client.put("/v1/items", json=[{"item_id": "new", "title": "a very old green tea"}])
            assert put.json()["inserted"] == 1, put.text
            like, new = (client.get(f"/v1/items/{item}").json() for item in ("i4", "new"))
            assert new["codes"] == like["codes"]  # "old green tea": the model, which never saw it, scores it as that one
            memory = client.post("/v1/recommend", json={"history": ["i4"], "num_items": 3, "channel": "memory"}).json()
            assert memory["item_ids"][0] == "new"
            assert (memory["reasons"][0]["channel"], memory["reasons"][0]["item_id"]) == ("text", "i4")
            body = {"history": ["i0"], "num_items": 7, "num_beams": 16, "channel": "model", "keep_history": True}
            model = client.post("/v1/recommend", json=body).json()
            scores = dict(zip(model["item_ids"], model["scores"], strict=True))
            assert scores.keys() == {*IDS, "new"}
            assert scores["new"] == scores["i4"]
            unknown = client.put("/v1/items", json=[{"item_id": "other", "title": "zzz"}])
            assert (unknown.status_code, "send more text, or codes" in unknown.text) == (422, True)


ENCODER = "leafbeam.semid.item_encoder"  # read only for an item without codes
NEEDLESS = (
    "torch",
    "sklearn",
    "starlette",
    "leafbeam.serve.changes",
    "leafbeam.engine.engine",
    "leafbeam.model.config",
    "leafbeam.train.recipe",
    ENCODER,
)
LOADED = """
import json, sys
from leafbeam.catalog.evaluator import Evaluator
from leafbeam.cli import app
loaded = []
Evaluator.evaluate = lambda *_, **__: loaded.append("rules")
for words in json.loads(sys.argv[1]):
    assert not app(words, standalone_mode=False)  # else the exit code
print(json.dumps(loaded + [name for name in json.loads(sys.argv[2]) if name in sys.modules]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (
            [
                ["add", "new", "--codes", "1,3,0", "title=green tea"],
                ["add", "i0", "--codes", "1,3,0"],
                ["remove", "i1", "i2"],
                ["remove", "nothing", "--missing-ok"],
            ],
            [],
        ),
        (
            [["add", "new", "title=old red boot", "price=2"], ["add", "i0", "title=old red boot"], ["import", "items.csv"]],
            [ENCODER],
        ),
    ],
)
def test_a_change_of_an_item_loads_no_model_no_server_and_no_needless_encoder(
    run: Path, commands: list[list[str]], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6: `items add` took 4 to 5 s: it imported torch and the model's kernels, and evaluated all rules over all items."""
    (run / "items.csv").write_text("item_id,title\nnew,black tea\n")
    commands = [["items", *words, "--run", str(run)] for words in commands]
    code = [sys.executable, "-c", LOADED, json.dumps(commands), json.dumps(NEEDLESS)]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    finished = subprocess.run(code, cwd=run, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("INSERT INTO items SELECT * FROM items WHERE item_id = 'i2'", "these occur again: 'i2' (2 rows)"),
        ("INSERT INTO items (title) VALUES ('tea')", "has 1 row without item_id"),
        ("CREATE TABLE other AS FROM items; DROP TABLE items; CREATE VIEW items AS FROM other", "has to be a table"),
        ("ALTER TABLE items ALTER item_id TYPE INT USING CAST(item_id[2:] AS INT)", "ids of this index are strings"),
    ],
)
@pytest.mark.parametrize("words", [["add", "1", "--codes", "1,3,0", "title=tea"], ["remove", "1"]])
def test_a_change_checks_the_ids_of_the_table_although_it_reads_no_rule(
    run: Path, words: list[str], change: str, message: str
) -> None:
    """L6: what a change no longer evaluates was also what found repeated ids."""
    with duckdb.connect(str(RunDirectory(run).catalog)) as connection:
        connection.execute(change)
    refused = call(*words, "--run", str(run))
    assert (refused.exit_code, message in refused.stderr) == (2, True), refused.stderr


def test_a_change_of_an_item_passes_by_rules_that_cannot_be_evaluated(run: Path) -> None:
    """L6: rules are the server's, which names those that fail."""
    RunDirectory(run).rules.write_text("[rules]\nbroken = 'no_such_column < 3'\n")
    assert "new was added" in call("add", "new", "--codes", "1,3,0", "title=tea", "--run", str(run)).stdout
    assert "1 item removed" in call("remove", "new", "--run", str(run)).stdout


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[", "ftp://x", ""])
def test_what_is_no_server_is_named(url: str) -> None:
    result = call("remove", "i1", "--url", url)
    assert (result.exit_code, "Error:" in result.stderr) == (2, True), result.exception


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet", "stdin"])
def test_items_of_a_file_are_imported(run: Path, tmp_path: Path, form: str) -> None:
    rows: list[dict[str, Any]] = [{"item_id": f"n{n}", "title": "green tea", "price": 1.0} for n in range(1500)]
    rows += [{"item_id": "i1", "title": "boot", "price": 1.0}]
    path, text = tmp_path / f"items.{form}", "\n".join(map(json.dumps, rows))
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == "csv":
        path.write_text("item_id,title,price\n" + "".join(f"{row['item_id']},{row['title']},1\n" for row in rows))
    else:
        path.write_text(json.dumps(rows) if form == "json" else text)
    file = "-" if form == "stdin" else str(path)
    done = call("import", file, "--run", str(run), stdin=text if form == "stdin" else None)
    assert "1,500 items added, 1 replaced" in done.stdout, done.stderr
    assert len(ids_of(run)) == 1506


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".parquet"])
def test_items_arrive_with_codes_from_every_format(run: Path, tmp_path: Path, suffix: str) -> None:
    """A14: the name is `codes` in files, as in bodies and answers over HTTP."""
    file, row = tmp_path / f"items{suffix}", {"item_id": "new", "codes": [1, 2, 0], "title": "tea"}
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), file)
    else:
        file.write_text(json.dumps(row) if suffix != ".csv" else 'item_id,codes,title\nnew,"[1, 2, 0]",tea\n')
    assert call("import", str(file), "--run", str(run)).exit_code == 0
    paths = RunDirectory(run)
    with ExitStack() as opened:
        source = CatalogFiles(index=paths.index, catalog=paths.catalog, rules=paths.rule_files).open(opened)
        assert isinstance(source, Catalog)
        assert source.version().codes_of(["new"]).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("items.txt", "item_id\n1", "expected a file that ends in"),
        ("items.csv", "title\ntea", "line 2: it has no item_id"),
        ("items.csv", "item_id,title,title\na,tea,tea", "has the column 'title' twice"),
        ("items.csv", "item_id,title\na,tea,1", "line 2 has 3 cells, but the first line names 2 columns"),
        ("items.csv", 'item_id,title\na,"tea', "line 2: a quote opens a cell and does not close"),
        ("items.csv", "item_id,price\na,dear", "price"),
        ("items.csv", "", "is empty (0 bytes)"),
        ("none.jsonl", None, "there is no file"),
        ("items.jsonl", "", "is empty (0 bytes)"),
        ("items.jsonl", "\n", "has no items"),
        ("items.json", "[]", "has no items"),
        ("items.json", "{}", "line 1: it has no item_id"),
        ("items.json", "null", "expected objects of fields"),
        ("items.jsonl", '{"item_id": "a", "title": "tea"}\nnonsense', "line 2 cannot be read as JSON"),
        ("items.jsonl", "[[[", "line 1 cannot be read as JSON"),
        ("items.jsonl", "3", "line 1: expected a row as a JSON object, not 3"),
        ("items.jsonl", '{"item_id": "a", "title": "' + "x" * (1 << 20) + '"}', "expected at most 1,048,576 bytes"),
        ("items.json", "[" * 100_000, "cannot be read"),
        ("items.parquet", "PAR1", "cannot be read"),
        ("items.jsonl", '{"item_id": "a", "codes": [9, 9, 9]}', "is outside its codebook"),
        ("items.jsonl", '{"item_id": "a", "title": true}', "is not text"),
        ("items.jsonl", '{"item_id": "a", "colour": "red"}', "there is no column 'colour'"),
        (
            "items.jsonl",
            '{"item_id": "a", "sid": [1, 2, 0]}',
            "no column 'sid': the table has price, title; a line may also have codes",
        ),
        ("items.csv", "item_id,codes\na,1 2 0", "line 2: codes must be a list of whole numbers such as [3, 17], not '1 2 0'"),
    ],
    ids=map(str, range(24)),
)
def test_a_wrong_file_is_named_and_changes_nothing(run: Path, tmp_path: Path, name: str, content: Any, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    result = call("import", str(tmp_path / name), "--run", str(run))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert ids_of(run) == IDS


def test_words_that_are_no_attributes_are_refused(run: Path) -> None:
    for words in (["price"], ["item_id=3"], ["codes=3"], ["--codes", "a,b"]):
        assert call("add", "x", *words, "--run", str(run)).exit_code == 2, words
    assert set_aside(run / "live") is None  # nothing was written


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_index_of_pandas_is_left_out_and_named(run: Path, tmp_path: Path, form: str) -> None:
    """D11: `read_table` names such a column; a catalog that has it gets its values, another one gets none."""
    path = tmp_path / f"items.{form}"
    if form == "csv":
        path.write_text(",item_id,title\n0,n1,green tea\n1,n2,red boot\n")
    else:
        pq.write_table(pa.table({"item_id": ["n1"], "title": ["tea"], "__index_level_0__": [0]}), path)
    result = call("import", str(path), "--run", str(run))
    assert result.exit_code == 0, result.stderr
    name = "unnamed_0" if form == "csv" else "__index_level_0__"
    assert f"Left out: {name}. The file does not name these columns" in result.stdout
    assert "n1" in ids_of(run)


def test_the_delimiter_may_be_called_tab(run: Path, tmp_path: Path) -> None:
    """D1: in every command that reads CSV."""
    (tmp_path / "items.csv").write_text("item_id\ttitle\nn1\tgreen tea\n")
    assert call("import", str(tmp_path / "items.csv"), "--delimiter", "tab", "--run", str(run)).exit_code == 0
    assert ids_of(run) == {*IDS, "n1"}


@pytest.mark.parametrize("door", ["csv", "jsonl", "json", "parquet", "http"])
def test_times_are_kept_to_the_nanosecond_through_every_door(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    """D7: timestamps and times of a day; `GET` gives them back with all digits."""
    at, clock, ids = 1_769_000_001_123_456_789, 36_000_123_456_789, sorted(IDS)
    columns = {"at": pa.array([at] * 6, pa.timestamp("ns")), "clock": pa.array([clock] * 6, pa.time64("ns"))}
    Catalog.create(RunDirectory(run).catalog, pa.table({"item_id": ids, "title": TITLES, **columns}), overwrite=True)
    (run / "rules.toml").write_text("[rules]\n")
    new = pa.table(
        {"item_id": ["new"], "title": ["green tea"], **{name: values.slice(0, 1) for name, values in columns.items()}}
    )
    row = {"item_id": "new", "title": "green tea", "at": "2026-01-21T12:53:21.123456789", "clock": "10:00:00.123456789"}
    path = tmp_path / f"items.{door}"
    if door == "parquet":
        pq.write_table(new, path)
    elif door == "csv":
        path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    else:
        path.write_text(json.dumps(row))
    with served(run, monkeypatch) as url:
        if door == "http":
            headers = {"Authorization": f"Bearer {os.environ[KEY]}"}
            assert httpx.put(f"{url}/v1/items", json=[row], headers=headers, timeout=120).status_code == 200
        else:
            result = call("import", str(path), "--url", url)
            assert result.exit_code == 0, result.stderr
        found = httpx.get(f"{url}/v1/items/new", headers={"Authorization": f"Bearer {os.environ[KEY]}"}, timeout=120).json()
    assert (found["attributes"]["at"], found["attributes"]["clock"]) == (row["at"], row["clock"])


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("items.csv", "item_id,title\nz,tea\nz,mug\n", (2, 3)),
        ("items.csv", 'item_id,title\nb,"two\nlines"\nz,tea\n\nz,mug\n', (4, 6)),
        ("items.jsonl", '\n{"item_id": "z"}\n\n{"item_id": "z"}\n', (2, 4)),
        ("items.json", '[{"item_id": "z"}, {"item_id": "y"}, {"item_id": "z"}]', (1, 3)),
    ],
)
def test_an_item_twice_is_named_with_its_lines_in_the_file(
    run: Path, tmp_path: Path, name: str, content: str, lines: tuple[int, int]
) -> None:
    """A8: the other line was numbered within the batch that was sent."""
    (tmp_path / name).write_text(content)
    result = call("import", str(tmp_path / name), "--run", str(run))
    shown = " ".join(result.stderr.split())
    assert result.exit_code == 2
    for line in lines:
        assert f"line {line}: item 'z' is on more than one line: keep one" in shown
    assert ids_of(run) == IDS
