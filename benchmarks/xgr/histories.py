"""Figure 13 of xGR on real histories: `leafbeam serve` beside vLLM's server, over HTTP, as requests come faster.

    prompts     the whole histories of users of a data set, each at most once in a run
    arrivals    Poisson, or bursts: pauses between requests whose density falls with a power law
    systems     leafbeam, the best 10 of its beams; vLLM's beam search, without a constraint; its samples under a grammar

One model, in float32, on one thread of each server; the client has the other core. An answer of vLLM has as many texts as
beams, because its interface gives no fewer. A system's rates rise until it falls behind both objectives: the paper's, 200 ms,
and one under which the peers have a rate at all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.drawing import finish, new_figure
from benchmarks.peers.failure import PeerFailure, failure_of
from benchmarks.peers.vllm_cpu import VllmSettings, grammar_of, vllm_server, write_tokenizer
from benchmarks.serving import load, serve
from benchmarks.serving.load import Planned
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import Addressed, serving
from benchmarks.serving.production import MAX_TOKENS, checkpoint_of
from benchmarks.serving.turns import items_of, tokens_of
from benchmarks.xgr.serving_figure import LABELS, Row, RunOptions, ServingFigure, distinct, paper_says, style, table, tidy

__all__ = ["FIGURE", "SYSTEMS", "arrival_times"]

Points = Iterator[tuple[dict[str, Any], dict[str, Any]]]
Arrivals = Literal["Poisson", "bursts"]

SYSTEMS = ("leafbeam", "vllm_beams", "vllm_grammar")
OBJECTIVES_MS = (200.0, 2000.0)
_RUNS = 2  # of each rate
_GIVE_UP_S = 30.0
_MOST_ITEMS = 250  # of a history, its last ones: what vLLM's longest prompt has room for
_STEEPNESS, _LONGEST = 2.5, 1000  # of pauses, and the longest over the shortest
# What answered short prompts fastest in `production --part http`.
_VLLM = VllmSettings(threads=1, passive=True, sequences=1024, batch_tokens=16_384)


@dataclass(frozen=True, kw_only=True)
class _Load:
    """The requests of a run. rates, peer_rates: a second, rising, to leafbeam and to vLLM. requests: at least and at most."""

    beams: tuple[int, ...] = (128, 256, 512)
    arrivals: tuple[Arrivals, ...] = ("Poisson", "bursts")
    rates: tuple[float, ...] = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    peer_rates: tuple[float, ...] = (0.5, 1, 1.5, 2, 3, 4, 6, 8)
    requests: tuple[int, int] = (20, 400)
    seconds: float = 8.0


_FULL = _Load()
_QUICK = _Load(beams=(16,), rates=(4,), peer_rates=(1,), requests=(4, 4))


def arrival_times(rng: np.random.Generator, arrivals: Arrivals, rate: float, count: int) -> NDArray[np.float64]:
    """Seconds at which `count` requests come: a Poisson process, or bursts of the same mean rate."""
    if arrivals == "Poisson":
        return np.cumsum(rng.exponential(1 / rate, count))
    pauses = load.power_law(rng, 1, _LONGEST, count, _STEEPNESS).astype(np.float64)
    return np.cumsum(pauses * (count / rate / pauses.sum()))


def _points(options: RunOptions) -> Points:
    sent = _QUICK if options.quick else _FULL
    with serve.load_run(options.quick, options.data) as run:
        write_tokenizer(run.path / "model")
        items = np.mean([min(len(history), _MOST_ITEMS) for history in run.histories])
        shared = {"model": "Qwen3, 4 layers of 128", "data": run.path.name, "transport": "HTTP", "threads": 1}
        shared |= {"prompt_tokens_mean": round(1 + float(items) * run.trie.num_levels, 1)}
        for beams in sent.beams:
            best: dict[tuple[str, str, float], float] = {}
            for parameters, measured in (point for name in SYSTEMS for point in _points_of(run, name, beams, sent)):
                yield shared | parameters, measured
                for objective in OBJECTIVES_MS:
                    if "status" not in measured and _is_within(measured, objective):
                        best[parameters["system"], parameters["arrivals"], objective] = parameters["rate"]
            for arrivals, objective in product(sent.arrivals, OBJECTIVES_MS):
                rates = {name: best.get((name, arrivals, objective), 0.0) for name in SYSTEMS}
                yield (
                    shared | {"beams": beams, "what": "highest rate", "arrivals": arrivals, "slo_ms": objective},
                    {"rate": rates},
                )


def _points_of(run: LoadRun, name: str, beams: int, sent: _Load) -> Points:
    """Every rate that one system is sent; a peer whose server does not come up, or dies, is a row that says so."""
    at = {"beams": beams, "what": "rate", "system": name}
    try:
        with _serving(run, name, beams) as server:
            _warm(run, server, name, beams)
            for arrivals in sent.arrivals:
                for rate, measured in _rates(run, server, name, beams, arrivals, sent):
                    yield at | {"arrivals": arrivals, "rate": rate}, measured
    except Exception as error:
        if name == "leafbeam":
            raise
        yield at | {"arrivals": sent.arrivals[0], "rate": 0.0}, failure_of(error).row


@contextmanager
def _serving(run: LoadRun, name: str, beams: int) -> Generator[Addressed]:
    if name == "leafbeam":
        options = "--beams", str(beams), "--set", f"engine.timeout_s={_GIVE_UP_S:g}", "--set", "engine.predict=false"
        with serving(run.path, *options) as server:
            yield server
    else:
        with vllm_server(checkpoint_of(run, beams), settings=_VLLM, max_tokens=MAX_TOKENS) as url:
            yield Addressed(url=url)


def _warm(run: LoadRun, server: Addressed, name: str, beams: int) -> None:
    """Send four requests before anything is timed. Raises PeerFailure if there is no answer."""
    answers = server.send(_requests(run, name, beams, np.linspace(0, 2, 4), seed=[0]))
    if not any(one.status == 200 for one in answers):
        raise PeerFailure("failed", f"HTTP {answers[0].status}: {answers[0].body.get('error')}"[:300])


def _rates(
    run: LoadRun, server: Addressed, name: str, beams: int, arrivals: Arrivals, sent: _Load
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each rate in two runs, taken together, until the p99 is beyond the last objective or a request has no answer."""
    for rate in sent.rates if name == "leafbeam" else sent.peer_rates:
        least, most = sent.requests
        count = min(most, max(least, int(sent.seconds * rate)))
        answers, seconds = list[load.Answered](), 0.0
        for again in range(_RUNS):
            seed = [int(100 * rate), again]
            times = arrival_times(np.random.default_rng(seed), arrivals, rate, count)
            answers += server.send(_requests(run, name, beams, times, seed=[1, *seed]))
            seconds += float(times[-1])
        found = load.summary(answers, seconds=seconds, slo_s=OBJECTIVES_MS[0] / 1e3)
        latency = found.get("latency_ms", {"avg": float("inf"), "p50": float("inf"), "p99": float("inf")})
        measured = {f"{key}_ms": latency[key] for key in ("avg", "p50", "p99")}
        measured |= {"unanswered": found["errors"] + found["refused"], "runs": _RUNS}
        kept = ("sent", "statuses", "answered_per_s", "goodput_per_s", "client_late_ms_p99")
        yield float(rate), measured | {key: found[key] for key in kept}
        if not _is_within(measured, OBJECTIVES_MS[-1]):
            break


