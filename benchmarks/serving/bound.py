"""Searches that prove their answers, beside beam searches of a fixed width, with and without rules.

The demo's trained model and its users' histories, or those of a data set, both ways in turns. A fixed search has 20 beams
without a rule, or as many as items, and 128 under one; 50 and 100 items are also found by the narrowest search that misses less
than 0.5 %. Its last level runs first the beams that recent searches needed, which is its best form. Rows count what the model
computes: the prompt, and every live beam of every level. Then how many of the best items each width finds, for how many rows.

Larger catalogs and a larger model have random codes and weights (`synthetic`), not trained ones. Their logits are scaled so
that a level's codes are as uncertain as those of the demo's model. The scoring is "allowed" there, because an untrained model
does not know which codes an item may have.

Shapes: B requests, L levels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.drawing import new_figure
from benchmarks.rows import Row, spread
from benchmarks.serving.load_run import POSITIONS, LoadRun, small_qwen3
from benchmarks.static.inference import MODELS
from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.engine import Settings
from leafbeam.engine.search_widths import SearchKind, SearchWidths
from leafbeam.index import Filter, Trie, Version
from leafbeam.model import ModelConfig, Transformer, Vocabulary, Workspace
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.constrain import Scoring

__all__ = ["Bench", "Measured", "draw", "measure", "measure_widths", "runs", "runs_of_data", "synthetic"]

_HISTORY = 12  # items
_WARM = 24  # batches from which widths are learnt before the clock runs
_MAX_ROWS = Settings().max_rows
Measured = tuple[dict[str, Any], dict[str, Any]]


def runs(quick: bool) -> Iterator[Measured]:
    """A row for each batch size, share of allowed items and length of the answer; then rows of recall by width."""
    run = LoadRun.demo(quick)
    shares, batches = ((1.0, 0.1), 10) if quick else ((1.0, 0.5, 0.1, 0.01), 100)
    with torch_threads(1):
        for share in shares:
            for batch in (1, 4) if quick else (1, 4, 16):
                yield measure(run, share, batch, num_items=10, batches=batches)
            for num_items in (20,) if quick else (20, 50, 100):
                yield measure(run, share, 1, num_items=num_items, batches=batches)
            yield from beside_narrowest(run, share, quick)
            yield measure_widths(run, share, users=40 if quick else 200)
        for num_items, name in ((20_000, "small"),) if quick else ((10**6, "small"), (10**7, "small"), (10**6, "Qwen3-0.6B")):
            larger, count = synthetic(run, num_items, name), 10 if quick else 30 if name == "Qwen3-0.6B" else 60
            for share in (1.0,) if quick else (1.0, 0.1):
                yield measure(larger, share, 1, num_items=10, batches=count, weights=name)


def runs_of_data(quick: bool, data: Path) -> Iterator[Measured]:
    """A row for each batch size and share of allowed items of a data set, with a model trained for two minutes."""
    path = Path("runs") / f"bench-bound-{data.name}{'-quick' if quick else ''}"
    run = LoadRun.make(path, data, train_minutes=0.05 if quick else 2.0)
    with torch_threads(1):
        for share in (1.0, 0.1):
            for batch in (1, 4) if quick else (1, 4, 16):
                parameters, measured = measure(run, share, batch, num_items=10, batches=10 if quick else 100)
                yield {**parameters, "data": data.name}, measured
            for parameters, measured in beside_narrowest(run, share, quick):
                yield {**parameters, "data": data.name}, measured


def beside_narrowest(run: LoadRun, share: float, quick: bool) -> Iterator[Measured]:
    """Rows of long answers beside the narrowest beam search that misses less than 0.5 % of them."""
    for num_items in (20,) if quick else (50, 100):
        beams = narrowest(Bench(run=run, share=share, num_items=num_items), users=10 if quick else 100)
        parameters, measured = measure(run, share, 1, num_items=num_items, batches=10 if quick else 100, beams=beams)
        yield {**parameters, "what": "narrowest"}, measured


def narrowest(bench: Bench, users: int, most_missed: float = 0.005) -> int:
    """Return the smallest width, in steps of a fifth, that misses less than a share of the proved answers of some users."""
    learnt, prompts = SearchWidths(), [bench.prompts(1) for _ in range(users)]
    proofs = [bench.proof(prompt, learnt) for prompt in prompts]
    beams = bench.num_items
    while beams < bench.run.trie.num_items:
        found = [bench.fixed(prompt, beams).item_ids[0] for prompt in prompts]
        missed = [missing(proof.item_ids[0], items) for proof, items in zip(proofs, found, strict=True)]
        if np.mean(missed) < most_missed:
            break
        beams += beams // 5
    return beams


@dataclass(kw_only=True, eq=False)
class Bench:
    """A run, a rule that allows a share of its items, and the memory that both ways use."""

    run: LoadRun
    share: float
    num_items: int
    scoring: Scoring = "full"
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    workspace: Workspace = field(default_factory=Workspace)

    def __post_init__(self) -> None:
        trie = self.run.trie
        allowed_N = np.random.default_rng(1).random(trie.num_items) < self.share
        self.rule: Filter | None = None if self.share == 1 else trie.filter(allowed_N)
        version = Version.of(trie)
        item_filter = None if self.rule is None else version.filter_of([self.rule])
        self.kind = SearchKind.of(version, item_filter, self.num_items, self.scoring)

    def prompts(self, batch: int) -> list[NDArray[np.int64]]:
        """The SIDs of the histories of users drawn at random."""
        run = self.run
        users = self.rng.integers(len(run.histories), size=batch)
        return [run.trie.codes_at(run.leaves_of(run.histories[int(user)][-_HISTORY - 1 : -1])) for user in users]

    def new_search(self, **options: Any) -> BeamSearch:
        """Return a search of the run's index."""
        return BeamSearch(self.run.trie, scoring=self.scoring, **options)

    def search(self, prompts: list[NDArray[np.int64]], search: BeamSearch, widths: Any = None, **options: Any) -> SearchResult:
        """Run the prompts and a search. options: of `BeamSearch.run`."""
        tokens_BT, lengths_B = self.run.model.vocabulary.prompts(prompts)
        session = self.run.model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace=self.workspace)
        options = {"filters": self.rule} | options
        return search.run(session.step_fn, len(prompts), more_fn=session.more_fn, widths=widths, **options)

    def proof(self, prompts: list[NDArray[np.int64]], learnt: SearchWidths, **options: Any) -> SearchResult:
        """Search as an engine does, and learn from it. options: of `BeamSearch.run`."""
        widths = learnt.of(self.kind) or (self.kind.guess,) * (self.run.trie.num_levels - 1)
        result = self.search(prompts, self.new_search(num_items=self.num_items, max_rows=_MAX_ROWS), widths, **options)
        assert result.beams_needed is not None
        learnt.observe(self.kind, result.beams_needed)
        return result

    def fixed(self, prompts: list[NDArray[np.int64]], beams: int, learnt: SearchWidths | None = None) -> SearchResult:
        """Search with as many beams at every level but the last, whose first call runs as many as recent searches needed."""
        search = self.new_search(num_beams=[beams] * (self.run.trie.num_levels - 1) + [self.num_items])
        known = None if learnt is None else learnt.of(self.kind)
        result = self.search(prompts, search, known and (beams,) * (self.run.trie.num_levels - 2) + known)
        if learnt is not None:
            assert result.beams_needed is not None
            learnt.observe(self.kind, result.beams_needed[:, -1:])
        return result


