"""Shared parts of the STATIC tables and figures: points to measure, rows, and the loop over them.

A point is one catalog; measuring it gives one row. Tables and plots are made from rows alone, measured now or kept before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.rows import RESULTS, keep_row, make_row, read_rows
from benchmarks.static import trials
from benchmarks.static.apart import measured_apart
from benchmarks.static.catalog import Catalog, Shape
from benchmarks.static.forms import in_best_form
from benchmarks.static.methods import LABELS, LineUp, Method, gib
from benchmarks.static.setting import Setting

__all__ = ["Experiment", "Row", "Setting", "false_positives", "kept_rows", "no_steps", "steps_of"]

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure. shapes: its points, full or quick. measure: what is measured at one. show, draw: from rows.

    methods: what is measured at a point, by name. nothing: the row of a point where nothing could be measured, for a reason.
    after: adds to what was measured, given the row's parameters. timed: whether other load on the machine changes it.
    """

    name: str
    title: str
    shapes: Callable[[bool], list[Shape]]
    measure: Callable[[Shape, Setting], dict[str, Any]]
    show: Callable[[Console, list[Row]], None]
    draw: Callable[[list[Row]], Figure]
    methods: tuple[str, ...]
    nothing: Callable[[Shape, str], dict[str, Any]]
    after: Callable[[dict[str, Any], dict[str, Any], Setting], dict[str, Any]] = lambda measured, parameters, setting: measured
    timed: bool = True

    def run(
        self, setting: Setting, distributions: Iterable[str], console: Console, keep: bool, folder: Path = RESULTS
    ) -> list[Row]:
        """Measure every point. keep: append each row to `reproduce.jsonl`."""
        rows: list[Row] = []
        wanted = set(distributions)
        for shape in self.shapes(setting.quick):
            if shape.distribution not in wanted:
                continue
            with console.status(f"{self.name}: {shape.distribution}, {shape.num_items:,} items, V = {shape.num_codes:,}"):
                began = time.perf_counter()
                parameters = {
                    "experiment": self.name,
                    "distribution": shape.distribution,
                    "num_items": shape.num_items,
                    "V": shape.num_codes,
                    "L": shape.num_levels,
                    "B": setting.batch_size,
                    "K": setting.num_beams,
                    "threads": 1,
                    "device": setting.device,
                    "quick": setting.quick,
                    "trials": setting.num_trials,
                    "memory_gib": round(setting.memory / 2**30, 1),
                }
                measured = self.after(self._measured(shape, setting), parameters, setting)
                measured |= {"seconds": round(time.perf_counter() - began, 1)}
            row = make_row("reproduce", parameters, measured, timed=self.timed)
            if keep:
                keep_row("reproduce", row, folder)
            rows.append(row)
        return rows

    def _measured(self, shape: Shape, setting: Setting) -> dict[str, Any]:
        if shape.needs > setting.memory:
            reason = f"the catalog does not fit: needs {gib(shape.needs)} of {gib(setting.memory)}"
            return self.nothing(shape, reason)
        if setting.apart:
            measured = measured_apart(self.measure, shape, setting, self.methods)
            return self.nothing(shape, measured) if isinstance(measured, str) else measured
        measured = self.measure(shape, setting)
        beside = dict.fromkeys(measured.pop("waiting", ()), "does not fit beside the others: measure without --quick")
        return measured | {"left_out": measured["left_out"] | beside}


def kept_rows(name: str, quick: bool, folder: Path = RESULTS) -> list[Row]:
    """The last kept row of each point of an experiment, in the order of the experiment's points."""
    last: dict[tuple[Any, ...], Row] = {}
    for row in read_rows("reproduce", folder):
        at = row["parameters"]
        if at["experiment"] == name and at["quick"] == quick:
            last[at["distribution"], at["num_items"], at["V"]] = row
    return [last[key] for key in sorted(last)]


def no_steps(shape: Shape, reason: str) -> dict[str, Any]:
    """The row of a point without any step, for a reason."""
    empty = {name: {} for name in ("step_us", "overhead_us", "by_level_us", "trials", "nbytes", "shares", "forms")}
    return {"num_leaves": None, "left_out": dict.fromkeys(LABELS, reason), **empty}


def steps_of(
    shape: Shape, setting: Setting, names: tuple[str, ...], extra: Callable[[Catalog, LineUp, trials.Logits], dict[str, Any]]
) -> dict[str, Any]:
    """Measure a whole step by every method at one point; `extra` adds to what is measured, after parity, on one core.

    A method that raises an error is left out by name, and the others are measured from the start.
    """
    catalog = Catalog.make(shape)
    batch_size, num_beams = setting.batch_size, setting.num_beams
    asked = [name for name in names if name not in setting.without and (setting.only is None or name in setting.only)]
    line_up = LineUp.of(
        catalog,
        batch_size=batch_size,
        num_beams=num_beams,
        device=setting.device,
        memory=setting.memory,
        names=asked,
        announce=setting.announce,
    )
    line_up = line_up.only(line_up.methods, dict(setting.without))
    sets = trials.draw_logits(np.random.default_rng([shape.seed, 1]), catalog.trie, batch_size, num_beams)
    with trials.one_core():
        while True:
            try:
                best = in_best_form(line_up, sets[0]) if setting.compiles else line_up
                shares = trials.check(best, catalog, sets)
                added = extra(catalog, best, sets[0])
                many, each = setting.num_trials, setting.seconds_each
                seconds = trials.run(best, sets, num_trials=many, seconds_each=each, seed=shape.seed)
                break
            except trials.MethodFailure as failure:
                methods = {name: method for name, method in line_up.methods.items() if name != failure.name}
                line_up = line_up.only(methods, {failure.name: failure.reason})
    measured = {"num_leaves": catalog.trie.num_leaves, "bytes": {"leafbeam_items": catalog.trie.items.nbytes}}
    return {**measured, **trials.summary(best, seconds), "shares": shares, **added}


def false_positives(catalog: Catalog, bitmap: Method, truth: Method, logits: trials.Logits) -> float:
    """The share of illegal codes that the hash bitmap allows, over all codes of the exact search's beams."""
    import torch

    from benchmarks.peers.peer import Selection
    from leafbeam.ops.constrain import request_filters
    from leafbeam.ops.constrain.cpu import step as cpu

    arrays, peer = truth.peer, bitmap.peer
    batch_size = len(logits[0])
    filters = cpu.bind_filters(arrays, request_filters(catalog.trie, batch_size, None, None))
    lo = np.zeros((1, batch_size, 1), np.int64)
    hi = np.full_like(lo, catalog.trie.num_leaves)
    state = peer.root(batch_size)
    wrong = illegal = 0
    for level, (values, beams) in enumerate(zip(logits, trials.search(truth, logits)[0], strict=True)):
        legal = int(cpu.children(arrays, level, lo, hi, filters)[0][-1])
        pending, offers = peer.mask_step(state, torch.zeros(values.shape, device=state.device))
        wrong += int((offers.log_p_BKF > -torch.inf).sum()) - legal
        illegal += values.size - legal
        parent, code = (torch.from_numpy(one).to(state.device) for one in (beams.parent, beams.code))
        scores = torch.from_numpy(beams.scores).to(state.device)
        state = peer.advance(pending, Selection(scores_BK=scores, parent_BK=parent, slot_BK=code, code_BK=code))
        lo, hi = beams.lo, beams.hi
    return wrong / max(1, illegal)