def _is_within(measured: Mapping[str, Any], objective_ms: float) -> bool:
    return measured["p99_ms"] <= objective_ms and not measured["unanswered"]


def _requests(run: LoadRun, name: str, beams: int, times: NDArray[np.float64], *, seed: Sequence[int]) -> list[Planned]:
    """A user's history at each time; vLLM gets its tokens."""
    rng = np.random.default_rng(seed)
    users = rng.permutation(len(run.histories))[: len(times)]
    histories = [run.histories[int(user)][-_MOST_ITEMS:] for user in np.resize(users, len(times))]
    if name == "leafbeam":
        common: dict[str, Any] = {"num_items": 10, "scoring": "allowed", "channel": "model", "keep_history": True}
        bodies = [common | {"history": history.tolist()} for history in histories]
    else:
        common = {"model": "model", "n": beams, "ignore_eos": True, "max_tokens": run.trie.num_levels}
        common |= {"use_beam_search": True, "temperature": 0} if name == "vllm_beams" else _grammar(run)
        prompts = tokens_of(run, [run.leaves_of(history) for history in histories])
        bodies = [common | {"prompt": tokens} for tokens in prompts]
    return [Planned(at=float(at), body=body) for at, body in zip(times, bodies, strict=True)]


def _grammar(run: LoadRun) -> dict[str, Any]:
    return {"structured_outputs": {"grammar": grammar_of(items_of(run))}}


