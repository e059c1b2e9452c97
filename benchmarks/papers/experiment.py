"""Shared parts of the STATIC tables and figures: points to measure, rows, and the loop over them.

A point is one catalog; measuring it gives one row. Tables and plots are made from rows alone, measured now or kept before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.papers import trials
from benchmarks.papers.catalog import Catalog, Shape
from benchmarks.papers.methods import LineUp, Method, gib
from benchmarks.rows import RESULTS, keep_row, make_row
from leafbeam.errors import ArgumentError

__all__ = ["Experiment", "Row", "Setting", "false_positives", "kept_rows", "memory_of_machine", "steps_of"]

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How to measure. memory: bytes that catalog and methods together may hold. seconds_each: for one method at one point.

    Raises ArgumentError for a number that cannot be one.
    """

    quick: bool
    device: str
    memory: int
    num_trials: int
    seconds_each: float
    batch_size: int = 2
    num_beams: int = 70

    def __post_init__(self) -> None:
        if self.num_trials < 1:
            raise ArgumentError(f"the number of trials is {self.num_trials}: expected at least 1, the paper has 100")
        if self.memory <= 0 or self.seconds_each < 0:
            raise ArgumentError(f"memory is {self.memory} bytes and seconds are {self.seconds_each}: expected positive numbers")

    @classmethod
    def of(cls, *, quick: bool, device: str, memory_gib: float | None = None, num_trials: int | None = None) -> Setting:
        """The defaults: 100 trials and a minute for each method in four fifths of the free memory; quick: 10, 4 s, 4 GiB."""
        default = 4 * 2**30 if quick else memory_of_machine() * 4 // 5
        return cls(
            quick=quick,
            device=device,
            memory=default if memory_gib is None else int(memory_gib * 2**30),
            num_trials=num_trials if num_trials is not None else 10 if quick else 100,
            seconds_each=4.0 if quick else 60.0,
        )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure. shapes: its points, full or quick. measure: what is measured at one. show, draw: from rows.

    timed: whether other load on the machine changes it.
    """

    name: str
    title: str
    shapes: Callable[[bool], list[Shape]]
    measure: Callable[[Shape, Setting], dict[str, Any]]
    show: Callable[[Console, list[Row]], None]
    draw: Callable[[list[Row]], Figure]
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
                measured = self.measure(shape, setting)
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
            row = make_row("reproduce", parameters, measured, timed=self.timed)
            if keep:
                keep_row("reproduce", row, folder)
            rows.append(row)
        return rows


def kept_rows(name: str, quick: bool, folder: Path = RESULTS) -> list[Row]:
    """The last kept row of each point of an experiment, in the order of the experiment's points."""
    path = folder / "reproduce.jsonl"
    last: dict[tuple[Any, ...], Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        row = json.loads(line)
        at = row["parameters"]
        if at["experiment"] == name and at["quick"] == quick:
            last[at["distribution"], at["num_items"], at["V"]] = row
    return [last[key] for key in sorted(last)]


def steps_of(
    shape: Shape, setting: Setting, names: tuple[str, ...], extra: Callable[[Catalog, LineUp, trials.Logits], dict[str, Any]]
) -> dict[str, Any]:
    """Measure a whole step by every method at one point; `extra` adds to what is measured, after parity, on one core."""
    if shape.needs > setting.memory:
        reason = f"the catalog does not fit: needs {gib(shape.needs)} of {gib(setting.memory)}"
        return {"num_leaves": None, "left_out": dict.fromkeys(names, reason), "step_us": {}, "overhead_us": {}, "trials": {}}
    catalog = Catalog.make(shape)
    batch_size, num_beams = setting.batch_size, setting.num_beams
    line_up = LineUp.of(
        catalog, batch_size=batch_size, num_beams=num_beams, device=setting.device, memory=setting.memory, names=names
    )
    rng = np.random.default_rng([shape.seed, 1])
    sets = trials.draw_logits(rng, catalog.trie, batch_size, num_beams)
    with trials.one_core():
        shares = trials.check(line_up, catalog, sets)
        added = extra(catalog, line_up, sets[0])
        seconds = trials.run(line_up, sets, num_trials=setting.num_trials, seconds_each=setting.seconds_each, seed=shape.seed)
    measured = {"num_leaves": catalog.trie.num_leaves, "bytes": {"leafbeam_items": catalog.trie.items.nbytes}}
    return {**measured, **trials.summary(line_up, seconds), "shares": shares, **added}


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


def memory_of_machine() -> int:
    """Bytes that are free for use now."""
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
