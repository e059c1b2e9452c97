"""CatalogFiles: the files of a catalog. Needs no torch, so that a command that only changes items does not import it."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from leafbeam.catalog import Catalog, RuleSource
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.live import LiveIndex
from leafbeam.retrieve import ItemMemory, LiveMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogFiles:
    """The files that `Engine.load` opens and closes: an index, and for rules the DuckDB file of the items.

    index: a file, the directory of a live index, which is read as it is now, or a live index, which is not closed.
    rules: a TOML file, a mapping of names to predicates, or several of these. refresh: how often rules without an interval
    of their own are evaluated again ("60s"). rule_timeout_s: the limit of one evaluation of a rule. hold_s: how long a change
    keeps the catalog's file open (`Catalog.open`). verify: whether the index is checked and read into memory (`Trie.load`).
    data_may_fail: a rule that fails over the catalog's current rows is unavailable instead of an error (`Catalog.open`).
    memory: the file of an item memory. learn: whether it counts interactions (`Engine.observe`), which no other process may do
    then.
    """

    index: str | os.PathLike[str] | LiveIndex
    catalog: str | os.PathLike[str] | None = None
    rules: RuleSource = None
    refresh: str | None = None
    rule_timeout_s: float = 60.0
    hold_s: float = 0.0
    data_may_fail: bool = False
    verify: bool = True
    memory: str | os.PathLike[str] | None = None
    learn: bool = False

    def __post_init__(self) -> None:
        if self.learn and self.memory is None:
            raise ArgumentError("learn=True counts interactions in an item memory: pass its file as memory=")
        if (self.rules is not None or self.refresh is not None) and self.catalog is None:
            raise ArgumentError("rules need a catalog to evaluate them over: pass its DuckDB file as catalog=")

    def open(self, opened: ExitStack) -> Catalog | Trie:
        """Open the catalog, or only the index without `catalog`; `opened` closes it.

        Raises IndexFileError, LogError, DataError, RuleError.
        """
        index = self.index
        if not isinstance(index, LiveIndex):
            if Path(index).is_dir():
                index = opened.enter_context(LiveIndex.open(index, read_only=True))
            else:
                index = Trie.load(os.fspath(index), verify=self.verify)
        if self.catalog is None:
            return index if isinstance(index, Trie) else index.merge()
        catalog = Catalog.open(
            self.catalog,
            index,
            self.rules,
            refresh=self.refresh,
            hold_s=self.hold_s,
            rule_timeout_s=self.rule_timeout_s,
            data_may_fail=self.data_may_fail,
        )
        opened.callback(catalog.close)
        return catalog

    def open_memory(self, opened: ExitStack) -> ItemMemory | LiveMemory | None:
        """Open the item memory, if there is one; `opened` closes it. Raises IndexFileError, LogError."""
        if self.memory is None:
            return None
        if self.learn:
            return opened.enter_context(LiveMemory.open(self.memory))
        return ItemMemory.load(self.memory, verify=self.verify)
