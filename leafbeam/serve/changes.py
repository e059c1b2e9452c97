"""ChangeFiles: where a server keeps the changes that its clients make."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leafbeam.catalog import Catalog, RuleSource
from leafbeam.engine import CatalogFiles
from leafbeam.errors import ArgumentError, LockedError
from leafbeam.index import Trie
from leafbeam.ingest import INDEX, RULES, CatalogWriter, LiveDirectory, check_origin
from leafbeam.retrieve import ItemMemory, LiveMemory
from leafbeam.semid import ItemEncoder
from leafbeam.serve.keys import KeyFile

if TYPE_CHECKING:
    from leafbeam.serve.access import Access  # imports starlette, which a command without a server does without

log = logging.getLogger("leafbeam.serve")

# To open the catalog's file takes several times as long as a change. Other programs get it at the latest after this.
_HOLD_S = 3.0

NOT_LOCAL = (
    "this server is bound to an address that other machines reach and has no keys, so it accepts no changes: bind it to "
    "127.0.0.1, or start it with --changes on"
)


@dataclass(frozen=True, kw_only=True)
class ChangedCatalog:
    """A catalog with the changes of clients. writer: makes more of them; or why there is none."""

    source: Catalog | Trie
    memory: ItemMemory | LiveMemory | None
    writer: CatalogWriter | str


@dataclass(frozen=True, kw_only=True)
class ChangeFiles:
    """A directory of changes (see LiveDirectory), and who may make them.

    encoder: gives new items codes; or why there is none. changes: "on" takes them from everyone who reaches the server; "auto"
    from this machine alone, and serves what the directory holds where another process writes it or this one may not; "off"
    takes none.
    """

    directory: Path
    encoder: ItemEncoder | str
    changes: Literal["auto", "on", "off"] = "auto"

    def access(self, host: str, keys: KeyFile | None = None) -> "Access":
        """Who may change the catalog of a server that is bound to this address. keys: of clients."""
        from leafbeam.serve.access import Access
        from leafbeam.serve.exposure import is_loopback

        if keys is not None:
            return Access(keys=keys)
        if self.changes == "off":
            return Access(changes="off", reason="this server was started with --changes off")
        if self.changes == "on":
            return Access(changes="open")
        return Access(changes="local") if is_loopback(host) else Access(changes="off", reason=NOT_LOCAL)

    def open(self, files: CatalogFiles, opened: ExitStack) -> ChangedCatalog:
        """Open the files with the changes so far, to be closed by `opened`.

        Raises LockedError ("on"), ConflictError if the index was built again since, and what `CatalogFiles.open` raises.
        """
        files, live = self._open_directory(replace(files, data_may_fail=True), opened)  # clients have written the data
        memory, source = files.open_memory(opened), files.open(opened)
        if isinstance(live, str):
            return ChangedCatalog(source=source, memory=memory, writer=live)
        assert isinstance(source, Catalog)  # `_open_directory` takes no others
        writer = CatalogWriter(source, live, encoder=self.encoder, memory=memory)
        return ChangedCatalog(source=source, memory=memory, writer=writer)

    def _open_directory(self, files: CatalogFiles, opened: ExitStack) -> tuple[CatalogFiles, LiveDirectory | str]:
        """The files with the changes so far, and the directory to be closed by `opened`, or why it takes none."""
        if not isinstance(files.index, str | os.PathLike):
            raise ArgumentError("changes are those of an index file: pass its path as index=")
        if files.catalog is None:
            raise ArgumentError("changes need a catalog: pass its DuckDB file as catalog=")
        rules, index = self.directory / RULES, self.directory / INDEX
        reason = detail = "this server was started with --changes off" if self.changes == "off" else None  # clients see reason
        if reason is None and self.changes == "auto" and not _is_writable(self.directory):
            reason, detail = "the server may not write its directory", f"this user may not write {self.directory}"
        if reason is None:
            try:
                live = opened.enter_context(LiveDirectory.open(self.directory, files.index, verify=files.verify))
                return replace(files, index=live.index, rules=_joined(files.rules, live.rules_file), hold_s=_HOLD_S), live
            except LockedError as error:
                if self.changes == "on":
                    raise
                reason = "another server or command has these items open, one writer at a time: send changes there"
                detail = f"another server or command has {self.directory} open: send changes there ({error})"
        if self.changes == "auto":
            log.warning("changes are not taken: %s", detail)
        check_origin(self.directory, Path(files.index))
        if rules.exists():
            files = replace(files, rules=_joined(files.rules, rules))
        return (replace(files, index=index) if (index / "manifest.json").exists() else files), reason


def _joined(rules: RuleSource, more: Path) -> RuleSource:
    if rules is None:
        return more
    return [*rules, more] if isinstance(rules, Sequence) and not isinstance(rules, str) else [rules, more]


def _is_writable(directory: Path) -> bool:
    return os.access(directory if directory.exists() else directory.parent, os.W_OK)
