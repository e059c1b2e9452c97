"""HTML tables with which notebooks show objects. Every text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for `_repr_html_`; whole numbers get commas.

    >>> html_table("2 items", ["item"], [["<b>"], [1000]])
    '<table><caption>2 items</caption><tr><th>item</th></tr><tr><td>&lt;b&gt;</td></tr><tr><td>1,000</td></tr></table>'
    """
    lines = [_row("th", heads), *(_row("td", row) for row in rows)]
    return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(_text(cell))}</{tag}>' for cell in cells)}</tr>"


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
