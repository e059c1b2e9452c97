"""`leafbeam build` and `leafbeam inspect`."""

import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leafbeam import catalog, ingest, semid
from leafbeam.cli.console import Bar, done, next_step, stderr, stdout
from leafbeam.cli.options import DEFAULT_RUN, RunOption, option, parse_bytes, parse_plan, parse_sizes, with_options
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.errors import ArgumentError, DataError, IndexFileError, check_whole, counted
from leafbeam.extras import require
from leafbeam.machine import Machine

if TYPE_CHECKING:
    from leafbeam.cli.codes import CodesTable
    from leafbeam.index import Trie
    from leafbeam.index.build_estimate import BuildEstimate
    from leafbeam.index.saved_runs import SavedRuns

TABLE = "With TABLE"
_RULES_FILE = """# Rules and boosts of this run. A request names them, and never contains SQL.
# After a change, run `leafbeam build` again, or send SIGHUP to a running server.
# Columns: {columns}

# A rule is an SQL predicate over the table `items` of catalog.duckdb. Only items for which it is true are returned.
[rules]
{rules}# A rule that depends on the time is evaluated again at intervals:
# fresh = {{ where = "first_seen > now() - INTERVAL 7 DAY", refresh = "60s" }}

# A boost is a number that a request may add to each item's score; 0.7 doubles an item's probability.
# [boosts]
# recent = "CASE WHEN first_seen > now() - INTERVAL 7 DAY THEN 1 END"
"""


def rules_file(columns: Iterable[str], rules: str = "") -> str:
    """Return a commented rules.toml. rules: lines of its table of rules; without any, an example in a comment."""
    return _RULES_FILE.format(columns=", ".join(columns), rules=rules or '# in_stock = "stock > 0"\n')


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
        bool, option("--packed", "Store codes in as few bits as they need: 11 instead of 16 for codebooks of 2,048.", TABLE)
    ] = False
    memory_limit: Annotated[
        str, option("--memory-limit", "The memory for sorting; rows that do not fit are sorted on disk.", TABLE)
    ] = "4GiB"
    scratch: Annotated[
        Path | None, option("--scratch", "The directory for sorting on disk.", TABLE, default="the directory of --out")
    ] = None
    shards: Annotated[
        int | None,
        option(
            "--shards",
            "Split the index by first codes into this many files; --out is then their directory.",
            TABLE,
            default="one file",
        ),
    ] = None


def build_table(table: Path, options: TableOptions, force: bool) -> None:
    """Build the index of a table of codes, or continue an interrupted build of the same table."""
    target = options.out or table.with_suffix(".leafbeam" if options.shards is None else ".shards")
    if not table.exists():
        raise DataError(f"{table} does not exist: expected a Parquet file, or a directory of them")
    if options.shards is None and target.exists() and not force:
        raise ArgumentError(f"{target} exists: pass --force to replace it, or another --out")
    if options.shards is not None:
        check_whole(**{"--shards": options.shards})
        if options.scratch is not None:
            raise ArgumentError("--scratch does not work with --shards: a shard's rows are sorted in the directory of --out")
        if target.is_file():
            raise ArgumentError(f"{target} is a file: name another --out, which becomes a directory of shards")
    if options.scratch is not None and not options.scratch.is_dir():
        raise ArgumentError(f"--scratch {options.scratch} is not a directory: make it, or name another one")
    limit = parse_bytes(options.memory_limit)
    codebook_sizes = None if options.sizes is None else parse_sizes(options.sizes)
    require("`leafbeam build`", "pyarrow")
    from leafbeam.cli.codes import CodesTable
    from leafbeam.index.build_estimate import BuildEstimate

    source = CodesTable.open(table, codebook_sizes, id_column=options.item_column)
    num_rows, id_bytes = source.num_rows // (options.shards or 1), source.id_bytes()
    estimate = BuildEstimate.of(num_rows, source.codebook_sizes, memory_limit=limit, id_bytes=id_bytes, packed=options.packed)
    if options.shards is None:
        _build_file(source, target, estimate, limit, options)
    else:
        _build_shards(source, target, estimate, limit, options.shards, packed=options.packed, force=force)


