"""What other ways to obey a rule lose: answers of an exact search that they miss, and answers that are no item or forbidden.

    truth      the answers of leafbeam's search under the rule; best: the highest scores of all allowed items, scored one by one
    lost       share of the truth that a method does not return; lost_best: share of as many best items
    dead       share of the truth's places in which it ends without an answer
    no_item    share of its answers that are no item; forbidden: share that the rule does not allow
    certain    share of the truth's places whose items leafbeam's search knows to be the best (`SearchResult.num_exact`)

"served" is the search as an engine runs it, with as many beams as the proof of the best items needs.

Methods of the search have an index of the allowed items alone, which is their best form: none of them takes a rule by request.

Shapes: B requests, K beams, V codes, L levels, N items, M allowed items, D values of an item's vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.drawing import new_figure
from benchmarks.learning import LearningRun, LearningTable, Row, rounded
from benchmarks.peers.cpu_trie import CpuTrie
from benchmarks.peers.hash_bitmap import HashBitmap
from benchmarks.peers.masked_search import Masked, masked_search
from benchmarks.peers.ppv import Ppv
from benchmarks.peers.unconstrained import Unconstrained
from benchmarks.studies.exact_scoring import ExactScoring
from leafbeam.decode import BeamSearch
from leafbeam.decode.model_calls import StepFn
from leafbeam.engine import Settings
from leafbeam.index import Filter, Trie
from leafbeam.semid import CodeVectors, EmbeddingConfig, QuantiserConfig, SidTable, fit_sids, text_columns, text_vectors
from leafbeam.train import Budget, InteractionLog, Recipe, Split, TrainOptions, leave_one_out, load_log, train
from leafbeam.train.evaluation import EvaluationSet
from leafbeam.train.metrics import Estimate

__all__ = ["LABELS", "TABLE"]

SERVED = "served"
LABELS = {
    "leafbeam": "leafbeam",
    SERVED: "leafbeam, as served",
    "top_k_then_mask": "top K, then mask (FlashRec)",
    "last_level": "ban at the last code (RTP-LLM)",
    "post_filter": "search freely, filter afterwards",
    "post_filter_10": "ten times the beams, filter afterwards",
    "ppv_approximate": "PPV, 50 candidates a beam",
    "hash_bitmap": "hash bitmap, 2^30 bits",
    "nearest": "nearest neighbours, filter afterwards",
    "nearest_10": "ten times the neighbours, filter afterwards",
}
NEAREST = ("nearest", "nearest_10")  # not of a model: counted against the nearest allowed items
_STYLES = (
    ("#1f7a4a", "o"),
    ("#5fae84", "s"),
    ("#b5541c", "D"),
    ("#b03a48", "v"),
    ("#d98a94", "^"),
    ("#7b5ea7", "P"),
    ("#3b82b8", "X"),
    ("#8a8f8c", "<"),
)
SHARES = (1.0, 0.1, 0.01, 0.001)
BEAMS = (10, 20, 128)
_SIDS = {"leafbeam": QuantiserConfig(), "TIGER": QuantiserConfig(codebook_sizes=(256, 256, 256), collision_strategy="level")}
_MOST_BEAMS = 512  # of one search: ten times more would be half of the catalog
_MORE = 10  # times the beams or neighbours of a search that is filtered afterwards
_USERS, _QUICK_USERS, _BATCH = 100, 16, 4


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bench:
    """A model over Semantic IDs, its index, and the users that are asked for: searches of a few users each.

    keys_N: each item's SID as one number. scores_UN: of every item. queries_UD, units_ND: vectors of last items and of items.
    """

    searches: list[tuple[StepFn, int]]
    trie: Trie
    codes_NL: NDArray[np.int64]
    keys_N: NDArray[np.int64]
    scores_UN: NDArray[np.float32]
    queries_UD: NDArray[np.float32]
    units_ND: NDArray[np.float32]


def _rows(run: LearningRun, console: Console, keep: Callable[[Row], None]) -> list[Row]:
    rows: list[Row] = []
    for directory in run.data:
        log = load_log(directory)
        split = leave_one_out(log)
        for seed in run.seeds_run:
            for name, quantiser in _SIDS.items():
                with console.status(f"{directory.name}, seed {seed}, SIDs of {name}"):
                    rows.append(_row(run, directory, log, split, seed, name, quantiser))
                keep(rows[-1])
    return rows


def _row(
    run: LearningRun, directory: Path, log: InteractionLog, split: Split, seed: int, name: str, quantiser: QuantiserConfig
) -> Row:
    embedding, recipe = EmbeddingConfig(), Recipe(budget=run.budget(Budget(epochs=8)), seed=seed)
    if run.quick:
        embedding = EmbeddingConfig(text_dims=48, behaviour_dims=24)
        sizes = (64,) if name == "leafbeam" else (32, 32)
        quantiser = replace(quantiser, codebook_sizes=sizes)
        recipe = replace(recipe, budget=Budget(steps=100), hidden_size=64, intermediate_size=128, head_dim=16)
    fitted = fit_sids(log.items, split.train, embedding=embedding, quantiser=quantiser, seed=seed)
    bench = _bench(log, split, fitted.table, fitted.code_vectors, recipe, embedding, _QUICK_USERS if run.quick else _USERS)
    rng = np.random.default_rng(seed)
    by_method: dict[str, dict[str, dict[str, Any]]] = {}
    for share in SHARES:
        allowed_N = rng.random(log.num_items) < share
        allowed_N[0] = True
        for num_beams, found in _under_rule(bench, allowed_N):
            for method, estimates in found.items():
                by_method.setdefault(method, {}).setdefault(str(num_beams), {})[f"{share:g}"] = estimates
    return TABLE.row(
        {
            "data": directory.name,
            "sids": name,
            "codebook_sizes": fitted.table.codebook_sizes,
            "seed": seed,
            "quick": run.quick,
            "users": len(bench.scores_UN),
            "items": log.num_items,
            "budget": str(recipe.budget),
            "note": run.note,
        },
        {"by_method": by_method},
    )


def _bench(
    log: InteractionLog,
    split: Split,
    table: SidTable,
    code_vectors: CodeVectors | None,
    recipe: Recipe,
    embedding: EmbeddingConfig,
    users: int,
) -> _Bench:
    model = train(log, split, table, recipe, options=TrainOptions(code_vectors=code_vectors)).eval()
    trie = Trie.build(table.codes, codebook_sizes=table.codebook_sizes, item_ids=log.item_ids)
    codes_NL = np.asarray(trie.codes_of(log.item_ids), np.int64)
    asked = EvaluationSet.from_split(split, "test", sample=users, seed=recipe.seed)
    searches: list[tuple[StepFn, int]] = []
    exact, scores = ExactScoring(trie, log.item_ids), list[NDArray[np.float32]]()
    for first in range(0, len(asked.users), _BATCH):
        chosen = range(first, min(first + _BATCH, len(asked.users)))
        prompts = model.vocabulary.prompts([codes_NL[asked.histories[user][-recipe.max_items :]] for user in chosen])
        session = model.start(*(torch.as_tensor(array) for array in prompts))
        searches.append((session.step_fn, len(chosen)))
        scores.append(exact.run(session.step_fn, len(chosen)))
    units_ND = text_vectors(log.items, text_columns(log.items), dims=embedding.text_dims, seed=recipe.seed)
    return _Bench(
        searches=searches,
        trie=trie,
        codes_NL=codes_NL,
        keys_N=_keys(codes_NL, trie),
        scores_UN=np.concatenate(scores),
        queries_UD=units_ND[asked.histories.items_E[asked.histories.indptr_U1[1:] - 1]],
        units_ND=units_ND,
    )


def _under_rule(bench: _Bench, allowed_N: NDArray[np.bool_]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(beams, estimates by method) under one rule."""
    rule, masks = bench.trie.filter(allowed_N), _masks(bench, allowed_N)
    allowed = bench.keys_N[allowed_N]
    for num_beams in BEAMS:
        counts: dict[str, dict[str, list[float]]] = {name: {} for name in LABELS}
        user = 0
        for step_fn, size in bench.searches:
            truth = BeamSearch(bench.trie, num_beams=num_beams).run(step_fn, batch_size=size, filters=rule)
            found = dict(_answers(bench, masks, step_fn, size, num_beams))
            found[SERVED] = _served(bench, rule, step_fn, size, num_beams)
            for row, number in enumerate(truth.num_valid):
                true = _keys(np.asarray(truth.codes)[row, :number], bench.trie)
                np.testing.assert_allclose(truth.scores[row, :number], found["exact"][row].scores_K, atol=1e-3)
                order_M = np.argsort(-bench.scores_UN[user, allowed_N], kind="stable")
                best = allowed[order_M[:number]]
                answers = {"leafbeam": true} | {name: found[name][row].keys_K for name in found if name in LABELS}
                for name, keys_K in answers.items():
                    _add(counts[name], _outcome(keys_K, true, best, bench.keys_N, allowed, num_beams))
                certain = found[SERVED][row].num_certain
                _add(counts[SERVED], {"certain": certain / max(1, number)})
                expected_M = bench.scores_UN[user, allowed_N][order_M[:certain]]
                np.testing.assert_allclose(found[SERVED][row].scores_K[:certain], expected_M, atol=1e-3)
                user += 1
        for name, factor in (("nearest", 1), ("nearest_10", _MORE)):
            for query_D in bench.queries_UD:
                _add(counts[name], {"lost": _nearest_lost(bench.units_ND @ query_D, allowed_N, num_beams, factor)})
        estimates = {
            name: {what: rounded(Estimate.from_values(np.array(values))) for what, values in by_user.items()}
            for name, by_user in counts.items()
        }
        yield num_beams, {name: found for name, found in estimates.items() if found}