def _show(console: Console, rows: list[Row]) -> None:
    for beams, arrivals in _panels(rows):
        cells = [_cells(row) for row in _group(rows, beams, arrivals)]
        columns = ("system", "requests a second", "avg ms", "p50 ms", "p99 ms", "unanswered")
        console.print(table(f"histories of {distinct(rows, 'data')[0]}, {beams} beams, {arrivals}, over HTTP", columns, cells))
        for row in rows:
            at = row["parameters"]
            if (at["beams"], at["arrivals"], at["what"]) == (beams, arrivals, "highest rate"):
                said = ", ".join(f"{LABELS[name]} {rate:g}" for name, rate in row["measured"]["rate"].items())
                console.print(f"highest rate tried whose p99 is within {at['slo_ms']:g} ms: {said}")
    paper_says(console, "at least 3.49 x (version 3: 2.89 x) the throughput of the best baseline with p99 <= 200 ms, on NPUs.")


def _panels(rows: Sequence[Row]) -> list[tuple[int, str]]:
    rated = [row for row in rows if row["parameters"]["what"] == "rate"]
    return list(product(distinct(rated, "beams"), distinct(rated, "arrivals")))


def _group(rows: Sequence[Row], beams: int, arrivals: str) -> list[Row]:
    """The rates of a panel; a system that did not run is a row of both panels."""
    found = [row for row in rows if row["parameters"]["what"] == "rate" and row["parameters"]["beams"] == beams]
    return [row for row in found if row["parameters"]["arrivals"] == arrivals or "status" in row["measured"]]


def _cells(row: Row) -> tuple[object, ...]:
    at, found = row["parameters"], row["measured"]
    if "status" in found:
        return LABELS[at["system"]], f"{found['status']}: {found['reason'][:60]}", "", "", "", ""
    return LABELS[at["system"]], f"{at['rate']:g}", *(found[key] for key in ("avg_ms", "p50_ms", "p99_ms", "unanswered"))


def _draw(rows: list[Row]) -> Figure:
    panels = _panels(rows)
    figure, axes_of = new_figure(len(panels), width=3.4, height=3.2, columns=2)
    for axes, (beams, arrivals) in zip(axes_of, panels, strict=True):
        group = _group(rows, beams, arrivals)
        for name in SYSTEMS:
            points = [row for row in group if row["parameters"]["system"] == name and "p99_ms" in row["measured"]]
            xs, look = [row["parameters"]["rate"] for row in points], style(name)
            axes.plot(xs, [row["measured"]["p99_ms"] for row in points], **look)
            average: dict[str, Any] = look | {"ls": "--", "label": f"{look['label']}, average"}
            axes.plot(xs, [row["measured"]["avg_ms"] for row in points], **average)
        for objective in OBJECTIVES_MS:
            axes.axhline(objective, color="#9aa19d", ls=":", lw=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        tidy(axes, f"{beams} beams, {arrivals}", "requests a second", "p99 (solid), average, ms")
    finish(figure, axes_of[0], "xGR, figure 13, on real histories, over HTTP, one CPU thread", columns=3)
    return figure


FIGURE = ServingFigure(name="xgr-histories", points=_points, show=_show, draw=_draw)
