"""Where `leafbeam items` makes its changes: in the directory of a run, or through the server of one."""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from leafbeam import catalog, client, ingest
from leafbeam.cli.options import KEY
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import BatchError, InvalidRequestError, LockedError
from leafbeam.ingest import ChangeAnswer, Lines

Operation = Literal["put", "delete"]
DEADLINE_S = 60.0  # of a batch
_HOLD_S = 3.0  # how long the catalog's file stays open for the next batch, because opening it takes longer than a change


class ItemWriter(Protocol):
    """A target of batches of items; `columns` are their types by name, and `text_ids` says whether item ids are text."""

    columns: Mapping[str, str]
    text_ids: bool

    def send(self, operation: Operation, rows: Sequence[Mapping[str, object]], *, missing_ok: bool = False) -> ChangeAnswer:
        """Make one change of all rows or of none.

        Raises:
            BatchError: If a row is bad; it names every bad one.
        """
        ...


def items_of(run: Path, url: str | None, *, makes_codes: bool = True) -> AbstractContextManager[ItemWriter]:
    """Open the items of a run that no server has open, or the items of a server.

    `makes_codes` says whether rows may lack codes, so that a run's encoder is loaded.
    """
    return _served_items(url) if url is not None else _run_items(RunDirectory(run), makes_codes=makes_codes)


class _RunItems:
    def __init__(self, writer: "ingest.CatalogWriter", columns: Mapping[str, str], text_ids: bool) -> None:
        self._writer, self.columns, self.text_ids = writer, columns, text_ids

    def send(self, operation: Operation, rows: Sequence[Mapping[str, object]], *, missing_ok: bool = False) -> ChangeAnswer:
        lines = Lines.of_rows(rows)
        return self._writer.put(lines) if operation == "put" else self._writer.delete(lines, missing_ok=missing_ok)


def has_text_ids(kind: str) -> bool:
    """Return whether ids are text, by the name of their column's type in Arrow: whole numbers may be unsigned."""
    return not kind.startswith(("int", "uint"))


@contextmanager
def _run_items(paths: RunDirectory, *, makes_codes: bool) -> Generator[_RunItems]:
    """Yield the items of a run; raise LockedError if a server has it open."""

    paths.check("trie", "catalog", "rules")
    encoder = paths.load_encoder() if makes_codes else "this command makes no codes"
    with ExitStack() as opened:
        try:
            live = opened.enter_context(ingest.LiveDirectory.open(paths.live, paths.trie))
        except LockedError as error:
            holder = str(error).partition("; close it there")[0]  # the rest is advice for Python
            raise LockedError(
                f"a server or another command has {paths.path} open: send the items through the server with --url, such as "
                f"--url http://127.0.0.1:8000 ({holder})"
            ) from error
        # Rules are evaluated by the server that applies them: a change of items does not read them.
        items = catalog.Catalog.open(paths.catalog, live.index, hold_s=_HOLD_S, load=False)
        opened.callback(items.close)
        writer = ingest.CatalogWriter(items, live, encoder=encoder)
        columns = {field.name: str(field.type) for field in items.schema()}
        yield _RunItems(writer, columns, has_text_ids(columns["item_id"]))


class _ServedItems:
    def __init__(self, server: "client.Client", columns: Mapping[str, str], text_ids: bool) -> None:
        self._server, self.columns, self.text_ids = server, columns, text_ids

    def send(self, operation: Operation, rows: Sequence[Mapping[str, Any]], *, missing_ok: bool = False) -> ChangeAnswer:
        try:
            if operation == "put":
                return self._server.put_items(rows)
            return self._server.delete_items([row["item_id"] for row in rows], missing_ok=missing_ok)
        except InvalidRequestError as error:
            if error.lines:
                raise BatchError(error.lines, len(rows)) from error
            raise


@contextmanager
def _served_items(url: str) -> Generator[_ServedItems]:

    with client.Client(url, key=os.environ.get(KEY), retries=client.Retries(deadline_s=DEADLINE_S)) as server:
        found = server.get_catalog()
        yield _ServedItems(server, found.columns, found.item_ids != "numbers")