def synthetic(like: LoadRun, num_items: int, name: str) -> LoadRun:
    """Return a catalog of random SIDs of four codes, a model of a size with random weights, and random histories."""
    rng, sizes = np.random.default_rng(2), [256] * 4 if num_items > 1e5 else [64] * 4
    trie = Trie.build(rng.integers(0, sizes, (num_items, 4), dtype=np.uint16), sizes)
    if name == "small":
        model = small_qwen3(sizes)
    else:
        vocabulary = Vocabulary(codebook_sizes=tuple(sizes))
        config = ModelConfig(vocab_size=vocabulary.size, max_position_embeddings=POSITIONS, **MODELS[name])
        model = Transformer(config, vocabulary).eval()
    histories = list(rng.integers(0, num_items, (200, _HISTORY + 1)))
    run = replace(like, trie=trie, model=model, histories=histories, item_ids=np.arange(num_items))
    wanted = [_uncertainty(logits_UV, 1.0) for logits_UV in _logits(like)]
    with torch.no_grad():
        for level, logits_UV in enumerate(_logits(run)):
            tokens_V = torch.from_numpy(model.vocabulary.level_tokens(level))
            model.head_weight[tokens_V] *= _scale(logits_UV, wanted[level])
    return replace(run, model=model.pack()) if name != "small" else run


