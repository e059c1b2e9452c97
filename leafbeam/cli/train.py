"""`leafbeam train`."""

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from leafbeam import semid
from leafbeam import train as training
from leafbeam.cli.console import Bar, done, next_step, stdout, working
from leafbeam.cli.options import (
    DEFAULT_RUN,
    ConfigOption,
    DeviceOption,
    PrintConfigOption,
    RunOption,
    SetOption,
    option,
    with_options,
)
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.config_file import load_config, to_toml
from leafbeam.errors import ArgumentError, counted
from leafbeam.extras import require, require_device
from leafbeam.json_reader import Json

if TYPE_CHECKING:
    from leafbeam.model import AnyModel
    from leafbeam.retrieve import ItemMemory

MODEL = "Model"
PresetName = Literal["tiny", "small", "base"]
Shape = Literal["decoder-only", "encoder-decoder", "item-history"]
# Shares of a budget in minutes: for the settings of the item memory, before the training, and for its weight, after it.
_MEMORY_SHARE, _FUSION_SHARE = 0.1, 0.05


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """The options that limit a training."""

    minutes: Annotated[
        float | None, option("--minutes", "End the whole command after about this many minutes.", default="the preset's: 10")
    ] = None
    epochs: Annotated[float | None, option("--epochs", "Stop after this many passes over the log.")] = None
    steps: Annotated[int | None, option("--steps", "Stop after this many updates.")] = None
    resume: Annotated[bool, option("--resume", "Continue from the checkpoint; the budget may be larger than before.")] = False

    def budget(self) -> "training.Budget | None":
        """Return the limits; None for those of the preset."""
        if self.minutes is None and self.epochs is None and self.steps is None:
            return None
        return training.Budget(minutes=self.minutes, epochs=self.epochs, steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of the model, and of the recipe as a whole."""

    size: Annotated[
        PresetName | None,
        option(
            "--preset",
            "The size of the model and its training settings: tiny, small or base.",
            metavar="NAME",
            default="small, or the checkpoint's",
        ),
    ] = None
    architecture: Annotated[
        Shape | None,
        option(
            "--architecture",
            "The architecture: decoder-only (Qwen3's), encoder-decoder (T5's, as in TIGER), or item-history (one vector for "
            "each item of the history).",
            MODEL,
            metavar="NAME",
            default="decoder-only",
        ),
    ] = None
    layers: Annotated[
        int | None,
        option(
            "--layers", "The number of layers; an encoder-decoder has this many in each half.", MODEL, default="the preset's"
        ),
    ] = None
    width: Annotated[
        int | None, option("--width", "The hidden size of the model, a multiple of 32.", MODEL, default="the preset's")
    ] = None
    seed: Annotated[
        int | None, option("--seed", "The seed of the initial weights, the order of the data and dropout.", default="0")
    ] = None
    config: ConfigOption = None
    words: SetOption = None

    def __post_init__(self) -> None:
        if self.width is not None and (self.width % 32 or self.width < 32):
            raise ArgumentError(f"--width {self.width}: expected a multiple of 32, the size of an attention head")

    def recipe(self, budget: "training.Budget | None", resumed: "training.Recipe | None" = None) -> "training.Recipe":
        """Return a recipe with the settings of a file, of words and of options. resumed: in place of the preset's."""
        start = resumed if resumed is not None and self.size is None else training.preset(self.size or "small")
        changes: dict[str, object] = {"budget": budget, "seed": self.seed, "architecture": self.architecture}
        changes["num_hidden_layers"] = self.layers
        if self.width is not None:
            heads = self.width // start.head_dim
            changes |= {"hidden_size": self.width, "intermediate_size": 3 * self.width}
            changes |= {"num_attention_heads": heads, "num_key_value_heads": heads}
        return load_config(start, self.config, self.words or (), **changes)


@with_options(BudgetOptions, ModelOptions)
def train(
    run: RunOption = DEFAULT_RUN,
    fit_on: Annotated[
        Literal["train", "train+valid"],
        option(
            "--fit-on",
            "The interactions to train on: train, or train+valid for the last training before a test.",
            metavar="PARTS",
        ),
    ] = "train",
    device: DeviceOption = "cpu",
    print_config: PrintConfigOption = False,
    *,
    limits: BudgetOptions,
    options: ModelOptions,
) -> None:
    """Train a model on the training part of the log.

    That is everything but each user's last two items, or all that came before a cut in time (--split of `leafbeam fit-sids`).

    --config and --set change any setting of the preset's recipe, such as --set learning_rate=0.001 or --set num_users=2000.

    Recall@10 on a sample of validation users is shown beside baselines. The best weights are kept. Ctrl-C leaves a checkpoint,
    and --resume continues from it.

    --minutes limits the whole command. Choosing the settings of the item memory takes up to a tenth of it, the baselines up to
    another tenth, and training gets at least half. Loading modules, compiling kernels, reading the log and the last validation
    are never cut short, so the command can take longer than a very small number of minutes; it then says how long each step
    took. With --resume, the minutes of earlier training count too.
    """
    watch, paths = Stopwatch(), RunDirectory(run)
    if not print_config:
        paths.check("sids", "source")
    require("`leafbeam train`", "pyarrow", "torch", extra="train")
    recipe = options.recipe(limits.budget(), _recipe_of_checkpoint(paths) if limits.resume else None)
    if print_config:
        typer.echo(to_toml(recipe), nl=False)
        return
    from leafbeam.retrieve import ItemMemory
    from leafbeam.train.fusion import fit_memory, tune_memory

    require_device(device)
    importlib.import_module("leafbeam.train.evaluation")  # with torch, whose seconds count as those of modules
    budget_s = None if recipe.budget.minutes is None else 60 * recipe.budget.minutes
    watch.end("modules")
    sids, source = semid.SidTable.load(paths.sids), Source.load(paths.source)
    log = source.read()
    split = source.split_of(log) if fit_on == "train" else source.split_of(log).with_valid()
    columns = source.text_columns or semid.text_columns(log.items)
    memory_config = ItemMemory.load(paths.memory).config if fit_on == "train+valid" and paths.memory.exists() else None
    watch.end("log")
    with working("item memory: its settings, chosen on validation users"):
        untuned = fit_memory(log, split.train, columns, memory_config)
        memory_s = watch.end("item memory")  # fitting the memory on the whole log, after training, will take as long
        train_memory = tune_memory(untuned, split, seconds=None if budget_s is None else _MEMORY_SHARE * budget_s)
    watch.end("settings of the memory")
    material = _Material(log=log, split=split, sids=sids, memory=train_memory, budget_s=budget_s)
    reserved_s = watch.total + memory_s + _FUSION_SHARE * (budget_s or 0.0)
    model = _fit_model(material, recipe, paths, device=device, fit_on=fit_on, resume=limits.resume, reserved_s=reserved_s)
    watch.end("training with baselines and validation")
    _fit_memory(material, model, paths, learns=fit_on == "train")
    watch.end("weight of the memory")
    if budget_s is not None and watch.total > 1.05 * budget_s:
        stdout().print(
            f"The command took {watch.total / 60:.1f} minutes in place of {budget_s / 60:g}: {watch}. Training gets at least "
            "half of the minutes; loading modules and the log, compiling kernels and the last validation are never cut short.",
            soft_wrap=True,
        )
    next_step(stdout(), "leafbeam", "evaluate", "--run", run)


def _recipe_of_checkpoint(paths: RunDirectory) -> "training.Recipe | None":
    """Return the recipe of the run's checkpoint; None if there is no checkpoint."""
    directory = paths.path / "checkpoint"
    return training.Checkpoint.load(directory).recipe if training.Checkpoint.exists(directory) else None


@dataclass(frozen=True, kw_only=True)
class _Material:
    """All that a training learns from: the log, its parts, the codes of the items, the item memory; and its seconds."""

    log: "training.InteractionLog"
    split: "training.Split"
    sids: "semid.SidTable"
    memory: "ItemMemory"
    budget_s: float | None


def _fit_model(
    material: _Material,
    recipe: "training.Recipe",
    paths: RunDirectory,
    *,
    device: str,
    fit_on: str,
    resume: bool,
    reserved_s: float,
) -> "AnyModel":
    """Train the model and report its figures. reserved_s: the part of the budget that other steps take."""
    from leafbeam.train.baselines import memory_scores, transition_baselines

    console, began, split, memory = stdout(), time.perf_counter(), material.split, material.memory
    try:
        with Bar("training") as bar:
            shown = _Shown(console=console, bar=bar)
            model = training.train(
                material.log,
                split,
                material.sids,
                recipe,
                paths.path,
                training.TrainOptions(
                    progress=shown.show,
                    resume=resume,
                    device=device,
                    baselines={**transition_baselines(memory, split.train), "memory": memory_scores(memory)},
                    on_baselines=shown.show_baselines,
                    memory=memory,
                    code_vectors=semid.CodeVectors.load(paths.quantiser, material.sids),
                    reserved_s=reserved_s,
                ),
            )
    except KeyboardInterrupt:
        console.print("Stopped; the checkpoint is kept.")
        next_step(console, "leafbeam", *sys.argv[1:], *([] if resume else ["--resume"]))
        raise typer.Exit(130) from None
    if shown.latest is None:
        console.print(
            f"Nothing was left to train: the checkpoint had used up {recipe.budget}, or its recall no longer rose. "
            "To continue, pass a larger --minutes, --epochs or --steps."
        )
    else:
        figures = shown.figures() | {"fit_on": fit_on, "parameters": sum(weight.numel() for weight in model.parameters())}
        interactions = split.report.train_interactions
        done(console, f"{paths.model}: {_training_in_words(figures, interactions)}", since=began)
        paths.add_to_report("train", figures)
    return model


def _fit_memory(material: _Material, model: "AnyModel", paths: RunDirectory, *, learns: bool) -> None:
    """Fit the item memory on the whole log, and save it. learns: whether its weight beside the model is learnt."""
    from leafbeam.index import Trie
    from leafbeam.retrieve import ItemMemory
    from leafbeam.train.evaluation import fit_fusion

    began, log, sids = time.perf_counter(), material.log, material.sids
    memory = material.memory.with_transitions(log.histories.indptr_U1, log.histories.items_E)
    if learns:
        with working("item memory: its weight beside the model's, learnt on validation users"):
            trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
            fusion_s = None if material.budget_s is None else _FUSION_SHARE * material.budget_s
            memory.fusion = fit_fusion(model, trie, log, material.split, material.memory, seconds=fusion_s)
    elif paths.memory.exists():  # no user is left to learn from: those of the run on the training part stay
        memory.fusion = ItemMemory.load(paths.memory).fusion
    _save(memory, paths, began)


@dataclass(kw_only=True)
class _Shown:
    """Shows how training goes on, and keeps what was shown last.

    Args:
        console: For lines.
        bar: For progress.
        latest: The last figures; None if nothing was left to train.
        recalls: Recall@10 of the baselines by their names.
    """

    console: Console
    bar: Bar
    latest: "training.TrainStats | None" = None
    recalls: dict[str, float] = field(default_factory=dict[str, float])

    def show_baselines(self, recalls: Mapping[str, float]) -> None:
        """Show the baselines."""
        from leafbeam.train.report import LABELS

        self.recalls.update(recalls)
        listed = ", ".join(f"{LABELS[name]} {recall:.4f}" for name, recall in recalls.items())
        self.console.print(f"Recall@10 on a sample of validation users: {listed}", soft_wrap=True)

    def show(self, stats: "training.TrainStats") -> None:
        """Show an update or a validation."""
        self.latest = stats
        left = f"{stats.remaining_s / 60:.1f} min left" if stats.step > 20 else ""
        best = max(self.recalls.values(), default=0.0)
        recall = "" if stats.recall is None else f"recall@10 {stats.recall:.4f} (best baseline {best:.4f})  "
        note = f"step {stats.step:,}  loss {stats.loss:.3f}  {recall}{stats.items_per_second:,.0f} items/s  {left}"
        self.bar.show("training", stats.share, note)

    def figures(self) -> dict[str, object]:
        """Return the last figures for the run's report."""
        assert self.latest is not None
        last = asdict(self.latest)
        figures: dict[str, object] = {name: last[name] for name in ("epochs", "loss", "seconds", "items_per_second")}
        return figures | {"steps": last["step"], "valid_recall_10": last["recall"], "baselines": self.recalls}


def _training_in_words(figures: Json, interactions: int) -> str:
    return (
        f"{counted(figures['parameters'], 'parameter')}, {counted(figures['steps'], 'step')}, {figures['epochs']:.1f} passes "
        f"over {counted(interactions, 'interaction')}, loss {figures['loss']:.2f}"
    )


def _save(memory: "ItemMemory", paths: RunDirectory, began: float) -> None:
    """Write the item memory, and say what becomes of the interactions that a server has counted."""
    from leafbeam.retrieve import set_log_aside

    memory.save(paths.memory)
    if (aside := set_log_aside(paths.memory)) is not None:
        stdout().print(
            f"{aside} has the interactions that a server has counted: the new memory counts only those of the run's log."
        )
    done(stdout(), f"{paths.memory}: the transitions and texts of {counted(len(memory), 'item')}", since=began)


class Stopwatch:
    """A clock for steps that follow one another; `str` lists their seconds, as in "log 2 s, training 41 s"."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._now = clock, clock()
        self._steps: dict[str, float] = {}

    def end(self, step: str) -> float:
        """End a step, begin the next, and return the seconds that the first took."""
        before, self._now = self._now, self._clock()
        self._steps[step] = self._now - before
        return self._steps[step]

    @property
    def total(self) -> float:
        """Return the seconds of all steps so far, including the step that has not ended."""
        return sum(self._steps.values()) + self._clock() - self._now

    def __str__(self) -> str:
        return ", ".join(f"{step} {seconds:.0f} s" for step, seconds in self._steps.items())
