"""The whole way, shown: a log becomes recommendations that obey rules.

Each step is the command that a person would type, run as a process of its own; the server is the real one, asked over
HTTP. What it answers is then looked up in the table of items by a referee that knows neither index nor server.
"""

import json
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule as Line
from rich.table import Table
from rich.text import Text

from leafbeam.demo.rules import supported_rules, write_rules
from leafbeam.demo.steps import run_command, running_server
from leafbeam.demo.tour import Visit
from leafbeam.errors import ArgumentError, DataError, DemoError
from leafbeam.train import load_log

__all__ = ["Demo"]

MARK = "demo.txt"
OUTPUTS = "made by `leafbeam demo`, which replaces everything in this directory\n"


@dataclass(frozen=True, kw_only=True)
class Demo:
    """`leafbeam demo`: everything is made anew each time, in a directory of its own, so that two runs show the same.

    data: a directory with interactions.* and items.*; None invents a shop of `num_items` and `num_users`.
    minutes: of training; None is 2 for the shop and 10 for data. crowd: how many customers are asked for in the proof.
    """

    data: Path | None
    minutes: float | None
    runs: Path
    num_items: int
    num_users: int
    seed: int
    console: Console
    crowd: int = 200

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < 10_000:
            raise ArgumentError(f"--minutes {self.minutes}: a positive number of minutes")
        if self.data is not None and not self.data.is_dir():
            raise DataError(f"there is no directory {self.data}: it should hold interactions.parquet and items.parquet")

    def run(self) -> None:
        """Walk the way and show it. Raises DemoError where a step fails or an answer breaks its rule."""
        began = time.perf_counter()
        run = self._clean_run()
        data = run if self.data is None else self.data
        minutes = self.minutes or (2.0 if self.data is None else 10.0)
        options = ["--run", str(run)]
        if self.data is None:
            self._say("A shop", "Nobody's data is needed: a shop is invented, with customers whose visits can be learnt from.")
            size = ["--items", str(self.num_items), "--users", str(self.num_users)]
            self._step("make-shop", "--out", str(run), *size, "--seed", str(self.seed))
        log = load_log(data)
        rules = supported_rules(log.items)
        if not rules:
            raise DataError("the demo's rules need a column stock, price, first_seen or first_review in the items")
        self._say("Semantic IDs", "Every item gets a few codes, coarse to fine, from its text and from what is taken with it.")
        self._step("fit-sids", "--data", str(data), *options, "--seed", str(self.seed))
        self._say("A model", "A small transformer learns which codes come next.")
        self._step("train", *options, "--minutes", f"{minutes:g}", "--seed", str(self.seed))
        self._say(
            "Is it any good?", "The last item of each customer was held out; the whole catalog is ranked to find it again."
        )
        sample = ["--users", "5000"] if self.data is None else []
        self._step("evaluate", *options, *sample)
        self._say("The index", "Which codes are items. It is the only thing that the search may walk on.")
        write_rules(run / "rules.toml", log.items)
        self._step("build", *options)
        self._say("The server", "One model, one index; every request brings its own rules.")
        with running_server(run) as server:
            self._print(f"`leafbeam serve --run {run}` answers at {server.address}")
            visit = Visit(log=log, rules=rules, server=server, run=run, console=self.console, seed=self.seed)
            visit.show_customer()
            found: dict[str, Any] = {"answers": visit.show_answers(), "crowd": visit.prove_on_a_crowd(self.crowd)}
            self._say("A rule changes", "A file is edited, the server is told. Nothing is built, nothing restarts.")
            found["switch"] = visit.switch_a_rule()
        found["seconds"] = time.perf_counter() - began
        _add_to_report(run / "report.json", found)
        self._farewell(run, found["seconds"])

    def _clean_run(self) -> Path:
        name = "demo-shop" if self.data is None else f"demo-{self.data.resolve().name}"
        run = self.runs / name
        if run.exists():
            if any(run.iterdir()) and not (run / MARK).exists():
                raise DemoError(f"{run} holds something that the demo did not make: move it, or pass another --runs")
            shutil.rmtree(run)
            self._print(f"{run} is from an earlier demo: everything in it is made anew.")
        run.mkdir(parents=True)
        (run / MARK).write_text(OUTPUTS, encoding="utf-8")
        return run

    def _say(self, heading: str, words: str) -> None:
        self.console.print()
        self.console.print(Line(Text(heading, "bold"), align="left", style="cyan"))
        self._print(words)

    def _print(self, words: str) -> None:
        self.console.print(Text(words, "dim"))

    def _step(self, *words: str) -> None:
        self.console.print(Text.assemble(("$ ", "dim"), (shlex.join(["leafbeam", *words]), "bold")), soft_wrap=True)
        for line in run_command(words):
            if not line.startswith("Next: "):
                self.console.print(Text(line), soft_wrap=True)

    def _farewell(self, run: Path, seconds: float) -> None:
        body = '{"rules": ["under_20"]}'
        hints = Table.grid(padding=(0, 3, 0, 0))
        hints.add_column(style="dim", no_wrap=True)
        hints.add_column(overflow="fold")
        hints.add_row("What was found", str(run / "report.json"))
        hints.add_row("Look inside", f"leafbeam inspect {run}")
        hints.add_row("Ask yourself", f"leafbeam serve --run {run}")
        hints.add_row("", f"curl localhost:8000/v1/recommend -H 'content-type: application/json' -d '{body}'")
        hints.add_row("Your own data", "leafbeam demo --data DIR, with interactions.parquet (user_id, item_id, timestamp)")
        hints.add_row("", "and items.parquet (item_id, title, price, stock, first_seen, ...)")
        self.console.print()
        title = f"Done in {seconds / 60:.1f} minutes. The server has stopped; everything is in {run}."
        self.console.print(Panel(hints, title=title, title_align="left", border_style="green", padding=(1, 2)))


def _add_to_report(path: Path, found: dict[str, Any]) -> None:
    report = json.loads(path.read_text(encoding="utf-8"))
    report["demo"] = found
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
