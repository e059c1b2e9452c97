"""`leafbeam build` and `leafbeam inspect`."""

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import Bar, done, next_step, stderr, stdout
from leafbeam.cli.run import RunDirectory, RunOption
from leafbeam.errors import ArgumentError, DataError

__all__ = ["build", "inspect"]


def build(
    table: Annotated[
        Path | None,
        typer.Argument(
            help="A Parquet table of item_id and codes (a list, or c0, c1, ...), or a directory of them. [dim]The run's[/dim]"
        ),
    ] = None,
    run: RunOption = Path("runs/shop"),
    force: Annotated[bool, typer.Option("--force", help="Write catalog.duckdb, or --out, anew if it is there.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="With TABLE: the index. [dim]TABLE.leafbeam[/dim]")] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--codebook-sizes", help="With TABLE: codes of each level, or of all. [dim]As fit-sids noted[/dim]"),
    ] = None,
    memory_limit: Annotated[
        str, typer.Option("--memory-limit", help="With TABLE: what rows may take until they are sorted on disk.")
    ] = "4GiB",
    scratch: Annotated[
        Path | None, typer.Option("--scratch", help="With TABLE: where to sort. [dim]The system's temporary folder[/dim]")
    ] = None,
    packed: Annotated[bool, typer.Option("--packed", help="With TABLE: codes of 11 in place of 16 bits (for 2,048).")] = False,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="NAME=SQL", help="Try a rule beside those of rules.toml: how many items has it?"),
    ] = None,
) -> None:
    """Make the index and the catalog of a run, and evaluate its rules once; or the index of a Parquet table of any size."""
    if table is not None:
        if rule:
            raise ArgumentError("--rule goes with a run, which has a catalog of attributes: a TABLE has codes alone")
        build_table(table, out, sizes, memory_limit, scratch, packed=packed, force=force)
        return
    if out is not None or sizes is not None or scratch is not None or packed:
        raise ArgumentError("--out, --codebook-sizes, --scratch and --packed go with a TABLE: name the Parquet file to build")
    build_run(run, force, rule or [])


def build_table(
    table: Path, out: Path | None, sizes: str | None, memory_limit: str, scratch: Path | None, *, packed: bool, force: bool
) -> None:
    """Stream a Parquet table into an index."""
    from leafbeam.cli.codes import CodesTable, parse_bytes, parse_sizes
    from leafbeam.index.builder import TrieBuilder

    console = stdout()
    target = table.with_suffix(".leafbeam") if out is None else out
    if target.exists() and not force:
        raise ArgumentError(f"{target} is there already: pass --force to replace it, or another --out")
    limit = parse_bytes(memory_limit)
    target.parent.mkdir(parents=True, exist_ok=True)
    source = CodesTable.open(table, None if sizes is None else parse_sizes(sizes))
    began = time.perf_counter()
    with (
        Bar(stderr(), "reading") as bar,
        TrieBuilder(source.codebook_sizes, memory_limit=limit, folder=scratch, packed=packed) as builder,
    ):
        for codes_nL, item_ids in source.batches():
            builder.add(codes_nL, item_ids)
            bar.show("reading", 0.5 * builder.num_items / max(1, source.num_rows), f"{builder.num_items:,} items")
        trie = builder.finish(lambda what, share: bar.show(what, 0.5 + 0.45 * share))
        bar.show("writing", 0.95)
        trie.save(target)
    done(
        console,
        what=f"{target}: {len(trie):,} items, {trie.bytes_per_item:.1f} bytes an item, version {trie.version}",
        seconds=time.perf_counter() - began,
    )
    next_step(console, "leafbeam", "inspect", target)


def build_run(run: Path, force: bool, tried: Sequence[str] = ()) -> None:
    """The index and the catalog of a run; tried: rules that are evaluated and not kept."""
    from leafbeam.catalog import Catalog, rules_from_text
    from leafbeam.cli.sources import Source
    from leafbeam.index import Trie
    from leafbeam.semid import SidTable

    console = stdout()
    here = RunDirectory(run)
    rules = rules_from_text(tried)
    sids = SidTable.load(here.need(here.sids, "fit-sids"))
    source = Source.load(here.need(here.source, "fit-sids"))
    items = source.read().items

    began = time.perf_counter()
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    trie.save(here.trie)
    done(
        console,
        what=f"{here.trie}: {len(trie):,} items, {trie.bytes_per_item:.1f} bytes an item, version {trie.version}",
        seconds=time.perf_counter() - began,
    )

    began = time.perf_counter()
    if here.catalog.exists() and not force:
        console.print(f"{here.catalog} is kept as it is, with its attributes; pass --force to write it anew")
    else:
        Catalog.create(here.catalog, items, overwrite=force)
    if not here.rules.exists():
        own = source.directory / "rules.toml"
        if own.exists():
            shutil.copyfile(own, here.rules)
        else:
            here.rules.write_text(EMPTY_RULES.format(columns=", ".join(items.column_names)), encoding="utf-8")
            console.print(f"{here.rules} has no rules yet: write some, and tell the server by SIGHUP")
    with Catalog.open(here.catalog, trie, [here.rules, rules]) as catalog:
        report = catalog.rules.report
    done(console, what=str(report), seconds=time.perf_counter() - began)
    here.add_to_report(
        "build",
        {
            "index_version": trie.version,
            "num_items": len(trie),
            "num_leaves": trie.num_leaves,
            "bytes": trie.nbytes,
            "bytes_per_item": trie.bytes_per_item,
            "rules": {rule.name: rule.num_items for rule in report.rules if rule.name not in rules},
        },
    )
    if here.model.exists():
        next_step(console, "leafbeam", "serve", "--run", run)
    else:
        next_step(console, "leafbeam", "train", "--run", run)


def inspect(
    path: Annotated[
        Path | None, typer.Argument(help="An index, a table of SIDs, a model's directory, or a run's.", show_default=False)
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan", metavar="N,V,L", help="What an index of N items would cost: 1e7,2048,8, or 10^8,2048x2048x8192."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For --plan or an index: one JSON object and nothing else.")] = False,
) -> None:
    """Show what a file or directory holds: bytes by part, levels, nodes, codebook use; or plan what an index will cost."""
    from leafbeam.cli import inspection
    from leafbeam.cli.plan import parse_plan, show_plan

    console = stdout()
    if (path is None) == (plan is None):
        raise ArgumentError("inspect takes either a PATH or --plan N,V,L, one of the two")
    if plan is not None:
        from leafbeam.index.memory_estimate import Plan

        planned = Plan.uniform(*parse_plan(plan))
        if as_json:
            print(json.dumps(planned.as_json()))
        else:
            show_plan(console, planned)
        return
    assert path is not None
    if not path.exists():
        raise DataError(f"there is no {path}: name an index (.leafbeam), sids.parquet, a model's directory or a run's")
    if as_json:
        inspection.print_trie(path)
    elif path.is_dir():
        inspection.show_directory(console, path)
    elif path.suffix == ".parquet":
        inspection.show_table(console, path)
    else:
        inspection.show_trie(console, path)


EMPTY_RULES = """# A rule is an SQL predicate over the table `items` of catalog.duckdb. A request names rules, never SQL.
# Columns: {columns}
[rules]
# in_stock = "stock > 0"
"""
