"""`leafbeam init`: a run from five questions about one's own files."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from json import dumps
from pathlib import Path

import typer

from leafbeam import catalog, semid, tables, train
from leafbeam.cli.console import next_step, stdout
from leafbeam.cli.index import rules_file
from leafbeam.cli.options import DEFAULT_RUN, RunOption, TimeUnit
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.errors import ArgumentError, DataError, LeafbeamError, counted
from leafbeam.extras import require
from leafbeam.json_reader import Json

_SAMPLE = 1_000  # rows from which columns and units are guessed
_DELIMITERS = ",", ";", "\t", "|"
# What columns are often called; the first that a file has is offered, or a column with all words of one, such as "Ordered at".
_USERS = "user_id", "user", "customer_id", "customer", "visitor_id", "session_id", "account"
_ITEMS = "item_id", "item", "product_id", "product", "sku", "asin", "article_id", "id"
_TIMES = "timestamp", "time", "datetime", "date", "created_at", "at", "ts"
_UNITS: dict[TimeUnit, float] = {"ns": 1e17, "us": 1e14, "ms": 1e11, "s": 0.0}  # the smallest number of today's dates


def init(run: RunOption = DEFAULT_RUN) -> None:
    """Ask five questions about your own files, and write a run that knows how to read them and what its rules are.

    Each question offers what the file suggests. The files are read once, so that a mistake is found here; nothing is written
    before that. Answers may also come from a pipe, one on each line.
    """
    require("`leafbeam init`", "pyarrow", extra="train")
    paths = RunDirectory(run)
    if paths.source.exists() or paths.rules.exists():
        raise ArgumentError(f"{run} has a log or rules already: name another run with --run, or change {paths.rules}")
    console = stdout()
    interactions = _path("1. The file of interactions (CSV, Parquet, JSON lines)", needed=True)
    assert interactions is not None
    head = _Head(interactions)
    console.print(f"   columns: {', '.join(head.names)}", style="dim", soft_wrap=True, markup=False)
    user, item, time = _columns(head)
    items = _path("3. The file of items (leave empty if there is none)")
    source = Source(
        path=interactions,
        user_column=user,
        item_column=item,
        time_column=time or "timestamp",
        time_unit=head.unit_of(time) if time else "s",
        order="time" if time else "file",
        delimiter=head.delimiter,
        items=items,
    )
    if items is not None:
        listed = _Head(items)
        console.print(f"   columns: {', '.join(listed.names)}", style="dim", soft_wrap=True, markup=False)
        own = item if item in listed.names else listed.first_of(_ITEMS) or listed.names[0]
        source = replace(source, id_column=own, items_delimiter=listed.delimiter)
    source, log = _read(source)

    words = semid.text_columns(log.items)
    if items is not None and words:
        text = _ask("4. The columns with the text of items, with commas between them", default=",".join(words))
        source = replace(source, text_columns=tuple(name.strip() for name in text.split(",") if name.strip()))
    columns = {name: str(kind) for name, kind in zip(log.items.column_names, log.items.schema.types, strict=True)}
    answer = _ask("5. A rule about items as NAME=SQL (leave empty for none)", default=_suggested(columns))
    rules = _rules_of(answer, log)
    _check_text(source, log.items.column_names)
    source.save(paths.source)
    written = "".join(f"{name} = {_as_toml(rule)}\n" for name, rule in rules.items())
    paths.rules.write_text(rules_file(columns, written), encoding="utf-8")
    sizes = f"{counted(log.num_users, 'user')}, {counted(log.num_items, 'item')}"
    console.print(
        f"{paths.source} reads {sizes}, {counted(log.report.interactions, 'interaction')}; {paths.rules} is yours to edit"
    )
    next_step(console, "leafbeam", "fit-sids", "--run", run)


class _Head:
    """The first rows of a file: its columns, its delimiter, and what they suggest."""

    def __init__(self, path: Path) -> None:
        self._path, self.delimiter = path, _delimiter_of(path)
        form: tables.CsvFormat = tables.CsvFormat(delimiter=self.delimiter)
        batch = next(iter(tables.read_rows(path, _SAMPLE, types={}, form=form)), None)
        self.rows: Sequence[Json] = () if batch is None else batch.rows
        fullest_first = sorted(self.rows, key=len, reverse=True)  # rows lack the names of their empty cells
        self.names = tuple(dict.fromkeys(name for row in fullest_first for name in row))
        if not self.names:
            raise DataError(f"{path} has no rows")

    def first_of(self, names: Sequence[str]) -> str | None:
        """Return the column that has the first of these names, in any case, or else the words of one."""
        words = {column: re.findall(r"[^\W_]+", column.lower()) for column in self.names}
        exact = ((column, name) for name in names for column, found in words.items() if "_".join(found) == name)
        parts = ((column, name) for name in names for column, found in words.items() if name != "id" and name in found)
        return next((column for column, _ in (*exact, *parts)), None)

    def check(self, name: str) -> str:
        """Return a column's name. Raises ArgumentError if the file has no such column."""
        if name not in self.names:
            raise ArgumentError(f"{self._path} has no column {name!r}; it has {', '.join(self.names)}")
        return name

    def unit_of(self, name: str) -> TimeUnit:
        """Return the unit of a column of times: by their size if they are numbers."""
        numbers = [row[name] for row in self.rows if isinstance(row.get(name), int | float)]
        largest = max(numbers, default=0)
        return next(unit for unit, smallest in _UNITS.items() if largest >= smallest)


