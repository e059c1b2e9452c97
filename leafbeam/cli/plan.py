"""Bytes of an index, built or planned, beside STATIC's memory and the entropy bound."""

from rich.console import Console
from rich.table import Table

from leafbeam.index.memory_estimate import MemoryEstimate

__all__ = ["bytes_table", "show_bounds", "show_plan"]


def show_plan(console: Console, plan: MemoryEstimate) -> None:
    """The estimate for uniform Semantic IDs: bytes by part, and the bounds."""
    sizes = [level.size for level in plan.levels]
    shape = f"{len(sizes)} levels of {sizes[0]:,} codes" if len(set(sizes)) == 1 else " x ".join(f"{size:,}" for size in sizes)
    console.print(bytes_table(f"plan  ·  {plan.num_items:,} uniform items, {shape}", plan))
    console.print("expected nodes of a level: P (1 - (1 - 1/P)^N), P the product of the codebooks down to it")
    console.print("a search reads the levels alone; real Semantic IDs share prefixes and cost less")
    show_bounds(console, plan, "expected")


def bytes_table(title: str, plan: MemoryEstimate, file_bytes: int | None = None) -> Table:
    """Nodes, layout and bytes of each level, of the item table, and of the file where there is one."""
    table = Table(title=title, title_justify="left")
    for name in ("part", "codebook", "nodes", "layout", "codes", "first leaves", "boundary", "bytes", "bytes/item"):
        table.add_column(name, justify="left" if name in ("part", "layout") else "right")
    for number, level in enumerate(plan.levels):
        nbytes = (level.codes, level.firsts, level.boundary, level.nbytes)
        shape = (f"level {number}", f"{level.size:,}", f"{level.num_nodes:,}", level.layout)
        table.add_row(*shape, *(f"{part:,}" for part in nbytes), f"{plan.per_item(level.nbytes):.2f}")
    table.add_section()
    table.add_row("all levels", *[""] * 6, f"{plan.nbytes:,}", f"{plan.per_item(plan.nbytes):.2f}", style="bold")
    for name, nbytes in (("item table", plan.items), ("file", file_bytes)):
        if nbytes is not None:
            table.add_row(name, *[""] * 6, f"{nbytes:,}", f"{plan.per_item(nbytes):.2f}")
    return table


def show_bounds(console: Console, plan: MemoryEstimate, counts: str) -> None:
    """leafbeam, STATIC and the entropy bound, side by side. counts: the node counts of STATIC's estimate, in words."""
    static = plan.static
    parameters = f"K1={static.bytes_per_node}, K2={static.bytes_per_state}, d={static.dense_levels}"
    equal = "" if plan.packed_nbytes < plan.nbytes else ": the same"
    rows: list[tuple[str, float]] = [
        (f"STATIC, U_max ({parameters})", static.upper_bound),
        (f"STATIC, {counts} node counts", static.estimate),
        ("leafbeam", plan.nbytes),
        (f"leafbeam, packed codes{equal}", plan.packed_nbytes),
        (f"entropy bound, log2 of {plan.num_leaves:,}-subsets", plan.entropy_bits / 8),
    ]
    table = Table(title="STATIC and the entropy bound for the same items", title_justify="left")
    table.add_column("index")
    for name in ("bytes", "bytes/item", "x leafbeam"):
        table.add_column(name, justify="right")
    for name, nbytes in rows:
        ratio = f"{nbytes / max(1, plan.nbytes):.2f}"
        table.add_row(name, f"{nbytes:,.0f}", f"{plan.per_item(nbytes):.2f}", ratio, style="bold" if name == "leafbeam" else "")
    console.print(table)
    dense = " x ".join(f"{level.size:,}" for level in plan.levels[: static.dense_levels]) or "1"
    console.print(f"U_max = (1/8 + K2) |V|^d + K1 * sum over levels d+1..L of min(|V|^level, |C|), dense part {dense}")
