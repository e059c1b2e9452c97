"""Answers side by side, for people: titles and the facts that the rules speak of."""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Shown", "facts_of", "side_by_side", "title_of"]

TITLE_LINES = 2
NARROWEST = 34
UNKNOWN_BRANDS = {"", "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One answer to be shown: a heading, a line under it, and items as (title, facts, marked)."""

    heading: str
    note: str
    items: Sequence[tuple[str, str, bool]]


def side_by_side(console: Console, answers: Sequence[Shown]) -> None:
    """Print tables beside one another, row by row at one height; below one another where the console is too narrow."""
    width = (console.width - 2 * (len(answers) - 1)) // len(answers)
    if width < NARROWEST:
        for answer in answers:
            console.print(_table(answer, console.width))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in answers:
        grid.add_column(width=width)
    grid.add_row(*(_table(answer, width) for answer in answers))
    console.print(grid)


def title_of(row: dict[str, Any]) -> str:
    """What a row of the table of items is called: its title, with the brand in front where it is not there already."""
    title = _plain(row.get("title")) or f"item {row['item_id']}"
    brand = _plain(row.get("brand"))
    if brand.lower() in UNKNOWN_BRANDS or brand.lower() in title.lower():
        return title
    return f"{brand} {title}"


def facts_of(row: dict[str, Any]) -> str:
    """What the rules speak of: price, stock, first day, as far as the table has them."""
    facts: list[str] = []
    if "price" in row:
        facts.append(_price(row["price"]))
    if "stock" in row:
        facts.append("stock unknown" if row["stock"] is None else f"{row['stock']} left" if row["stock"] else "SOLD OUT")
    for column in ("first_seen", "first_review"):
        if column in row:
            facts.append("no date" if row[column] is None else _day(row[column]))
    return " · ".join(facts)


def _table(answer: Shown, width: int) -> Table:
    table = Table(box=box.ROUNDED, width=width, show_lines=True)
    heading = Text.assemble((answer.heading, "bold cyan"), "\n", (answer.note, "dim"))
    table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for place, (title, facts, marked) in enumerate(answer.items, 1):
        lines = textwrap.wrap(title, width - 6, max_lines=TITLE_LINES, placeholder=" …")
        lines += [""] * (TITLE_LINES - len(lines))
        body = "\n  ".join(lines)
        table.add_row(Text.assemble((f"{place} ", "dim"), (body, "yellow" if marked else ""), "\n  ", (facts, "dim")))
    if not answer.items:
        table.add_row(Text("nothing may be shown", "dim"))
    return table


def _plain(text: Any) -> str:
    return html.unescape(str(text)).strip() if text is not None else ""


def _price(price: Any) -> str:
    try:
        return f"{float(price):,.2f}"
    except (TypeError, ValueError):
        return "no price"


def _day(moment: Any) -> str:
    return f"{moment:%Y-%m-%d}" if isinstance(moment, date | datetime) else str(moment)[:10]
