"""`leafbeam evaluate`."""

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from leafbeam import catalog, engine, semid, train
from leafbeam.cli.console import Bar, done, next_step, stdout
from leafbeam.cli.options import (
    DEFAULT_RUN,
    ObjectiveOptions,
    PrecisionOption,
    RunOption,
    ScoringOption,
    check_plot,
    option,
    with_options,
)
from leafbeam.cli.run import ENGINE_FILES, RunDirectory, Source
from leafbeam.errors import ArgumentError, counted
from leafbeam.extras import require
from leafbeam.json_reader import Json
from leafbeam.precision import Precision

if TYPE_CHECKING:
    from leafbeam.retrieve import ItemMemory
    from leafbeam.train.baselines import ScoreFn
    from leafbeam.train.report import EvaluationReport
    from leafbeam.train.split import Split

_POLICY_USERS = 1_000


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The options that say which users are evaluated, on which item."""

    users: Annotated[int | None, option("--users", "Evaluate a random sample of users.", default="all")] = None
    part: Annotated[
        Literal["test", "valid"],
        option(
            "--part",
            "The held-out item to predict: a user's last one (test), or the one before it (valid).",
            metavar="test|valid",
        ),
    ] = "test"
    seed: Annotated[int, option("--seed", "The seed of the sample of users.")] = 0


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(ObjectiveOptions):
    """The options of a policy that is evaluated, and of the plot."""

    plot: Annotated[
        Path | None,
        option(
            "--plot",
            "Plot into a file (.pdf, .png, .svg): Recall@10 by popularity and history, or against what a policy brings.",
        ),
    ] = None


@with_options(SampleOptions, PolicyOptions)
def evaluate(
    run: RunOption = DEFAULT_RUN,
    num_beams: Annotated[int, option("--beams", "The number of beams of the search.")] = 20,
    scoring: ScoringOption = "full",
    unconstrained: Annotated[
        int, option("--unconstrained", "The number of users for whom the model also searches without the index; 0 for none.")
    ] = 2_000,
    precision: PrecisionOption = "float32",
    *,
    sample: SampleOptions,
    policy: PolicyOptions,
) -> None:
    """Rank the whole catalog for each user and report the rank of the held-out item, beside simple baselines.

    The baselines are popularity, nearest text and the transition graph. Lists with and without the items that a user already
    has are both reported. Every figure has its standard error, and the last line says which ranking is best and what to do.
    A second table has recall by the item's popularity and the length of the history, and how much of the catalog lists show.
    Once `build` has evaluated the rules, a warning names each rule that allows no item of one of these popularities.

    With --boost, --at-most or --at-least, report instead what this policy costs in recall and what it brings, for several
    weights. The lists are ten items of the model, without those that a user already has, for 1,000 users by default. --plot
    draws the table as a curve for each thing that the policy brings.
    """
    if sample.users is not None and sample.users < 1:
        raise ArgumentError(f"--users {sample.users}: expected at least one; leave it out to evaluate all")
    paths = RunDirectory(run)
    if any((objectives := policy.objectives).values()):
        _evaluate_policy(paths, objectives, sample, precision, policy.plot)
        return
    if policy.plot is not None:
        check_plot(policy.plot)
    paths.check("sids", "source", "model")
    require("`leafbeam evaluate`", "pyarrow", "scipy", "sklearn", "torch", extra="train")
    from leafbeam.index import Trie
    from leafbeam.model import load_model

    sids, source = semid.SidTable.load(paths.sids), Source.load(paths.source)
    model = load_model(paths.model).with_precision(precision)
    log = source.read()
    columns = source.text_columns or semid.text_columns(log.items)
    split = _split_of(paths, source, log)
    memory, baselines = _memory_and_baselines(paths, log, split, columns, sample.seed)

    console, began = stdout(), time.perf_counter()
    with Bar("evaluating") as bar:
        report = train.evaluate(
            model,
            Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids),
            log,
            split,
            train.EvaluationConfig(
                part=sample.part,
                num_beams=num_beams,
                scoring=scoring,
                sample=sample.users,
                seed=sample.seed,
                unconstrained_users=unconstrained,
            ),
            baselines=baselines,
            memory=memory,
            progress=lambda count, total: bar.show("evaluating", count / total, f"{count:,} of {counted(total, 'user')}"),
        )
    if not columns:
        console.print("The items have no text column, so there is no nearest-text baseline.")
    _finish(paths, report, policy.plot, _unreached_segments(paths, log, split), began)


def _unreached_segments(paths: RunDirectory, log: "train.InteractionLog", split: "Split") -> Iterator[str]:
    """Yield a warning for each rule of the run's catalog, once it is built, and each popularity of which it allows no item."""
    import numpy as np

    from leafbeam.index.items import decode_ids
    from leafbeam.train.segments import POPULARITY, split_by

    if not all(path.exists() for path in (paths.catalog, paths.trie, paths.rules)):
        return
    interactions_N = np.bincount(split.train.items_E, minlength=log.num_items)
    with ExitStack() as opened:
        loaded = paths.catalog_files(verify=False).open(opened)
        assert isinstance(loaded, catalog.Catalog)
        for rule, allowed in loaded.rules.filters.items():
            allowed_N = np.isin(log.item_ids, decode_ids(allowed.item_ids()))
            for segment, members_N in split_by(interactions_N, POPULARITY):
                if not allowed_N[members_N].any():
                    items = counted(int(members_N.sum()), "item")
                    yield f"Warning: the rule {rule} allows none of the {items} with {segment} training interactions."


