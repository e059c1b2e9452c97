"""Lists of items on the console, side by side: titles and the attributes that the rules use."""

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leafbeam.json_reader import Json

TITLE_LINES = 2
MIN_WIDTH = 34
UNKNOWN_BRANDS = {"", "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemList:
    """A heading, a note below it, and rows of the item table; `marked`: the index of a row to highlight."""

    heading: str
    note: str
    rows: Sequence[Json]
    marked: int | None = None


def print_side_by_side(console: Console, lists: Sequence[ItemList]) -> None:
    """Print tables side by side, or one below the other on a narrow console."""
    width = (console.width - 2 * (len(lists) - 1)) // len(lists)
    if width < MIN_WIDTH:
        for items in lists:
            console.print(_table(items, console.width))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in lists:
        grid.add_column(width=width)
    grid.add_row(*(_table(items, width) for items in lists))
    console.print(grid)


def item_title(row: Mapping[str, object]) -> str:
    """Return the title of a row of the item table, after its brand unless the title contains it."""
    title = _plain(row.get("title")) or f"item {row['item_id']}"
    brand = _plain(row.get("brand"))
    return title if brand.lower() in UNKNOWN_BRANDS or brand.lower() in title.lower() else f"{brand} {title}"


def item_facts(row: Json) -> str:
    """Return price, stock and first day, as far as the table has them."""
    facts: list[str] = []
    if "price" in row:
        try:
            facts.append(f"{float(row['price']):,.2f}")
        except (TypeError, ValueError):
            facts.append("no price")
    if "stock" in row:
        facts.append("stock unknown" if row["stock"] is None else f"{row['stock']} left" if row["stock"] else "SOLD OUT")
    for day in (row[column] for column in ("first_seen", "first_review") if column in row):
        facts.append("no date" if day is None else f"{day:%Y-%m-%d}" if isinstance(day, date) else str(day)[:10])
    return " · ".join(facts)


def _table(items: ItemList, width: int) -> Table:
    table = Table(box=box.ROUNDED, width=width, show_lines=True)
    heading = Text.assemble((items.heading, "bold cyan"), "\n", (items.note, "dim"))
    table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for index, row in enumerate(items.rows):
        lines = textwrap.wrap(item_title(row), width - 6, max_lines=TITLE_LINES, placeholder=" …")
        title = "\n  ".join(lines + [""] * (TITLE_LINES - len(lines)))
        style = "yellow" if index == items.marked else ""
        table.add_row(Text.assemble((f"{index + 1} ", "dim"), (title, style), "\n  ", (item_facts(row), "dim")))
    if not items.rows:
        table.add_row(Text("no allowed items", "dim"))
    return table


def _plain(text: object) -> str:
    return html.unescape(str(text)).strip() if text is not None else ""
