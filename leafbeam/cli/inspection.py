"""`leafbeam inspect`: what files of a run hold, as tables."""

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from leafbeam.cli.plan import bytes_table, show_bounds
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import DataError
from leafbeam.extras import require
from leafbeam.index import Trie
from leafbeam.index.memory_estimate import MemoryEstimate

__all__ = ["print_trie", "show_directory", "show_table", "show_trie"]


def print_trie(path: Path) -> None:
    """An index as one JSON object."""
    trie = Trie.load(path)
    file = {"path": str(path), "version": trie.version, "file_bytes": path.stat().st_size}
    print(json.dumps({**file, **MemoryEstimate.of(trie).as_json()}))


def show_trie(console: Console, path: Path) -> None:
    """An index: bytes by part, nodes of each level, STATIC's memory for the same nodes, and the entropy bound."""
    trie = Trie.load(path)
    plan = MemoryEstimate.of(trie)
    console.print(bytes_table(f"{path}  ·  index version {trie.version}", plan, path.stat().st_size))
    console.print(f"{len(trie):,} items on {trie.num_leaves:,} leaves; a search reads the levels alone")
    show_bounds(console, plan, "its own")


def show_table(console: Console, path: Path) -> None:
    """A Parquet table: of SIDs where `fit-sids` wrote it, else of codes to build an index from."""
    require("`leafbeam inspect` of a table", "pyarrow")
    from leafbeam.cli.codes import CodesTable
    from leafbeam.semid import SidTable

    source = CodesTable.open(path, None, sizes_needed=False)
    if not (source.codebook_sizes and path.is_file()):
        _show_codes(console, path, source.summary(), source.largest_codes(), sizes_known=bool(source.codebook_sizes))
        return
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
    """A model's directory, a live index, a directory of tables, or everything in a run's."""
    run = RunDirectory(path)
    if (path / "config.json").exists():
        _show_model(console, path)
    elif (path / "manifest.json").exists():
        _show_live_index(console, path)
    elif any(path.glob("*.parquet")) and not run.sids.exists():
        show_table(console, path)
    else:
        parts = ((run.sids, show_table), (run.model, _show_model), (run.trie, show_trie))
        existing = [(part, show) for part, show in parts if part.exists()]
        if not existing:
            raise DataError(
                f"{path} is neither a model's directory, a run's nor a table's: it has no config.json, sids.parquet or index"
            )
        for part, show in existing:
            show(console, part)


def _show_codes(console: Console, path: Path, summary: str, largest: dict[str, int | None], *, sizes_known: bool) -> None:
    """A table of codes, or a directory of them: rows, levels, the largest codes. Reads no rows."""
    console.print(f"{path}: {summary}", soft_wrap=True)
    table = Table("column")
    table.add_column("largest code", justify="right")
    for name, code in largest.items():
        table.add_row(name, "not in the file's statistics" if code is None else f"{code:,}")
    console.print(table)
    sizes = "" if sizes_known else " --codebook-sizes SIZES"
    console.print(f"`leafbeam build {path}{sizes}` builds an index of it", soft_wrap=True)


def _show_live_index(console: Console, path: Path) -> None:
    """A live index: its current counts, which a writer may be changing, and its base."""
    from leafbeam.live import LiveIndex

    with LiveIndex.open(path, read_only=True) as index:
        status = index.status
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    console.print(f"{path}  ·  a live index of {status.num_items:,} items", soft_wrap=True)
    table = Table("figure", show_header=False)
    table.add_column(justify="right")
    for name, value in (
        ("changes ever", status.number),
        ("changes in the log", status.num_replayed),
        ("bytes of the log", (path / manifest["log"]).stat().st_size),
        ("items of the base", status.num_base),
        ("of them deleted", status.num_deleted),
        ("rows of the delta", status.num_delta),
    ):
        table.add_row(name, f"{value:,}")
    console.print(table)
    if status.truncated_bytes:
        console.print(f"{status.truncated_bytes:,} bytes at the log's end belong to an unfinished change")
    show_trie(console, path / manifest["base"])


def _show_model(console: Console, path: Path) -> None:
    """A model: its shape, its vocabulary, its parameters."""
    require("`leafbeam inspect` of a model", "torch")
    from leafbeam.model import EncoderDecoderConfig, load_model

    model = load_model(path)
    parameters = sum(weight.numel() for weight in model.parameters())
    table = Table("setting", title=f"{path}  ·  {parameters:,} parameters", title_justify="left", show_header=False)
    table.add_column(justify="right")
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
