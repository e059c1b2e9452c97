"""CatalogFiles: the files of a catalog. Needs no torch, so that a command that only changes items does not import it."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from leafbeam.catalog import Catalog, RuleSource
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.live import LiveIndex
from leafbeam.retrieve import ItemMemory, LiveMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogFiles:
    """The files that `Engine.load` opens and closes: an index, and for rules the DuckDB file of the items.

    Args:
        index: An index file; the directory of a live index, which is read as it is now; or a live index, which is not closed.
        catalog: The DuckDB file of the items; None serves without rules.
        rules: A TOML file, a mapping of names to predicates, or several of these.
        refresh: The interval after which rules without an interval of their own are evaluated again, such as "60s".
        rule_timeout_s: The longest time that one evaluation of a rule may take.
        hold_s: The seconds for which a change keeps the catalog's file open (see `Catalog.open`).
        data_may_fail: If true, a rule that fails over the catalog's current rows is unavailable instead of an error (see
            `Catalog.open`).
        verify: Whether the index is checked and read into memory (see `Trie.load`).
        memory: The file of an item memory.
        learn: Whether the item memory counts interactions (`Engine.observe`). No other process may do so at the same time.
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

    def absolute(self) -> "CatalogFiles":
        """Return the same files by their absolute paths, as text, for another process."""
        rules = self.rules
        if rules is not None:
            sources = [rules] if isinstance(rules, str | os.PathLike | Mapping) else rules
            rules = tuple(source if isinstance(source, Mapping) else os.path.abspath(source) for source in sources)
        return replace(
            self,
            index=self.index if isinstance(self.index, LiveIndex) else os.path.abspath(self.index),
            catalog=None if self.catalog is None else os.path.abspath(self.catalog),
            rules=rules,
            memory=None if self.memory is None else os.path.abspath(self.memory),
        )

    def open(self, opened: ExitStack) -> Catalog | Trie:
        """Open the catalog, or only the index if there is no catalog; `opened` closes it.

        Raises:
            IndexFileError: If the index is missing or damaged.
            LogError: If the live index is damaged.
            DataError: If the catalog's file is unusable.
            RuleError: If a rule is invalid.
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
        """Open the item memory, if there is one; `opened` closes it.

        Raises:
            IndexFileError: If the file is missing or damaged.
            LogError: If its log is damaged.
        """
        if self.memory is None:
            return None
        if self.learn:
            return opened.enter_context(LiveMemory.open(self.memory))
        return ItemMemory.load(self.memory, verify=self.verify)
