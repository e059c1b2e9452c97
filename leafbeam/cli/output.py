"""What `leafbeam recommend` reads from the command line, and the table that it answers with."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leafbeam.cli.run import RunDirectory
from leafbeam.cli.sources import Source
from leafbeam.demo.showcase import facts_of, title_of
from leafbeam.engine import Engine, ItemId, Request, Result, Scoring
from leafbeam.errors import ArgumentError, ItemIdError
from leafbeam.index import Trie

__all__ = ["history_of", "ids_of", "scoring_of", "show"]


def ids_of(text: str, trie: Trie) -> list[ItemId]:
    """The ids of a list with commas, in the kind that the index knows its items by."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if trie.item_ids.dtype.kind == "U":
        return list(words)
    try:
        return [int(word) for word in words]
    except ValueError:
        raise ItemIdError(f"{text!r}: this index knows its items by whole numbers") from None


def history_of(run: RunDirectory, user: str) -> list[ItemId]:
    """Everything that a user of the log took, oldest first. Raises ItemIdError for a user whom the log does not know."""
    log = Source.load(run.need(run.source, "fit-sids")).read()
    row = np.flatnonzero(log.user_ids.astype(np.str_) == user)
    if len(row) == 0:
        some = ", ".join(str(name) for name in log.user_ids[:3])
        raise ItemIdError(f"the log has no user {user!r}; its {log.num_users:,} users are named like {some}")
    return log.item_ids[log.histories[int(row[0])]].tolist()


def scoring_of(text: str) -> Scoring:
    for name in get_args(Scoring):
        if name == text:
            return name
    raise ArgumentError(f"--scoring {text}: choose one of {', '.join(get_args(Scoring))}")


def show(console: Console, engine: Engine, request: Request, result: Result) -> None:
    """The answer as a table with titles and facts, and everything that should not pass unsaid below it."""
    words = f"under {' and '.join(request.rules)}" if request.rules else "under no rule"
    table = Table(title=f"Next, {words}", title_justify="left")
    table.add_column("", justify="right", style="dim")
    for name in ("item", "title", "SID"):
        table.add_column(name, overflow="fold")
    table.add_column("score", justify="right")
    rows = rows_of(engine, result.item_ids)
    for place, (row, sid, score) in enumerate(zip(rows, result.sids, result.scores, strict=True), 1):
        codes = " ".join(str(code) for code in sid)
        title = Text.assemble(title_of(row), "\n", (facts_of(row), "dim"))
        table.add_row(str(place), str(row["item_id"]), title, codes, f"{score:.2f}")
    console.print(table)
    if result.num_valid < request.num_items:
        console.print(f"{result.num_valid} items: no more are allowed.")
    for name, ids in (("history", result.ignored_history), ("--deny", result.ignored_deny)):
        if ids:
            console.print(f"{len(ids)} ids of {name} are not in the index and were ignored: {', '.join(map(str, ids[:5]))}")
    console.print(
        f"{result.num_history_used} items of history, {result.num_beams} beams, index {result.index_version}; "
        f"{1e3 * result.timings.total:.1f} ms, {1e3 * result.timings.model:.1f} ms of it the model",
        style="dim",
    )


def rows_of(engine: Engine, item_ids: Sequence[ItemId]) -> list[dict[str, object]]:
    assert engine.catalog is not None
    return engine.catalog.lookup(item_ids).to_pylist()
