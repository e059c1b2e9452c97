"""A catalog with the changes that clients make over HTTP, and who may make them."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leafbeam import semid
from leafbeam.catalog import Catalog, RuleSource
from leafbeam.engine import CatalogFiles
from leafbeam.errors import ArgumentError, LockedError
from leafbeam.index import Trie
from leafbeam.ingest import INDEX, RULES, CatalogWriter, LiveDirectory, check_origin
from leafbeam.retrieve import ItemMemory, LiveMemory
from leafbeam.serve.exposure import is_loopback
from leafbeam.serve.keys import KeyFile

if TYPE_CHECKING:
    from leafbeam.serve.access import Access  # imports starlette, which a command without a server does without

Changes = Literal["auto", "on", "off"]
log = logging.getLogger("leafbeam.serve")

# To open the catalog's file takes several times as long as a change. Other programs get it at the latest after this.
_HOLD_S = 3.0

NOT_LOCAL = (
    "this server is bound to an address that other machines reach and has no keys, so it accepts no changes: bind it to "
    "127.0.0.1, or start it with --changes on"
)


@dataclass(frozen=True, kw_only=True)
class ChangedCatalog:
    """A catalog with the changes of clients.

    Args:
        source: The catalog, or its index alone.
        memory: The item memory.
        writer: Makes more changes, or the reason why no changes are accepted.
    """

    source: Catalog | Trie
    memory: ItemMemory | LiveMemory | None
    writer: CatalogWriter | str


def access_of(changes: Changes, host: str, keys: KeyFile | None) -> "Access":
    """Return who may change the catalog of a server that is bound to this address. keys: of clients."""
    from leafbeam.serve.access import Access

    if keys is not None:
        return Access(keys=keys)
    if changes == "off":
        return Access(changes="off", reason="this server was started with --changes off")
    if changes == "on":
        return Access(changes="open")
    return Access(changes="local") if is_loopback(host) else Access(changes="off", reason=NOT_LOCAL)


def open_changed(
    files: CatalogFiles, directory: Path, opened: ExitStack, *, encoder: "semid.ItemEncoder | str", changes: Changes = "auto"
) -> ChangedCatalog:
    """Open the files of a catalog with the changes that clients made so far.

    Args:
        files: The catalog's files. The index must be a file.
        directory: The directory of the changes (see LiveDirectory).
        opened: Closes what is opened here.
        encoder: Gives new items codes, or the reason why there is none.
        changes: "on" raises an error where another process writes the directory; "auto" then serves what it holds, and also
            where this process may not write it; "off" takes no changes.

    Raises:
        LockedError: If another process writes the directory, with "on".
        ConflictError: If the index was built again since the changes began.
        LeafbeamError: As for `CatalogFiles.open`.
    """
    files, live = _open_directory(replace(files, data_may_fail=True), directory, opened, changes)  # clients wrote the data
    memory, source = files.open_memory(opened), files.open(opened)
    if isinstance(live, str):
        return ChangedCatalog(source=source, memory=memory, writer=live)
    assert isinstance(source, Catalog)  # `_open_directory` takes no others
    writer = CatalogWriter(source, live, encoder=encoder, memory=memory)
    return ChangedCatalog(source=source, memory=memory, writer=writer)


def _open_directory(
    files: CatalogFiles, directory: Path, opened: ExitStack, changes: Changes
) -> tuple[CatalogFiles, LiveDirectory | str]:
    """Return the files with the changes so far, and the directory to be closed by `opened`, or why it takes none."""
    if not isinstance(files.index, str | os.PathLike):
        raise ArgumentError("changes need the file of the index: pass its path as index=")
    if files.catalog is None:
        raise ArgumentError("changes need a catalog: pass its DuckDB file as catalog=")
    rules, index = directory / RULES, directory / INDEX
    reason = detail = "this server was started with --changes off" if changes == "off" else None  # clients see the reason
    if reason is None and changes == "auto" and not os.access(directory if directory.exists() else directory.parent, os.W_OK):
        reason, detail = "the server may not write its directory", f"this user may not write {directory}"
    if reason is None:
        try:
            live = opened.enter_context(LiveDirectory.open(directory, files.index, verify=files.verify))
            return replace(files, index=live.index, rules=_joined(files.rules, live.rules_file), hold_s=_HOLD_S), live
        except LockedError as error:
            if changes == "on":
                raise
            reason = "another server or command has these items open, and only one may write: send changes there"
            detail = f"another server or command has {directory} open: send changes there ({error})"
    if changes == "auto":
        log.warning("changes are not taken: %s", detail)
    check_origin(directory, Path(files.index))
    if rules.exists():
        files = replace(files, rules=_joined(files.rules, rules))
    return (replace(files, index=index) if (index / "manifest.json").exists() else files), reason


def _joined(rules: RuleSource, more: Path) -> RuleSource:
    if rules is None:
        return more
    return [*rules, more] if isinstance(rules, Sequence) and not isinstance(rules, str) else [rules, more]
