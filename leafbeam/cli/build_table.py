"""`leafbeam build TABLE`: the index of a table of codes, with its needs told first, and resumed after a kill."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from leafbeam.cli.console import Bar, done, next_step, stderr, stdout
from leafbeam.cli.options import option
from leafbeam.cli.parse import parse_bytes, parse_sizes
from leafbeam.errors import ArgumentError, DataError, IndexFileError, counted
from leafbeam.extras import require
from leafbeam.machine import Machine

if TYPE_CHECKING:
    from leafbeam.cli.codes import CodesTable
    from leafbeam.index import Trie
    from leafbeam.index.build_estimate import BuildEstimate
    from leafbeam.index.saved_runs import SavedRuns

TABLE = "With TABLE"


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of the index of a table of codes."""

    out: Annotated[Path | None, option("--out", "The file of the index.", TABLE, default="TABLE.leafbeam")] = None
    item_column: Annotated[str, option("--item-column", "The column of item ids.", TABLE)] = "item_id"
    sizes: Annotated[
        str | None,
        option(
            "--codebook-sizes",
            "The number of codes of each level, or one number for all levels.",
            TABLE,
            default="as in the table",
        ),
    ] = None
    packed: Annotated[
        bool, option("--packed", "Store codes in as many bits as they need: 11, not 16, for codebooks of 2,048.", TABLE)
    ] = False
    memory_limit: Annotated[
        str, option("--memory-limit", "The memory for sorting; rows that do not fit are sorted on disk.", TABLE)
    ] = "4GiB"
    scratch: Annotated[
        Path | None, option("--scratch", "The directory for sorting on disk.", TABLE, default="the directory of --out")
    ] = None


def build_table(table: Path, options: TableOptions, force: bool) -> None:
    """Build the index of a table of codes, from where a build of the same table was ended."""
    target = table.with_suffix(".leafbeam") if options.out is None else options.out
    if not table.exists():
        raise DataError(f"{table} does not exist: expected a Parquet file, or a directory of them")
    if target.exists() and not force:
        raise ArgumentError(f"{target} exists: pass --force to replace it, or another --out")
    folder = target.parent if options.scratch is None else options.scratch
    if options.scratch is not None and not folder.is_dir():
        raise ArgumentError(f"--scratch {folder} is not a directory: make it, or name another one")
    limit = parse_bytes(options.memory_limit)
    codebook_sizes = None if options.sizes is None else parse_sizes(options.sizes)
    require("`leafbeam build`", "pyarrow")
    from leafbeam.cli.codes import CodesTable
    from leafbeam.index.build_estimate import BuildEstimate
    from leafbeam.index.saved_runs import SavedRuns

    source = CodesTable.open(table, codebook_sizes, id_column=options.item_column)
    saved = SavedRuns(folder / f".{target.name}.runs", source.parts())
    estimate = BuildEstimate.of(
        source.num_rows, source.codebook_sizes, memory_limit=limit, id_bytes=source.id_bytes(), packed=options.packed
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    show_needs(estimate, source.num_rows, saved.path, target)
    began = time.perf_counter()
    try:
        trie = _build_and_save(source, saved, target, limit, options.packed)
    except BaseException:
        if saved.has_runs:
            text = f"{saved.path} has the rows that are sorted: the same command goes on from there. Else delete that file."
            stderr().print(text, soft_wrap=True, markup=False)
        raise
    saved.remove()
    built(trie, target, began)
    next_step(stdout(), "leafbeam", "inspect", target)


def _build_and_save(source: "CodesTable", saved: "SavedRuns", target: Path, limit: int, packed: bool) -> "Trie":
    from leafbeam.index.builder import TrieBuilder

    if saved.path.exists():
        stderr().print(f"  checking the sorted rows in {saved.path}", soft_wrap=True, markup=False)
    with TrieBuilder(source.codebook_sizes, memory_limit=limit, packed=packed, saved=saved) as builder:
        if saved.notice:
            stderr().print(f"  {saved.notice}", style="yellow", soft_wrap=True, markup=False)
        if builder.num_items:
            stderr().print(f"  going on behind row {builder.num_items:,}: the rows before are sorted", soft_wrap=True)
        with Bar("reading") as bar:
            for codes_nL, item_ids in source.batches(builder.num_items):
                builder.add(codes_nL, item_ids)
                bar.show("reading", 0.5 * builder.num_items / max(1, source.num_rows), f"{counted(builder.num_items, 'item')}")
            trie = builder.finish(lambda title, share: bar.show(title, 0.5 + 0.45 * share))
            bar.show("writing", 0.95)
            trie.save(target)
    return trie


def show_needs(estimate: "BuildEstimate", num_rows: int, runs: Path, target: Path) -> None:
    """Print the memory and disk that a build needs.

    Args:
        estimate: The needs.
        num_rows: The number of rows of the table.
        runs: The file of sorted rows, which may be there already.
        target: The file of the index.

    Raises:
        IndexFileError: If a disk has less space.
    """
    console = stderr()
    on_disk = f"{_gigabytes(estimate.index)} for the index"
    if estimate.scratch:
        on_disk += f", and {_gigabytes(estimate.scratch)} in {runs.parent} while it is sorted"
    console.print(
        f"  {counted(num_rows, 'row')}: about {_gigabytes(estimate.memory)} of memory, and on disk {on_disk}",
        soft_wrap=True,
        markup=False,
    )
    available = Machine.this().available
    if available is not None and estimate.memory > available:
        console.print(
            f"Warning: {_gigabytes(available)} of memory are available: pass a smaller --memory-limit",
            style="yellow",
            soft_wrap=True,
        )
    there = runs.stat().st_blocks * 512 if runs.exists() else 0
    needs: dict[int, list[tuple[Path, int, str]]] = {}
    for folder, nbytes, option_name in (
        (runs.parent, max(0, estimate.scratch - there), "--scratch"),
        (target.parent, estimate.index, "--out"),
    ):
        needs.setdefault(folder.stat().st_dev, []).append((folder, nbytes, option_name))
    for on_one_disk in needs.values():
        folder, needed = on_one_disk[0][0], sum(nbytes for _, nbytes, _ in on_one_disk)
        free = shutil.disk_usage(folder).free
        if needed > free:
            names = " or ".join(name for _, _, name in on_one_disk)
            raise IndexFileError(
                f"{folder} has {_gigabytes(free)} free, but this build needs about {_gigabytes(needed)} there: "
                f"free some, or name another disk with {names}"
            )


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 5e7 else f"{nbytes / 1e6:,.1f} MB"


def built(trie: "Trie", path: Path, began: float) -> None:
    """Print that an index was built."""
    text = f"{path}: {counted(len(trie), 'item')}, {trie.bytes_per_item:.1f} bytes an item, version {trie.version}"
    done(stdout(), text, since=began)
