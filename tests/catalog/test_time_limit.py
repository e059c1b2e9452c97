"""Rules that do not end, files that do not answer, and how much a failed reload says."""

import os
import threading
import time
from pathlib import Path

import duckdb
import pytest

from leafbeam.catalog import Catalog
from leafbeam.catalog.rule_config import read_rules
from leafbeam.catalog.time_limit import TimeLimit
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.errors import ArgumentError, DataError, RuleError
from tests.catalog.shop import RULES, TRIE, change, expected, items, names

ENDLESS = {
    "recursion": "price IN (WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t)",
    "range": "(SELECT count(*) FROM range(1000000000000)) > price",
    "product": "(SELECT count(*) FROM items a, items b, items c, items d, items e, items f) > price",
}


@pytest.mark.parametrize("where", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_rule_is_an_error_of_that_rule_at_start(where: str) -> None:
    with pytest.raises(RuleError, match=r"rule 'endless' took longer than 0.05 s .*rule_timeout_s"):
        Catalog.in_memory(items(), TRIE, {"endless": where}, rule_timeout_s=0.05)


def test_a_rule_that_does_not_end_for_a_changed_item_fails_and_the_change_is_made() -> None:
    product = "price < 20 OR (SELECT count(*) FROM big a, big b, big c, big d, big e, big f) > price"
    with Catalog.in_memory(items(), TRIE, {"cheap": "price < 20"}, rule_timeout_s=0.7) as catalog:
        change(catalog, "CREATE TABLE big AS SELECT 1 AS n LIMIT 0")
        catalog.add_rule("product", product)
        change(catalog, "INSERT INTO big SELECT range FROM range(1000)")
        catalog.insert([[0, 30]], ["new"], [{"price": 5.0, "stock": 7}])
        status = {rule.name: rule for rule in catalog.status}
        assert "took longer than 0.7 s" in (status["product"].error or "")
        assert names(catalog, "product") == expected(lambda i: i % 40 < 20)
        assert names(catalog, "cheap") == expected(lambda i: i % 40 < 20) | {"new"}


@pytest.mark.parametrize("begins_s", [0, 0.05, 0.3])  # before the close, at it, and after it
def test_closing_ends_an_evaluation_that_runs(begins_s: float) -> None:
    catalog = Catalog.in_memory(items(), TRIE, RULES)
    outcome: list[object] = []

    def evaluate() -> None:
        time.sleep(begins_s)
        try:
            catalog.add_rule("endless", ENDLESS["recursion"])
        except DataError as error:
            outcome.append(error)

    running = threading.Thread(target=evaluate)
    running.start()
    time.sleep(0.05)
    catalog.close()
    running.join(10)
    assert [str(error) for error in outcome] == ["the catalog is closed: no rule is evaluated any more"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_limit_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(ArgumentError, match="rule_timeout_s"):
        TimeLimit(seconds)


def test_an_interrupt_between_two_statements_is_not_lost() -> None:
    with duckdb.connect() as connection, TimeLimit(0.02).enforce(connection):
        time.sleep(0.1)
        with pytest.raises(duckdb.InterruptException):
            connection.execute("SELECT count(*) FROM range(1000000000000)")


@pytest.mark.parametrize("read", [read_rules, Source.load, lambda path: RunDirectory(path.parent).read_report()])
def test_a_fifo_in_place_of_a_file_is_refused_at_once(tmp_path: Path, read) -> None:
    path = tmp_path / "report.json"
    os.mkfifo(path)
    with pytest.raises((RuleError, DataError), match="is not a regular file"):
        read(path)


@pytest.mark.parametrize(
    "text", [f"a = {'[' * 100_000}", f"rules = {'9' * 5000}", "[rules]\na = 1979-13-40", "\ufeff[rules]", "[rules"]
)
def test_toml_that_the_parser_does_not_survive_is_a_rule_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(RuleError, match="TOML"):
        read_rules(tmp_path / "rules.toml")


def test_an_integer_that_cannot_be_printed_is_an_error_of_its_rule(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(f"[rules]\na = 0x{'f' * 5000}\nb = 'true'\n")
    rules, errors = read_rules(tmp_path / "rules.toml")
    assert (list(rules), list(errors)) == (["b"], ["a"])


def test_json_that_the_parser_does_not_survive_is_a_data_error(tmp_path: Path) -> None:
    for name in ("source.json", "report.json"):
        (tmp_path / name).write_text("[" * 200_000)
    with pytest.raises(DataError, match=r"source\.json cannot be read"):
        Source.load(tmp_path / "source.json")
    with pytest.raises(DataError, match=r"report\.json cannot be read"):
        RunDirectory(tmp_path).read_report()


def test_a_report_shows_failed_rules_first_and_twenty_at_most(caplog: pytest.LogCaptureFixture) -> None:
    rules = {f"r{number:04}": "price < 20" for number in range(60)}
    with Catalog.in_memory(items(), TRIE, rules) as catalog:
        change(catalog, "ALTER TABLE items RENAME COLUMN price TO cost")
        text = str(catalog.reload())
        assert text.count("cannot be evaluated: price < 20") == 20
        assert len(text.splitlines()) < 150
        assert text.endswith("and 40 more rules; 60 of all could not be evaluated")
        change(catalog, "DROP TABLE items")
        assert len(str(catalog.reload()).splitlines()) < 10
    assert caplog.records == []  # the report says it; the server logs the report


def test_an_error_does_not_repeat_a_predicate_of_thousands_of_characters() -> None:
    with pytest.raises(RuleError) as caught:
        Catalog.in_memory(items(), TRIE, {"long": "price < " + "nope + " * 2_000 + "1"})
    assert len(str(caught.value)) < 5000
