"""Items with attributes in DuckDB, rules over them as filters, and a live index that changes with them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.catalog.catalog import Catalog
    from leafbeam.catalog.definitions import Boost, Rule
    from leafbeam.catalog.expression import Expression
    from leafbeam.catalog.rule_config import LoadReport, RuleSource, RuleStatus, rules_from_text
    from leafbeam.catalog.rule_set import RuleSet
    from leafbeam.catalog.sources import PostgresTable
    from leafbeam.catalog.transaction import CatalogTransaction

__all__ = [
    "Boost",
    "Catalog",
    "CatalogTransaction",
    "Expression",
    "LoadReport",
    "PostgresTable",
    "Rule",
    "RuleSet",
    "RuleSource",
    "RuleStatus",
    "rules_from_text",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
