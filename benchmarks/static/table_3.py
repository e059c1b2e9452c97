"""STATIC's Table 3: recommending items that are new (section 6), with the ways to do it that the paper leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.drawing import new_figure
from benchmarks.learning import NO_TEACHER, LearningRun, LearningTable, Row, as_dict, percent, pooled
from benchmarks.studies.cold_split import ColdSplit, cold_split
from benchmarks.studies.cold_start_study import METHODS, ColdStudy, study_cold_start
from benchmarks.studies.retriever import DenseRecipe
from benchmarks.studies.text_teacher import TeacherRecipe
from leafbeam.semid import EmbeddingConfig, QuantiserConfig, RqVaeConfig
from leafbeam.train import Budget, EvaluationSet, InteractionLog, LogRules, RankingMetrics, Recipe, load_log

__all__ = ["HEADLINE", "SIDS", "TABLE", "TEACHERS", "paper_of"]

# Semantic IDs: the paper's, residual k-means of the same sizes, and leafbeam's own with co-occurrence (all rows of before).
SIDS: dict[str, tuple[QuantiserConfig, EmbeddingConfig]] = {
    "rqvae": (QuantiserConfig(method="rqvae", codebook_sizes=(256,) * 4), EmbeddingConfig(behaviour_dims=0)),
    "kmeans": (QuantiserConfig(codebook_sizes=(256,) * 4), EmbeddingConfig(behaviour_dims=0)),
    "leafbeam": (QuantiserConfig(), EmbeddingConfig()),
}
# What the model learns from beside clicks: nothing, as the paper's; the item memory without texts; a retriever over text too.
TEACHERS: dict[str, TeacherRecipe | None] = {"none": None, "memory": None, "text": TeacherRecipe()}

# STATIC, Table 3: Recall@1, percent. The model has 10^9 parameters, SIDs of 4 x 256 codes, 20 beams.
PAPER: dict[str, dict[float, dict[str, float]]] = {
    "beauty": {
        0.02: {"unconstrained": 0.00, "random": 0.42, "trie_full": 4.29},
        0.05: {"unconstrained": 0.00, "random": 0.17, "trie_full": 1.60},
    },
    "sports": {
        0.02: {"unconstrained": 0.00, "random": 0.27, "trie_full": 1.24},
        0.05: {"unconstrained": 0.00, "random": 0.11, "trie_full": 1.17},
    },
    "toys": {
        0.02: {"unconstrained": 0.00, "random": 0.42, "trie_full": 4.39},
        0.05: {"unconstrained": 0.00, "random": 0.17, "trie_full": 2.25},
    },
}
_RECALLS = ("recall_1", "recall_5", "recall_10")
_OWN_SIDS, _OWN_TEACHERS = ("rqvae", "kmeans"), ("none", "text")
_NEWEST = {"test": "newest", "valid": "next newest"}  # the cold items of each part
HEADLINE = ("trie_full", "trie_allowed")
"""Constrained decoding alone, as the paper has it: everything else is an extra."""


def paper_of(data: str, share: float) -> dict[str, float]:
    """The paper's Recall@1 by method, empty for data or a share that it does not have."""
    name = next((name for name in PAPER if name in data.lower()), "")
    return PAPER.get(name, {}).get(round(share, 4), {})


def _study(run: LearningRun, seed: int, sids: str, teacher: str) -> ColdStudy:
    """The settings of the full table, or of a quick look: fewer codes, dimensions, passes and users."""
    (quantiser, embedding), taught = SIDS[sids], TEACHERS[teacher]
    untaught = NO_TEACHER if teacher == "none" else {}
    if run.quick:
        rqvae = RqVaeConfig(steps=60, hidden=64, latent=16) if quantiser.method == "rqvae" else None
        return ColdStudy(
            recipe=Recipe(
                budget=Budget(steps=100),
                seed=seed,
                hidden_size=64,
                intermediate_size=128,
                head_dim=16,
                validation_users=100,
                **untaught,
            ),
            embedding=replace(embedding, text_dims=48, behaviour_dims=min(24, embedding.behaviour_dims)),
            quantiser=replace(quantiser, codebook_sizes=(32, 32), rqvae=rqvae),
            teacher=taught,
            dense=DenseRecipe(epochs=1, seed=seed, negatives=128),
            retrievers=1,
            text_dims=96,
            seed=seed,
        )
    # With a teacher new draws take the place of passes, and a model that imitates needs less dropout (log.md, 2026-11-25).
    recipe = Recipe(budget=run.budget(Budget(epochs=8)), seed=seed, **untaught)
    if taught is not None:
        recipe = replace(recipe, budget=run.budget(Budget(epochs=1)), dropout=0.1)
    return ColdStudy(
        recipe=recipe,
        embedding=embedding,
        quantiser=quantiser,
        teacher=taught,
        dense=DenseRecipe(seed=seed),
        seed=seed,
    )


