"""A log of any column names, units and files: named once to `fit-sids`, remembered in the run, read by every later command."""

import json
from pathlib import Path

import pytest

from leafbeam import Trie
from leafbeam.cli.run import Source
from leafbeam.errors import DataError
from tests.fixtures.command_line import call
from tests.fixtures.logs import write_log

OPTIONS = (
    *("--user-column", "customer", "--item-column", "sku", "--id-column", "code", "--time-column", "at"),
    *("--time-unit", "ms", "--delimiter", ";", "--text-columns", "name", "--text-ids"),
)


def test_a_cut_in_time_is_remembered_and_needs_times(tmp_path: Path) -> None:
    orders, goods = write_log(tmp_path)
    run = ("--run", tmp_path / "run")
    fit = ("fit-sids", "--data", orders, "--items", goods, *run, *OPTIONS, "--codebooks", "8,8", "--split", "time")
    fitted = call(*fit)
    assert fitted.exit_code == 0, fitted.stderr
    assert "before or after the cut to evaluate" in fitted.stdout
    source = Source.load(tmp_path / "run" / "source.json")
    assert source.split == "time"
    log = source.read()
    split = source.split_of(log)
    assert len(split.train.items_E) == (log.histories.times_E <= split.train.times_E.max()).sum() < len(log.histories.items_E)
    assert json.loads((tmp_path / "run" / "report.json").read_text())["data"]["split"]["train_interactions"] == len(
        split.train.items_E
    )
    refused = call(*fit, "--order", "file")
    assert refused.exit_code == 2
    assert "--split time needs the times of interactions" in refused.stderr


@pytest.mark.slow
def test_columns_units_and_files_are_remembered_by_every_later_command(tmp_path: Path) -> None:
    orders, goods = write_log(tmp_path)
    run = ("--run", tmp_path / "run")
    fitted = call("fit-sids", "--data", orders, "--items", goods, *run, *OPTIONS, "--codebooks", "8,8")
    assert fitted.exit_code == 0, fitted.stderr
    assert "60 users, 40 items" in fitted.stdout
    assert "Item ids are text: requests name '0'" in fitted.stdout
    for command in (
        ("train", *run, "--steps", "3", "--width", "32"),
        ("evaluate", *run, "--users", "5", "--unconstrained", "0"),
        ("build", *run, "--rule", "cheap=price < 5"),
        ("recommend", *run, "--user", "7", "--items", "3"),
        ("recommend", *run, "--history", "0,7", "--items", "3"),
        ("recommend", *run, "--history", "", "--items", "3"),
    ):
        result = call(*command)
        assert result.exit_code == 0, (command, result.stderr)
    assert "rule cheap: 10 items" in call("build", *run, "--rule", "cheap=price < 5").stdout
    assert Trie.load(tmp_path / "run" / "index.leafbeam").item_ids[:2].tolist() == ["0", "1"]

    again = call("fit-sids", *run, "--codebooks", "8,8", "--core", "2")  # the same log, with one option more
    assert again.exit_code == 0, again.stderr
    source = Source.load(tmp_path / "run" / "source.json")
    assert (source.path, source.items, source.k_core) == (orders, goods, 2)
    assert (source.user_column, source.id_column, source.time_unit) == ("customer", "code", "ms")
    assert (source.text_columns, source.text_ids, source.delimiter) == (("name",), True, ";")


def test_ids_that_become_numbers_are_said_with_the_option_that_keeps_them_text(tmp_path: Path) -> None:
    orders, goods = write_log(tmp_path)
    goods.write_text(goods.read_text().replace(";", "\t"))
    options = [word for word in OPTIONS if word != "--text-ids"]
    fitted = call("fit-sids", "--data", orders, "--items", goods, "--run", tmp_path / "run", *options, "--codebooks", "8,8")
    assert fitted.exit_code == 2
    assert "pass it as --items-delimiter" in fitted.stderr
    options += ["--items-delimiter", "tab"]
    fitted = call("fit-sids", "--data", orders, "--items", goods, "--run", tmp_path / "run", *options, "--codebooks", "8,8")
    assert fitted.exit_code == 0, fitted.stderr
    assert "Item ids are whole numbers (--text-ids makes them text): requests name 0" in fitted.stdout
    assert Source.load(tmp_path / "run" / "source.json").items_delimiter == "\t"


@pytest.mark.parametrize(
    ("missing", "file", "found", "option"),
    [
        ("--user-column", "orders.csv", "'customer'", "--user-column"),
        ("--item-column", "orders.csv", "'sku'", "--item-column"),
        ("--time-column", "orders.csv", "'at'", "--time-column"),
        ("--id-column", "goods.csv", "'code'", "--id-column"),
        ("--time-unit", "orders.csv", "beyond the year 2262", "--time-unit ms"),
        ("--delimiter", "orders.csv", "'customer;sku;at'", "--delimiter"),
    ],
)
def test_a_mistake_names_file_column_and_option(tmp_path: Path, missing: str, file: str, found: str, option: str) -> None:
    orders, goods = write_log(tmp_path)
    at = OPTIONS.index(missing)
    result = call("fit-sids", "--data", orders, "--items", goods, "--run", tmp_path, *OPTIONS[:at], *OPTIONS[at + 2 :])
    assert result.exit_code == 2
    assert all(part in result.stderr for part in (file, found, option)), result.stderr
    assert not (tmp_path / "source.json").exists()


def test_a_text_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    orders, goods = write_log(tmp_path)
    options = ["title" if word == "name" else word for word in OPTIONS]
    result = call("fit-sids", "--data", orders, "--items", goods, "--run", tmp_path, *options)
    assert result.exit_code == 2
    assert "no column 'title'" in result.stderr
    assert "'name'" in result.stderr


def test_a_source_of_version_0_1_is_read(tmp_path: Path) -> None:
    fields = {"data": str(tmp_path / "log"), "format": "amazon", "metadata": str(tmp_path / "meta"), "k_core": 5}
    (tmp_path / "source.json").write_text(json.dumps(fields))
    expected = Source(path=tmp_path / "log", kind="amazon", items=tmp_path / "meta", k_core=5)
    assert Source.load(tmp_path / "source.json") == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"path": "x", "items": null, "colour": "red"}', '{"path": 3, "items": null}']
)
def test_a_damaged_source_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "source.json").write_text(text)
    with pytest.raises(DataError, match="fit-sids --data"):
        Source.load(tmp_path / "source.json")


@pytest.mark.parametrize(
    "wrong", [{"k_core": "x"}, {"delimiter": 5}, {"items_delimiter": 5}, {"text_ids": "no"}, {"time_unit": []}]
)
def test_a_source_with_a_value_of_another_type_is_refused_by_name(tmp_path: Path, wrong: dict[str, object]) -> None:
    path = tmp_path / "source.json"
    Source(path=tmp_path).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(DataError, match=f"source.json.*{next(iter(wrong))}"):
        Source.load(path)
