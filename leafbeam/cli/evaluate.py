"""`leafbeam evaluate`."""

import json
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from leafbeam.cli.console import Bar, done, next_step, stdout
from leafbeam.cli.options import RunOption, ScoringOption
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import ArgumentError
from leafbeam.extras import require

__all__ = ["evaluate"]


def evaluate(
    run: RunOption = Path("runs/shop"),
    part: Annotated[
        Literal["test", "valid"], typer.Option("--part", help="Held-out items: each user's last (test), or the one before.")
    ] = "test",
    num_beams: Annotated[int, typer.Option("--beams", help="Beams of the search.")] = 20,
    scoring: ScoringOption = "full",
    remove_seen: Annotated[
        bool,
        typer.Option("--remove-seen", help="Rank no item that the user already has; for shops without repeat purchases."),
    ] = False,
    users: Annotated[int | None, typer.Option("--users", help="Evaluate a random sample of users. [dim]All[/dim]")] = None,
    unconstrained: Annotated[
        int, typer.Option("--unconstrained", help="Users to search for without the index too, for comparison.")
    ] = 2_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sample of users.")] = 0,
) -> None:
    """Rank the whole catalog for each user and report the rank of the held-out item, beside simple baselines.

    The baselines are popularity and nearest text. Every figure has its standard error.
    """
    if users is not None and users < 1:
        raise ArgumentError(f"--users {users}: expected at least one; leave it out to evaluate all")
    paths = RunDirectory(run)
    sids_path = paths.existing(paths.sids, "fit-sids")
    source_path = paths.existing(paths.source, "fit-sids")
    model_path = paths.existing(paths.model, "train")
    require("`leafbeam evaluate`", "pyarrow", "scipy", "sklearn", "torch", extra="train")
    from leafbeam.cli.sources import Source
    from leafbeam.index import Trie
    from leafbeam.model import load_model
    from leafbeam.semid import SidTable, text_columns, text_vectors
    from leafbeam.train import evaluate as measure
    from leafbeam.train import leave_one_out

    sids = SidTable.load(sids_path)
    model = load_model(model_path)
    log = Source.load(source_path).read()
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    columns = text_columns(log.items)

    console = stdout()
    began = time.perf_counter()
    with Bar("evaluating") as bar:
        report = measure(
            model,
            trie,
            log,
            leave_one_out(log),
            part=part,
            num_beams=num_beams,
            scoring=scoring,
            remove_seen=remove_seen,
            sample=users,
            seed=seed,
            text_vectors_ND=text_vectors(log.items, columns, dims=256, seed=seed) if columns else None,
            unconstrained_users=unconstrained,
            progress=lambda count, total: bar.show("evaluating", count / total, f"{count:,} of {total:,} users"),
        )
    console.print(report.table())
    if not columns:
        console.print("The items have no text column, so there is no nearest-text baseline.")
    paths.add_to_report("evaluate", json.loads(report.to_json()))
    done(console, f"written to {paths.report}", since=began)
    next_step(console, "leafbeam", "build", "--run", run)
