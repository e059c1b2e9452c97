"""Everything that is measured in full, the most valuable first: `python -m benchmarks reproduce`.

A part is a command in a process of its own, so that one that fails or is ended stops none of the others. Each leaves a row in
results/parts.jsonl, so that a run that was interrupted goes on where it stopped, with those that failed once more.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from benchmarks.rows import RESULTS, append_row, read_rows

__all__ = ["Outcome", "Part", "chosen", "measured_since", "parts_of", "run_parts"]

_ROOT = Path(__file__).parents[1]
_KEPT = "parts"  # the file of results


@dataclass(frozen=True, kw_only=True)
class Part:
    """One command: its arguments, without --json. minutes: what it takes on two quiet cores."""

    words: tuple[str, ...]
    minutes: float

    @property
    def name(self) -> str:
        """What it is called: the command and what sets it apart from other parts of the same command."""
        return " ".join(word.rsplit("/", 1)[-1] for word in self.words)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a part. minutes: that it took. reason: why it was skipped or failed."""

    part: Part
    status: Literal["measured", "skipped", "failed"]
    minutes: float = 0.0
    reason: str = ""

    @property
    def text(self) -> str:
        """One line."""
        took = f" in {self.minutes:.1f} minutes" if self.minutes else ""
        return f"{self.part.name}: {self.status}{took}{f', {self.reason}' if self.reason else ''}"


def parts_of(data: Sequence[Path] = ()) -> list[Part]:
    """Every part; those that learn once for each of these data sets. The others take prompts from the first, or a made shop."""
    shop = ("--data", str(data[0])) if data else ()
    kmeans = "--sids", "kmeans", "--teacher", "text"
    parts: list[tuple[float, Sequence[str]]] = [
        (55, ("production", "--part", "small")),
        (28, ("production", "--part", "http")),
        (20, ("serve", *shop)),
        (9, ("overload", *shop)),
        (3, ("memory",)),
        (25, ("static-table-1",)),
        *((minutes, (f"xgr-figure-{number}", *shop)) for number, minutes in ((13, 34), (14, 20), (18, 14))),
        (48, ("xgr-histories", *shop)),
        *((minutes, (f"xgr-figure-{number}",)) for number, minutes in ((3, 2), (4, 1), (5, 4), (15, 2), (16, 3), (17, 1))),
        (15, ("xgr-figure-19",)),
        (1, ("xgr-sorting",)),
        (50, ("production", "--part", "large")),
        (30, ("production", "--part", "large-http")),
        (6, ("production", "--part", "prefill")),
        (6, ("production", "--part", "load")),
        *((50, ("production", "--part", "large", "--architecture", name)) for name in ("qwen2", "llama")),
        (6, ("production", "--part", "prefill", "--dtype", "bfloat16")),
        (20, ("production", "--part", "large", "--dtype", "bfloat16")),
        (12, ("static-figure-4",)),
        *((21, ("static-figure-2", "--distribution", one)) for one in ("uniform", "zipf")),
        *((65, ("static-figure-3", "--distribution", one)) for one in ("uniform", "zipf")),
        (10, ("static-memory",)),
        *(
            (minutes, ("tiger-table-1", "--data", str(one), "--epochs", "12", "--teacher", teacher))
            for one in data
            for minutes, teacher in ((45, "memory"), (25, "text"))
        ),
        *(
            (minutes, ("static-table-3", "--data", str(one), *kind))
            for one in data
            for minutes, kind in (
                (60, ("--sids", "rqvae", "--teacher", "text", "--seeds", "3")),
                *((45, (*kmeans, "--first-seed", str(seed), "--seeds", "1")) for seed in range(3)),
                (30, ("--sids", "rqvae", "--teacher", "none", "--seeds", "3")),
            )
        ),
        *((25, ("exactness", "--data", str(one))) for one in data),
    ]  # fmt: skip
    return [Part(words=tuple(words), minutes=minutes) for minutes, words in parts]


def chosen(parts: Iterable[Part], names: Sequence[str]) -> list[Part]:
    """The parts of these names, or whose names begin with the words of one that no part has; all without names."""
    listed = list(parts)
    have = {part.name for part in listed}

    def matches(part: Part, name: str) -> bool:
        return part.name == name if name in have else part.name.startswith(f"{name} ")

    return [part for part in listed if not names or any(matches(part, name) for name in names)]


def measured_since(since: datetime, folder: Path = RESULTS) -> frozenset[str]:
    """Names of the parts that results/parts.jsonl has as measured from this time (UTC) on."""
    first = since.strftime("%Y-%m-%dT%H:%M:%SZ")
    rows = (row for row in read_rows(_KEPT, folder) if row["time"] >= first and "status" not in row["measured"])
    return frozenset(row["parameters"]["part"] for row in rows)


def run_parts(
    parts: Iterable[Part], say: Callable[[str], None], minutes: float | None = None, folder: Path = RESULTS
) -> list[Outcome]:
    """Run each part, one after another; one that does not fit into what is left of `minutes` is skipped."""
    outcomes: list[Outcome] = []
    left = float("inf") if minutes is None else minutes
    for part in parts:
        if part.minutes > left:
            outcomes.append(Outcome(part=part, status="skipped", reason=f"takes {part.minutes:g} of {left:.0f} minutes left"))
        else:
            say(f"{part.name}: about {part.minutes:g} minutes")
            outcomes.append(_run(part))
            left -= outcomes[-1].minutes
            measured: dict[str, Any] = {"minutes": round(outcomes[-1].minutes, 1)}
            if outcomes[-1].status == "failed":
                measured |= {"status": "failed", "reason": outcomes[-1].reason}
            append_row(_KEPT, {"part": part.name}, measured, folder, timed=False)
        say(outcomes[-1].text)
    return outcomes


def _run(part: Part) -> Outcome:
    began = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks", *part.words, "--json"]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL) as child:  # not killed when this process is ended
        code = child.wait()
    reason = "" if code == 0 else f"exit status {code}{', ended by the system: out of memory?' if code == -9 else ''}"
    return Outcome(
        part=part, status="failed" if code else "measured", minutes=(time.perf_counter() - began) / 60, reason=reason
    )
