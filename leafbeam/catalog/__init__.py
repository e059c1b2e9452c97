"""The part that changes: items with their attributes in DuckDB, the rules over them as filters, the index that follows."""

from leafbeam.catalog.catalog import Catalog
from leafbeam.catalog.expression import Expression
from leafbeam.catalog.refresh import RuleStatus
from leafbeam.catalog.rule_config import LoadReport, Rule, RuleReport, RuleSource, rules_from_text
from leafbeam.catalog.rule_set import RuleSet
from leafbeam.catalog.sources import PostgresTable

__all__ = [
    "Catalog",
    "Expression",
    "LoadReport",
    "PostgresTable",
    "Rule",
    "RuleReport",
    "RuleSet",
    "RuleSource",
    "RuleStatus",
    "rules_from_text",
]
