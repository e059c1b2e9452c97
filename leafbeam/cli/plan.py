"""The capacity planner's screen: what an index costs, beside STATIC's bound and the entropy."""

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from leafbeam.errors import ArgumentError
from leafbeam.index.memory_estimate import Plan

__all__ = ["parse_plan", "show_bounds", "show_plan"]

_NUMBER = re.compile(r"(\d[\d_]{0,19})(?:(e|\^)(\d{1,2}))?")
_EXPECTED = "expected N,V,L: items, codebook and levels, such as 10000000,2048,8, 1e7,2048x2048x8192 or 10^8,256,4"


def parse_plan(text: str) -> tuple[int, tuple[int, ...]]:
    """`N,V,L` or `N,V1xV2x..`: the number of items and the codebooks. Raises ArgumentError where it is neither."""
    words = [word.strip() for word in text.split(",")]
    if len(words) not in (2, 3):
        raise ArgumentError(f"--plan {text}: {_EXPECTED}")
    num_items, *sizes = (_whole(word, text) for word in [words[0], *words[1].split("x")])
    levels = _whole(words[2], text) if len(words) == 3 else len(sizes)
    if len(words) == 2 and len(sizes) == 1:
        raise ArgumentError(f"--plan {text} names no number of levels: {_EXPECTED}")
    if len(sizes) == 1 and levels <= 1000:
        return num_items, tuple(sizes * levels)
    if len(sizes) != levels:
        raise ArgumentError(f"--plan {text} names {len(sizes)} codebooks for {levels} levels: {_EXPECTED}")
    return num_items, tuple(sizes)


def _whole(word: str, text: str) -> int:
    found = _NUMBER.fullmatch(word)
    if found is None:
        raise ArgumentError(f"--plan {text}: {word!r} is not a whole number; {_EXPECTED}")
    base, how, power = int(found[1]), found[2], int(found[3] or 0)
    return base * 10**power if how == "e" else base**power if how == "^" else base


def show_plan(console: Console, plan: Plan) -> None:
    """A plan for uniform SIDs: bytes by part, and the bounds."""
    sizes = [level.size for level in plan.levels]
    shape = f"{len(sizes)} levels of {sizes[0]:,} codes" if len(set(sizes)) == 1 else " x ".join(f"{size:,}" for size in sizes)
    table = Table(title=f"plan  ·  {plan.num_items:,} uniform items, {shape}", title_justify="left")
    for name in ("part", "codebook", "nodes", "layout", "codes", "first leaves", "boundary", "bytes", "bytes/item"):
        table.add_column(name, justify="left" if name in ("part", "layout") else "right")
    for number, level in enumerate(plan.levels):
        parts = (level.codes, level.firsts, level.boundary, level.nbytes)
        table.add_row(
            f"level {number}",
            f"{level.size:,}",
            f"{level.num_nodes:,}",
            level.layout,
            *(f"{part:,}" for part in parts),
            f"{plan.per_item(level.nbytes):.2f}",
        )
    table.add_section()
    table.add_row("all levels", *[""] * 6, f"{plan.nbytes:,}", f"{plan.per_item(plan.nbytes):.2f}", style="bold")
    table.add_row("item table", *[""] * 6, f"{plan.items:,}", f"{plan.per_item(plan.items):.2f}")
    console.print(table)
    console.print("nodes of a level, expected: P (1 - (1 - 1/P)^N), P the product of the codebooks down to it")
    console.print("a search reads the levels alone; real Semantic IDs share prefixes and cost less")
    show_bounds(console, plan, "expected")


def show_bounds(console: Console, plan: Plan, counts: str) -> None:
    """leafbeam, STATIC and the entropy bound, side by side; `counts`: which node counts STATIC's estimate is made from."""
    static = plan.static
    table = Table(title="the same items elsewhere, and at best", title_justify="left")
    table.add_column("what")
    for name in ("bytes", "bytes/item", "x leafbeam"):
        table.add_column(name, justify="right")
    product = _product([level.size for level in plan.levels], static.dense_levels)
    rows: list[tuple[str, float]] = [
        (
            f"STATIC, U_max (K1={static.bytes_per_node}, K2={static.bytes_per_state}, d={static.dense_levels})",
            static.upper_bound,
        ),
        (f"STATIC, {counts} node counts", static.estimate),
        ("leafbeam", plan.nbytes),
        (
            "leafbeam, packed codes" if plan.packed_nbytes < plan.nbytes else "leafbeam, packed codes: the same",
            plan.packed_nbytes,
        ),
        (f"entropy bound, log2 of {plan.num_leaves:,}-subsets", plan.entropy_bits / 8),
    ]
    for what, nbytes in rows:
        times = f"{nbytes / max(1, plan.nbytes):.2f}"
        table.add_row(what, f"{nbytes:,.0f}", f"{plan.per_item(nbytes):.2f}", times, style="bold" if what == "leafbeam" else "")
    console.print(table)
    console.print(f"U_max = (1/8 + K2) |V|^d + K1 * sum over levels d+1..L of min(|V|^level, |C|), dense part {product}")


def _product(sizes: Sequence[int], dense_levels: int) -> str:
    return " x ".join(f"{size:,}" for size in sizes[:dense_levels]) or "1"