def _add(counts: dict[str, list[float]], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        counts.setdefault(name, []).append(value)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Answers:
    """What a search ends with for one request, best first: SIDs as numbers, their scores, and how many are surely the best."""

    keys_K: NDArray[np.int64]
    scores_K: NDArray[np.float32]
    num_certain: int = 0


def _masks(bench: _Bench, allowed_N: NDArray[np.bool_]) -> dict[str, Masked]:
    """The methods of the search, each with an index of the allowed items."""
    allowed_ML = np.unique(bench.codes_NL[allowed_N], axis=0)
    codes_LM = np.ascontiguousarray(allowed_ML.T.astype(np.int32))
    exact = CpuTrie.of_sorted(codes_LM, [len(allowed_ML)] * len(codes_LM))
    return {
        "exact": Masked(peer=exact, when="before"),
        "top_k_then_mask": Masked(peer=exact, when="after"),
        "last_level": Masked(peer=exact, when="last"),
        "post_filter": Masked(peer=Unconstrained(), when="never"),
        "ppv_approximate": Masked(peer=Ppv.of_sorted(codes_LM, num_candidates=50), when="before"),
        "hash_bitmap": Masked(peer=HashBitmap.of_sorted(codes_LM), when="before"),
    }


def _answers(
    bench: _Bench, masks: dict[str, Masked], step_fn: StepFn, size: int, num_beams: int
) -> Iterator[tuple[str, list[_Answers]]]:
    """(method, the answers of each request)."""
    searches = {name: (mask, num_beams) for name, mask in masks.items()}
    if num_beams * _MORE <= _MOST_BEAMS:
        searches["post_filter_10"] = masks["post_filter"], num_beams * _MORE
    for name, (mask, width) in searches.items():
        codes_BKL, scores_BK = masked_search(mask, step_fn, batch_size=size, num_levels=bench.trie.num_levels, num_beams=width)
        live_BK = scores_BK > -np.inf
        yield (
            name,
            [
                _Answers(keys_K=_keys(codes_BKL[row][live_BK[row]], bench.trie), scores_K=scores_BK[row][live_BK[row]])
                for row in range(size)
            ],
        )


def _served(bench: _Bench, rule: Filter, step_fn: StepFn, size: int, num_beams: int) -> list[_Answers]:
    """The answers of the search as an engine runs it: proved, unless that takes more rows than its settings allow."""
    search = BeamSearch(bench.trie, num_items=num_beams, max_rows=Settings().max_rows)
    result = search.run(step_fn, size, rule)
    assert result.num_exact is not None
    return [
        _Answers(
            keys_K=_keys(np.asarray(result.codes)[row, :number], bench.trie),
            scores_K=result.scores[row, :number],
            num_certain=int(result.num_exact[row]),
        )
        for row, number in enumerate(result.num_valid)
    ]


def _keys(codes_KL: NDArray[Any], trie: Trie) -> NDArray[np.int64]:
    """Each SID as one number."""
    return np.asarray(np.ravel_multi_index(tuple(np.asarray(codes_KL, np.int64).T), trie.codebook_sizes), np.int64)


def _outcome(
    answers: NDArray[np.int64],
    true: NDArray[np.int64],
    best: NDArray[np.int64],
    items: NDArray[np.int64],
    allowed: NDArray[np.int64],
    num_beams: int,
) -> dict[str, float]:
    """Of a request; a wider search keeps the first `num_beams` allowed answers."""
    kept = answers[np.isin(answers, allowed)][:num_beams]
    is_item, number = np.isin(answers, items), max(1, len(answers))
    return {
        "lost": 1 - float(np.isin(true, kept).mean()),
        "lost_best": 1 - float(np.isin(best, kept).mean()),
        "dead": max(0.0, 1 - len(answers) / len(true)),
        "no_item": float((~is_item).sum()) / number,
        "forbidden": float((is_item & ~np.isin(answers, allowed)).sum()) / number,
    }


def _nearest_lost(similarity_N: NDArray[np.float32], allowed_N: NDArray[np.bool_], number: int, factor: int) -> float:
    """Share of the nearest allowed items that are not among `factor` times as many nearest of all."""
    order_N = np.argsort(-similarity_N, kind="stable")
    true = order_N[allowed_N[order_N]][:number]
    return 1 - float(np.isin(true, order_N[: number * factor]).mean())


def _show(console: Console, rows: list[Row]) -> None:
    for row in rows:
        at, by_method = row["parameters"], row["measured"]["by_method"]
        sizes = "x".join(map(str, at["codebook_sizes"]))
        for num_beams in BEAMS:
            title = f"{at['data']}, SIDs of {at['sids']} ({sizes}), {num_beams} beams: percent of the best not found"
            table = Table(title=title, title_justify="left")
            table.add_column("")
            for share in SHARES:
                table.add_column(f"{100 * share:g} %", justify="right")
            for name, label in LABELS.items():
                found = by_method.get(name, {}).get(str(num_beams))
                if found and name not in NEAREST:
                    table.add_row(label, *(f"{100 * found[f'{share:g}']['lost_best']['mean']:.1f}" for share in SHARES))
            console.print(table)


def _draw(rows: list[Row]) -> Figure:
    figure, panels = new_figure(len(rows) * len(BEAMS), columns=len(BEAMS), width=4.2, height=3.2)
    for axes, (row, num_beams) in zip(panels, product(rows, BEAMS), strict=True):
        at, by_method = row["parameters"], row["measured"]["by_method"]
        labels = {name: label for name, label in LABELS.items() if name not in NEAREST}
        for (name, label), (colour, marker) in zip(labels.items(), _STYLES, strict=True):
            found = by_method[name].get(str(num_beams))
            if not found:
                continue
            x = [100 * share for share in SHARES]
            y = [100 * found[f"{share:g}"]["lost_best"]["mean"] for share in SHARES]
            above = {"leafbeam": 4, SERVED: 4, "hash_bitmap": 5}.get(name, 3)  # the first and the last find the same
            thick, dots = (3 if name in ("leafbeam", SERVED) else 1.5), (":" if name == "hash_bitmap" else "-")
            (line,) = axes.plot(x, y, label=label, color=colour, marker=marker, markersize=5, zorder=above, clip_on=False)
            line.set(linewidth=thick, linestyle=dots)
        axes.set_xscale("log")
        axes.set_xticks([100 * share for share in SHARES], [f"{100 * share:g}" for share in SHARES])
        axes.invert_xaxis()
        axes.set_ylim(0, 100)
        axes.set_xlabel("items that the rule allows, percent")
        axes.set_ylabel("not found, percent")
        axes.set_title(f"SIDs of {at['sids']}, {num_beams} beams", fontsize=10, loc="left")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, loc="outside lower center", ncols=3)
    figure.suptitle("Of the best allowed items under a rule, not found, with as many beams as items", fontsize=10)
    return figure


TABLE = LearningTable(name="exactness", title="what other ways lose", rows=_rows, show=_show, draw=_draw)