def _logits(run: LoadRun) -> list[NDArray[np.float64]]:
    """Return the logits of each level for some users, [U, V], each after the most likely codes."""
    prompts = Bench(run=run, share=1.0, num_items=1).prompts(32)
    tokens_BT, lengths_B = run.model.vocabulary.prompts(prompts)
    session = run.model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B))
    levels = [session.step_fn()]
    for _ in range(1, run.trie.num_levels):
        code_B1 = levels[-1].argmax(-1, keepdim=True)
        levels.append(session.step_fn(code_B1, torch.zeros_like(code_B1))[:, 0])
    return [logits_UV.double().numpy() for logits_UV in levels]


def _uncertainty(logits_UV: NDArray[np.float64], scale: float) -> float:
    """Return the entropy of scaled logits, on average over users, as a share of the most that it can be."""
    scores_UV = scale * (logits_UV - logits_UV.max(1, keepdims=True))
    log_p_UV = scores_UV - np.log(np.exp(scores_UV).sum(1, keepdims=True))
    return float(-(np.exp(log_p_UV) * log_p_UV).sum(1).mean() / np.log(logits_UV.shape[1]))


def _scale(logits_UV: NDArray[np.float64], wanted: float) -> float:
    """Return the factor at which logits have an uncertainty, by bisection."""
    low, high = 1e-3, 1e3
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _uncertainty(logits_UV, middle) > wanted else (low, middle)
    return low