def _delimiter_of(path: Path) -> str:
    """Return the delimiter that the first line of a CSV file has most of."""
    if path.suffix.lower() not in (".csv", ".tsv") or not path.is_file():
        return ","
    with path.open(encoding="utf-8", errors="replace") as lines:
        first = "".join(islice(lines, 1))
    return max(_DELIMITERS, key=first.count)


def _path(question: str, *, needed: bool = False) -> Path | None:
    """Ask for a file or directory until there is one. Without `needed` an empty answer is None."""
    while True:
        text = _ask(question).strip()
        if not text and not needed:
            return None
        if text and (path := Path(text).expanduser()).exists():
            return path
        stdout().print(f"   there is no {text or 'such file'}", style="red", markup=False)


def _columns(head: _Head) -> tuple[str, str, str | None]:
    """Ask for the columns of user, item and time."""
    names_of_columns = [head.first_of(names) for names in (_USERS, _ITEMS, _TIMES)]
    default = ", ".join(name for name in names_of_columns if name) if all(names_of_columns[:2]) else ""
    question = "2. The columns of user, item and time, with commas between them (leave out the time if rows are in order)"
    while True:
        text = _ask(question, default=default)
        answer = [name.strip() for name in text.split(",")] if "," in text else text.split()
        try:
            if len(answer) not in (2, 3):
                raise ArgumentError(f"expected two or three names of columns, such as `user_id, item_id, timestamp`: {text!r}")
            user, item, *time = (head.check(name) for name in answer)
        except LeafbeamError as error:
            stdout().print(f"   {error}", style="red", markup=False, soft_wrap=True)
            continue
        return user, item, time[0] if time else None


def _read(source: Source) -> "tuple[Source, train.InteractionLog]":
    """Read the log, and ask whether rows without a user, an item or a time are left out, if there are any."""
    with_gaps = replace(source, incomplete="drop")
    log = with_gaps.read()
    count = log.report.incomplete_rows_dropped
    if not count:
        return source, log
    rows = counted(count, "row lacks", "rows lack")
    if typer.confirm(f"   {rows} a user, an item or a time. Leave out such rows?", default=True):
        return with_gaps, log
    return source, source.read()  # which names the lines


def _rules_of(text: str, log: "train.InteractionLog") -> dict[str, object]:
    """Return the rule of an answer, and show how many items it allows; ask again while it cannot be evaluated."""
    import numpy as np

    from leafbeam.index import Trie

    while text.strip():
        try:
            rules = catalog.rules_from_text([text.strip()])
            index = Trie.build(np.arange(log.num_items)[:, None], [log.num_items], item_ids=log.item_ids)
            with catalog.Catalog.in_memory(log.items, index, rules, background=False) as evaluated:
                for rule in evaluated.status:
                    words = f"{rule.name} allows {rule.num_items:,} of {counted(log.num_items, 'item')}"
                    stdout().print(f"   {words}", style="dim", markup=False)
            return rules
        except LeafbeamError as error:
            stdout().print(f"   {error}", style="red", markup=False, soft_wrap=True)
            text = _ask("   The rule (leave empty for none)")
    return {}


def _as_toml(rule: object) -> str:
    """Return a predicate, or a predicate with an interval, as a value of TOML."""
    if isinstance(rule, dict):
        fields: dict[str, object] = rule
        return f"{{ {', '.join(f'{name} = {dumps(value)}' for name, value in fields.items())} }}"
    return dumps(rule)


def _suggested(columns: dict[str, str]) -> str:
    """Return a rule for columns that most shops have; empty without them."""
    stock = next((name for name in columns if name.lower() == "stock"), None)
    if stock is not None and columns[stock].startswith(("int", "double")):
        return f"in_stock={stock} > 0"
    return next((f"{name}={name}" for name, kind in columns.items() if kind == "bool"), "")


def _check_text(source: Source, names: Sequence[str]) -> None:
    """Raise ArgumentError for a column of text that the items do not have."""
    for name in source.text_columns or ():
        if name not in names:
            raise ArgumentError(f"the items have no column {name!r}; they have {', '.join(names)}")


def _ask(question: str, *, default: str = "") -> str:
    return str(typer.prompt(question, default=default, show_default=bool(default)))
