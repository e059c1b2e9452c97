"""The part that changes: items with their attributes in DuckDB, and the rules over them as filters."""

from pleach.catalog.catalogue import Catalogue
from pleach.catalog.rules import LoadReport, RuleReport, RuleSet

__all__ = ["Catalogue", "LoadReport", "RuleReport", "RuleSet"]
