"""One customer at the running server: three answers, the referee's verdict, and a rule that changes meanwhile."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from rich.console import Console
from rich.text import Text

from leafbeam.demo.rules import Rule
from leafbeam.demo.showcase import Shown, facts_of, side_by_side, title_of
from leafbeam.demo.sql_checker import SqlChecker
from leafbeam.demo.steps import Answer, Server
from leafbeam.errors import DemoError
from leafbeam.train import InteractionLog

__all__ = ["Visit"]

NUM_SHOWN = 5
MAX_HISTORY = 20
MAX_DRAWN = 50
RELOAD_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Asks the server on behalf of customers of the log, and holds every answer against the table of items.

    Every method shows what it does on the console, returns what it found for the report, and raises DemoError where an
    answer breaks a rule.
    """

    log: InteractionLog
    rules: tuple[Rule, ...]
    server: Server
    run: Path
    console: Console
    seed: int
    referee: SqlChecker = field(init=False)
    customer: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "referee", SqlChecker(self.log.items))
        lengths_U = self.log.histories.lengths_U
        regular = np.flatnonzero((lengths_U >= 6) & (lengths_U <= MAX_HISTORY))
        chosen = regular if len(regular) else np.flatnonzero(lengths_U == lengths_U.max())
        drawn = np.random.default_rng(self.seed).permutation(chosen)[:MAX_DRAWN].tolist()
        concerned = (user for user in drawn if self._concerned(user))
        object.__setattr__(self, "customer", next(concerned, drawn[0]))

    @property
    def requests(self) -> list[tuple[Rule, ...]]:
        """No rule at all; everything about price and stock; what is new. As far as the table of items can answer them."""
        new = tuple(rule for rule in self.rules if rule.name.startswith("new"))
        other = tuple(rule for rule in self.rules if rule not in new)
        return [(), *(rules for rules in (other, new) if rules)]

    def show_customer(self) -> None:
        """Who asks: the last few items that they took."""
        history = self._history(self.customer)
        self.console.print()
        self.console.print(
            Text.assemble(
                "Customer ",
                (str(self.log.user_ids[self.customer]), "bold"),
                f", drawn among those whom the rules concern, took {len(history)} items; the last of them:",
            )
        )
        for row in self.referee.rows(history[-5:]):
            self.console.print(Text.assemble("  • ", title_of(row), ("  " + facts_of(row), "dim")), no_wrap=True)
        missing = {"stock", "price"} - set(self.log.items.column_names)
        if missing:
            self.console.print(f"The items have no {' and no '.join(sorted(missing))}: no rule is made of what is not there.")
        self.console.print()

    def show_answers(self) -> list[dict[str, Any]]:
        """The three tables, side by side, and the verdict on each."""
        answers = [self._recommend(self.customer, rules) for rules in self.requests]
        shown = [
            self._shown(
                rules, answer, note=f"{self.referee.allowed(_predicates(rules)):,} of {self.log.num_items:,} items allowed"
            )
            for rules, answer in zip(self.requests, answers, strict=True)
        ]
        side_by_side(self.console, shown)
        meanings = {"price": "price", "stock": "how many are left", "first_seen": "first day in the shop"}
        meanings["first_review"] = "day of the first review"
        facts = [meaning for column, meaning in meanings.items() if column in self.log.items.column_names]
        self.console.print(Text(f"Below each title: {' · '.join(facts)}", "dim"))
        for rules, answer in zip(self.requests, answers, strict=True):
            self._verdict(rules, answer)
        return [self._found(rules, answer) for rules, answer in zip(self.requests, answers, strict=True)]

    def prove_on_a_crowd(self, size: int) -> dict[str, Any]:
        """The same requests for many customers: how many answers break a rule, with the rule asked for and without."""
        users = np.flatnonzero(self.log.histories.lengths_U >= 3)
        users = np.random.default_rng(self.seed + 1).permutation(users)[:size]
        found: dict[str, Any] = {"customers": len(users)}
        plain = [item for user in users for item in item_ids(self._recommend(int(user), ()))]
        for rules in self.requests[1:]:
            answers = [self._recommend(int(user), rules) for user in users]
            items = [item for answer in answers for item in item_ids(answer)]
            broken, would = self.referee.broken(_predicates(rules), items), self.referee.broken(_predicates(rules), plain)
            milliseconds = float(np.median([answer.milliseconds for answer in answers]))
            name = _name(rules)
            self.console.print(
                Text.assemble(
                    ("✓ " if broken == 0 else "✗ ", "green" if broken == 0 else "bold red"),
                    f"{len(users):,} others, “{name}”: {broken} of {len(items):,} items break it ",
                    (f"(plainly: {would:,} of {len(plain):,}); median {milliseconds:.0f} ms over HTTP", "dim"),
                ),
                soft_wrap=True,
            )
            found[name] = {"items": len(items), "broken": broken, "broken_without_rule": would, "median_ms": milliseconds}
            if broken:
                raise DemoError(f"{broken} of {len(items):,} items break “{name}”: this is a bug in leafbeam, please report it")
        return found

    def switch_a_rule(self) -> dict[str, Any]:
        """Edit rules.toml (and sell out the best item, where there is stock), tell the server, ask again."""
        rules = self.requests[1]
        before = self._recommend(self.customer, rules)
        shown = self._shown(rules, before, note="before", mark=len(self._stock_rules) > 0)
        changed = self._new_rule()
        wanted = (*self._stock_rules, changed)
        early = self._ask(self.customer, wanted)
        if early.status == 200:
            raise DemoError(f"the server knows the rule {changed.name!r} before it was written")
        self.console.print(f"Before: the rule “{changed.title}” is asked for, and the server says {early.status}:")
        self.console.print(Text(f"  {_message(early)}", "dim"), soft_wrap=True)

        rules_file = self.run / "rules.toml"
        index_file = self.run / "index.leafbeam"
        stamp = index_file.stat().st_mtime_ns
        rules_file.write_text(
            rules_file.read_text(encoding="utf-8") + f'{changed.name} = "{changed.predicate}"\n', encoding="utf-8"
        )
        self.console.print(Text.assemble("Edit:   rules.toml gets  ", (f'{changed.name} = "{changed.predicate}"', "cyan")))
        sold = self._sell_out(before)
        began = time.perf_counter()
        self.server.reload()
        after = self._ask(self.customer, wanted)
        while after.status != 200 and time.perf_counter() - began < RELOAD_SECONDS:
            time.sleep(0.005)
            after = self._ask(self.customer, wanted)
        milliseconds = 1e3 * (time.perf_counter() - began)
        if after.status != 200:
            raise DemoError(f"the server does not know {changed.name!r} {RELOAD_SECONDS:.0f} s after SIGHUP: {_message(after)}")
        unchanged = index_version(after) == index_version(before) and index_file.stat().st_mtime_ns == stamp
        self.console.print(
            Text.assemble(
                "SIGHUP: ",
                (f"{milliseconds:.0f} ms", "bold green"),
                f" later came the first answer under the new rule; the index is still {index_version(after)}",
            )
        )
        if not unchanged:
            raise DemoError("the index changed although only a rule did: this is a bug in leafbeam, please report it")
        self.console.print()
        again = self._recommend(self.customer, rules)
        # Without stock nothing could sell out, and the answer under the old rules is what it was.
        same = [] if sold is None else [self._shown(rules, again, note="after")]
        side_by_side(self.console, [shown, *same, self._shown(wanted, after, note="a new rule")])
        self._verdict(rules, again)
        self._verdict(wanted, after)
        return {
            "rule": changed.name,
            "predicate": changed.predicate,
            "status_before": early.status,
            "sold_out": sold,
            "milliseconds": milliseconds,
            "index_version": index_version(after),
            "answer": item_ids(after),
        }

    @property
    def _stock_rules(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.name == "in_stock")

    def _new_rule(self) -> Rule:
        """A lower price where there are prices, else whatever was not there from the start."""
        price = next((rule for rule in self.rules if rule.name == "under_20"), None)
        if price is None:
            return Rule(name="not_new", predicate=f"NOT ({self.rules[-1].predicate})", title="not new")
        return Rule(name="under_10", predicate=price.predicate.replace("20", "10"), title="under 10")

    def _sell_out(self, before: Answer) -> str | int | None:
        """Set the stock of the first item to 0 in the catalog's database, where there is such a column."""
        items = item_ids(before)
        if "stock" not in self.log.items.column_names or not items:
            return None
        with duckdb.connect(str(self.run / "catalog.duckdb")) as catalog:
            catalog.execute("UPDATE items SET stock = 0 WHERE item_id = ?", [items[0]]).fetchall()
        self.referee.set_stock(items[0], 0)
        self.console.print(
            Text.assemble("        catalog.duckdb: ", (title_of(self.referee.rows(items[:1])[0]), "green"), " sells out")
        )
        return items[0]

    def _concerned(self, user: int) -> bool:
        """Whether the plain answer breaks the first rules, so that they make a difference."""
        return self.referee.broken(_predicates(self.requests[1]), item_ids(self._recommend(user, ()))) > 0

    def _history(self, user: int) -> list[Any]:
        return self.log.item_ids[self.log.histories[user]][-MAX_HISTORY:].tolist()

    def _ask(self, user: int, rules: Sequence[Rule]) -> Answer:
        history = self._history(user)
        request = {
            "history": history,
            "num_items": NUM_SHOWN,
            "rules": [rule.name for rule in rules],
            "deny_item_ids": sorted(set(history)),
        }
        return self.server.ask("/v1/recommend", request)

    def _recommend(self, user: int, rules: Sequence[Rule]) -> Answer:
        answer = self._ask(user, rules)
        if answer.status != 200:
            raise DemoError(f"the server answered {answer.status}: {_message(answer)}; its log is {self.server.log}")
        return answer

    def _shown(self, rules: Sequence[Rule], answer: Answer, *, note: str, mark: bool = False) -> Shown:
        items = item_ids(answer)
        rows = zip(items, self.referee.rows(items), strict=True)
        return Shown(
            heading=_name(rules),
            note=note,
            items=[(title_of(row), facts_of(row), mark and item == items[0]) for item, row in rows],
        )

    def _verdict(self, rules: Sequence[Rule], answer: Answer) -> None:
        items = item_ids(answer)
        if not rules:
            every = [rule for request in self.requests for rule in request]
            notes = [f"{self.referee.broken([rule.predicate], items)} would break “{rule.title}”" for rule in every]
            self.console.print(Text(f"• no rules: of {len(items)} items {', '.join(notes)}"), soft_wrap=True)
            return
        broken = self.referee.broken(_predicates(rules), items)
        if broken:
            raise DemoError(
                f"{broken} of {len(items)} items break “{_name(rules)}”: this is a bug in leafbeam, please report it"
            )
        self.console.print(
            Text.assemble(
                ("✓ ", "green"),
                f"{_name(rules)}: all {len(items)} obey ",
                (" AND ".join(_predicates(rules)), "cyan"),
                (f"  ({answer.milliseconds:.0f} ms)", "dim"),
            ),
            soft_wrap=True,
        )

    def _found(self, rules: Sequence[Rule], answer: Answer) -> dict[str, Any]:
        return {
            "rules": [rule.name for rule in rules],
            "item_ids": item_ids(answer),
            "index_version": index_version(answer),
            "milliseconds": answer.milliseconds,
            "timings_ms": answer.body["timings_ms"],
        }


def item_ids(answer: Answer) -> list[Any]:
    return answer.body["item_ids"]


def index_version(answer: Answer) -> str:
    return str(answer.body["index_version"])


def _message(answer: Answer) -> str:
    error = answer.body.get("error")
    return str(error["message"] if isinstance(error, dict) else answer.body)


def _predicates(rules: Sequence[Rule]) -> list[str]:
    return [rule.predicate for rule in rules]


def _name(rules: Sequence[Rule]) -> str:
    return " and ".join(rule.title for rule in rules) or "no rules"
