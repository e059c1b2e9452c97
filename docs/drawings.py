"""Draws the pictures of the explanations into docs/img: `python docs/drawings.py`."""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from leafbeam.index import Trie

FOLDER = Path(__file__).parent / "img"
GREEN, PALE, GREY, LINE, INK = "#1f7a4a", "#d9ede2", "#ececec", "#8a8f8c", "#222222"
SIDS = [(0, 0, 1), (0, 0, 2), (0, 2, 0), (1, 1, 0), (1, 1, 2), (2, 0, 0), (2, 0, 1), (2, 1, 1), (2, 1, 2), (2, 2, 0)]
ALLOWED = [1, 0, 1, 0, 1, 1, 1, 0, 0, 1]
BEAM_SCORES = (-0.7, -1.6, -1.2)  # of the prefixes (0), (1) and (2)
PROBABILITIES = ((0.5, 0.3, 0.2), (0.2, 0.7, 0.1), (0.3, 0.5, 0.2))  # of the next code, after each of them


def rect(x: float, y: float, width: float, height: float, *, fill: str = "white", stroke: str = LINE, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}" stroke="{stroke}"{dashes}/>'


def text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "middle", fill: str = INK, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{escape(words)}</text>'


def arrow(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<path d="M {x0} {y0} L {x1} {y1}" stroke="{LINE}" fill="none" marker-end="url(#end)"/>'


def box(x: float, y: float, width: float, lines: Sequence[str], *, fill: str = "white", dash: str = "") -> list[str]:
    """A box with a bold first line."""
    height = 20 + 18 * len(lines)
    parts = [rect(x, y, width, height, fill=fill, dash=dash)]
    for number, line in enumerate(lines):
        parts.append(text(x + width / 2, y + 24 + 18 * number, line, bold=number == 0))
    return parts


def drawing(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" role="img"><title>{escape(title)}</title><defs><marker id="end" viewBox="0 0 8 8" refX="8" '
        f'refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="{LINE}"/></marker></defs>'
    )
    return "\n".join([head, rect(0.5, 0.5, width - 1, height - 1, stroke="white"), *parts, "</svg>"]) + "\n"


def trie() -> str:
    """Sorted Semantic IDs, the range of each prefix, and a rule's bitmap."""
    index = Trie.build(SIDS, [3, 3, 3])
    rule = index.filter(np.array(ALLOWED, bool))
    codes_ML = index.codes_at(np.arange(index.num_leaves))
    left, step, row = 110, 72, 54
    parts = [text(left - 12, 42, "all items", anchor="end"), rect(left, 20, step * index.num_leaves - 6, 34, fill=PALE)]
    parts.append(text(left + step * index.num_leaves / 2, 42, f"[0, {index.num_leaves})"))
    for level in range(3):
        y = 20 + row * (level + 1)
        parts.append(text(left - 12, y + 22, f"level {level}", anchor="end"))
        prefixes, first_S = np.unique(codes_ML[:, : level + 1], axis=0, return_index=True)
        bounds = [*first_S.tolist(), index.num_leaves]
        for number, prefix in enumerate(prefixes.tolist()):
            lo, hi = bounds[number], bounds[number + 1]
            found = int(rule.parts[0].num_leaves(np.array([lo]), np.array([hi]))[0])
            parts.append(
                rect(left + step * lo, y, step * (hi - lo) - 6, 34, fill=PALE if found else GREY, dash="" if found else "4")
            )
            name = f"({', '.join(map(str, prefix))})" + (f" = [{lo}, {hi})" if hi - lo > 1 else "")
            parts.append(text(left + step * (lo + hi) / 2 - 3, y + 22, name, size=12, fill=INK if found else LINE))
    y = 20 + row * 4
    parts.append(text(left - 12, y + 18, "the rule", anchor="end"))
    for leaf, bit in enumerate(ALLOWED):
        centre = left + step * leaf + step / 2 - 3
        parts.append(f'<circle cx="{centre}" cy="{y + 13}" r="9" fill="{GREEN if bit else "white"}" stroke="{LINE}"/>')
    note = "The search enters green ranges alone: (2, 1) has no allowed item, so that it is not legal after (2)."
    parts.append(text(left, y + 56, note, anchor="start", size=12))
    return drawing(left + step * index.num_leaves + 10, y + 72, "Ranges of leaves, and the bitmap of a rule", parts)


def search_round() -> str:
    """The second round of a search with three beams over the trie above, under its rule."""
    index = Trie.build(SIDS, [3, 3, 3])
    rule = index.filter(np.array(ALLOWED, bool)).parts[0]
    codes_ML = index.codes_at(np.arange(index.num_leaves))
    step, row, left, top, best = 118, 74, 200, 52, 600
    heads = [
        (91, "beams of the last round"),
        (left + 177, "the model: log p of codes 0, 1, 2"),
        (best + 110, "the best three stay"),
    ]
    parts = [text(x, 26, words, fill=LINE) for x, words in heads]
    candidates: list[tuple[float, str]] = []
    for beam, score in enumerate(BEAM_SCORES):
        y = top + row * beam
        lo, hi = np.searchsorted(codes_ML[:, 0], [beam, beam + 1]).tolist()
        parts += box(16, y, 150, [f"({beam}) = [{lo}, {hi})", f"score {score:.2f}"], fill=PALE)
        parts.append(arrow(166, y + 28, left - 4, y + 28))
        for code, log_p in enumerate(np.log(PROBABILITIES[beam]).tolist()):
            first, last = lo + np.searchsorted(codes_ML[lo:hi, 1], [code, code + 1])
            found = int(rule.num_leaves(np.array([first]), np.array([last]))[0])
            why = f"({beam}, {code}) = [{first}, {last})" if found else "no allowed item" if last > first else "no such ID"
            x = left + step * code
            parts.append(rect(x, y, step - 8, 56, fill="white" if found else GREY, dash="" if found else "4"))
            parts.append(text(x + step / 2 - 4, y + 24, f"{log_p:.2f}", fill=INK if found else LINE))
            parts.append(text(x + step / 2 - 4, y + 44, why, size=12, fill=INK if found else LINE))
            if found:
                candidates.append((score + log_p, f"({beam}, {code})"))
    for place, (score, name) in enumerate(sorted(candidates, reverse=True)):
        y, kept = top + 44 * place, place < len(BEAM_SCORES)
        parts.append(rect(best, y, 220, 34, fill=PALE if kept else "white", dash="" if kept else "4"))
        words = f"{name}  {score:.2f}" + ("" if kept else ", dropped")
        parts.append(text(best + 110, y + 22, words, bold=kept, fill=INK if kept else LINE))
    parts.append(arrow(left + 3 * step, top + row * 1.5 - 9, best - 6, top + row * 1.5 - 9))
    note = "A candidate's score is its beam's score plus log p. No item below a dropped prefix can score more than it does."
    parts.append(text(16, top + row * 3 + 20, note, anchor="start", size=12))
    return drawing(best + 236, top + row * 3 + 36, "A round of the search", parts)


def request() -> str:
    """The way of one request."""
    parts: list[str] = []
    columns = [
        (
            "caller's thread",
            [["HTTP body", "checked by the schema"], ["rules, boosts", "filter: a bitmap", "of allowed leaves"]],
        ),
        ("scheduler", [["admission", "can the deadline be met?"], ["queue by slack", "closes a batch"]]),
        (
            "worker",
            [
                ["prompts", "read once a request"],
                ["one round a level", "model: logits", "index: legal children", "keep the best"],
                ["proof", "runs dropped prefixes", "that may be better"],
            ],
        ),
        ("host threads", [["answer", "codes to item ids", "scores, metrics"]]),
    ]
    width, gap, top = 190, 44, 44
    for number, (title, boxes) in enumerate(columns):
        x, y = 16 + number * (width + gap), top
        parts.append(text(x + width / 2, 26, title, fill=LINE))
        for place, lines in enumerate(boxes):
            height = 20 + 18 * len(lines)
            parts += box(x, y, width, lines, fill=PALE if lines[0] in ("one round a level", "proof") else "white")
            if place + 1 < len(boxes):
                parts.append(arrow(x + width / 2, y + height, x + width / 2, y + height + 26))
                y += height + 28
            elif number + 1 < len(columns):  # from the last box of a column to the first of the next
                right = x + width
                path = f"M {right} {y + height / 2} H {right + gap / 2} V {top + 28} H {right + gap}"
                parts.append(f'<path d="{path}" stroke="{LINE}" fill="none" marker-end="url(#end)"/>')
    return drawing(16 + 4 * (width + gap) - gap + 16, 336, "The way of a request", parts)


def versions() -> str:
    """A live index: what a search holds while changes are made."""
    parts: list[str] = []
    rows = [
        ("version 7", ["base", "10,000,000 items"], None),
        ("version 8: insert", ["the same base", "not copied"], ["delta", "1,000 items"]),
        ("version 9: delete", ["the same base", "and a bitmap of live items"], ["the same delta", "not copied"]),
        ("version 10: compaction", ["new base", "all live items"], None),
    ]
    for number, (name, base, delta) in enumerate(rows):
        y = 16 + number * 82
        parts.append(text(16, y + 34, name, anchor="start", bold=True))
        parts += box(200, y, 230, base, fill=PALE)
        if delta is not None:
            parts += box(450, y, 170, delta, fill=PALE)
        if number < 3:
            parts.append(arrow(60, y + 44, 60, y + 96))
    parts += box(650, 16, 200, ["a search", "that began here", "ends on version 7"], dash="4")
    parts.append(arrow(650, 44, 432, 44))
    parts += box(650, 180, 200, ["the next search", "sees version 9"], dash="4")
    parts.append(arrow(650, 208, 622, 208))
    return drawing(866, 344, "Versions of a live index", parts)


DRAWINGS = {"trie.svg": trie, "round.svg": search_round, "request.svg": request, "versions.svg": versions}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
