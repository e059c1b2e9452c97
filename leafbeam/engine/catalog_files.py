"""The files of a catalog: the index, and the items and rules over them."""

import os
from dataclasses import dataclass

from leafbeam.catalog import Catalog, RuleSource
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie

__all__ = ["CatalogFiles"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogFiles:
    """What `Engine.load` opens, and closes again: an index file, and for rules the DuckDB file of the items.

    rules: a TOML file, a mapping of names to predicates, or several of these. refresh: how often rules without an interval
    of their own are evaluated again ("60s").
    """

    index: str | os.PathLike[str]
    catalog: str | os.PathLike[str] | None = None
    rules: RuleSource = None
    refresh: str | None = None

    def __post_init__(self) -> None:
        if (self.rules is not None or self.refresh is not None) and self.catalog is None:
            raise ArgumentError("rules need a catalog to evaluate them over: pass its DuckDB file as catalog=")

    def open(self) -> Catalog | Trie:
        """The catalog, or the index alone without `catalog`. Raises IndexFileError, DataError, RuleError."""
        trie = Trie.load(os.fspath(self.index))
        return trie if self.catalog is None else Catalog.open(self.catalog, trie, self.rules, refresh=self.refresh)
