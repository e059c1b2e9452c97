"""`leafbeam build` and `leafbeam inspect`."""

import json
import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import Bar, done, next_step, stdout
from leafbeam.cli.options import RunOption
from leafbeam.cli.parse import parse_bytes, parse_plan, parse_sizes
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import ArgumentError, DataError
from leafbeam.extras import require

__all__ = ["build", "inspect"]

EMPTY_RULES = """# A rule is an SQL predicate over the table `items` of catalog.duckdb. A request names rules, never SQL.
# Columns: {columns}
[rules]
# in_stock = "stock > 0"
"""


def build(
    table: Annotated[
        Path | None,
        typer.Argument(
            help="A Parquet table of item_id and codes (a list, or c0, c1, ...), or a directory of them. [dim]The run's[/dim]"
        ),
    ] = None,
    run: RunOption = Path("runs/shop"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing catalog.duckdb, or --out.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="With TABLE: the index. [dim]TABLE.leafbeam[/dim]")] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--codebook-sizes", help="With TABLE: codes of each level, or of all. [dim]As in the table[/dim]"),
    ] = None,
    memory_limit: Annotated[
        str, typer.Option("--memory-limit", help="With TABLE: memory for rows; beyond it they are sorted on disk.")
    ] = "4GiB",
    scratch: Annotated[
        Path | None, typer.Option("--scratch", help="With TABLE: where to sort. [dim]The system's temporary folder[/dim]")
    ] = None,
    packed: Annotated[
        bool, typer.Option("--packed", help="With TABLE: codes take as many bits as their codebook needs (2,048: 11, not 16).")
    ] = False,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="NAME=SQL", help="Count the items of a rule that rules.toml does not have; repeatable."),
    ] = None,
) -> None:
    """Build the index and the catalog of a run and evaluate its rules; or the index of a Parquet table of any size."""
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
    """Build an index from a Parquet table, a batch of rows at a time."""
    target = table.with_suffix(".leafbeam") if out is None else out
    if not table.exists():
        raise DataError(f"{table} does not exist: expected a Parquet file, or a directory of them")
    if target.exists() and not force:
        raise ArgumentError(f"{target} exists: pass --force to replace it, or another --out")
    limit = parse_bytes(memory_limit)
    codebook_sizes = None if sizes is None else parse_sizes(sizes)
    require("`leafbeam build`", "pyarrow")
    from leafbeam.cli.codes import CodesTable
    from leafbeam.index.builder import TrieBuilder

    source = CodesTable.open(table, codebook_sizes)
    target.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with (
        Bar("reading") as bar,
        TrieBuilder(source.codebook_sizes, memory_limit=limit, folder=scratch, packed=packed) as builder,
    ):
        for codes_nL, item_ids in source.batches():
            builder.add(codes_nL, item_ids)
            bar.show("reading", 0.5 * builder.num_items / max(1, source.num_rows), f"{builder.num_items:,} items")
        trie = builder.finish(lambda title, share: bar.show(title, 0.5 + 0.45 * share))
        bar.show("writing", 0.95)
        trie.save(target)
    done(
        stdout(),
        f"{target}: {len(trie):,} items, {trie.bytes_per_item:.1f} bytes an item, version {trie.version}",
        since=began,
    )
    next_step(stdout(), "leafbeam", "inspect", target)


def build_run(run: Path, force: bool, extra_rules: list[str]) -> None:
    """Build the index and the catalog of a run. extra_rules: NAME=SQL, evaluated once and not kept."""
    paths = RunDirectory(run)
    sids_path = paths.existing(paths.sids, "fit-sids")
    source_path = paths.existing(paths.source, "fit-sids")
    require("`leafbeam build`", "duckdb", "pyarrow")
    from leafbeam.catalog import Catalog, rules_from_text
    from leafbeam.cli.sources import Source
    from leafbeam.index import Trie
    from leafbeam.semid import SidTable

    console = stdout()
    rules = rules_from_text(extra_rules)
    sids = SidTable.load(sids_path)
    source = Source.load(source_path)
    items = source.read().items

    began = time.perf_counter()
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    trie.save(paths.trie)
    done(
        console,
        f"{paths.trie}: {len(trie):,} items, {trie.bytes_per_item:.1f} bytes an item, version {trie.version}",
        since=began,
    )

    began = time.perf_counter()
    if paths.catalog.exists() and not force:
        console.print(f"{paths.catalog} is kept as it is, with its attributes; pass --force to replace it")
    else:
        Catalog.create(paths.catalog, items, overwrite=force)
    if not paths.rules.exists():
        if (rules_of_log := source.directory / "rules.toml").exists():
            shutil.copyfile(rules_of_log, paths.rules)
        else:
            paths.rules.write_text(EMPTY_RULES.format(columns=", ".join(items.column_names)), encoding="utf-8")
            console.print(f"{paths.rules} has no rules yet: add some, and send the server SIGHUP")
    with Catalog.open(paths.catalog, trie, [paths.rules, rules]) as catalog:
        report = catalog.rules.report
    done(console, str(report), since=began)
    paths.add_to_report(
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
    next_step(console, "leafbeam", "serve" if paths.model.exists() else "train", "--run", run)


def inspect(
    path: Annotated[
        Path | None, typer.Argument(help="An index, a table of SIDs, a model's directory, or a run's.", show_default=False)
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan", metavar="N,V,L", help="Estimate the size of an index of N items: 1e7,2048,8, or 10^8,2048x2048x8192."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For an index or --plan: print one JSON object.")] = False,
) -> None:
    """Show what a file or directory holds: bytes by part, levels, nodes, codebook use; or estimate the size of an index."""
    if (path is None) == (plan is None):
        raise ArgumentError("inspect takes either a PATH or --plan N,V,L, one of the two")
    if path is not None and not path.exists():
        raise DataError(f"there is no {path}: name an index (.leafbeam), sids.parquet, a model's directory or a run's")
    console = stdout()
    if plan is not None:
        num_items, sizes = parse_plan(plan)
        from leafbeam.cli.plan import show_plan
        from leafbeam.index.memory_estimate import MemoryEstimate

        estimate = MemoryEstimate.uniform(num_items, sizes)
        if as_json:
            print(json.dumps(estimate.as_json()))
        else:
            show_plan(console, estimate)
        return
    assert path is not None
    from leafbeam.cli import inspection

    if as_json:
        inspection.print_trie(path)
    elif path.is_dir():
        inspection.show_directory(console, path)
    elif path.suffix == ".parquet":
        inspection.show_table(console, path)
    else:
        inspection.show_trie(console, path)