def measure(
    run: LoadRun,
    share: float,
    batch: int,
    *,
    num_items: int,
    batches: int,
    weights: str = "trained",
    beams: int | None = None,
) -> Measured:
    """Milliseconds of prompts and search both ways, rows of each request, and the share of the best items that beams miss."""
    scoring: Scoring = "full" if weights == "trained" else "allowed"
    bench = Bench(run=run, share=share, num_items=num_items, scoring=scoring)
    beams = beams or max(num_items, 20 if share == 1 else 128)
    proof_widths, beam_widths = SearchWidths(), SearchWidths()
    ways = {
        "beams": lambda prompts: bench.fixed(prompts, beams, beam_widths),
        "proof": lambda prompts: bench.proof(prompts, proof_widths),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    rows: dict[str, list[float]] = {name: [] for name in ways}
    missed, passes, proved = list[float](), list[int](), list[float]()
    for number in range(_WARM + batches):
        prompts, results = bench.prompts(batch), dict[str, SearchResult]()
        for name in sorted(ways, reverse=bool(number % 2)):  # each is as often the first to run a prompt
            began = time.perf_counter()
            results[name] = ways[name](prompts)
            if number >= _WARM:
                seconds[name].append(time.perf_counter() - began)
                rows[name] += np.asarray(results[name].rows).tolist()
        if number >= _WARM:
            passes.append(results["proof"].passes)
            proved += results["proof"].is_proved.tolist()
            missed += [
                missing(best, found) for best, found in zip(results["proof"].item_ids, results["beams"].item_ids, strict=True)
            ]
    ratios = np.array(seconds["proof"]) / np.array(seconds["beams"])
    parameters = {"what": "searches", "share": share, "B": batch, "items": num_items, "beams": beams, "history": _HISTORY}
    parameters |= {} if weights == "trained" else {"weights": f"random, {weights}", "scoring": scoring}
    return parameters | run.shape, {
        "search_ms": {name: spread(values, 1e-3) for name, values in seconds.items()},
        "proof_over_beams": {
            "p50": round(float(np.median(seconds["proof"]) / np.median(seconds["beams"])), 3),
            "p99": round(float(np.percentile(seconds["proof"], 99) / np.percentile(seconds["beams"], 99)), 3),
            "paired": round(float(np.median(ratios)), 3),
        },
        "rows": {name: spread(values, 1.0) for name, values in rows.items()},
        "missed": round(float(np.mean(missed)), 4),
        "second_passes": round(float(np.mean(np.array(passes) > 1)), 4),
        "proved": round(float(np.mean(proved)), 4),
        "repeats": batches,
    }


def measure_widths(run: LoadRun, share: float, users: int) -> Measured:
    """The share of the best 10 items that fixed widths find and the rows that they compute, and those of the proof."""
    bench, learnt = Bench(run=run, share=share, num_items=10), SearchWidths()
    prompts = [bench.prompts(1) for _ in range(_WARM + users)]
    proofs = [bench.proof(prompt, learnt) for prompt in prompts][_WARM:]
    found: dict[str, dict[str, float]] = {"proof": {"recall": 1.0, "rows": mean_rows(proofs)}}
    for beams in (10, 20, 40, 80, 128, 256, 512):
        results = [bench.fixed(prompt, beams) for prompt in prompts[_WARM:]]
        lost = [missing(best.item_ids[0], result.item_ids[0]) for best, result in zip(proofs, results, strict=True)]
        found[str(beams)] = {"recall": round(1 - float(np.mean(lost)), 4), "rows": mean_rows(results)}
    return {"what": "widths", "share": share, "items": 10, "users": users} | run.shape, {"by_width": found}


def mean_rows(results: list[SearchResult]) -> float:
    """Return the rows that the model computed for a request, on average."""
    return round(float(np.mean(np.concatenate([np.asarray(result.rows) for result in results]))), 1)


def missing(best: NDArray[Any], found: NDArray[Any]) -> float:
    """Return the share of the best items that were not found."""
    return 1 - float(np.isin(best, found).mean()) if len(best) else 0.0


def draw(rows: list[Row]) -> Figure:
    """Draw recall of the best items against rows computed, a panel for each share of allowed items."""
    widths = sorted(
        (row for row in rows if row["parameters"]["what"] == "widths"), key=lambda row: row["parameters"]["share"], reverse=True
    )
    figure, panels = new_figure(len(widths), columns=2, width=4.2, height=3.0)
    for axes, row in zip(panels, widths, strict=True):
        found = dict(row["measured"]["by_width"])
        proof = found.pop("proof")
        axes.plot([one["rows"] for one in found.values()], [100 * one["recall"] for one in found.values()], "o-", label="beams")
        axes.plot([proof["rows"]], [100 * proof["recall"]], "*", markersize=12, label="proof")
        axes.set(xscale="log", xlabel="rows of the model, a request", ylabel="of the best 10 found, %", ylim=(None, 104))
        axes.set_xticks((30, 100, 300, 1000), labels=("30", "100", "300", "1,000"))
        axes.minorticks_off()
        axes.set_title(f"{100 * row['parameters']['share']:g} % of the items allowed")
        axes.legend(loc="lower right")
    return figure
