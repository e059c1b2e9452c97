"""A tour of the running server: three answers for one user, checks in SQL, and a rule that changes meanwhile."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import duckdb
import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from leafbeam.demo.display import ItemList, item_facts, item_title, print_side_by_side
from leafbeam.demo.processes import Response, Server
from leafbeam.demo.rules import Rule, SqlChecker
from leafbeam.errors import DemoError, counted
from leafbeam.train.interaction_log import InteractionLog

NUM_ITEMS = 5
MAX_HISTORY = 20
MAX_CANDIDATES = 50
RELOAD_SECONDS = 30.0
BUG = "this is a bug in leafbeam, please report it"
COLUMN_TITLES = {
    "price": "price",
    "stock": "stock",
    "first_seen": "first day in the shop",
    "first_review": "day of the first review",
}


@dataclass(kw_only=True)
class Tour:
    """Requests recommendations for users of the log, and checks every answer against the table of items.

    Each method prints what it does and returns its figures for the report. Raises DemoError where an answer violates a rule.
    """

    log: InteractionLog
    rules: tuple[Rule, ...]
    server: Server
    run: Path
    console: Console
    seed: int
    checker: SqlChecker = field(init=False)
    user: int = field(init=False)

    def __post_init__(self) -> None:
        self.checker = SqlChecker(self.log.items)
        lengths_U = self.log.histories.lengths_U
        candidates = np.flatnonzero((lengths_U >= 6) & (lengths_U <= MAX_HISTORY))
        if not len(candidates):
            candidates = np.flatnonzero(lengths_U == lengths_U.max())
        drawn = np.random.default_rng(self.seed).permutation(candidates)[:MAX_CANDIDATES].tolist()
        # A user whose unfiltered answer violates the first rules shows what the rules change.
        affected = (user for user in drawn if self._violations(self.requests[1], self._recommend(user, ()).item_ids))
        self.user = next(affected, drawn[0])

    @property
    def requests(self) -> list[tuple[Rule, ...]]:
        """Return the rules of each request: none; those on price and stock; those on age. Empty ones are left out."""
        new = tuple(rule for rule in self.rules if rule.name.startswith("new"))
        other = tuple(rule for rule in self.rules if rule not in new)
        return [(), *(rules for rules in (other, new) if rules)]

    @property
    def fragment(self) -> str:
        """Return the end of the address at which the server's page shows this user under the first rules."""
        items = [("item", item) for item in self._history(self.user)]
        return "/#" + urlencode([*items, *(("rule", rule.name) for rule in self.requests[1])])

    def show_user(self) -> None:
        """Print the user and the last items of the history."""
        history = self._history(self.user)
        name = (str(self.log.user_ids[self.user]), "bold")
        self.console.print()
        self.console.print(Text.assemble("User ", name, f", who took {counted(len(history), 'item')}; the last of them:"))
        for row in self.checker.rows(history[-5:]):
            self.console.print(Text.assemble("  • ", item_title(row), ("  " + item_facts(row), "dim")), no_wrap=True)
        missing = {"stock", "price"} - set(self.log.items.column_names)
        if missing:
            self.console.print(f"The items have no {' and no '.join(sorted(missing))}: there is no rule on it.")
        self.console.print()

    def show_answers(self) -> list[dict[str, object]]:
        """Print the answers to all requests side by side, and check each."""
        answers = [(rules, self._recommend(self.user, rules)) for rules in self.requests]
        allowed = [f"{self.checker.count_allowed(_predicates(rules)):,}" for rules in self.requests]
        notes = (f"{count} of {counted(self.log.num_items, 'item')} allowed" for count in allowed)
        print_side_by_side(self.console, [self._item_list(*answer, note) for answer, note in zip(answers, notes, strict=True)])
        columns = [title for column, title in COLUMN_TITLES.items() if column in self.log.items.column_names]
        self.console.print(Text(f"Below each title: {' · '.join(columns)}", "dim"))
        for answer in answers:
            self._check(*answer)
        return [
            {
                "rules": [rule.name for rule in rules],
                "item_ids": response.item_ids,
                "index_version": response.index_version,
                "milliseconds": response.milliseconds,
                "timings_ms": response.body["timings_ms"],
            }
            for rules, response in answers
        ]

    def check_users(self, count: int) -> dict[str, object]:
        """Repeat the requests for `count` users, and count violations with and without the rules in the request."""
        users = np.flatnonzero(self.log.histories.lengths_U >= 3)
        users = np.random.default_rng(self.seed + 1).permutation(users)[:count].tolist()
        figures: dict[str, object] = {"users": len(users)}
        unfiltered = [item for user in users for item in self._recommend(user, ()).item_ids]
        for rules in self.requests[1:]:
            responses = [self._recommend(user, rules) for user in users]
            items = [item for response in responses for item in response.item_ids]
            broken, without_rule = self._violations(rules, items), self._violations(rules, unfiltered)
            median_ms = float(np.median([response.milliseconds for response in responses]))
            name = _name(rules)
            self._print(
                ("✓ " if broken == 0 else "✗ ", "green" if broken == 0 else "bold red"),
                f"{counted(len(users), 'user')}, “{name}”: {counted(broken, 'violation')} in {counted(len(items), 'item')} ",
                (f"(without it: {without_rule:,} of {len(unfiltered):,}); median {median_ms:.0f} ms over HTTP", "dim"),
            )
            counts = {"items": len(items), "broken": broken, "broken_without_rule": without_rule}
            figures[name] = counts | {"median_ms": median_ms}
            if broken:
                raise DemoError(f"{counted(broken, 'violation')} of “{name}” in {counted(len(items), 'item')}: {BUG}")
        return figures

    def change_a_rule(self) -> dict[str, object]:
        """Add a rule to rules.toml (and sell out the first item, if items have stock), reload, and request it."""
        rules, new_rule = self.requests[1], self._new_rule()
        stock_rules = tuple(rule for rule in self.rules if rule.name == "in_stock")
        new_rules = (*stock_rules, new_rule)
        before = self._recommend(self.user, rules)
        list_before = self._item_list(rules, before, "before", marked=0 if stock_rules else None)
        early = self._request(self.user, new_rules)
        if early.status == 200:
            raise DemoError(f"the server knows the rule {new_rule.name!r} before it was written")
        self._print(f"Before: the server answers a request with the rule “{new_rule.title}” with {early.status}:")
        self.console.print(Padding(Text(early.message, "dim"), (0, 0, 0, 2)))

        index_file, line = self.run / "index.leafbeam", f'{new_rule.name} = "{new_rule.predicate}"'
        modified = index_file.stat().st_mtime_ns
        with (self.run / "rules.toml").open("a", encoding="utf-8") as rules_file:
            rules_file.write(line + "\n")
        self._print("Edit:   rules.toml gets  ", (line, "cyan"))
        sold_out = self._sell_out(before)
        start = time.perf_counter()
        self.server.reload()
        after = self._request(self.user, new_rules)
        while after.status != 200 and time.perf_counter() - start < RELOAD_SECONDS:
            time.sleep(0.005)
            after = self._request(self.user, new_rules)
        milliseconds = 1e3 * (time.perf_counter() - start)
        if after.status != 200:
            raise DemoError(f"the server does not know {new_rule.name!r} {RELOAD_SECONDS:.0f} s after SIGHUP: {after.message}")
        took, unchanged = (f"{milliseconds:.0f} ms", "bold green"), f"; the index is still {after.index_version}"
        self._print("SIGHUP: the first answer with the new rule came after ", took, unchanged)
        if after.index_version != before.index_version or index_file.stat().st_mtime_ns != modified:
            raise DemoError(f"the index changed although only a rule did: {BUG}")
        self.console.print()
        again = self._recommend(self.user, rules)
        # Without stock nothing sold out, and the answer under the old rules is unchanged.
        same_rules = [] if sold_out is None else [self._item_list(rules, again, "after")]
        print_side_by_side(self.console, [list_before, *same_rules, self._item_list(new_rules, after, "a new rule")])
        self._check(rules, again)
        self._check(new_rules, after)
        return {
            "rule": new_rule.name,
            "predicate": new_rule.predicate,
            "status_before": early.status,
            "sold_out": sold_out,
            "milliseconds": milliseconds,
            "index_version": after.index_version,
            "answer": after.item_ids,
        }

    def _new_rule(self) -> Rule:
        """Return a lower price if items have prices, else the negation of the last rule."""
        price = next((rule for rule in self.rules if rule.name == "under_20"), None)
        if price is None:
            return Rule(name="not_new", predicate=f"NOT ({self.rules[-1].predicate})", title="not new")
        return Rule(name="under_10", predicate=price.predicate.replace("20", "10"), title="under 10")

    def _sell_out(self, response: Response) -> str | int | None:
        """Set the stock of the first item to 0 in the catalog's database, if there is such a column."""
        if "stock" not in self.log.items.column_names or not response.item_ids:
            return None
        item = response.item_ids[0]
        with duckdb.connect(str(self.run / "catalog.duckdb")) as catalog:
            catalog.execute("UPDATE items SET stock = 0 WHERE item_id = ?", [item]).fetchall()
        self.checker.set_stock(item, 0)
        title = item_title(self.checker.rows([item])[0])
        self._print("        catalog.duckdb: ", (title, "green"), " sells out")
        return item

    def _history(self, user: int) -> list[int | str]:
        return self.log.item_ids[self.log.histories[user]][-MAX_HISTORY:].tolist()

    def _request(self, user: int, rules: Sequence[Rule]) -> Response:
        history, names = self._history(user), [rule.name for rule in rules]
        body = {"history": history, "num_items": NUM_ITEMS, "rules": names, "deny_item_ids": sorted(set(history))}
        return self.server.request("/v1/recommend", body)

    def _recommend(self, user: int, rules: Sequence[Rule]) -> Response:
        response = self._request(user, rules)
        if response.status != 200:
            raise DemoError(f"the server answered {response.status}: {response.message}; its log is {self.server.log}")
        return response

    def _violations(self, rules: Sequence[Rule], item_ids: Sequence[object]) -> int:
        return self.checker.count_violations(_predicates(rules), item_ids)

    def _item_list(self, rules: Sequence[Rule], response: Response, note: str, *, marked: int | None = None) -> ItemList:
        return ItemList(heading=_name(rules), note=note, rows=self.checker.rows(response.item_ids), marked=marked)

    def _check(self, rules: Sequence[Rule], response: Response) -> None:
        """Print whether an answer obeys its rules; DemoError if it does not."""
        items = response.item_ids
        if not rules:
            named = [rule for request in self.requests for rule in request]
            counts = (f"{self._violations([rule], items)} violate “{rule.title}”" for rule in named)
            self._print(f"• no rules: of {counted(len(items), 'item')} {', '.join(counts)}")
            return
        if broken := self._violations(rules, items):
            raise DemoError(f"{counted(broken, 'violation')} of “{_name(rules)}” in {counted(len(items), 'item')}: {BUG}")
        predicate, took = (" AND ".join(_predicates(rules)), "cyan"), (f"  ({response.milliseconds:.0f} ms)", "dim")
        self._print(("✓ ", "green"), f"{_name(rules)}: all {len(items)} obey ", predicate, took)

    def _print(self, *parts: str | tuple[str, str]) -> None:
        """Print one line of text with styles."""
        self.console.print(Text.assemble(*parts), soft_wrap=True)


def _predicates(rules: Sequence[Rule]) -> list[str]:
    return [rule.predicate for rule in rules]


def _name(rules: Sequence[Rule]) -> str:
    return " and ".join(rule.title for rule in rules) or "no rules"
