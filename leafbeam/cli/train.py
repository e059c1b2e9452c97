"""`leafbeam train`."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import Bar, done, next_step, stderr, stdout
from leafbeam.cli.run import RunDirectory, RunOption

__all__ = ["train"]


def train(
    run: RunOption = Path("runs/shop"),
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Stop after so many minutes. [dim]The preset's: 10[/dim]")
    ] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Or after so many passes over the log.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Or after so many updates.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides the first weights, the order of the data, dropout.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's checkpoint.")] = False,
    architecture: Annotated[
        str, typer.Option("--architecture", help="decoder-only (Qwen3) or encoder-decoder (T5, TIGER).")
    ] = "decoder-only",
    experts: Annotated[int, typer.Option("--experts", help="Of each decoder layer of an encoder-decoder; 0: none.")] = 0,
    size: Annotated[
        str, typer.Option("--preset", help="tiny, small or base: the model's size and the training that suits it.")
    ] = "small",
    layers: Annotated[
        int | None, typer.Option("--layers", help="Layers of the model, of each half of one. [dim]As in Recipe[/dim]")
    ] = None,
    width: Annotated[int | None, typer.Option("--width", help="Hidden size: a multiple of 32. [dim]As in Recipe[/dim]")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="At its peak. [dim]As in Recipe[/dim]")] = None,
    max_items: Annotated[
        int | None, typer.Option("--max-items", help="The longest history the model is shown. [dim]As in Recipe[/dim]")
    ] = None,
    user_tokens: Annotated[
        int, typer.Option("--user-tokens", help="Hash customers to so many tokens before the history (TIGER: 2000); 0: none.")
    ] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")] = "cpu",
) -> None:
    """Train a model on the training part of the log: all but each customer's last two items.

    Ctrl-C leaves a checkpoint; --resume goes on from it.
    """
    from dataclasses import replace
    from typing import get_args

    from leafbeam.cli.sources import Source
    from leafbeam.errors import ArgumentError
    from leafbeam.semid import SidTable
    from leafbeam.train.presets import PresetName, preset
    from leafbeam.train.recipe import Architecture, Budget
    from leafbeam.train.split import leave_one_out
    from leafbeam.train.trainer import TrainStats
    from leafbeam.train.trainer import train as fit

    if width is not None and (width % 32 or width < 32):
        raise ArgumentError(f"--width {width}: a multiple of 32, the size of an attention head")
    which = next((name for name in get_args(Architecture) if name == architecture), None)
    if which is None:
        raise ArgumentError(f"--architecture {architecture}: choose one of {', '.join(get_args(Architecture))}")
    named = next((name for name in get_args(PresetName) if name == size), None)
    if named is None:
        raise ArgumentError(f"--preset {size}: choose one of {', '.join(get_args(PresetName))}")
    given = minutes is not None or epochs is not None or steps is not None
    budget = Budget(minutes=minutes, epochs=epochs, steps=steps) if given else None
    recipe = preset(named, budget=budget, seed=seed, architecture=which)
    if experts:
        recipe = replace(recipe, num_experts=experts)
    if user_tokens:
        recipe = replace(recipe, num_users=user_tokens)
    if width is not None:
        heads = width // recipe.head_dim
        recipe = replace(recipe, hidden_size=width, intermediate_size=3 * width)
        recipe = replace(recipe, num_attention_heads=heads, num_key_value_heads=heads)
    if layers is not None:
        recipe = replace(recipe, num_hidden_layers=layers)
    if max_items is not None:
        recipe = replace(recipe, max_items=max_items)
    if learning_rate is not None:
        recipe = replace(recipe, learning_rate=learning_rate)
    here = RunDirectory(run)
    sids = SidTable.load(here.need(here.sids, "fit-sids"))
    log = Source.load(here.need(here.source, "fit-sids")).read()
    split = leave_one_out(log)

    console = stdout()
    began = time.perf_counter()
    moments: list[TrainStats] = []

    def show(moment: TrainStats) -> None:
        moments[:] = [moment]
        left = f"{moment.remaining_s / 60:.1f} min left" if moment.step > 20 else ""
        recall = "" if moment.recall is None else f"recall@10 {moment.recall:.4f}  "
        note = f"step {moment.step:,}  loss {moment.loss:.3f}  {recall}{moment.items_per_second:,.0f} items/s  {left}"
        bar.show("training", moment.share, note)

    try:
        with Bar(stderr(), "training") as bar:
            model = fit(log, split, sids, recipe, here.path, progress=show, resume=resume, device=device)
    except KeyboardInterrupt:
        console.print("Stopped; the checkpoint is kept.")
        words = sys.argv[1:] if "--resume" in sys.argv else [*sys.argv[1:], "--resume"]
        next_step(console, "leafbeam", *words)
        raise typer.Exit(130) from None
    if not moments:
        console.print("Nothing was left to train: the checkpoint had used up this budget.")
        next_step(console, "leafbeam", "evaluate", "--run", run)
        return
    last = moments[0]
    parameters = sum(weight.numel() for weight in model.parameters())
    done(
        console,
        what=f"{here.model}: {parameters:,} parameters, {last.step:,} steps, {last.epochs:.1f} passes over "
        f"{split.report.train_interactions:,} interactions, loss {last.loss:.2f}",
        seconds=time.perf_counter() - began,
    )
    here.add_to_report(
        "train",
        {
            "parameters": parameters,
            "steps": last.step,
            "epochs": last.epochs,
            "loss": last.loss,
            "seconds": last.seconds,
            "items_per_second": last.items_per_second,
        },
    )
    next_step(console, "leafbeam", "evaluate", "--run", run)
