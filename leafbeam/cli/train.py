"""`leafbeam train`."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from leafbeam.cli.console import Bar, done, next_step, stdout
from leafbeam.cli.options import DeviceOption, RunOption
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import ArgumentError
from leafbeam.extras import require, require_device

__all__ = ["train"]


def train(
    run: RunOption = Path("runs/shop"),
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Stop after this many minutes. [dim]The preset's: 10[/dim]")
    ] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Stop after this many passes over the log.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Stop after this many updates.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the initial weights, the order of the data and dropout.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the run's checkpoint.")] = False,
    architecture: Annotated[
        Literal["decoder-only", "encoder-decoder"],
        typer.Option("--architecture", help="Qwen3's decoder, or T5's encoder and decoder (TIGER)."),
    ] = "decoder-only",
    experts: Annotated[
        int, typer.Option("--experts", help="Experts of each decoder layer of an encoder-decoder; 0: none.")
    ] = 0,
    size: Annotated[
        Literal["tiny", "small", "base"], typer.Option("--preset", help="Size of the model, and the training that suits it.")
    ] = "small",
    layers: Annotated[
        int | None, typer.Option("--layers", help="Layers of the model, or of each of its halves. [dim]The preset's[/dim]")
    ] = None,
    width: Annotated[int | None, typer.Option("--width", help="Hidden size, a multiple of 32. [dim]The preset's[/dim]")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Peak learning rate. [dim]The preset's[/dim]")
    ] = None,
    max_items: Annotated[
        int | None, typer.Option("--max-items", help="The longest history the model reads. [dim]The preset's[/dim]")
    ] = None,
    user_tokens: Annotated[
        int, typer.Option("--user-tokens", help="Hash users to this many tokens before the history (TIGER: 2000); 0: none.")
    ] = 0,
    device: DeviceOption = "cpu",
) -> None:
    """Train a model on the training part of the log: everything but each user's last two items.

    Ctrl-C leaves a checkpoint, and --resume continues from it.
    """
    if width is not None and (width % 32 or width < 32):
        raise ArgumentError(f"--width {width}: expected a multiple of 32, the size of an attention head")
    paths = RunDirectory(run)
    sids_path = paths.existing(paths.sids, "fit-sids")
    source_path = paths.existing(paths.source, "fit-sids")
    require("`leafbeam train`", "pyarrow", "torch", extra="train")
    from leafbeam.cli.sources import Source
    from leafbeam.semid import SidTable
    from leafbeam.train import Budget, TrainStats, leave_one_out, preset
    from leafbeam.train import train as fit

    limited = minutes is not None or epochs is not None or steps is not None
    budget = Budget(minutes=minutes, epochs=epochs, steps=steps) if limited else None
    recipe = preset(size, budget=budget, seed=seed, architecture=architecture)
    changes: dict[str, Any] = {
        "num_experts": experts or None,
        "num_users": user_tokens or None,
        "num_hidden_layers": layers,
        "max_items": max_items,
        "learning_rate": learning_rate,
    }
    if width is not None:
        heads = width // recipe.head_dim
        changes |= {"hidden_size": width, "intermediate_size": 3 * width}
        changes |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    recipe = replace(recipe, **{name: value for name, value in changes.items() if value is not None})
    require_device(device)
    sids = SidTable.load(sids_path)
    log = Source.load(source_path).read()
    split = leave_one_out(log)

    console = stdout()
    began = time.perf_counter()
    latest: list[TrainStats] = []

    def show(stats: TrainStats) -> None:
        latest[:] = [stats]
        left = f"{stats.remaining_s / 60:.1f} min left" if stats.step > 20 else ""
        recall = "" if stats.recall is None else f"recall@10 {stats.recall:.4f}  "
        note = f"step {stats.step:,}  loss {stats.loss:.3f}  {recall}{stats.items_per_second:,.0f} items/s  {left}"
        bar.show("training", stats.share, note)

    try:
        with Bar("training") as bar:
            model = fit(log, split, sids, recipe, run, progress=show, resume=resume, device=device)
    except KeyboardInterrupt:
        console.print("Stopped; the checkpoint is kept.")
        next_step(console, "leafbeam", *sys.argv[1:], *([] if resume else ["--resume"]))
        raise typer.Exit(130) from None
    if not latest:
        console.print("Nothing was left to train: the checkpoint had used up this budget.")
    else:
        last = latest[0]
        parameters = sum(weight.numel() for weight in model.parameters())
        done(
            console,
            f"{paths.model}: {parameters:,} parameters, {last.step:,} steps, {last.epochs:.1f} passes over "
            f"{split.report.train_interactions:,} interactions, loss {last.loss:.2f}",
            since=began,
        )
        paths.add_to_report(
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