def _build_file(source: "CodesTable", target: Path, estimate: "BuildEstimate", limit: int, options: TableOptions) -> None:
    from leafbeam.index.saved_runs import SavedRuns

    saved = SavedRuns((options.scratch or target.parent) / f".{target.name}.runs", source.parts())
    target.parent.mkdir(parents=True, exist_ok=True)
    show_needs(estimate, source.num_rows, saved.path, target)
    began = time.perf_counter()
    try:
        trie = _build_and_save(source, saved, target, limit, options.packed)
    except BaseException:
        if saved.has_runs:
            advice = "run the same command to continue from there, or delete the file."
            text = f"{saved.path} holds the rows that are sorted already: {advice}"
            stderr().print(text, soft_wrap=True, markup=False)
        raise
    saved.remove()
    built(trie, target, began)
    next_step(stdout(), "leafbeam", "inspect", target)


def _build_shards(
    source: "CodesTable",
    target: Path,
    estimate: "BuildEstimate",
    limit: int,
    num_shards: int,
    *,
    packed: bool,
    force: bool,
) -> None:
    """Build an index in shards. estimate: the needs of one shard."""
    from leafbeam.index.shards import MANIFEST, ShardManifest, build_shards

    before = ShardManifest.read(target)
    if before is not None and before.is_complete and not force:
        raise ArgumentError(f"{target} has an index in shards: pass --force to replace it, or another --out")
    target.mkdir(parents=True, exist_ok=True)
    needs = replace(estimate, index=estimate.index * num_shards + estimate.scratch, scratch=0)
    show_needs(needs, source.num_rows, target / MANIFEST, target / MANIFEST)
    if before is not None and before.is_complete:
        before.remove(target)
    began = time.perf_counter()
    with Bar("reading") as bar:
        manifest = build_shards(
            source.batches,
            source.codebook_sizes,
            num_shards,
            target,
            packed=packed,
            memory_limit=limit,
            key=str(source.parts()),
            progress=bar.show,
        )
    counts = ", ".join(f"{shard.num_items:,}" for shard in manifest.shards)
    text = f"{target}: {counted(source.num_rows, 'item')} in {counted(num_shards, 'shard')} of {counts}"
    done(stdout(), text, since=began)
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
            names = " or ".join(name for _, nbytes, name in on_one_disk if nbytes)
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
        if codes != TableOptions(item_column=codes.item_column, memory_limit=codes.memory_limit):
            raise ArgumentError(
                "--out, --codebook-sizes, --scratch, --packed and --shards work only with a TABLE: name the Parquet file to "
                "build"
            )
        build_run(run, force, rule or [])
        return
    if rule:
        raise ArgumentError("--rule needs a run, because rules read the catalog's attributes, and a TABLE holds only codes")
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
        console.print(
            f"{aside} holds the items and rules that were added after the last build: import again those that are missing."
        )
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
            paths.rules.write_text(rules_file(items.column_names), encoding="utf-8")
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
        typer.Argument(help="What to show: an index, one in shards, a table of codes, a model or a run.", show_default=False),
    ] = None,
    plan: Annotated[
        str | None, option("--plan", "Estimate an index of N items: 1e7,2048,8 or 1e7,2048x2048x8192.", metavar="N,V,L")
    ] = None,
    as_json: Annotated[bool, option("--json", "Print one JSON object, for an index or --plan.")] = False,
) -> None:
    """Show what a file or directory holds (levels, bytes, codebook use), or estimate the size of an index."""
    if (path is None) == (plan is None):
        raise ArgumentError("pass either a PATH to inspect, or --plan N,V,L")
    if path is not None and not path.exists():
        raise DataError(
            f"there is no {path}: name an index (.leafbeam or .shards), sids.parquet, a model's directory or a run's"
        )
    console = stdout()
    planned = None if plan is None else parse_plan(plan)
    from leafbeam.cli import inspection

    if planned is not None:
        inspection.show_plan(console, *planned, as_json=as_json)
        return
    assert path is not None
    if as_json:
        inspection.print_index(path)
    elif path.is_dir():
        inspection.show_directory(console, path)
    elif path.suffix.lower() == ".parquet":
        inspection.show_table(console, path)
    else:
        inspection.show_trie(console, path)
