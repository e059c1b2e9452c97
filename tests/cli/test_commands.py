"""The command line: helpful when asked, plain when something is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leafbeam import Trie
from leafbeam.__main__ import set_waiting
from leafbeam.cli import app
from leafbeam.cli.items import has_text_ids
from leafbeam.cli.options import split_numbers
from leafbeam.cli.output import parse_ids, split_ids
from leafbeam.cli.recommend import RequestOptions
from leafbeam.engine import Limits, Request
from leafbeam.errors import ArgumentError, DataError, ItemIdError, RequestError, counted
from leafbeam.train import load_log
from tests.fixtures.command_line import ENV, call

COMMANDS = (
    "init",
    "fit-sids",
    "import",
    "train",
    "evaluate",
    "build",
    "recommend",
    "serve",
    "inspect",
    "doctor",
    "make-shop",
    "demo",
)


def test_help_lists_every_command_and_loads_no_heavy_room():
    code = (
        "import sys, leafbeam; before = set(sys.modules); from leafbeam.cli import app; "
        "print(sorted({'torch', 'numba', 'duckdb', 'pyarrow', 'sklearn', 'scipy', 'starlette'} & set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
    listed = call("--help")
    assert listed.exit_code == 0
    assert all(command in listed.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_and_its_options(command: str):
    shown = call(command, "--help")
    assert shown.exit_code == 0
    options = [line for line in shown.stdout.splitlines() if re.match(r"│ +(\* +)?--", line) and "--help" not in line]
    assert options or command == "inspect"
    for line in options:
        words = line.strip("│* ").split("  ")
        assert len([word for word in words if word.strip()]) >= 2, f"{command}: no help for {line}"


def test_numbers_of_options_are_read_by_name():
    options = RequestOptions(boosts=["margin=0.3", " fresh = -1"], at_most=["brand=2"], at_least=["new=3"], num_items=20)
    request = options.request()
    assert (request.boosts, request.at_most, request.at_least) == ({"margin": 0.3, "fresh": -1.0}, {"brand": 2}, {"new": 3})
    assert RequestOptions().request() == Request()


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["margin"], "--at-most 'margin': expected a name and a number, such as --at-most margin=2"),
        (["=2"], "expected a name and a number"),
        (["brand=two"], "--at-most 'brand=two': expected a whole number after the last =, not 'two'"),
        (["brand=2.5"], "expected a whole number"),
        (["brand=2", "brand = 3"], "--at-most 'brand' is stated twice"),
    ],
)
def test_an_option_without_a_name_or_number_is_refused(texts: list[str], says: str):
    with pytest.raises(ArgumentError, match=re.escape(says)):
        split_numbers("--at-most", texts, int)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_on_one_screen(command: str):
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={**ENV, "COLUMNS": "100"})
    lines = shown.stdout.rstrip().splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= (48 if command == "serve" else 60)  # a server shows a dozen of its options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}),
        ({"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_waiting_threads_sleep_soon_unless_the_environment_says_otherwise(given: dict[str, str], expected: dict[str, str]):
    set_waiting(given)
    assert given == expected


_ENDING = """
import atexit, sys, threading, time
from leafbeam.__main__ import run

class Freed:
    def __del__(self):
        print("freed")

kept = Freed()

def command():
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    atexit.register(print, "atexit")
    print("written")
    {ending}

