"""`pleach build` and `pleach inspect`."""

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from pleach.cli.run import RunDirectory, RunOption
from pleach.cli.screen import done, next_step, stdout
from pleach.errors import DataError

__all__ = ["build", "inspect"]


def build(
    run: RunOption = Path("runs/shop"),
    force: Annotated[
        bool, typer.Option("--force", help="Write catalogue.duckdb anew from the table of items, if it is there.")
    ] = False,
) -> None:
    """Make the index and the catalogue of a run, and evaluate its rules once."""
    from pleach.catalog import Catalogue
    from pleach.cli.sources import Source
    from pleach.index import Trie
    from pleach.semid.table import SidTable

    console = stdout()
    here = RunDirectory(run)
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
    if here.catalogue.exists() and not force:
        console.print(f"{here.catalogue} is kept as it is, with its attributes; pass --force to write it anew")
    else:
        Catalogue.create(here.catalogue, items, overwrite=force)
    if not here.rules.exists():
        own = source.directory / "rules.toml"
        if own.exists():
            shutil.copyfile(own, here.rules)
        else:
            here.rules.write_text(EMPTY_RULES.format(columns=", ".join(items.column_names)), encoding="utf-8")
            console.print(f"{here.rules} has no rules yet: write some, and tell the server by SIGHUP")
    report = Catalogue.open(here.catalogue, trie, here.rules).rules.report
    done(console, what=str(report), seconds=time.perf_counter() - began)
    here.add_to_report(
        "build",
        {
            "index_version": trie.version,
            "num_items": len(trie),
            "num_leaves": trie.num_leaves,
            "bytes": trie.nbytes,
            "bytes_per_item": trie.bytes_per_item,
            "rules": {rule.name: rule.num_items for rule in report.rules},
        },
    )
    if here.model.exists():
        next_step(console, "pleach", "serve", "--run", run)
    else:
        next_step(console, "pleach", "train", "--run", run)


def inspect(
    path: Annotated[Path, typer.Argument(help="An index, a table of SIDs, a model's directory, or a run's.")],
) -> None:
    """Show what a file or directory holds: bytes by part, levels, nodes, codebook use."""
    from pleach.cli import inspection

    console = stdout()
    if not path.exists():
        raise DataError(f"there is no {path}: name an index (.pleach), sids.parquet, a model's directory or a run's")
    if path.is_dir():
        inspection.show_directory(console, path)
    elif path.suffix == ".parquet":
        inspection.show_sids(console, path)
    else:
        inspection.show_trie(console, path)


EMPTY_RULES = """# A rule is an SQL predicate over the table `items` of catalogue.duckdb. A request names rules, never SQL.
# Columns: {columns}
[rules]
# in_stock = "stock > 0"
"""
