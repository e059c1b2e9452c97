"""`leafbeam fit-sids`."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import Bar, done, next_step, stdout
from leafbeam.cli.options import Format, RunOption
from leafbeam.cli.parse import parse_sizes
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import ArgumentError, DataError
from leafbeam.extras import require
from leafbeam.semid import CollisionStrategy, EmbeddingConfig, Method, QuantiserConfig

__all__ = ["fit_sids"]

PLOT_FORMATS = (".pdf", ".png", ".svg")


def fit_sids(
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Directory with interactions.* and items.*, or a file of reviews. [dim]The run's[/dim]"),
    ] = None,
    run: RunOption = Path("runs/shop"),
    kind: Annotated[
        Format, typer.Option("--format", help="tables are Parquet or CSV; amazon is JSON lines of reviews.")
    ] = "tables",
    metadata: Annotated[Path | None, typer.Option("--metadata", help="With --format amazon: the file of the products.")] = None,
    k_core: Annotated[
        int, typer.Option("--core", help="Keep only users and items with at least this many interactions. [dim]All[/dim]")
    ] = 0,
    method: Annotated[
        Method,
        typer.Option("--quantiser", help="Residual k-means of the vectors, or a residual-quantised autoencoder."),
    ] = "kmeans",
    codebooks: Annotated[
        str | None,
        typer.Option("--codebooks", help="Codes of each level. [dim]256,256,256; for rqvae 256,256,256,256[/dim]"),
    ] = None,
    collision_strategy: Annotated[
        CollisionStrategy,
        typer.Option(
            "--collision-strategy",
            help="Items with equal codes get an extra level, or move to free codes (free, hungarian, sinkhorn).",
        ),
    ] = "level",
    text: Annotated[
        str, typer.Option("--text", help="Vectors of the text: tfidf, none, or a sentence-transformers model.")
    ] = "tfidf",
    behaviour: Annotated[
        bool, typer.Option("--behaviour/--no-behaviour", help="Add vectors of items that occur in the same training sessions.")
    ] = True,
    vectors: Annotated[
        Path | None, typer.Option("--vectors", help="Your own vectors (.npy or .parquet) in place of text and behaviour.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a plot of the report into this file (.png, .svg).")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same codes.")] = 0,
) -> None:
    """Give every item a Semantic ID: embed, quantise, resolve collisions.

    The vectors come from the items' text and from the training part of the log, never from held-out interactions.
    """
    default_codebooks = "256,256,256,256" if method == "rqvae" else "256,256,256"
    sizes = parse_sizes(codebooks or default_codebooks, "--codebooks")
    quantiser = QuantiserConfig(codebook_sizes=sizes, collision_strategy=collision_strategy, method=method)
    embedding = EmbeddingConfig(text=text) if behaviour else EmbeddingConfig(text=text, behaviour_dims=0)
    log_path = data or run
    if not log_path.exists():
        raise DataError(
            f"there is no {'file' if kind == 'amazon' else 'directory'} {log_path}: pass the log's path with --data"
        )
    if plot is not None:
        check_plot(plot)
    require("`leafbeam fit-sids`", "pyarrow", "scipy", "sklearn", "torch", extra="train")
    from leafbeam.cli.sources import Source
    from leafbeam.train import leave_one_out

    console = stdout()
    paths = RunDirectory(run)
    source = Source(path=log_path, kind=kind, items=metadata, k_core=k_core)
    began = time.perf_counter()
    log = source.read()
    split = leave_one_out(log)
    source.save(paths.source)
    done(
        console,
        f"{source.path}: {log.num_users:,} users, {log.num_items:,} items, {log.report.interactions:,} interactions; "
        f"{split.report.users_too_short:,} users too short to evaluate",
        since=began,
    )

    from leafbeam.semid import fit_sids as fit
    from leafbeam.semid import load_vectors, plot_report

    began = time.perf_counter()
    own_vectors = None if vectors is None else load_vectors(vectors, log.item_ids)
    with Bar("reading") as bar:
        fitted = fit(
            log.items,
            split.train if behaviour else None,
            embedding=embedding if own_vectors is None else None,
            vectors=own_vectors,
            quantiser=quantiser,
            seed=seed,
            progress=bar.show,
        )
    fitted.table.save(paths.sids)
    fitted.quantiser.save(paths.quantiser)
    console.print(str(fitted.report), style="dim")
    if plot is not None:
        plot_report(fitted.report, fitted.table).savefig(plot, dpi=160)
    levels = " x ".join(str(size) for size in fitted.table.codebook_sizes)
    done(console, f"{paths.sids}: {len(fitted.table):,} SIDs of {levels}", since=began)
    paths.add_to_report("data", {"path": str(source.path), **asdict(log.report), "split": asdict(split.report)})
    paths.add_to_report("fit-sids", asdict(fitted.report))
    next_step(console, "leafbeam", "train", "--run", run)


def check_plot(path: Path) -> None:
    """Check that a plot can be written, before the work. Raises MissingExtraError, ArgumentError."""
    require("--plot", "matplotlib")
    if path.suffix not in PLOT_FORMATS:
        raise ArgumentError(f"--plot {path}: expected a file name that ends in {', '.join(PLOT_FORMATS)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"--plot {path}: the directory {path.parent} does not exist")
