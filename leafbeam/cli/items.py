"""`leafbeam items`: items of a run come and go, in its directory or through its server."""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Literal, Protocol

import typer

from leafbeam import catalog, client, ingest, tables
from leafbeam.cli import follow
from leafbeam.cli.console import done, stdout
from leafbeam.cli.options import DEADLINE_S, DEFAULT_RUN, KEY, RunOption, delimiter_of, option
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import ArgumentError, BatchError, InvalidRequestError, LockedError, counted
from leafbeam.extras import require
from leafbeam.json_reader import Json

Operation = Literal["put", "delete"]
_HOLD_S = 3.0  # how long the catalog's file stays open for the next batch, because opening it takes longer than a change


class ItemWriter(Protocol):
    """A target of batches of items; `columns` are their types by name, and `text_ids` says whether item ids are text."""

    columns: Mapping[str, str]
    text_ids: bool

    def send(self, operation: Operation, rows: Sequence[Json], *, missing_ok: bool = False) -> "ingest.ChangeAnswer":
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

    def send(self, operation: Operation, rows: Sequence[Json], *, missing_ok: bool = False) -> "ingest.ChangeAnswer":
        lines = ingest.Lines.of_rows(rows)
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

    def send(self, operation: Operation, rows: Sequence[Json], *, missing_ok: bool = False) -> "ingest.ChangeAnswer":
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
        status = server.get_catalog()
        yield _ServedItems(server, status.columns, status.item_ids != "numbers")


BATCH = 1000  # items
_NAMELESS = re.compile(r"unnamed_\d+|__index_level_\d+__")  # columns without a name in CSV, and the index of pandas in Parquet
UrlOption = Annotated[
    str | None, option("--url", "The address of the run's server, in place of --run; its key is read from LEAFBEAM_KEY.")
]


def add(
    item_id: Annotated[str, typer.Argument(help="The id of the item.")],
    attributes: Annotated[
        list[str] | None, typer.Argument(help="The attributes of the item: NAME=VALUE ...", metavar="NAME=VALUE")
    ] = None,
    codes: Annotated[str, option("--codes", "The Semantic ID of the item, such as 3,17,5.", default="from its text")] = "",
    run: RunOption = DEFAULT_RUN,
    url: UrlOption = None,
) -> None:
    """Add an item, or replace it."""
    _require(url)
    from leafbeam.tables.cells import parse_cell

    began = time.perf_counter()
    with items_of(run, url, makes_codes=not codes) as writer:
        row: dict[str, object] = {"item_id": _id_of(item_id, writer.text_ids)}
        if codes:
            row["codes"] = [_number(code, "--codes") for code in codes.split(",")]
        for text in attributes or ():
            name, equals, value = text.partition("=")
            if not equals or name in ("item_id", "codes", "vector"):
                raise ArgumentError(f"{text!r:.80}: expected NAME=VALUE, such as price=19")
            row[name] = parse_cell(value, writer.columns.get(name, ""))
        counts = writer.send("put", [row])
    done(stdout(), f"{item_id} was {'added' if counts.inserted else 'replaced'}", since=began)


def remove(
    item_ids: Annotated[list[str], typer.Argument(help="The ids of the items.")],
    missing_ok: Annotated[bool, option("--missing-ok", "Ignore items that do not exist.")] = False,
    run: RunOption = DEFAULT_RUN,
    url: UrlOption = None,
) -> None:
    """Remove items, all or none: if one does not exist, nothing is removed."""
    _require(url)

    began = time.perf_counter()
    with items_of(run, url, makes_codes=False) as writer:
        rows = [{"item_id": _id_of(item_id, writer.text_ids)} for item_id in dict.fromkeys(item_ids)]
        counts = writer.send("delete", rows, missing_ok=missing_ok)
    ignored = f", {counts.ignored:,} {'was' if counts.ignored == 1 else 'were'} not there" if counts.ignored else ""
    done(stdout(), f"{counted(counts.deleted, 'item')} removed{ignored}", since=began)


def import_items(
    file: Annotated[
        Path,
        typer.Argument(help="The file of items in JSON lines, JSON, CSV or Parquet; - reads JSON lines from standard input."),
    ],
    run: RunOption = DEFAULT_RUN,
    url: UrlOption = None,
    delimiter: Annotated[str, option("--delimiter", "The delimiter of CSV: one character, or tab.")] = ",",
    encoding: Annotated[str, option("--encoding", "The encoding of CSV, such as latin-1 or utf-16.")] = "utf-8",
) -> None:
    """Add or replace the items of a file: item_id, attributes and, if they are known, codes.

    Items are sent 1,000 at a time. At the first mistake the import stops and names it; batches sent before stay.
    """
    _require(url)

    began, form = time.perf_counter(), tables.CsvFormat(delimiter=delimiter_of(delimiter), encoding=encoding)
    counts = ingest.ChangeAnswer.nothing()
    values: Counter[str] = Counter()
    nameless: set[str] = set()
    with items_of(run, url) as writer:
        types = {**writer.columns, "item_id": "string" if writer.text_ids else "int64"}
        for batch in tables.read_rows(file, BATCH, types=types, ids=("item_id",), form=form, stdin=sys.stdin.buffer):
            nameless |= {name for row in batch.rows for name in row if _NAMELESS.fullmatch(name) and name not in types}
            rows = [{name: value for name, value in row.items() if name not in nameless} for row in batch.rows]
            try:
                counts = counts.plus(writer.send("put", rows))
            except BatchError as error:
                lines = {batch.line_of(number - 1): problem for number, problem in error.lines.items()}
                raise BatchError(lines, len(batch.rows)) from error
            for row in rows:
                values.update(row.keys())
    num_items = counts.inserted + counts.updated
    if not num_items:
        raise ArgumentError(f"{file} has no items")
    console = stdout()
    empty = {name: num_items - count for name, count in values.items()}
    shown = tables.describe({name: types.get(name, "") for name in values}, empty)
    console.print(f"Read as: {shown}", style="dim", soft_wrap=True, markup=False)
    if nameless:
        shown = (
            f"Left out: {', '.join(sorted(nameless))}. The file does not name these columns, so the catalog does not have them."
        )
        console.print(shown, style="yellow", soft_wrap=True, markup=False)
    done(console, f"{counted(counts.inserted, 'item')} added, {counts.updated:,} replaced", since=began)


def _require(url: str | None) -> None:
    if url is None:
        require("`leafbeam items`", "duckdb", "msgspec", "pyarrow", extra="serve")
    else:
        require("`leafbeam items --url`", "httpx", "msgspec", "pyarrow", extra="catalog,client")


def _id_of(text: str, is_text: bool) -> int | str:
    return text if is_text else _number(text, "the item ids of this index are whole numbers")


def _number(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{where}: expected a whole number, not {text!r:.80}") from None


app = typer.Typer(no_args_is_help=True, help="Add, remove and import items of a run, or of its server.")
app.command("add")(add)
app.command("remove")(remove)
app.command("import")(import_items)
app.add_typer(follow.app, name="follow")