run(command)
"""


@pytest.mark.parametrize(
    ("ending", "status", "lines", "message"),
    [
        ("sys.exit(0)", 0, ["written", "thread", "atexit"], ""),
        ("sys.exit(2)", 2, ["written", "thread", "atexit"], ""),
        ("sys.exit('wrong')", 1, ["written", "thread", "atexit", "freed"], "wrong"),
        ("raise ValueError", 1, ["written", "thread", "atexit", "freed"], "ValueError"),
    ],
)
def test_a_command_ends_after_its_threads_and_does_not_free_what_the_system_will(
    ending: str, status: int, lines: list[str], message: str
):
    finished = subprocess.run([sys.executable, "-c", _ENDING.format(ending=ending)], capture_output=True, text=True)
    assert (finished.returncode, finished.stdout.split()) == (status, lines)
    assert finished.stderr.strip().rpartition("\n")[2] == message


def test_an_id_of_the_wrong_type_is_named_beside_an_example():
    index = Trie.build([[0], [1]], codebook_sizes=[2], item_ids=[12, 7])
    assert parse_ids("12, 7", index) == [12, 7]
    with pytest.raises(ItemIdError, match="'E12': the item ids of this index are whole numbers, such as 12"):
        parse_ids("12,E12", index)


def test_a_mistake_is_one_message_on_stderr_and_exit_code_2(tmp_path: Path):
    result = call("inspect", tmp_path / "nothing.leafbeam")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: there is no ")
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_error_of_the_system_is_its_path_and_words(tmp_path: Path):
    (file := tmp_path / "file").touch()
    result = call("make-shop", "--out", file / "shop", "--items", "60", "--users", "5")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {file / 'shop'}: Not a directory"


def test_debug_shows_where_the_mistake_was_found(tmp_path: Path):
    result = call("--debug", "inspect", tmp_path / "nothing.leafbeam")
    assert isinstance(result.exception, DataError)


def test_version_is_the_packages():
    assert call("--version").stdout.startswith("leafbeam 0.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train",), "leafbeam fit-sids --run"),
        (("evaluate",), "leafbeam fit-sids --run"),
        (("build",), "leafbeam fit-sids --run"),
        (("recommend", "--history", "a"), "leafbeam train --run"),
        (("recommend", "--history", ""), "leafbeam train --run"),
        (("serve",), "leafbeam train --run"),
    ],
)
def test_a_command_too_early_names_the_one_to_run_first(tmp_path: Path, words: tuple[str, ...], message: str):
    result = call(*words, "--run", tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fit-sids", "--format", "xml"), "not one of 'tables', 'amazon', 'movielens'"),
        (("fit-sids", "--codebooks", "12,x"), "such as 256,256,256"),
        (("fit-sids", "--codebooks", "0,4"), "of each level, at least 1"),
        (("fit-sids", "--collision-strategy", "glue"), "not one of 'spread', 'level', 'free', 'hungarian', 'sinkhorn', 'none'"),
        (("fit-sids", "--format", "movielens", "--items", "m.csv"), "works only with --format tables or amazon"),
        (("fit-sids", "--format", "amazon", "--time-unit", "ms"), "--time-unit needs --format tables"),
        (("fit-sids", "--format", "movielens", "--text-ids"), "--text-ids needs --format tables"),
        (("fit-sids",), "interactions.parquet"),
        (("fit-sids", "--data", "nowhere/at/all"), "there is no nowhere/at/all: pass the log's directory or file with --data"),
        (("train", "--width", "33"), "multiple of 32"),
        (("evaluate", "--scoring", "fulll"), "not one of 'full', 'allowed'"),
        (("evaluate", "--part", "train"), "not one of 'test', 'valid'"),
        (("evaluate", "--users", "0"), "at least one"),
        (("recommend", "--items", "three"), "'--items': 'three' is not a whole number"),
        (("train", "--minutes", "x"), "'--minutes': 'x' is not a number"),
        (("recommend",), "pass one of --history A,B,C, --user U and --users TABLE"),
        (("recommend", "--history", "a", "--user", "b"), "pass one of --history A,B,C, --user U and --users TABLE"),
    ],
)
def test_settings_out_of_range_say_what_was_expected(tmp_path: Path, words: tuple[str, ...], message: str):
    result = call(*words, "--run", tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


def test_the_demo_names_the_command_for_tables_of_other_names(tmp_path: Path):
    table = tmp_path / "views.csv"
    table.write_text("user_id,item_id,timestamp\n1,1,1\n")
    for data, what in ((table, "is not a directory"), (tmp_path / "nothing", "there is no directory")):
        refused = call("demo", "--data", data, "--runs", tmp_path / "runs")
        assert refused.exit_code == 2
        assert what in refused.stderr
        assert "`leafbeam fit-sids --data FILE" in refused.stderr
    refused = call("demo", "--data", tmp_path, "--runs", tmp_path / "runs")
    assert (refused.exit_code, "name it with `leafbeam fit-sids --data FILE`" in refused.stderr) == (2, True)
    with pytest.raises(DataError, match=r"views\.csv is not a directory: name a table as interactions=FILE"):
        load_log(table)


def test_make_shop_never_replaces_tables_silently(tmp_path: Path):
    words = ("make-shop", "--out", tmp_path, "--items", "60", "--users", "5")
    assert call(*words).exit_code == 0
    before = (tmp_path / "items.parquet").read_bytes()
    refused = call(*words, "--seed", "1")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert (tmp_path / "items.parquet").read_bytes() == before
    assert call(*words, "--seed", "1", "--force").exit_code == 0
    assert (tmp_path / "items.parquet").read_bytes() != before


def test_make_shop_ends_with_what_to_run_next(tmp_path: Path):
    result = call("make-shop", "--out", tmp_path, "--items", "60", "--users", "5")
    assert result.stdout.splitlines()[-1].startswith("Next: leafbeam fit-sids --data ")


@pytest.mark.parametrize("name", ["index.leafbeam", "sids.parquet"])
def test_inspecting_a_foreign_file_says_what_it_is_not(tmp_path: Path, name: str):
    foreign = tmp_path / name
    foreign.write_bytes(b"not one of ours " * 10)
    result = call("inspect", foreign)
    assert result.exit_code == 2
    assert str(foreign) in result.stderr.replace("\n", "")


def test_inspecting_an_empty_directory_says_what_it_is_not(tmp_path: Path):
    result = call("inspect", tmp_path)
    assert result.exit_code == 2
    assert "is not a directory of a model, a run, a table or shards" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("A7,B8", ["A7", "B8"]),
        (" A7 , B8 ", ["A7", "B8"]),
        ('A7," B,8 ","5"" pipe"', ["A7", " B,8 ", '5" pipe']),
        ('5" pipe,A7', ['5" pipe', "A7"]),
        ('"A7"', ["A7"]),
        ("", []),
        (" ", []),
    ],
)
def test_an_id_in_double_quotes_keeps_its_commas_and_blanks(text: str, ids: list[str]) -> None:
    """A8"""
    assert split_ids(text) == ids
    index = Trie.build([[0, number] for number in range(len(ids) + 1)], [1, 8], item_ids=["other", *ids])
    assert parse_ids(text, index) == ids


@pytest.mark.parametrize(
    ("text", "says"), [('"A7', "double quote"), ('"A"7', "double quote"), ("A,,B", "empty id"), ('A,""', "empty")]
)
def test_a_list_of_ids_that_cannot_be_split_is_refused(text: str, says: str) -> None:
    """A8"""
    with pytest.raises(ItemIdError, match=says):
        split_ids(text)


@pytest.mark.parametrize(
    ("number", "noun", "plural", "shown"),
    [(0, "row", "", "0 rows"), (1, "row", "", "1 row"), (2, "SID", "", "2 SIDs"), (12_000, "item", "", "12,000 items"),
     (1, "match", "matches", "1 match"), (3, "match", "matches", "3 matches")],
)  # fmt: skip
def test_a_number_has_its_noun_in_the_singular_for_one(number: int, noun: str, plural: str, shown: str) -> None:
    """A14"""
    assert counted(number, noun, plural) == shown


@pytest.mark.parametrize("name", ["num_items", "num_beams"])
def test_a_request_over_a_limit_is_told_the_option(name: str) -> None:
    """A14"""
    with pytest.raises(
        RequestError, match=rf"{name} must be from 1 to \d+, not 600: raise the server's limits.max_{name[4:]} to allow more"
    ):
        Limits().check(Request(**{name: 600}))


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_ids_of_unsigned_columns_are_numbers(kind: str) -> None:
    """A10"""
    assert not has_text_ids(kind)
    assert all(map(has_text_ids, ("string", "large_string", "string_view")))
