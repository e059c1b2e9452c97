"""The part that changes: items with their attributes in DuckDB, the rules over them as filters, the index that follows."""

from pleach.catalog.catalogue import Catalogue
from pleach.catalog.expression import Expression
from pleach.catalog.refresh import RuleStatus
from pleach.catalog.rules import LoadReport, Rule, RuleReport, RuleSource, rules_from_text
from pleach.catalog.ruleset import RuleSet
from pleach.catalog.segments import Segments
from pleach.catalog.sources import PostgresTable

__all__ = [
    "Catalogue",
    "Expression",
    "LoadReport",
    "PostgresTable",
    "Rule",
    "RuleReport",
    "RuleSet",
    "RuleSource",
    "RuleStatus",
    "Segments",
    "rules_from_text",
]
