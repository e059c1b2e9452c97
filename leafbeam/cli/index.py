"""`leafbeam build` and `leafbeam inspect`."""

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from leafbeam import catalog, ingest, semid
from leafbeam.cli.build_table import TableOptions, build_table, built
from leafbeam.cli.console import done, next_step, stdout
from leafbeam.cli.options import DEFAULT_RUN, RunOption, option, with_options
from leafbeam.cli.parse import parse_plan
from leafbeam.cli.run import RunDirectory
from leafbeam.cli.sources import Source
from leafbeam.errors import ArgumentError, DataError
from leafbeam.extras import require

RULES_HEAD = """# A rule is an SQL predicate over the table `items` of catalog.duckdb. A request names rules, never SQL.
# Columns: {columns}
[rules]
"""
EXAMPLE_RULE = '# in_stock = "stock > 0"\n'


@with_options(TableOptions)
def build(
    table: Annotated[
        Path | None,
        typer.Argument(help="The Parquet file of your own codes: item ids, and codes or c0, c1, ...", show_default="the run's"),
    ] = None,
    run: RunOption = DEFAULT_RUN,
    rule: Annotated[
        list[str] | None,
        option("--rule", "Also count the items of this rule, without keeping it; repeatable.", metavar="NAME=SQL"),
    ] = None,
    force: Annotated[
        bool, option("--force", "Replace an existing catalog.duckdb, or --out. Changes in live/ are then set aside.")
    ] = False,
    *,
    codes: TableOptions,
) -> None:
    """Build the index and the catalog of a run and evaluate its rules; with TABLE, build the index of a table of codes."""
    if table is None:
        if codes.out is not None or codes.sizes is not None or codes.scratch is not None or codes.packed:
            raise ArgumentError(
                "--out, --codebook-sizes, --scratch and --packed go with a TABLE: name the Parquet file to build"
            )
        build_run(run, force, rule or [])
        return
    if rule:
        raise ArgumentError("--rule goes with a run, which has a catalog of attributes: a TABLE has codes alone")
    build_table(table, codes, force)


def build_run(run: Path, force: bool, extra_rules: list[str]) -> None:
    """Build the index and the catalog of a run. extra_rules: NAME=SQL, evaluated once and not kept."""
    paths = RunDirectory(run)
    paths.check("sids", "source")
    require("`leafbeam build`", "duckdb", "pyarrow")
    from leafbeam.index import Trie
    from leafbeam.live import LiveIndex

    console = stdout()
    rules = catalog.rules_from_text(extra_rules)
    sids = semid.SidTable.load(paths.sids)
    source = Source.load(paths.source)
    items = source.read_items()

    began = time.perf_counter()
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    writes_catalog = force or not paths.catalog.exists()  # without the attributes of the items that came since
    is_aside = writes_catalog or ingest.origin_of(paths.live) not in (None, trie.version)
    if is_aside and (aside := ingest.set_aside(paths.live)) is not None:
        console.print(f"{aside} has the items and rules that came since the last build: import those that are missing again.")
    trie.save(paths.trie)
    built(trie, paths.trie, began)

    began = time.perf_counter()
    if writes_catalog:
        catalog.Catalog.create(paths.catalog, items, overwrite=force)
    else:
        console.print(f"{paths.catalog} is kept as it is, with its attributes; pass --force to replace it")
    if not paths.rules.exists():
        if source.directory is not None and (rules_of_log := source.directory / "rules.toml").exists():
            shutil.copyfile(rules_of_log, paths.rules)
        else:
            paths.rules.write_text(RULES_HEAD.format(columns=", ".join(items.column_names)) + EXAMPLE_RULE, encoding="utf-8")
            console.print(f"{paths.rules} has no rules yet: add some, and send the server SIGHUP")
    with ExitStack() as opened:  # rules are counted over what a server of the run would answer from
        changed = paths.index
        index = opened.enter_context(LiveIndex.open(changed, read_only=True)) if changed.is_dir() else trie
        report = opened.enter_context(catalog.Catalog.open(paths.catalog, index, [*paths.rule_files, rules])).rules.report
    done(console, str(report), since=began)
    paths.add_to_report(
        "build",
        {
            "index_version": trie.version,
            "num_items": len(trie),
            "num_leaves": trie.num_leaves,
            "bytes": trie.nbytes,
            "bytes_per_item": trie.bytes_per_item,
            "rules": {rule.name: rule.num_items for rule in report.rules if rule.kind == "rule" and rule.name not in rules},
        },
    )
    if paths.model.exists():
        next_step(console, "leafbeam", "serve", "--run", run)
    elif source.path is not None:
        next_step(console, "leafbeam", "train", "--run", run)
    else:
        console.print("The run has no model and no interactions to train one on: import it again with --model or --data.")


def inspect(
    path: Annotated[
        Path | None,
        typer.Argument(help="The file or directory to show: an index, a table of codes, a model or a run.", show_default=False),
    ] = None,
    plan: Annotated[
        str | None, option("--plan", "Estimate an index of N items: 1e7,2048,8 or 1e7,2048x2048x8192.", metavar="N,V,L")
    ] = None,
    as_json: Annotated[bool, option("--json", "Print one JSON object, for an index or --plan.")] = False,
) -> None:
    """Show what a file or directory holds (levels, bytes, codebook use), or estimate the size of an index."""
    if (path is None) == (plan is None):
        raise ArgumentError("inspect takes either a PATH or --plan N,V,L, one of the two")
    if path is not None and not path.exists():
        raise DataError(f"there is no {path}: name an index (.leafbeam), sids.parquet, a model's directory or a run's")
    console = stdout()
    planned = None if plan is None else parse_plan(plan)
    from leafbeam.cli import inspection
    from leafbeam.tables.opener import ending_of

    if planned is not None:
        inspection.show_plan(console, *planned, as_json=as_json)
        return
    assert path is not None
    if as_json:
        inspection.print_trie(path)
    elif path.is_dir():
        inspection.show_directory(console, path)
    elif ending_of(path, (".parquet",)):
        inspection.show_table(console, path)
    else:
        inspection.show_trie(console, path)
