"""`leafbeam inspect`: what files of a run hold, and what an index would take, as tables."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from leafbeam import semid
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import DataError, IndexFileError, counted
from leafbeam.extras import require
from leafbeam.files import read_json
from leafbeam.index import Trie
from leafbeam.index.memory_estimate import MemoryEstimate
from leafbeam.index.shards import MANIFEST, ShardFile, ShardManifest
from leafbeam.live import LiveIndex
from leafbeam.live.journal import journal_path
from leafbeam.live.manifest import Manifest


def print_index(path: Path) -> None:
    """Print an index, or an index in shards, as one JSON object."""
    if (path / MANIFEST).exists():
        shards = [{**asdict(shard), "file_bytes": nbytes} for shard, nbytes in _shard_files(path)]
        print(json.dumps({"path": str(path), "num_items": sum(shard["num_items"] for shard in shards), "shards": shards}))
        return
    trie = Trie.load(path)
    file = {"path": str(path), "version": trie.version, "file_bytes": path.stat().st_size}
    print(json.dumps({**file, **MemoryEstimate.of(trie).as_json()}))


def show_trie(console: Console, path: Path) -> None:
    """Show an index: bytes by part, nodes of each level, STATIC's memory for the same nodes, and the entropy bound."""
    trie = Trie.load(path)
    plan = MemoryEstimate.of(trie)
    console.print(_bytes_table(f"{path}  ·  index version {trie.version}", plan, path.stat().st_size))
    console.print(
        f"{counted(len(trie), 'item')} on {counted(trie.num_leaves, 'leaf', 'leaves')}; a search reads only the levels"
    )
    _show_bounds(console, plan, "its own")


def show_shards(console: Console, path: Path) -> None:
    """Show an index in shards: the first codes, items, bytes and index version of each shard."""
    shards = _shard_files(path)
    num_items, nbytes = sum(shard.num_items for shard, _ in shards), sum(nbytes for _, nbytes in shards)
    figures = [Column(name, justify="right") for name in ("first codes", "items", "bytes", "bytes/item")]
    title = f"{path}  ·  {counted(num_items, 'item')} in {counted(len(shards), 'shard')}"
    table = Table("shard", *figures, "index version", title=title, title_justify="left")
    for shard, size in shards:
        codes = f"{shard.begin:,} to {shard.end - 1:,}"
        sizes = (f"{size:,}", f"{size / shard.num_items:.2f}") if shard.version else ("", "")
        table.add_row(shard.file, codes, f"{shard.num_items:,}", *sizes, shard.version or "not built yet")
    table.add_section()
    table.add_row("all shards", "", f"{num_items:,}", f"{nbytes:,}", f"{nbytes / num_items:.2f}", "", style="bold")
    console.print(table)
    if not all(shard.version for shard, _ in shards):
        console.print("the build was interrupted: run the same command again to finish it")
    console.print(f"`leafbeam inspect {path / shards[0][0].file}` shows the levels of one shard", soft_wrap=True)


def _shard_files(path: Path) -> list[tuple[ShardFile, int]]:
    """Return the shards of a directory, each with the bytes of its file, 0 for one that is not built yet.

    Raises IndexFileError if the manifest cannot be read or a file is missing.
    """
    manifest = ShardManifest.read(path)
    assert manifest is not None
    try:
        return [(shard, (path / shard.file).stat().st_size if shard.version else 0) for shard in manifest.shards]
    except OSError as error:
        raise IndexFileError(
            f"{error.filename} cannot be read ({error.strerror}), and {path / MANIFEST} names it as a shard: copy it there, or "
            "build the shards again"
        ) from error


def show_table(console: Console, path: Path) -> None:
    """Show a Parquet table: the SIDs that `fit-sids` wrote, or codes to build an index from."""
    require("`leafbeam inspect` of a table", "pyarrow")
    from leafbeam.cli.codes import CodesTable

    source = CodesTable.open(path, None, sizes_needed=False)
    if not (source.codebook_sizes and path.is_file()):
        _show_codes(console, path, source.summary(), source.largest_codes(), sizes_known=bool(source.codebook_sizes))
        return
    sids = semid.SidTable.load(path)
    figures = [Column(name, justify="right") for name in ("codebook", "used", "perplexity", "largest code")]
    table = Table("level", *figures, title=f"{path}  ·  {counted(len(sids), 'item')}", title_justify="left")
    for level, size in enumerate(sids.codebook_sizes):
        counts = np.bincount(sids.codes[:, level], minlength=size)
        share = counts[counts > 0] / max(1, len(sids))
        perplexity = float(np.exp(-(share * np.log(share)).sum()))
        largest = f"{counts.max(initial=0) / max(1, len(sids)):.1%} of items"
        table.add_row(str(level), f"{size:,}", f"{int((counts > 0).sum()):,}", f"{perplexity:,.1f}", largest)
    console.print(table)
    shared = np.unique(sids.codes, axis=0, return_counts=True)[1]
    console.print(f"{counted(int(shared[shared > 1].sum()), 'item shares', 'items share')} a SID with another")


def show_directory(console: Console, path: Path) -> None:
    """Show a model's directory, a live index, an index in shards, a directory of tables, or all of a run's directory."""
    run = RunDirectory(path)
    if (path / "config.json").exists():
        _show_model(console, path)
    elif (path / MANIFEST).exists():
        show_shards(console, path)
    elif (path / "manifest.json").exists():
        _show_live_index(console, path)
    elif any(path.glob("*.parquet")) and not run.sids.exists():
        show_table(console, path)
    else:
        parts = ((run.sids, show_table), (run.model, _show_model), (run.trie, show_trie))
        existing = [(part, show) for part, show in parts if part.exists()]
        if not existing:
            raise DataError(
                f"{path} is not a directory of a model, a run, a table or shards: it has no config.json, sids.parquet, index "
                f"or {MANIFEST}"
            )
        for part, show in existing:
            show(console, part)


