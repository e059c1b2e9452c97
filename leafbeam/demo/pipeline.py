"""The steps of `leafbeam demo`, each a command in a process of its own, and the tour of the running server."""

import json
import shlex
import shutil
import time
import webbrowser
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule as Line
from rich.table import Table
from rich.text import Text

from leafbeam.demo.processes import run_command, running_server, usual_port
from leafbeam.demo.rehearsal import is_worthwhile, rehearsal
from leafbeam.demo.rules import supported_rules, write_rules
from leafbeam.demo.tour import Tour
from leafbeam.errors import ArgumentError, DataError, DemoError
from leafbeam.files import write_json
from leafbeam.train.interaction_log import load_log

MARKER = "demo.txt"  # a directory without this file is never deleted
MARKER_TEXT = "made by `leafbeam demo`, which replaces everything in this directory\n"


@dataclass(frozen=True, kw_only=True)
class Demo:
    """`leafbeam demo`: every run starts anew in a directory of its own, so that two runs show the same.

    data: a directory with interactions.* and items.*; None generates a shop of `num_items` and `num_users`.
    minutes: of training; None is 0.75 for the shop and 6 for data.
    num_checked_users: users whose answers are checked in bulk.
    open_page: whether it ends with the server running and its page in a browser, until Ctrl-C.
    """

    data: Path | None
    minutes: float | None
    runs: Path
    num_items: int
    num_users: int
    seed: int
    console: Console
    num_checked_users: int = 200
    open_page: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < 10_000:
            raise ArgumentError(f"--minutes {self.minutes}: expected a number of minutes above 0")
        if self.data is not None and not self.data.is_dir():
            raise DataError(f"there is no directory {self.data}: it should hold interactions.parquet and items.parquet")

    def run(self) -> None:
        """Run all steps and print them. Raises DemoError where a step fails or an answer violates a rule."""
        start, run = time.perf_counter(), self._clean_run()
        rehearses = is_worthwhile()
        if rehearses:
            self._print("This machine's first run compiles kernels, on another core while the first steps run.")
        with rehearsal(run / "rehearsal.log") if rehearses else nullcontext():
            self._run_steps(run, start)

    def _run_steps(self, run: Path, start: float) -> None:
        """Run the steps in a new directory. start: when the demo began."""
        data = run if self.data is None else self.data
        minutes = self.minutes or (0.75 if self.data is None else 6.0)
        options, seed = ["--run", str(run)], ["--seed", str(self.seed)]
        if self.data is None:
            self._heading("A shop", "Synthetic: items with attributes, and users whose next purchases can be learnt.")
            size = ["--items", str(self.num_items), "--users", str(self.num_users)]
            self._command("make-shop", "--out", str(run), *size, *seed)
        log = load_log(data)
        rules = supported_rules(log.items)
        if not rules:
            raise DataError("the demo's rules need a column stock, price, first_seen or first_review in the items")
        self._heading("Semantic IDs", "Each item gets a few codes, coarse to fine, from its text and its co-occurrence.")
        self._command("fit-sids", "--data", str(data), *options, *seed)
        self._heading("Model", "A small transformer learns which codes come next.")
        self._command("train", *options, "--minutes", f"{minutes:g}", *seed)
        self._heading("Index", "The codes of all items. The search enumerates these and no others.")
        write_rules(run / "rules.toml", log.items)
        self._command("build", *options)
        port = usual_port() if self.open_page else 0
        with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
            starting = pool.submit(stack.enter_context, running_server(run, port=port))  # compiles kernels on another core
            self._heading("Evaluation", "Each user's last item was held out; the whole catalog is ranked to find it.")
            self._command("evaluate", *options, *(["--users", "2000"] if self.data is None else []))
            server = starting.result()
            self._heading("Server", "One model, one index; each request names its own rules.")
            self._print(f"`leafbeam serve --run {run}` listens on {server.address}")
            tour = Tour(log=log, rules=rules, server=server, run=run, console=self.console, seed=self.seed)
            tour.show_user()
            results: dict[str, object] = {"answers": tour.show_answers(), "checked": tour.check_users(self.num_checked_users)}
            self._heading("A rule changes", "Edit a file, signal the server. Nothing is rebuilt or restarted.")
            results["change"] = tour.change_a_rule()
            results["page"] = tour.fragment
            results["seconds"] = time.perf_counter() - start
            report = json.loads((run / "report.json").read_text(encoding="utf-8")) | {"demo": results}
            write_json(run / "report.json", report)
            if self.open_page:
                self._print_next_steps(run, results["seconds"], server.address + tour.fragment)
                webbrowser.open(server.address + tour.fragment)
                server.wait()
                return
        self._print_next_steps(run, results["seconds"], None)

    def _clean_run(self) -> Path:
        run = self.runs / ("demo-shop" if self.data is None else f"demo-{self.data.resolve().name}")
        if run.exists():
            if any(run.iterdir()) and not (run / MARKER).exists():
                raise DemoError(f"{run} holds files that the demo did not make: move it, or pass another --runs")
            shutil.rmtree(run)
            self._print(f"Replacing {run}, which an earlier demo made.")
        run.mkdir(parents=True)
        (run / MARKER).write_text(MARKER_TEXT, encoding="utf-8")
        return run

    def _heading(self, heading: str, text: str) -> None:
        self.console.print()
        self.console.print(Line(Text(heading, "bold"), align="left", style="cyan"))
        self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(Text(text, "dim"))

    def _command(self, *arguments: str) -> None:
        command = shlex.join(["leafbeam", *arguments])
        self.console.print(Text.assemble(("$ ", "dim"), (command, "bold")), soft_wrap=True)
        for line in run_command(arguments):
            if not line.startswith("Next: "):
                self.console.print(Text(line), soft_wrap=True)

    def _print_next_steps(self, run: Path, seconds: float, page: str | None) -> None:
        body = '{"rules": ["under_20"]}'
        address = "localhost:8000" if page is None else page.partition("/#")[0]
        hints = Table.grid(padding=(0, 3, 0, 0))
        hints.add_column(style="dim", no_wrap=True)
        hints.add_column(overflow="fold")
        hints.add_row("Results", str(run / "report.json"))
        hints.add_row("Inspect", f"leafbeam inspect {run}")
        if page is None:
            hints.add_row("Serve", f"leafbeam serve --run {run}")
            hints.add_row("Its page", "http://localhost:8000, once it runs; `leafbeam demo --open` ends there")
        hints.add_row("", f"curl {address}/v1/recommend -H 'content-type: application/json' -d '{body}'")
        hints.add_row("Your own data", "leafbeam demo --data DIR, with interactions.parquet (user_id, item_id, timestamp)")
        hints.add_row("", "and items.parquet (item_id, title, price, stock, first_seen, ...)")
        self.console.print()
        server = "The server has stopped" if page is None else "The server runs until Ctrl-C"
        title = f"Done in {seconds / 60:.1f} minutes. {server}; all files are in {run}."
        self.console.print(Panel(hints, title=title, title_align="left", border_style="green", padding=(1, 2)))
        tutorial = "docs/tutorial.md, from your own log to a server in fifteen minutes"
        self.console.print(Text.assemble(("Next: ", "bold"), (tutorial, "cyan")), soft_wrap=True)
        if page is not None:  # outside the panel, which would fold it
            self.console.print(Text.assemble(("Page: ", "bold"), (page, "cyan")), soft_wrap=True)