def _finish(paths: RunDirectory, report: "EvaluationReport", plot: Path | None, warnings: Iterator[str], began: float) -> None:
    """Print the tables of an evaluation, its warnings and advice, plot it, and add its figures to the report of the run."""
    console = stdout()
    console.print(report.table())
    console.print(report.segment_table())
    if plot is not None:
        report.plot().savefig(plot, dpi=160)
    train_command = shlex.join(["leafbeam", "train", "--run", str(paths.path), "--resume", "--minutes", "30"])
    for line in (*warnings, report.verdict.advice(train_command)):
        console.print(line, markup=False, soft_wrap=True)
    paths.add_to_report("evaluate", json.loads(report.to_json()))
    done(console, f"written to {paths.report}", since=began)
    next_step(console, "leafbeam", "build", "--run", paths.path)


def _split_of(paths: RunDirectory, source: Source, log: "train.InteractionLog") -> "Split":
    """Return the split of the log by which the run's model was trained."""
    split = source.split_of(log)
    return split.with_valid() if paths.read_report().get("train", {}).get("fit_on") == "train+valid" else split


def _evaluate_policy(
    paths: RunDirectory, objectives: Json, sample: SampleOptions, precision: Precision, plot: Path | None
) -> None:
    """Print what a policy costs and brings, plot it, and add it to the report."""
    if plot is not None:
        check_plot(plot)
    paths.check(*ENGINE_FILES, "source")
    require("`leafbeam evaluate`", "duckdb", "pyarrow", "torch")
    import numpy as np

    from leafbeam.cli import policy

    request, console, began = engine.Request(**objectives, channel="model"), stdout(), time.perf_counter()
    source = Source.load(paths.source)
    log = source.read()
    split = _split_of(paths, source, log)
    known, answers_U = (split.train, split.valid_U) if sample.part == "valid" else (split.before_test, split.test_U)
    users = np.flatnonzero(answers_U >= 0)
    if not len(users):
        raise ArgumentError(f"--part {sample.part}: no user has a held-out item in this part")
    users = np.sort(np.random.default_rng(sample.seed).permutation(users)[: sample.users or _POLICY_USERS])
    limits, settings = engine.Limits(max_history=max(1, int(known.lengths_U.max()))), engine.Settings(precision=precision)
    with closing(engine.Engine.load(paths.model, paths.catalog_files(verify=True), limits=limits, settings=settings)) as loaded:
        assert loaded.catalog is not None
        histories = [tuple(log.item_ids[known[int(user)]].tolist()) for user in users]
        answers = log.item_ids[answers_U[users]].tolist()
        rows = policy.measure(loaded, loaded.catalog.rules, histories, answers, request)
    console.print(policy.table(rows, request.num_items))
    if plot is not None:
        policy.plot(rows, request.num_items).savefig(plot, dpi=160)
    paths.add_to_report(
        "policy", {"part": sample.part, "users": len(users), "request": objectives, "rows": policy.figures(rows)}
    )
    done(console, f"{counted(len(users), 'user')}; written to {paths.report}", since=began)


def _memory_and_baselines(
    paths: RunDirectory, log: "train.InteractionLog", split: "Split", columns: tuple[str, ...], seed: int
) -> tuple["ItemMemory", dict[str, "ScoreFn"]]:
    """Return an item memory of the training interactions, with the settings of the run's own memory, and the baselines."""
    from leafbeam.retrieve import ItemMemory
    from leafbeam.train.baselines import text_neighbours, transition_baselines
    from leafbeam.train.fusion import fit_memory

    fitted = None if paths.fitted_memory is None else ItemMemory.load(paths.fitted_memory)
    memory = fit_memory(log, split.train, columns, None if fitted is None else fitted.config)
    memory.fusion = None if fitted is None else fitted.fusion
    baselines = transition_baselines(memory, split.train)
    if columns:
        baselines["text"] = text_neighbours(semid.text_vectors(log.items, columns, dims=256, seed=seed))
    return memory, baselines