def _show_codes(console: Console, path: Path, summary: str, largest: dict[str, int | None], *, sizes_known: bool) -> None:
    """Show a table of codes, or a directory of them, without reading rows: their number, the levels and the largest codes."""
    console.print(f"{path}: {summary}", soft_wrap=True)
    table = Table("column", Column("largest code", justify="right"))
    for name, code in largest.items():
        table.add_row(name, "not in the file's statistics" if code is None else f"{code:,}")
    console.print(table)
    sizes = "" if sizes_known else " --codebook-sizes SIZES"
    console.print(f"`leafbeam build {path}{sizes}` builds an index of it", soft_wrap=True)


def _show_live_index(console: Console, path: Path) -> None:
    """Show a live index: its current counts, which a writer may be changing, and its base."""
    with LiveIndex.open(path, read_only=True) as index:
        status = index.status
    manifest = Manifest.decode((path / "manifest.json").read_bytes(), path / "manifest.json")
    log = journal_path(path) if manifest.journal else path / manifest.log
    console.print(f"{path}  ·  a live index of {counted(status.num_items, 'item')}", soft_wrap=True)
    table = Table("figure", Column(justify="right"), show_header=False)
    for name, value in (
        ("changes ever", status.number),
        ("changes in the log", status.num_replayed),
        ("bytes of the log", log.stat().st_size),
        ("items of the base", status.num_base),
        ("of them deleted", status.num_deleted),
        ("rows of the delta", status.num_delta),
    ):
        table.add_row(name, f"{value:,}")
    console.print(table)
    if status.truncated_bytes:
        console.print(f"the log ends with an unfinished change of {counted(status.truncated_bytes, 'byte')}")
    show_trie(console, path / manifest.base)


def _show_model(console: Console, path: Path) -> None:
    """Show a model: its shape, its vocabulary and its parameters."""
    require("`leafbeam inspect` of a model", "torch")
    from leafbeam.model import EncoderDecoderConfig, load_model

    model = load_model(path)
    parameters = sum(weight.numel() for weight in model.parameters())
    title = f"{path}  ·  {counted(parameters, 'parameter')}"
    table = Table("setting", Column(justify="right"), title=title, title_justify="left", show_header=False)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    if isinstance(model.config, EncoderDecoderConfig):
        names = ("d_model", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "num_experts")
    elif model.config.item_history:
        table.add_row("architecture", "item-history")
    for name in names:
        table.add_row(name, f"{getattr(model.config, name):,}")
    table.add_row("vocabulary", counted(model.vocabulary.size, "token"))
    table.add_row("levels", " x ".join(str(size) for size in model.vocabulary.codebook_sizes))
    training = path.parent / "training.json"
    if training.exists():
        try:
            summary = read_json(training)
            table.add_row("trained", f"{counted(summary['step'], 'step')} in {summary['seconds'] / 60:.1f} minutes")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{training} cannot be read ({error}): delete it, or train again") from error
    console.print(table)


def show_plan(console: Console, num_items: int, sizes: tuple[int, ...], *, as_json: bool) -> None:
    """Show the estimate for uniform Semantic IDs: bytes by part and the bounds, or one JSON object."""
    plan = MemoryEstimate.uniform(num_items, sizes)
    if as_json:
        print(json.dumps(plan.as_json()))
        return
    shape = (
        f"{counted(len(sizes), 'level')} of {counted(sizes[0], 'code')}"
        if len(set(sizes)) == 1
        else " x ".join(f"{size:,}" for size in sizes)
    )
    console.print(_bytes_table(f"plan  ·  {counted(plan.num_items, 'uniform item')}, {shape}", plan))
    console.print("expected nodes of a level: P (1 - (1 - 1/P)^N), where P is the product of the codebook sizes down to it")
    console.print("a search reads the levels alone; real Semantic IDs share prefixes and cost less")
    _show_bounds(console, plan, "expected")


def _bytes_table(title: str, plan: MemoryEstimate, file_bytes: int | None = None) -> Table:
    """Return a table of nodes, layout and bytes of each level, of the item table, and of the file if there is one."""
    names = ("part", "codebook", "nodes", "layout", "codes", "first leaves", "boundary", "bytes", "bytes/item")
    columns = [Column(name, justify="left" if name in ("part", "layout") else "right") for name in names]
    table = Table(*columns, title=title, title_justify="left")
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


def _show_bounds(console: Console, plan: MemoryEstimate, counts: str) -> None:
    """Show leafbeam, STATIC and the entropy bound side by side; `counts` says in words which nodes STATIC's estimate counts."""
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
    figures = [Column(name, justify="right") for name in ("bytes", "bytes/item", "x leafbeam")]
    table = Table("index", *figures, title="STATIC and the entropy bound for the same items", title_justify="left")
    for name, nbytes in rows:
        ratio = f"{nbytes / max(1, plan.nbytes):.2f}"
        table.add_row(name, f"{nbytes:,.0f}", f"{plan.per_item(nbytes):.2f}", ratio, style="bold" if name == "leafbeam" else "")
    console.print(table)
    dense = " x ".join(f"{level.size:,}" for level in plan.levels[: static.dense_levels]) or "1"
    console.print(f"U_max = (1/8 + K2) |V|^d + K1 * sum over levels d+1..L of min(|V|^level, |C|), dense part {dense}")
