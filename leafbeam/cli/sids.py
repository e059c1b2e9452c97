"""`leafbeam fit-sids`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import Bar, done, next_step, stderr, stdout
from leafbeam.cli.run import RunDirectory, RunOption

__all__ = ["fit_sids"]


def fit_sids(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Directory with interactions.* and items.*, or a file of reviews. [dim]The run itself[/dim]"
        ),
    ] = None,
    run: RunOption = Path("runs/shop"),
    kind: Annotated[
        str, typer.Option("--format", help="tables (Parquet or CSV), amazon (JSON lines) or movielens.")
    ] = "tables",
    metadata: Annotated[Path | None, typer.Option("--metadata", help="Amazon: the file of the products.")] = None,
    k_core: Annotated[
        int, typer.Option("--core", help="Keep only users and items with so many interactions. [dim]All[/dim]")
    ] = 0,
    method: Annotated[
        str, typer.Option("--quantiser", help="kmeans (of the vectors), or rqvae (of what an autoencoder makes of them).")
    ] = "kmeans",
    codebooks: Annotated[
        str | None, typer.Option("--codebooks", help="Codes of each level: 256,256,256; of rqvae 256,256,256,256.")
    ] = None,
    collision_strategy: Annotated[
        str,
        typer.Option("--collision-strategy", help="For items with equal codes: level, free, hungarian, sinkhorn or none."),
    ] = "level",
    text: Annotated[
        str, typer.Option("--text", help="tfidf, none, or a sentence-transformers model (name or directory).")
    ] = "tfidf",
    behaviour: Annotated[
        bool, typer.Option("--behaviour/--no-behaviour", help="Join what is taken together, in training sessions only.")
    ] = True,
    vectors: Annotated[
        Path | None, typer.Option("--vectors", help="Your own vectors (.npy or .parquet) in place of text and behaviour.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the report into this file (.png, .svg).")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same codes.")] = 0,
) -> None:
    """Give every item a Semantic ID: embed, quantise, tell collisions apart.

    Items get their vectors from their text and from the training part of the log; what is held out is never read.
    """
    from dataclasses import asdict
    from typing import get_args

    from leafbeam.cli.sources import Format, Source
    from leafbeam.errors import ArgumentError
    from leafbeam.semid import CollisionStrategy, EmbeddingConfig, Method, QuantiserConfig, load_vectors
    from leafbeam.semid import fit_sids as fit
    from leafbeam.train.split import leave_one_out

    which = next((name for name in get_args(Method) if name == method), None)
    if which is None:
        raise ArgumentError(f"--quantiser {method}: choose one of {', '.join(get_args(Method))}")
    sizes = codebook_sizes(codebooks or ("256,256,256,256" if which == "rqvae" else "256,256,256"))
    chosen = next((name for name in get_args(CollisionStrategy) if name == collision_strategy), None)
    if chosen is None:
        raise ArgumentError(
            f"--collision-strategy {collision_strategy}: choose one of {', '.join(get_args(CollisionStrategy))}"
        )
    form = next((name for name in get_args(Format) if name == kind), None)
    if form is None:
        raise ArgumentError(f"--format {kind}: choose one of {', '.join(get_args(Format))}")
    here = RunDirectory(run)
    quantiser = QuantiserConfig(codebook_sizes=sizes, collision_strategy=chosen, method=which)
    source = Source(path=data or run, kind=form, items=metadata, k_core=k_core)
    console = stdout()

    began = time.perf_counter()
    log = source.read()
    split = leave_one_out(log)
    source.save(here.source)
    done(
        console,
        what=f"{source.path}: {log.num_users:,} users, {log.num_items:,} items, {log.report.interactions:,} interactions; "
        f"{split.report.users_too_short:,} users too short to evaluate",
        seconds=time.perf_counter() - began,
    )

    began = time.perf_counter()
    own = None if vectors is None else load_vectors(vectors, log.item_ids)
    embedding = None
    if own is None:
        embedding = EmbeddingConfig(text=text) if behaviour else EmbeddingConfig(text=text, behaviour_dims=0)
    with Bar(stderr(), "reading") as bar:
        made = fit(
            log.items,
            split.train if behaviour else None,
            embedding=embedding,
            vectors=own,
            quantiser=quantiser,
            seed=seed,
            progress=bar.show,
        )
    made.table.save(here.sids)
    made.quantiser.save(here.quantiser)
    console.print(str(made.report), style="dim")
    if plot is not None:
        from leafbeam.semid import plot_report

        plot_report(made.report, made.table).savefig(plot, dpi=160)
    levels = " x ".join(str(size) for size in made.table.codebook_sizes)
    done(console, what=f"{here.sids}: {len(made.table):,} SIDs of {levels}", seconds=time.perf_counter() - began)
    here.add_to_report("data", {"path": str(source.path), **asdict(log.report), "split": asdict(split.report)})
    here.add_to_report("fit-sids", asdict(made.report))
    next_step(console, "leafbeam", "train", "--run", run)


def codebook_sizes(text: str) -> tuple[int, ...]:
    from leafbeam.errors import ArgumentError

    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise ArgumentError(f"--codebooks {text!r}: whole numbers with commas between them, such as 256,256,256") from None
