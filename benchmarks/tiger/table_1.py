"""TIGER's Table 1: the last item of every user, foreseen (leave-one-out), with SASRec trained here beside the published one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.drawing import new_figure
from benchmarks.learning import NO_TEACHER, LearningRun, LearningTable, Row, as_dict, percent, pooled
from benchmarks.studies.sasrec import SasRecRecipe, fit_sasrec, sasrec_scores
from leafbeam.index import Trie
from leafbeam.semid import EmbeddingConfig, QuantiserConfig, fit_sids, text_columns, text_vectors
from leafbeam.train import (
    Budget,
    EvaluationConfig,
    InteractionLog,
    Recipe,
    TrainOptions,
    evaluate,
    leave_one_out,
    load_log,
    train,
)
from leafbeam.train.baselines import ScoreFn, text_neighbours, transition_baselines
from leafbeam.train.evaluation import fit_fusion
from leafbeam.train.fusion import fit_memory, tune_memory
from leafbeam.train.report import SERVED

__all__ = ["TABLE", "published"]

# Recall@5, NDCG@5, Recall@10, NDCG@10, full ranking over all items.
PUBLISHED: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "SASRec (S3-Rec's table)": {
        "beauty": (0.0387, 0.0249, 0.0605, 0.0318),
        "sports": (0.0233, 0.0154, 0.0350, 0.0192),
        "toys": (0.0463, 0.0306, 0.0675, 0.0374),
    },
    "S3-Rec": {
        "beauty": (0.0387, 0.0244, 0.0647, 0.0327),
        "sports": (0.0251, 0.0161, 0.0385, 0.0204),
        "toys": (0.0443, 0.0294, 0.0700, 0.0376),
    },
    "TIGER": {
        "beauty": (0.0454, 0.0321, 0.0648, 0.0384),
        "sports": (0.0264, 0.0181, 0.0400, 0.0225),
        "toys": (0.0521, 0.0371, 0.0712, 0.0432),
    },
    "TIGER, a public re-run": {
        "beauty": (0.0392, 0.0257, 0.0594, 0.0321),
        "sports": (0.0233, 0.0150, 0.0379, 0.0197),
        "toys": (0.0396, 0.0270, 0.0577, 0.0328),
    },
    "GRID, residual k-means": {
        "beauty": (0.0422, 0.0277, 0.0639, 0.0347),
        "sports": (0.0236, 0.0153, 0.0353, 0.0191),
        "toys": (0.0376, 0.0243, 0.0577, 0.0308),
    },
    "GRID, decoder-only": {
        "beauty": (0.0300, 0.0206, 0.0438, 0.0251),
        "sports": (0.0152, 0.0098, 0.0226, 0.0121),
        "toys": (0.0286, 0.0202, 0.0399, 0.0238),
    },
}
SOURCES = (
    "Seen items: what is in a user's history. The programs behind the published SASRec and S3-Rec remove them from every list; "
    "papers on generative models mostly do not say. Published: SASRec and S3-Rec as in S3-Rec's Table 2 (Zhou et al., 2020), "
    "which TIGER's Table 1 repeats; TIGER's Table 1 (Rajput et al., 2023); GRID, its residual k-means and decoder-only rows "
    "(Ju et al., 2025)."
)
_FIGURES = ("recall_5", "ndcg_5", "recall_10", "ndcg_10")
_NAMES = {
    "leafbeam": "leafbeam",
    "fused": "leafbeam and memory",
    "graph_text": "transition graph and text",
    "memory": "item memory",
    "graph": "transition graph",
    "transitions": "transitions from the last item",
    "sasrec": "SASRec, trained here",
    "text_neighbours": "nearest by text",
    "popularity": "most popular",
}
_ROW_NAMES = {"model": "leafbeam", "text": "text_neighbours"}  # of a report's rankings, where rows call them otherwise
_SEEN = {"": "kept", "_unseen": "removed"}  # items of the user's history, by the end of a method's name
_OURS = {f"{name}{end}": f"{words}, seen items {how}" for name, words in _NAMES.items() for end, how in _SEEN.items()}
QUICK_USERS = 600


def published(data: str) -> dict[str, tuple[float, float, float, float]]:
    """The published rows for a data set by the name of its directory, empty where there are none."""
    return {
        method: figures for method, by_data in PUBLISHED.items() for name, figures in by_data.items() if name in data.lower()
    }


def _rows(run: LearningRun, console: Console, keep: Callable[[Row], None]) -> list[Row]:
    rows: list[Row] = []
    for directory in run.data:
        log = load_log(directory)
        for seed, teacher in product(run.seeds_run, run.teachers or ("memory",)):
            row = _row(run, directory, log, seed, teacher, console)
            keep(row)
            rows.append(row)
    return rows


_TAUGHT: dict[str, dict[str, Any]] = {
    "memory": {},  # the defaults
    "text": {"teacher_texts": True, "teacher_weight": 0.85, "dropout": 0.1},  # a model that is served alone
    "none": NO_TEACHER,
}


def _recipes(run: LearningRun, seed: int, teacher: str) -> tuple[EmbeddingConfig, QuantiserConfig, Recipe, SasRecRecipe]:
    if run.quick:
        small = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
        recipe = Recipe(budget=Budget(steps=300), seed=seed, **small, **_TAUGHT[teacher])
        sasrec = SasRecRecipe(hidden=32, epochs=1, max_items=20, dropout=0.2, validation_users=300)
        return (
            EmbeddingConfig(text_dims=48, behaviour_dims=24),
            QuantiserConfig(codebook_sizes=(64, 64)),
            recipe,
            replace(sasrec, learning_rate=1e-2, seed=seed),
        )
    recipe = Recipe(budget=run.budget(Budget(minutes=10)), seed=seed, **_TAUGHT[teacher])
    return (
        EmbeddingConfig(),
        QuantiserConfig(),
        recipe,
        SasRecRecipe(seed=seed),
    )


def _row(run: LearningRun, directory: Path, log: InteractionLog, seed: int, teacher: str, console: Console) -> Row:
    embedding, quantiser, recipe, sasrec_recipe = _recipes(run, seed, teacher)
    split = leave_one_out(log) if run.fit_on == "train" else leave_one_out(log).with_valid()
    seconds: dict[str, float] = {}
    with console.status("") as status:

        def say(what: str, done: float) -> None:
            status.update(f"{directory.name}, seed {seed}: {what}, {done:.0%}")

        fitted = fit_sids(log.items, split.train, embedding=embedding, quantiser=quantiser, seed=seed, progress=say)
        place: dict[str, Any] = {}

        def training(moment: Any) -> None:
            place.update(steps=moment.step, epochs=round(moment.epochs, 2), loss=round(moment.loss, 4))
            seconds["model"] = round(moment.seconds, 1)
            say("training the model", moment.share)

        columns = text_columns(log.items)
        memory = tune_memory(fit_memory(log, split.train, columns), split)
        options = TrainOptions(progress=training, memory=memory, code_vectors=fitted.code_vectors)
        model = train(log, split, fitted.table, recipe, options=options)
        trie = Trie.build(fitted.table.codes, codebook_sizes=fitted.table.codebook_sizes, item_ids=log.item_ids)
        memory.fusion = fit_fusion(model, trie, log, split, memory)
        baselines: dict[str, ScoreFn] = transition_baselines(memory, split.train)
        sasrec_measured: dict[str, float] = {}
        if run.fit_on == "train" and teacher == "memory":  # SASRec stops by validation items, and has no teacher
            sasrec, sasrec_measured = fit_sasrec(
                split, log.num_items, sasrec_recipe, progress=lambda done, _, __: say("training SASRec", done)
            )
            baselines["sasrec"] = sasrec_scores(sasrec)
            sasrec_measured["parameters"] = _size(sasrec)
        if columns:
            baselines["text"] = text_neighbours(text_vectors(log.items, columns, dims=embedding.text_dims, seed=seed))
        report = evaluate(
            model,
            trie,
            log,
            split,
            baselines=baselines,
            memory=memory,
            progress=lambda done, total: say("evaluating", done / total),
            config=EvaluationConfig(sample=QUICK_USERS if run.quick else None, unconstrained_users=100 if run.quick else 2000),
        )
    free = report.unconstrained
    return TABLE.row(
        {
            "data": directory.name,
            "seed": seed,
            "teacher": teacher,
            "fit_on": run.fit_on,
            "quick": run.quick,
            "users": report.users,
            "num_beams": report.num_beams,
            "scoring": report.scoring,
            "budget": str(recipe.budget),
            "sasrec": {**asdict(sasrec_recipe), "differs": "batches of one length, not padded; else as published"},
            "codebook_sizes": fitted.table.codebook_sizes,
            "threads": recipe.threads,
            "note": run.note,
        },
        {
            "methods": {
                f"{_ROW_NAMES.get(name, name)}{end}": as_dict(getattr(ranking, how_seen))
                for name, ranking in report.rankings.items()
                for end, how_seen in _SEEN.items()
            },
            "invalid": None if free is None else asdict(free.invalid),
            "split": asdict(split.report),
            "train": {**place, "parameters": sum(weight.numel() for weight in model.parameters())},
            "sasrec_train": {name: round(value, 4) for name, value in sasrec_measured.items()},
            "sids": {"distinct": fitted.report.distinct_sids, "colliding": fitted.report.colliding_items},
            "seconds": seconds,
        },
    )


def _loss_of(sasrec: dict[str, Any]) -> str:
    """The loss in words; rows before 2026-11-23 have "loss" (one negative a target)."""
    return f"{sasrec['loss']} loss" if "loss" in sasrec else f"softmax over {sasrec['negatives']:,} negatives"


def _size(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _by_data(rows: list[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        at = row["parameters"]
        fitted = " (fitted on train and valid)" if at.get("fit_on") == "train+valid" else ""
        taught = "" if (teacher := at["teacher"]) == "memory" else f" (teacher: {teacher})"
        groups.setdefault(f"{at['data']}{fitted}{taught}", []).append(row)
    return groups


def _show(console: Console, rows: list[Row]) -> None:
    for data, group in _by_data(rows).items():
        at, measured = group[0]["parameters"], group[0]["measured"]
        seeds = "1 seed" if len(group) == 1 else f"{len(group)} seeds"
        title = f"{data}: {at['users']:,} users, all items ranked, {at['num_beams']} beams, {seeds}; percent"
        table = Table(title=title, title_justify="left")
        for name in ("", "Recall@5", "NDCG@5", "Recall@10", "NDCG@10"):
            table.add_column(name, justify="right" if name else "left")
        for method, label in _OURS.items():
            found = [row["measured"]["methods"][method] for row in group if method in row["measured"]["methods"]]
            if found:
                cells = [percent(pooled([one[name] for one in found])) for name in _FIGURES]
                table.add_row(label, *cells, style="bold" if method.startswith("leafbeam") else "")
        for label, figures in published(data).items():
            table.add_row(f"[dim]{label}[/]", *(f"{100 * figure:.2f}" for figure in figures))
        console.print(table)
        sasrec, trained = at["sasrec"], measured["sasrec_train"]
        ours = (
            f"leafbeam: {measured['train']['parameters']:,} parameters, {at['budget']} ({measured['train']['epochs']} epochs)"
        )
        peer = ""
        if trained:  # nothing is left to stop SASRec by where validation items are trained on
            peer = (
                f" SASRec here: {_loss_of(sasrec)}, {sasrec['hidden']} dimensions, {sasrec['layers']} layers, "
                f"{trained['epochs']:.0f} epochs in {trained['seconds']:.0f} s; {sasrec['differs']}."
            )
        console.print(f"{ours} on one thread.{peer}{' ' + at['note'] if at['note'] else ''}")
    console.print(SOURCES)


def _draw(rows: list[Row]) -> Figure:
    groups = _by_data(rows)
    figure, panels = new_figure(len(groups), width=4.8, height=3.6)
    for axes, (data, group) in zip(panels, groups.items(), strict=True):
        bars: list[tuple[str, float, float, str]] = []
        for method, label in _NAMES.items():
            found = [one for row in group if (one := row["measured"]["methods"].get(f"{method}_unseen"))]
            if found:
                mean, error = pooled([one["recall_10"] for one in found])
                bars.append((label, mean, error, "#1f7a4a" if method in SERVED or method == "leafbeam" else "#66b88a"))
        bars += [(f"{label}, published", figures[2], 0.0, "#d9822b") for label, figures in published(data).items()]
        labels, means, errors, colours = zip(*bars, strict=True)
        axes.barh(range(len(bars)), [100 * mean for mean in means], xerr=[100 * error for error in errors], color=colours)
        axes.set_yticks(range(len(bars)), labels, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("Recall@10, percent")
        axes.set_title(data, fontsize=10, loc="left")
    figure.suptitle(
        "TIGER, Table 1, seen items removed (dark green: leafbeam; orange: published)",
        fontsize=10,
    )
    return figure


TABLE = LearningTable(name="tiger-table-1", title="the next item", rows=_rows, show=_show, draw=_draw)