def _rows(run: LearningRun, console: Console, keep: Callable[[Row], None]) -> list[Row]:
    rows: list[Row] = []
    for directory in run.data:
        log = load_log(directory, rules=LogRules(unseen="drop"))
        for share in run.shares:
            split = cold_split(log, share=share, part=run.part)
            if run.quick:
                split = _fewer(split, 400)
            for seed, sids, teacher in product(run.seeds_run, run.sids or _OWN_SIDS, run.teachers or _OWN_TEACHERS):
                study = _study(run, seed, sids, teacher)
                at = {
                    "data": directory.name,
                    "share": share,
                    "part": run.part,
                    "seed": seed,
                    "sids": sids,
                    "teacher": teacher,
                    "quick": run.quick,
                }
                row = _row(at | {"note": run.note}, log, split, study, console)
                keep(row)
                rows.append(row)
    return rows


def _row(at: dict[str, Any], log: InteractionLog, split: ColdSplit, study: ColdStudy, console: Console) -> Row:
    name = f"{at['data']}, {at['share']:.0%} ({at['part']}), seed {at['seed']}, SIDs {at['sids']}, teacher {at['teacher']}"
    with console.status(name) as status:

        def progress(what: str, done: float) -> None:
            status.update(f"{name}: {what}, {done:.0%}")

        result = study_cold_start(log, split, study, progress=progress)
    parameters = at | {
        "num_beams": study.num_beams,
        "budget": str(study.recipe.budget),
        "dropout": study.recipe.dropout,
        "dense_epochs": study.dense.epochs,
        "retrievers": study.retrievers,
        "fusion": asdict(study.fusion),
        "threads": study.recipe.threads,
    }
    if study.teacher is not None:
        parameters["taught"] = asdict(study.teacher)
    measured = {
        "split": asdict(result.report),
        "methods": {name: {part: as_dict(scores) for part, scores in parts.items()} for name, parts in result.table().items()},
        "seen_kept": {name: as_dict(RankingMetrics.from_ranks(ranks_U)) for name, ranks_U in result.ranks_seen_kept.items()},
        "search": asdict(result.choice),
        "seconds": result.seconds,
        "parameters": result.parameters,
    }
    return TABLE.row(parameters, measured)


def _fewer(split: ColdSplit, users: int) -> ColdSplit:
    """The same split with a sample of its test users."""
    eval_set = split.eval_set
    if len(eval_set.users) <= users:
        return split
    indices = np.sort(np.random.default_rng(0).choice(len(eval_set.users), users, replace=False))
    return replace(
        split,
        eval_set=EvaluationSet(
            users=eval_set.users[indices],
            histories=eval_set.histories.select(indices),
            targets_U=eval_set.targets_U[indices],
        ),
        another_cold_U=split.another_cold_U[indices],
    )


_Group = tuple[str, float, str, str, str]  # data set, share, Semantic IDs, teacher, part


def _groups(rows: list[Row]) -> dict[_Group, list[Row]]:
    groups: dict[_Group, list[Row]] = {}
    for row in rows:
        at = row["parameters"]
        kind = at.get("sids", "leafbeam"), at.get("teacher", "none"), at.get("part", "test")
        groups.setdefault((at["data"], at["share"], *kind), []).append(row)
    return groups


