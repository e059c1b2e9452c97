"""`leafbeam evaluate`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import Bar, done, next_step, stderr, stdout
from leafbeam.cli.run import RunDirectory, RunOption

__all__ = ["evaluate"]


def evaluate(
    run: RunOption = Path("runs/shop"),
    part: Annotated[str, typer.Option("--part", help="test (each customer's last item) or valid (the one before).")] = "test",
    num_beams: Annotated[int, typer.Option("--beams", help="Beams of the search.")] = 20,
    scoring: Annotated[str, typer.Option("--scoring", help="full or allowed: how probabilities are normalised.")] = "full",
    remove_seen: Annotated[
        bool,
        typer.Option("--remove-seen", help="Answer nothing that a customer already has; for shops where nobody buys twice."),
    ] = False,
    users: Annotated[int | None, typer.Option("--users", help="Ask so many, drawn at random. [dim]All[/dim]")] = None,
    unconstrained: Annotated[
        int, typer.Option("--unconstrained", help="Ask so many of them again without the index, for comparison.")
    ] = 2_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the draw of users.")] = 0,
) -> None:
    """Rank the whole catalog for each customer and see where the held-out item comes, beside simple baselines.

    Popularity and nearest-by-text stand beside the model; figures come with their standard errors.
    """
    import json
    from typing import get_args

    from leafbeam.cli.sources import Source
    from leafbeam.engine import Scoring
    from leafbeam.errors import ArgumentError
    from leafbeam.index import Trie
    from leafbeam.model import load_model
    from leafbeam.semid import SidTable, text_columns, text_vectors
    from leafbeam.train.evaluate import Part
    from leafbeam.train.evaluate import evaluate as measure
    from leafbeam.train.split import leave_one_out

    which = next((name for name in get_args(Part) if name == part), None)
    how = next((name for name in get_args(Scoring) if name == scoring), None)
    if which is None or how is None:
        raise ArgumentError(f"--part {part} --scoring {scoring}: test or valid, full or allowed")
    if users is not None and users < 1:
        raise ArgumentError(f"--users {users}: at least one, or leave it out to ask all")
    here = RunDirectory(run)
    sids = SidTable.load(here.need(here.sids, "fit-sids"))
    model = load_model(here.need(here.model, "train"))
    log = Source.load(here.need(here.source, "fit-sids")).read()
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    columns = text_columns(log.items)

    console = stdout()
    began = time.perf_counter()
    with Bar(stderr(), "evaluating") as bar:

        def show(done: int, total: int) -> None:
            bar.show("evaluating", done / total, f"{done:,} of {total:,} users")

        report = measure(
            model,
            trie,
            log,
            leave_one_out(log),
            part=which,
            num_beams=num_beams,
            scoring=how,
            remove_seen=remove_seen,
            sample=users,
            seed=seed,
            text_vectors_ND=text_vectors(log.items, columns, dims=256, seed=seed) if columns else None,
            unconstrained_users=unconstrained,
            progress=show,
        )
    console.print(report.table())
    if not columns:
        console.print("The items have no column of text: nothing can be nearest by text.")
    here.add_to_report("evaluate", json.loads(report.to_json()))
    done(console, what=f"written to {here.report}", seconds=time.perf_counter() - began)
    next_step(console, "leafbeam", "build", "--run", run)
