"""`leafbeam items`: items of a run come and go, in its directory or through its server."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from leafbeam.cli import follow
from leafbeam.cli.console import done, stdout
from leafbeam.cli.options import DEFAULT_RUN, RunOption, option
from leafbeam.errors import ArgumentError, BatchError
from leafbeam.extras import require

UrlOption = Annotated[
    str | None, option("--url", "The address of the run's server, in place of --run; LEAFBEAM_KEY has its key.")
]


def add(
    item_id: Annotated[str, typer.Argument(help="The item's id.")],
    attributes: Annotated[list[str] | None, typer.Argument(help="Its attributes: NAME=VALUE ...", metavar="NAME=VALUE")] = None,
    codes: Annotated[str, option("--codes", "Its Semantic ID: 3,17,5.", default="from its text")] = "",
    run: RunOption = DEFAULT_RUN,
    url: UrlOption = None,
) -> None:
    """Add an item, or replace it."""
    _require(url)
    from leafbeam.cli.item_writer import items_of

    began = time.perf_counter()
    with items_of(run, url) as writer:
        row: dict[str, Any] = {"item_id": _id_of(item_id, writer.text_ids)}
        if codes:
            row["codes"] = [_number(code, "--codes") for code in codes.split(",")]
        for text in attributes or ():
            name, equals, value = text.partition("=")
            if not equals or name in ("item_id", "codes", "vector"):
                raise ArgumentError(f"{text!r:.80}: expected NAME=VALUE, such as price=19")
            row[name] = _value_of(value, writer.columns.get(name, ""))
        counts = writer.send("put", [row])
    done(stdout(), f"{item_id} was {'added' if counts.inserted else 'replaced'}", since=began)


def remove(
    item_ids: Annotated[list[str], typer.Argument(help="Ids of items.")],
    missing_ok: Annotated[bool, option("--missing-ok", "Ignore items that are not there.")] = False,
    run: RunOption = DEFAULT_RUN,
    url: UrlOption = None,
) -> None:
    """Remove items: all of them or, if one is not there, none."""
    _require(url)
    from leafbeam.cli.item_writer import items_of

    began = time.perf_counter()
    with items_of(run, url) as writer:
        rows = [{"item_id": _id_of(item_id, writer.text_ids)} for item_id in dict.fromkeys(item_ids)]
        counts = writer.send("delete", rows, missing_ok=missing_ok)
    ignored = f", {counts.ignored:,} were not there" if counts.ignored else ""
    done(stdout(), f"{counts.deleted:,} {'item' if counts.deleted == 1 else 'items'} removed{ignored}", since=began)


def import_items(
    file: Annotated[Path, typer.Argument(help="JSON lines, JSON, CSV or Parquet; - for JSON lines on standard input.")],
    run: RunOption = DEFAULT_RUN,
    url: UrlOption = None,
) -> None:
    """Add or replace the items of a file: item_id, attributes and, if they are known, codes.

    Items are sent 1,000 at a time. A mistake ends the import and is named; the batches before it stay.
    """
    _require(url)
    from leafbeam.cli.item_files import batches
    from leafbeam.cli.item_writer import items_of

    began = time.perf_counter()
    inserted = updated = 0
    with items_of(run, url) as writer:

        def parse(column: str, text: str) -> Any:
            return _cell(text, "string" if column == "item_id" and writer.text_ids else writer.columns.get(column, ""))

        for batch in batches(file, parse):
            first = inserted + updated
            try:
                counts = writer.send("put", _with_ids(batch, writer.text_ids))
            except BatchError as error:
                lines = {first + number: problem for number, problem in error.lines.items()}
                raise BatchError(lines, len(batch)) from error
            inserted, updated = inserted + counts.inserted, updated + counts.updated
    if not inserted + updated:
        raise ArgumentError(f"{file} has no items")
    done(stdout(), f"{inserted:,} items added, {updated:,} replaced", since=began)


def _require(url: str | None) -> None:
    if url is None:
        require("`leafbeam items`", "duckdb", "msgspec", "pyarrow", "starlette", extra="serve")
    else:
        require("`leafbeam items --url`", "httpx", "msgspec", "pyarrow", extra="catalog,client")


def _id_of(text: str, is_text: bool) -> int | str:
    return text if is_text else _number(text, "the item ids of this index are whole numbers")


def _with_ids(rows: Sequence[dict[str, Any]], is_text: bool) -> list[dict[str, Any]]:
    """Rows whose ids are text where those of the index are: a table may have them as numbers."""
    return [{**row, "item_id": str(row["item_id"])} if is_text and type(row.get("item_id")) is int else row for row in rows]


def _number(text: str, place: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{place}: expected a whole number, not {text!r:.80}") from None


def _cell(text: str, kind: str) -> Any:
    """The value of a cell of CSV; other programs write True for true."""
    return _value_of(text.lower() if kind == "bool" else text, kind)


def _value_of(text: str, kind: str) -> Any:
    """A value as JSON where the column is not of text."""
    if kind in ("string", "large_string", "string_view"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


app = typer.Typer(no_args_is_help=True, help="Add, remove and import items of a run, or of its server.")
app.command("add")(add)
app.command("remove")(remove)
app.command("import")(import_items)
app.add_typer(follow.app, name="follow")