def _show(console: Console, rows: list[Row]) -> None:
    for (data, share, sids, teacher, part), group in _groups(rows).items():
        split, paper = group[0]["measured"]["split"], paper_of(data, share) if part == "test" else {}
        title = (
            f"{data}, the {_NEWEST[part]} {share:.0%}, SIDs {sids}, teacher {teacher}: {split['cold_items']:,} cold items, "
            f"{split['test_users']:,} users "
            f"({split['test_users_with_another_cold_item']:,} with another cold item before), "
            f"{split['train_users']:,} users to train on, {len(group)} seeds; percent ± standard error"
        )
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for name in ("Recall@1", "@5", "@10", "the paper's @1", "no other cold item: @1", "@10", "seen items kept: @1", "@10"):
            table.add_column(name, justify="right")
        for method in (*HEADLINE, *(name for name in METHODS if name not in HEADLINE)):
            label = METHODS[method]
            if not all(method in row["measured"]["methods"] for row in group):  # rows of before the method
                continue
            found = [row["measured"]["methods"][method] for row in group]
            cells = [percent(pooled([one["all"][name] for one in found])) for name in _RECALLS]
            cells.append(f"{paper[method]:.2f}" if method in paper else "")
            alone = [one["alone"] for one in found if "alone" in one]
            cells += [percent(pooled([one[name] for one in alone])) if alone else "" for name in ("recall_1", "recall_10")]
            kept = [row["measured"]["seen_kept"][method] for row in group if method in row["measured"]["seen_kept"]]
            cells += [percent(pooled([one[name] for one in kept])) if kept else "" for name in ("recall_1", "recall_10")]
            table.add_row(label, *cells, style="bold" if method in HEADLINE else "")
        console.print(table)
        note = group[0]["parameters"]["note"]
        console.print(
            f"{group[0]['parameters']['budget']} of training a model, {group[0]['parameters']['dense_epochs']} epochs the "
            f"retriever; {group[0]['measured']['search']['exact_rows']:,} rows a user score every cold item, a beam search "
            f"reads {group[0]['measured']['search']['beam_rows']:,}.{' ' + note if note else ''}"
        )
    console.print(
        "Items that a user already has are no answers, except in the last two columns (nobody takes an item twice in these "
        "sets). The first two lines are the model alone, as in the paper; retriever, text and hybrid are extras. The paper's "
        'STATIC row is a model of 10^9 parameters; it does not say whether it removes seen items. With the teacher "text" the '
        "model also learned, before the test, which cold items a retriever over text draws for training histories: it knows "
        "their texts and codes, and no interaction of them. Every setting was chosen on validation items. Sports and Toys "
        "have keywords for text and nothing else."
    )


def _draw(rows: list[Row]) -> Figure:
    groups = _groups(rows)
    figure, panels = new_figure(len(groups), width=4.6, height=3.6, columns=2)
    names = [
        name
        for name in METHODS
        if name not in ("unconstrained", "catalog") and any(name in row["measured"]["methods"] for row in rows)
    ]
    for number, (axes, ((data, share, sids, teacher, part), group)) in enumerate(zip(panels, groups.items(), strict=True)):
        for offset, recall, colour in ((-0.2, "recall_1", "#1f7a4a"), (0.2, "recall_10", "#3b82b8")):
            found = {place: [row["measured"]["methods"].get(name) for row in group] for place, name in enumerate(names)}
            found = {place: [one["all"][recall] for one in each] for place, each in found.items() if None not in each}
            values = [pooled(each) for each in found.values()]
            axes.barh(
                [place + offset for place in found],
                [100 * mean for mean, _ in values],
                height=0.38,
                xerr=[100 * error for _, error in values],
                color=colour,
                label=recall.replace("recall_", "Recall@"),
            )
        paper = paper_of(data, share) if part == "test" else {}
        if "trie_full" in paper:
            axes.axvline(paper["trie_full"], color="#d9822b", ls="--", lw=1.2, label="STATIC's Recall@1, 10^9 parameters")
        axes.set_yticks(range(len(names)), [METHODS[name] for name in names] if number % 2 == 0 else [""] * len(names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("percent of users")
        kind = "" if (sids, teacher) == ("leafbeam", "none") else f": {sids}, teacher {teacher}"
        axes.set_title(
            f"{data.removeprefix('amazon_')}, {_NEWEST[part]} {share:.0%}{kind}",
            fontsize=10,
            loc="left",
        )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle("STATIC, Table 3: recommending new items", fontsize=11)
    return figure


TABLE = LearningTable(name="static-table-3", title="recommending new items", rows=_rows, show=_show, draw=_draw)
