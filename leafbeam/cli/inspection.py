"""What the files of a run hold, as tables."""

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from leafbeam.cli.codes import CodesTable, largest_codes
from leafbeam.cli.plan import show_bounds
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import DataError
from leafbeam.index import Trie
from leafbeam.index.memory_estimate import Plan
from leafbeam.semid import SidTable

__all__ = ["print_trie", "show_directory", "show_table", "show_trie"]


def print_trie(path: Path) -> None:
    """An index as one JSON object."""
    trie = Trie.load(path)
    file = {"path": str(path), "version": trie.version, "file_bytes": path.stat().st_size}
    print(json.dumps({**file, **Plan.of(trie).as_json()}))


def show_trie(console: Console, path: Path) -> None:
    """An index: bytes by part, levels, nodes of each level; STATIC's memory for the same nodes, and the entropy bound."""
    trie = Trie.load(path)
    table = Table(title=f"{path}  ·  index version {trie.version}", title_justify="left")
    for name in ("part", "codebook", "nodes", "layout", "codes", "first leaves", "boundary", "bytes", "bytes/item"):
        table.add_column(name, justify="left" if name in ("part", "layout") else "right")
    for number, level in enumerate(trie.levels):
        firsts = 0 if level.firsts is None else level.firsts.nbytes
        boundary = 0 if level.boundary is None else level.boundary.nbytes
        table.add_row(
            f"level {number}",
            f"{level.size:,}",
            f"{level.num_nodes:,}",
            level.layout,
            f"{level.codes.nbytes:,}",
            f"{firsts:,}",
            f"{boundary:,}",
            f"{level.nbytes:,}",
            f"{level.nbytes / max(1, len(trie)):.2f}",
        )
    table.add_section()
    table.add_row("all levels", *[""] * 6, f"{trie.nbytes:,}", f"{trie.bytes_per_item:.2f}", style="bold")
    items = trie.items.nbytes
    table.add_row("item table", *[""] * 6, f"{items:,}", f"{items / max(1, len(trie)):.2f}")
    table.add_row("file", *[""] * 6, f"{path.stat().st_size:,}", f"{path.stat().st_size / max(1, len(trie)):.2f}")
    console.print(table)
    console.print(f"{len(trie):,} items on {trie.num_leaves:,} leaves; a search reads the levels alone")
    show_bounds(console, Plan.of(trie), "its own")


def show_table(console: Console, path: Path) -> None:
    """A Parquet table: of SIDs, where `fit-sids` wrote it; else of codes to build an index from."""
    source = CodesTable.open(path, None, sizes_needed=False)
    if source.codebook_sizes and path.is_file():
        show_sids(console, path)
    else:
        show_codes(console, path, source)


def show_codes(console: Console, path: Path, source: CodesTable) -> None:
    """A table of codes that somebody else wrote, or a directory of them: rows, levels, the largest codes. Reads no rows."""
    largest = largest_codes(source.files, source.columns)
    console.print(
        f"{path}: {source.num_rows:,} rows in {len(source.files):,} files, {source.num_levels} levels", soft_wrap=True
    )
    table = Table()
    for name in ("column", "largest code"):
        table.add_column(name, justify="left" if name == "column" else "right")
    for name in source.columns:
        table.add_row(name, f"{largest[name]:,}" if name in largest else "not noted")
    console.print(table)
    sizes = "" if source.codebook_sizes else " --codebook-sizes SIZES"
    console.print(f"`leafbeam build {path}{sizes}` makes an index of it", soft_wrap=True)


def show_sids(console: Console, path: Path) -> None:
    """A table of SIDs: how its codebooks are used, and how many items share a SID."""
    sids = SidTable.load(path)
    table = Table(title=f"{path}  ·  {len(sids):,} items", title_justify="left")
    for name in ("level", "codebook", "used", "perplexity", "largest code"):
        table.add_column(name, justify="left" if name == "level" else "right")
    for level, size in enumerate(sids.codebook_sizes):
        counts = np.bincount(sids.codes[:, level], minlength=size)
        share = counts[counts > 0] / max(1, len(sids))
        perplexity = float(np.exp(-(share * np.log(share)).sum()))
        largest = f"{counts.max(initial=0) / max(1, len(sids)):.1%} of items"
        table.add_row(str(level), f"{size:,}", f"{int((counts > 0).sum()):,}", f"{perplexity:,.1f}", largest)
    console.print(table)
    shared = np.unique(sids.codes, axis=0, return_counts=True)[1]
    console.print(f"{int(shared[shared > 1].sum()):,} items share a SID with another")


def show_directory(console: Console, path: Path) -> None:
    """A model's directory, or everything in a run's."""
    if (path / "config.json").exists():
        show_model(console, path)
        return
    if (path / "manifest.json").exists():
        show_live_index(console, path)
        return
    if any(path.glob("*.parquet")) and not RunDirectory(path).sids.exists():
        show_table(console, path)
        return
    run = RunDirectory(path)
    shown = False
    for part, show in ((run.sids, show_table), (run.model, show_model), (run.trie, show_trie)):
        if part.exists():
            show(console, part)
            shown = True
    if not shown:
        raise DataError(
            f"{path} is neither a model's directory, a run's nor a table's: it has no config.json, sids.parquet or index"
        )


def show_live_index(console: Console, path: Path) -> None:
    """A live index: what it holds now, beside any writer, and its base."""
    from leafbeam.live import LiveIndex

    with LiveIndex.open(path, read_only=True) as index:
        status = index.status
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    console.print(f"{path}  ·  a live index of {status.num_items:,} items", soft_wrap=True)
    table = Table(show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("changes ever", f"{status.number:,}")
    table.add_row("changes in the log", f"{status.num_replayed:,}")
    table.add_row("bytes of the log", f"{(path / manifest['log']).stat().st_size:,}")
    table.add_row("items of the base", f"{status.num_base:,}")
    table.add_row("of them deleted", f"{status.num_deleted:,}")
    table.add_row("rows of the delta", f"{status.num_delta:,}")
    console.print(table)
    if status.truncated_bytes:
        console.print(f"{status.truncated_bytes:,} bytes at the log's end belong to a change that was never finished")
    show_trie(console, path / manifest["base"])


def show_model(console: Console, path: Path) -> None:
    """A model: its shape, its vocabulary, its parameters."""
    from leafbeam.model import EncoderDecoderConfig, load_model

    model = load_model(path)
    parameters = sum(weight.numel() for weight in model.parameters())
    table = Table(title=f"{path}  ·  {parameters:,} parameters", title_justify="left", show_header=False)
    table.add_column("setting")
    table.add_column("value", justify="right")
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    if isinstance(model.config, EncoderDecoderConfig):
        names = ("d_model", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "num_experts")
    for name in names:
        table.add_row(name, f"{getattr(model.config, name):,}")
    table.add_row("vocabulary", f"{model.vocabulary.size:,} tokens")
    table.add_row("levels", " x ".join(str(size) for size in model.vocabulary.codebook_sizes))
    training = path.parent / "training.json"
    if training.exists():
        summary = json.loads(training.read_text(encoding="utf-8"))
        table.add_row("trained", f"{summary['step']:,} steps in {summary['seconds'] / 60:.1f} minutes")
    console.print(table)
