"""Filter expressions, rules, predicates and tables of items to the catalog; logs to their loader."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from leafbeam.catalog import Catalog, Expression, Rule
from leafbeam.catalog.rule_config import read_rules, rules_from_text
from leafbeam.errors import DataError
from leafbeam.index import Trie
from leafbeam.train import load_log

SEPARATOR = b"\n---\n"  # between the files of one input
LETTERS = "abcdefgh"


@functools.cache
def _folder() -> Path:
    return Path(_temporary().name)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def fuzz_expression(data: bytes) -> None:
    """Its normal form means the same, and is its own normal form."""
    parsed = Expression.parse(data.decode("utf-8", "surrogateescape"))
    assert Expression.parse(parsed.text) == parsed
    assert parsed.names == Expression.parse(parsed.text).names


def fuzz_rules(data: bytes) -> None:
    """A rules file, and rules of a command line."""
    path = _folder() / "rules.toml"
    path.write_bytes(data)
    rules, errors = read_rules(path)
    assert rules.keys().isdisjoint(errors)
    rules_from_text(f"{rule.name}={rule.where}" for rule in rules.values() if isinstance(rule, Rule))


@functools.cache
def _catalog() -> Catalog:
    trie = Trie.build(np.arange(8)[:, None], [8], item_ids=list(LETTERS))
    path = _folder() / "items.csv"
    path.write_text("item_id,price,name,day\n" + "".join(f"{c},{n},{c * 3},2026-01-0{n + 1}\n" for n, c in enumerate(LETTERS)))
    return Catalog.in_memory(path, trie, rule_timeout_s=1.0)


def fuzz_predicate(data: bytes) -> None:
    """SQL of a rule, evaluated; whatever it was, the catalog goes on."""
    catalog = _catalog()
    try:
        catalog.add_rule("rule", data.decode("utf-8", "surrogateescape"))
        assert catalog.filter("rule") is not None
    finally:
        catalog.add_rule("rule", "price < 3")
        assert len(catalog.rules.filters["rule"]) == 3


@functools.cache
def _reloaded() -> Catalog:
    return Catalog.in_memory(pa.table({"item_id": ["a"]}), Trie.build([], [8]))


def fuzz_items(data: bytes) -> None:
    """A table of items as CSV or, if it begins as one, Parquet: what cannot be read changes nothing."""
    path = _folder() / ("table.parquet" if data.startswith(b"PAR1") else "table.csv")
    path.write_bytes(data)
    catalog = _reloaded()
    before = catalog.rules
    report = catalog.reload(path)
    if report.error is not None:
        assert catalog.rules is before
        raise DataError(report.error)
    assert report.not_in_index == report.num_items


def fuzz_interactions(data: bytes) -> None:
    """Interactions and items, each as CSV or Parquet."""
    files: list[Path] = []
    for name, content in zip(("interactions", "items"), data.split(SEPARATOR, 1), strict=False):
        files.append(_folder() / f"{name}.{'parquet' if content.startswith(b'PAR1') else 'csv'}")
        files[-1].write_bytes(content)
    log = load_log(interactions=files[0], items=files[1] if len(files) > 1 else None)
    assert log.report.interactions == len(log.histories.items_E)
    assert log.items.num_rows == log.num_items
