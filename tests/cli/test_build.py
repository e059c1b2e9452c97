"""`leafbeam build TABLE` and `leafbeam inspect --plan`: from Parquet to an index, and what it would cost."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam import Trie
from leafbeam.cli.options import parse_bytes, parse_plan
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.ingest import LiveDirectory
from leafbeam.live import LiveIndex
from leafbeam.semid import SidTable
from tests.fixtures.command_line import call, flat, succeed


def rows(num_items: int = 500) -> tuple[np.ndarray, list[str]]:
    codes = np.random.default_rng(0).integers(0, 30, (num_items, 3))
    return codes, [f"item é{row}" for row in range(num_items)]


def code_arrays(codes: np.ndarray, how: str) -> dict[str, pa.Array]:
    if how == "fixed":
        return {"codes": pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1), pa.uint16()), codes.shape[1])}
    if how in ("list", "large"):
        kind = pa.list_(pa.int32()) if how == "list" else pa.large_list(pa.int64())
        return {"codes": pa.array(codes.tolist(), kind)}
    return {f"{how}{level}": pa.array(codes[:, level]) for level in range(codes.shape[1])}


def id_array(ids: list[str], how: str) -> pa.Array:
    if how == "numbers":
        return pa.array(np.arange(len(ids)) * 3, pa.int32())
    text = pa.array(ids)
    return text.dictionary_encode() if how == "dictionary" else text.cast(how)


@pytest.mark.parametrize("how", ["fixed", "list", "large", "c", "code_"])
@pytest.mark.parametrize("ids", ["numbers", "string", "large_string", "dictionary"])
def test_every_form_of_table_builds_the_same_index(tmp_path: Path, how: str, ids: str) -> None:
    codes, names = rows()
    table = pa.table({"item_id": id_array(names, ids), **code_arrays(codes, how)})
    pq.write_table(table, tmp_path / "items.parquet", row_group_size=130)
    words = ("build", tmp_path / "items.parquet", "--codebook-sizes", "30", "--memory-limit", "9kB", "--scratch", tmp_path)
    result = call(*words)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("Next: leafbeam inspect")
    expected = Trie.build(codes, [30] * 3, np.arange(500) * 3 if ids == "numbers" else names)
    assert Trie.load(tmp_path / "items.leafbeam").version == expected.version
    assert sorted(path.name for path in tmp_path.iterdir()) == ["items.leafbeam", "items.parquet"]


def test_a_directory_of_tables_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    codes, names = rows()
    for number, part in enumerate([slice(0, 200), slice(200, 200), slice(200, 500)]):
        table = pa.table({"item_id": names[part], "codes": pa.array(codes[part].tolist(), pa.list_(pa.int64()))})
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    out = tmp_path / "deep" / "down" / "x.leafbeam"
    result = call("build", tmp_path, "--codebook-sizes", "30,30,30", "--out", out, "--packed")
    assert result.exit_code == 0, result.stderr
    assert Trie.load(out).version == Trie.build(codes, [30] * 3, names, packed=True).version


def test_the_table_of_fit_sids_knows_its_codebooks(tmp_path: Path) -> None:
    codes, names = rows()
    SidTable(item_ids=np.array(names), codes=codes, codebook_sizes=(30, 40, 50)).save(tmp_path / "sids.parquet")
    assert call("build", tmp_path / "sids.parquet").exit_code == 0
    assert Trie.load(tmp_path / "sids.leafbeam").version == Trie.build(codes, [30, 40, 50], names).version


def test_codebook_sizes_that_nest_too_deeply_are_refused_in_one_line(tmp_path: Path) -> None:
    table = pa.table({"item_id": ["a"], "codes": pa.array([[1, 2]], pa.list_(pa.int64()))})
    pq.write_table(table.replace_schema_metadata({"leafbeam.codebook_sizes": "[" * 100_000}), tmp_path / "a.parquet")
    refused = call("build", tmp_path / "a.parquet")
    assert refused.exit_code == 2
    assert "leafbeam.codebook_sizes that is not a list of numbers" in refused.stderr


def test_the_column_of_ids_may_have_any_name(tmp_path: Path) -> None:
    codes, names = rows(9)
    pq.write_table(pa.table({"sku": names, **code_arrays(codes, "c")}), tmp_path / "a.parquet")
    words = ("build", tmp_path / "a.parquet", "--codebook-sizes", "30")
    refused = call(*words)
    assert refused.exit_code == 2
    assert "has the columns sku, c0, c1, c2" in refused.stderr
    assert "--item-column" in refused.stderr
    assert call(*words, "--item-column", "sku").exit_code == 0
    assert Trie.load(tmp_path / "a.leafbeam").version == Trie.build(codes, [30] * 3, names).version


def test_an_index_is_replaced_only_when_told_to(tmp_path: Path) -> None:
    codes, names = rows(9)
    pq.write_table(pa.table({"item_id": names, **code_arrays(codes, "c")}), tmp_path / "a.parquet")
    words = ("build", tmp_path / "a.parquet", "--codebook-sizes", "30")
    assert call(*words).exit_code == 0
    refused = call(*words)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert call(*words, "--force").exit_code == 0


def list_table(*lists: object, ids: object = None) -> pa.Table:
    return pa.table({"item_id": ids or list(range(len(lists))), "codes": pa.array(list(lists), pa.list_(pa.int64()))})


@pytest.mark.parametrize(
    ("table", "words", "message"),
    [
        (pa.table({"codes": [[1]]}), ("--codebook-sizes", "3"), "has the columns codes: expected item_id"),
        (pa.table({"item_id": [1], "x": [2]}), ("--codebook-sizes", "3"), "expected item_id, and the codes as a list"),
        (pa.table({"item_id": [1], "c1": [2]}), ("--codebook-sizes", "3"), "has c1 and no c0"),
        (pa.table({"item_id": [1], "c0": [2], "c2": [1]}), ("--codebook-sizes", "3"), "has c2 and no c1"),
        (pa.table({"item_id": [1], "c0": [0.5]}), ("--codebook-sizes", "3"), "c0 of type double"),
        (pa.table({"item_id": [1], "codes": [[0.5]]}), ("--codebook-sizes", "3"), "expected lists of whole numbers"),
        (pa.table({"item_id": [1], "codes": ["a"]}), ("--codebook-sizes", "3"), "expected lists of whole numbers"),
        (
            pa.table({"item_id": [0.5], "codes": [[1]]}),
            ("--codebook-sizes", "3"),
            "column 'item_id' holds values of the type number",
        ),
        (list_table([1, 2], [1]), ("--codebook-sizes", "3"), "row 2 has 1 code: expected 2"),
        (list_table([1, 2], None), ("--codebook-sizes", "3"), "row 2 has no codes: expected 2"),
        (list_table([1, 2], [1, None]), ("--codebook-sizes", "3"), "row 2 has no number in codes"),
        (list_table([1, 2], [1, 2], ids=[1, None]), ("--codebook-sizes", "3"), "column 'item_id': empty in row 2"),
        (list_table([1, 2], [1, 3]), ("--codebook-sizes", "3"), "row 1 has code 3 at level 1"),
        (list_table([1, 2], [1, -2]), ("--codebook-sizes", "3"), "row 1 has code -2 at level 1"),
        (list_table([1, 2], [2, 2], ids=[7, 7]), ("--codebook-sizes", "3"), "1 item id occurs more than once, 7 among"),
        (list_table([1, 2]), ("--codebook-sizes", "3,3,3"), "row 1 has 2 codes: expected 3"),
        (list_table([1, 2]), (), "how many codes each of its 2 levels has: pass --codebook-sizes"),
        (list_table([1, 2]), ("--codebook-sizes", "0"), "expected the number of codes of each level"),
        (list_table([1, 2]), ("--codebook-sizes", "9999999999"), "expected 1 to 2^31"),
        (list_table([1, 2]), ("--codebook-sizes", "3", "--memory-limit", "much"), "such as 4GiB"),
        (list_table([1, 2]), ("--codebook-sizes", "3", "--memory-limit", "0"), "memory_limit is 0"),
        (pa.table({"item_id": [1], "c0": [None]}), ("--codebook-sizes", "3"), "c0 of type null"),
        (
            pa.table({"item_id": pa.array([2**63], pa.uint64()), "c0": [1]}),
            ("--codebook-sizes", "3"),
            "numbers beyond 64 bits including the sign in row 1",
        ),
    ],
)
def test_a_table_that_is_none_is_refused_in_one_line(
    tmp_path: Path, table: pa.Table, words: tuple[str, ...], message: str
) -> None:
    pq.write_table(table, tmp_path / "x.parquet")
    result = call("build", tmp_path / "x.parquet", *words)
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "x.leafbeam").exists()


def test_an_empty_table_is_an_empty_index(tmp_path: Path) -> None:
    pq.write_table(list_table(), tmp_path / "x.parquet")
    assert call("build", tmp_path / "x.parquet", "--codebook-sizes", "3,3").exit_code == 0
    assert len(Trie.load(tmp_path / "x.leafbeam")) == 0


def test_files_that_disagree_and_a_directory_without_tables_are_refused(tmp_path: Path) -> None:
    assert "has no *.parquet files" in call("build", tmp_path, "--codebook-sizes", "3").stderr
    pq.write_table(pa.table({"item_id": [1], "c0": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"item_id": [2], "c0": [1], "c1": [1]}), tmp_path / "b.parquet")
    result = call("build", tmp_path, "--codebook-sizes", "3")
    assert result.exit_code == 2
    assert "expected the same in all files" in result.stderr.replace("\n", " ")


def test_options_of_a_table_need_one(tmp_path: Path) -> None:
    result = call("build", "--run", tmp_path, "--out", tmp_path / "x")
    assert result.exit_code == 2
    assert "work only with a TABLE" in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4GiB", 4 << 30), ("512MB", 512_000_000), ("1.5 kb", 1500), ("77", 77), ("2g", 2 * 10**9), ("10B", 10)],
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10000000,2048,8", (10**7, (2048,) * 8)),
        ("1e7,2048,8", (10**7, (2048,) * 8)),
        ("10^8,2048x8192", (10**8, (2048, 8192))),
        ("10^8,2048x8192,2", (10**8, (2048, 8192))),
        ("20_000_000, 256, 4", (20_000_000, (256,) * 4)),
        ("5,3,1", (5, (3,))),
    ],
)
def test_plans_are_read(text: str, expected: tuple[int, tuple[int, ...]]) -> None:
    assert parse_plan(text) == expected


@pytest.mark.parametrize("text", ["", "5", "5,3", "a,3,4", "5,3x,4", "5,3x4,3", "1.5,3,4", "5,3,4,5", "-5,3,4", "5,3,9999999"])
def test_plans_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="--plan"):
        parse_plan(text)
    assert call("inspect", "--plan", text).exit_code == 2


def test_the_plan_is_shown_and_printed() -> None:
    shown = call("inspect", "--plan", "20000000,2048,8")
    assert shown.exit_code == 0
    for part in ("1,457,301,504", "entropy bound", "level 7", "U_max = (1/8 + K2) |V|^d", "P (1 - (1 - 1/P)^N)"):
        assert part in shown.stdout
    printed = json.loads(call("inspect", "--plan", "20000000,2048,8", "--json").stdout)
    assert printed["static"]["U_max"] == 1_457_301_504


def test_a_file_is_shown_and_printed_with_its_bounds(tmp_path: Path) -> None:
    codes, names = rows()
    for packed in (False, True):
        trie = Trie.build(codes, [30] * 3, names, packed=packed)
        trie.save(tmp_path / "x.leafbeam")
        shown = call("inspect", tmp_path / "x.leafbeam")
        assert shown.exit_code == 0
        assert "entropy bound" in shown.stdout
        printed = json.loads(call("inspect", tmp_path / "x.leafbeam", "--json").stdout)
        assert printed["version"] == trie.version
        assert printed["bytes"] == trie.nbytes
        assert printed["item_table_bytes"] == trie.items.nbytes
        assert printed["file_bytes"] == (tmp_path / "x.leafbeam").stat().st_size


def test_inspect_takes_one_of_its_two_arguments(tmp_path: Path) -> None:
    for words in ((), (tmp_path, "--plan", "5,3,2")):
        result = call("inspect", *words)
        assert result.exit_code == 2
        assert "either a PATH" in result.stderr


@pytest.mark.parametrize("how", ["c", "list"])
def test_a_table_of_codes_can_be_looked_at_before_it_is_built(tmp_path: Path, how: str) -> None:
    codes, names = rows()
    codes[17, 1] = 77
    folder = tmp_path / "tables"
    folder.mkdir()
    for number, part in enumerate([slice(0, 300), slice(300, 500)]):
        table = pa.table({"item_id": names[part], **code_arrays(codes[part], how)})
        pq.write_table(table, folder / f"part-{number}.parquet")
    shown = call("inspect", folder)
    assert shown.exit_code == 0, shown.stderr
    for word in ("500 rows in 2 files", "77", f"leafbeam build {folder} --codebook-sizes SIZES"):
        assert word in shown.stdout
    assert "200 rows in 1 file" in call("inspect", folder / "part-1.parquet").stdout
    refused = call("build", folder)
    assert refused.exit_code == 2
    assert ("77 in c1" if how == "c" else "77 in codes") in refused.stderr


def test_a_table_without_statistics_says_so(tmp_path: Path) -> None:
    codes, names = rows()
    pq.write_table(pa.table({"item_id": names, **code_arrays(codes, "c")}), tmp_path / "x.parquet", write_statistics=False)
    assert call("inspect", tmp_path / "x.parquet").stdout.count("not in the file's statistics") == 3
    assert "largest codes" not in call("build", tmp_path / "x.parquet").stderr


def test_a_live_index_can_be_looked_at_beside_its_writer(tmp_path: Path) -> None:
    codes, names = rows()
    with LiveIndex.create(tmp_path / "shop", Trie.build(codes, [30] * 3, names)) as index:
        index.insert([[1, 2, 3]], ["new"])
        index.delete(names[:7])
        shown = call("inspect", tmp_path / "shop")
    assert shown.exit_code == 0, shown.stderr
    for word in ("a live index of 494 items", "of them deleted", "rows of the delta", "base-"):
        assert word in shown.stdout


def test_build_tries_rules_and_keeps_those_of_the_file_alone(tmp_path: Path) -> None:
    assert call("make-shop", "--out", tmp_path, "--items", "200", "--users", "50").exit_code == 0
    ids = np.array(pq.read_table(tmp_path / "items.parquet")["item_id"].to_pylist())
    codes = np.random.default_rng(0).integers(0, 16, (len(ids), 3))
    run = RunDirectory(tmp_path / "run")
    run.sids.parent.mkdir()
    SidTable(item_ids=ids, codes=codes, codebook_sizes=(16,) * 3).save(run.sids)
    Source(path=tmp_path).save(run.source)
    built = call("build", "--run", run.path, "--rule", "dear=price >= 50", "--rule", "gone@60s=stock = 0")
    assert built.exit_code == 0, built.stderr
    prices = pq.read_table(tmp_path / "items.parquet")["price"].to_numpy()
    assert f"rule dear: {int((prices >= 50).sum()):,} items" in built.stdout
    assert "rule in_stock" in built.stdout
    assert "dear" not in run.rules.read_text(encoding="utf-8")
    for rule in ("dear", "dear=no_such_column > 1", "dear=price <", "a b=price < 3"):
        refused = call("build", "--run", run.path, "--rule", rule)
        assert refused.exit_code == 2
        assert "rule" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_rules_are_counted_over_the_items_that_came_since_the_last_build(tmp_path: Path) -> None:
    run = changed_run(tmp_path).path
    succeed("items", "remove", "i0", "--run", run)
    built = call("build", "--run", run, "--rule", "cheap=price < 3")
    assert built.exit_code == 0, built.stderr
    assert "rule cheap: 4 items" in built.stdout  # 1, 2, the new one, and 9, which costs 2 now
    assert "not in the index" not in built.stdout
    assert "not in the table" not in built.stdout


def changed_run(folder: Path) -> RunDirectory:
    """A run of ten items, to which one was added, and of which one was changed."""
    names = [f"i{n}" for n in range(10)]
    pq.write_table(pa.table({"item_id": names, "price": [float(n) for n in range(10)]}), folder / "items.parquet")
    pq.write_table(pa.table({"item_id": names, "c0": range(10), "c1": [0] * 10}), folder / "sids.parquet")
    succeed("import", "--sids", folder / "sids.parquet", "--items", folder / "items.parquet", "--run", folder / "run")
    (folder / "new.jsonl").write_text('{"item_id": "new", "codes": [3, 0], "price": 1}\n{"item_id": "i9", "price": 2}')
    succeed("items", "import", folder / "new.jsonl", "--run", folder / "run")
    return RunDirectory(folder / "run")


@pytest.mark.parametrize("how", ["--force", "no catalog", "other codes"])
def test_a_catalog_that_is_written_anew_does_not_stay_beside_changes_without_their_attributes(tmp_path: Path, how: str) -> None:
    """D12: the index kept an item that was added, and the new catalog had none of its attributes."""
    run = changed_run(tmp_path)
    if how == "no catalog":
        run.catalog.unlink()
    elif how == "other codes":
        sids = SidTable.load(run.sids)
        SidTable(item_ids=sids.item_ids, codes=sids.codes[::-1], codebook_sizes=sids.codebook_sizes).save(run.sids)
    built = flat(succeed("build", "--run", run.path, *(["--force"] if how == "--force" else [])))
    assert "live.1 holds the items and rules that were added after the last build" in built
    assert "10 items" in built
    succeed("items", "import", tmp_path / "new.jsonl", "--run", run.path)
    assert "rule cheap: 5 items" in succeed("build", "--run", run.path, "--rule", "cheap=price < 3")  # 0, 1, 2, new and 9


def test_a_catalog_is_not_written_anew_while_a_server_changes_it(tmp_path: Path) -> None:
    run = changed_run(tmp_path)
    before = run.catalog.read_bytes(), run.trie.read_bytes()
    with LiveDirectory.open(run.live, run.trie):
        refused = call("build", "--run", run.path, "--force")
    assert (refused.exit_code, "one writer at a time" in refused.stderr) == (2, True)
    assert (run.catalog.read_bytes(), run.trie.read_bytes()) == before
    assert "rule cheap: 5 items" in succeed("build", "--run", run.path, "--rule", "cheap=price < 3")


def test_a_damaged_index_is_built_again_with_the_changes_since(tmp_path: Path) -> None:
    run = changed_run(tmp_path)
    run.trie.write_bytes(b"damaged")
    assert "rule cheap: 5 items" in succeed("build", "--run", run.path, "--rule", "cheap=price < 3")


def test_a_table_in_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    for words in (("build", tmp_path / "pipe.parquet"), ("inspect", tmp_path / "pipe.parquet")):
        refused = call(*words)
        assert (refused.exit_code, "is not a regular file" in flat(refused.stderr)) == (2, True), words
    with pytest.raises(CheckpointError, match="is not a regular file"):
        SidTable.load(tmp_path / "pipe.parquet")
