"""Input and output of `leafbeam recommend`: item ids and histories, and the table of results."""

import re
import textwrap
from typing import cast

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from leafbeam.catalog.items_table import title_column
from leafbeam.demo.display import item_facts, item_title
from leafbeam.engine import Engine, ItemId, Request, Result
from leafbeam.errors import ItemIdError, counted
from leafbeam.ids import parse_id
from leafbeam.index import Trie

_LISTED_ID = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>(?!")[^,]*))(?=,|$)')


def split_ids(text: str) -> list[str]:
    """Return the ids of a list with commas; an id in double quotes keeps its commas and blanks.

    Raises:
        ItemIdError: If quotes are wrong.

    Examples:
        >>> split_ids('A7, " B,8", "5"" pipe"')
        ['A7', ' B,8', '5" pipe']
    """
    words: list[str] = []
    end = 0 if text.strip() else len(text) + 1
    while end <= len(text):
        match = _LISTED_ID.match(text, end)
        if match is None:
            raise ItemIdError(
                f"{text[end:].strip()[:80]!r}: an id that begins with a double quote ends with one, and a quote inside is "
                'written twice, as in "5"" pipe"'
            )
        word = match["plain"].strip() if match["quoted"] is None else match["quoted"].replace('""', '"')
        if not word:
            raise ItemIdError(f"{text[:80]!r} has an empty id: write ids with one comma between them, such as A7,B8")
        words.append(word)
        end = match.end() + 1
    return words


def parse_ids(text: str, trie: Trie) -> list[ItemId]:
    """Return the ids of a list with commas, in the index's own type (numbers or text).

    Raises:
        ItemIdError: If an id is of the other type.
    """
    ids: list[ItemId] = []
    for word in split_ids(text):
        item_id = parse_id(word, trie.items.kind)
        if item_id is None:
            example = f", such as {trie.item_ids[0]}" if len(trie.item_ids) else ""
            raise ItemIdError(f"{word!r}: the item ids of this index are whole numbers{example}")
        ids.append(item_id)
    return ids


def describe(row: dict[str, object], column: str | None) -> Text:
    """Describe an item in two lines: its title, then its price, stock and day, or all other columns that have a value."""
    known = {name: value for name, value in row.items() if name != "item_id" and value is not None}
    title = item_title({**row, "title": None if column is None else known.pop(column, None)})
    facts = item_facts(row) or textwrap.shorten(" · ".join(f"{name} {value}" for name, value in known.items()), 100)
    return Text.assemble(title, "\n", (facts, "dim"))


def _proof(result: Result) -> str:
    """Return how far the model's items are proved to be the best allowed ones, and what that took."""
    if not result.num_beams:
        return "no search"
    proved = "all" if result.exact else f"{result.num_exact:,}"
    return f"{proved} of the model's items proved to be its best with {counted(result.rows, 'row')}"


def _why_short(result: Result) -> str:
    """Return a sentence that says why there are fewer items than requested, and which rules or exclusions leave none."""
    if not result.empty_rules:
        return f"{counted(result.num_valid, 'item')}: no other items are allowed."
    exclusions = {"- deny_item_ids": "denied", "- history": "in the history"}
    taken = " or ".join(words for name, words in exclusions.items() if name in result.empty_rules)
    rules = [name for name in result.empty_rules if name not in exclusions]
    named = (
        f"rule {rules[0]} allows"
        if len(rules) == 1
        else f"rules {', '.join(rules[:-1])} and {rules[-1]} allow"
        if rules
        else ""
    )
    if taken:
        return f"0 items: all items{f' that the {named}' if named else ''} are {taken}."
    return f"0 items: the {named} none{' together' if len(rules) > 1 else ''}."


def show(console: Console, engine: Engine, request: Request, result: Result) -> None:
    """Print the items with titles and attributes, and below them what was missing or ignored."""
    assert engine.catalog is not None
    rules = " and ".join(request.rules) or "no rule"
    table = Table(
        Column(justify="right", style="dim"),
        *(Column(name, overflow="fold") for name in ("item", "title", "codes")),
        Column("score", justify="right"),
        title=f"Next, under {rules}",
        title_justify="left",
    )
    if result.boosts:
        table.add_column("boosts", justify="right")
    if result.reasons:
        table.add_column("because of", overflow="fold")
    ids = cast("tuple[str, ...]", result.item_ids)  # all of one type, numbers or text
    rows, column = engine.catalog.lookup(ids).to_pylist(), title_column(engine.catalog.schema())
    reasons = [[f"{why.channel} {'' if why.item_id is None else why.item_id}".strip()] for why in result.reasons]
    boosts = [[f"{boost:+.2f}"] for boost in result.boosts]
    empty: list[list[str]] = [[]] * result.num_valid
    columns = zip(rows, result.codes, result.scores, boosts or empty, reasons or empty, strict=True)
    for rank, (row, codes, score, boost, reason) in enumerate(columns, 1):
        words = " ".join(map(str, codes))
        table.add_row(str(rank), str(row["item_id"]), describe(row, column), words, f"{score:.2f}", *boost, *reason)
    console.print(table)
    for name, count in result.unmet.items():
        console.print(f"--at-least {name}: {counted(count, 'more item')} of this rule would be needed, and none is allowed.")
    if result.num_valid < request.num_items:
        console.print(_why_short(result))
    for name, ids in (("history", result.ignored_history), ("--deny", result.ignored_deny)):
        if ids:
            verb = "is not in the index and was" if len(ids) == 1 else "are not in the index and were"
            console.print(f"{counted(len(ids), 'id')} of {name} {verb} ignored: {', '.join(map(str, ids[:5]))}")
    console.print(
        f"{counted(result.num_history_used, 'item')} of history, {result.num_history_left_out} left out of the answer, "
        f"{_proof(result)}, index {result.index_version}; "
        f"{1e3 * result.timings.total:.1f} ms, of which {1e3 * result.timings.model:.1f} ms in the model",
        style="dim",
    )
