"""Policies: what boosts, caps and quotas cost in recall, and what they bring. Shapes: U users, K items of a list."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table

from leafbeam.catalog import RuleSet
from leafbeam.engine import Engine, ItemId, Request, Result
from leafbeam.extras import optional_imports
from leafbeam.index import Filter, ItemColumn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """The lists of one policy, measured.

    Args:
        name: The policy.
        recall: The share of users whose held-out item is in the list.
        change: The recall less that without a policy.
        standard_error: The standard error of the change, over users.
        boosts: The mean of each boost over the items of the lists, without its weight.
        distinct: The mean number of values of each capped column in a list.
        shares: The share of each quota's rule in the items of the lists.
    """

    name: str
    recall: float
    change: float
    standard_error: float
    boosts: Mapping[str, float]
    distinct: Mapping[str, float]
    shares: Mapping[str, float]


def measure(
    engine: Engine, rules: RuleSet, histories: Sequence[tuple[ItemId, ...]], answers: Sequence[ItemId], policy: Request
) -> list[PolicyRow]:
    """Return the row of lists without a policy, and one for each scale of the policy's boosts.

    Args:
        engine: The engine.
        rules: The rule set that the engine answers from.
        histories: The items of each of U users.
        answers: The held-out item of each user.
        policy: The request of every user; its history comes from `histories`.

    Raises:
        UnknownRuleError: If a boost, a column or a rule is unknown.
    """
    boosts = {name: rules.boost(name) for name in policy.boosts}
    groups = {column: rules.groups(column) for column in policy.at_most}
    quotas = {rule: rules.filter(rule) for rule in policy.at_least}
    plain = replace(policy, boosts={}, at_most={}, at_least={})
    policies = {"without": plain}
    for scale in SCALES if policy.boosts else (1.0,):
        weights = {name: scale * weight for name, weight in policy.boosts.items()}
        policies[f"weights x {scale:g}" if weights else "policy"] = replace(policy, boosts=weights)
    rows: list[PolicyRow] = []
    base_U = np.zeros(len(answers))
    for name, request in policies.items():
        results = engine.recommend([replace(request, history=history) for history in histories])
        hit_U = np.array([answer in result.item_ids for answer, result in zip(answers, results, strict=True)], np.float64)
        base_U = base_U if rows else hit_U
        change_U = hit_U - base_U
        rows.append(
            PolicyRow(
                name=name,
                recall=float(hit_U.mean()),
                change=float(change_U.mean()),
                standard_error=float(change_U.std() / math.sqrt(len(answers))),
                boosts={boost: _mean(_values(rules, column, results)) for boost, column in boosts.items()},
                distinct={column: _distinct(_values(rules, numbers, results)) for column, numbers in groups.items()},
                shares={rule: _share(allowed, results) for rule, allowed in quotas.items()},
            )
        )
    return rows


def table(rows: Sequence[PolicyRow], num_items: int) -> Table:
    """Return the rows as a table."""
    names = [
        *(f"mean {boost}" for boost in rows[0].boosts),
        *(f"values of {column}" for column in rows[0].distinct),
        *(f"share of {rule}" for rule in rows[0].shares),
    ]
    shown = Table(
        "policy",
        *(Column(name, justify="right") for name in (f"Recall@{num_items}", "change", *names)),
        title="What the policy costs and brings",
        title_justify="left",
    )
    for row in rows:
        change = "" if row is rows[0] else f"{row.change:+.4f} ± {row.standard_error:.4f}"
        brings = [f"{value:.3f}" for part in (row.boosts, row.distinct, row.shares) for value in part.values()]
        shown.add_row(row.name, f"{row.recall:.4f}", change, *brings)
    return shown


def plot(rows: Sequence[PolicyRow], num_items: int) -> "Figure":
    """Plot what a policy costs against what it brings: a panel for each boost, capped column and quota, a point for each row.

    The bars are the standard errors of the change of recall.
    """
    with optional_imports("a plot"):
        import matplotlib
        from matplotlib.figure import Figure
    matplotlib.use("agg")
    panels = [(f"mean {name} of an item", [row.boosts[name] for row in rows]) for name in rows[0].boosts]
    panels += [(f"values of {name} in a list", [row.distinct[name] for row in rows]) for name in rows[0].distinct]
    panels += [(f"share of {name} in the items", [row.shares[name] for row in rows]) for name in rows[0].shares]
    figure = Figure(figsize=(4.2 * len(panels), 3.8), layout="constrained")
    for (label, values), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        recalls, errors = [row.recall for row in rows], [row.standard_error for row in rows]
        axes.errorbar(values, recalls, errors, marker="o", capsize=3, color="#1f7a4a", ecolor="#8a8f8c")
        for row, value in zip(rows, values, strict=True):
            axes.annotate(row.name, (value, row.recall), textcoords="offset points", xytext=(4, 5), fontsize=7)
        axes.set(xlabel=label, ylabel=f"Recall@{num_items}")
    return figure


def figures(rows: Sequence[PolicyRow]) -> list[dict[str, object]]:
    """Return the rows for the report of a run."""
    return [asdict(row) for row in rows]


def _values(rules: RuleSet, column: ItemColumn, results: Sequence[Result]) -> list[NDArray[np.generic]]:
    """Return the values (K,) of the items of each list."""
    lists: list[NDArray[np.generic]] = []
    for result in results:
        segment_n, row_n = rules.version.locate(result.item_ids)
        values_n = np.zeros(len(row_n), column.parts[0].dtype)
        for number, segment in enumerate(rules.version.segments):
            own = segment_n == number
            values_n[own] = column.at(segment.trie.items.ordinal_N[row_n[own]].astype(np.int64), number)
        lists.append(values_n)
    return lists


def _mean(lists: Sequence[NDArray[np.generic]]) -> float:
    values_n = np.concatenate(lists).astype(np.float64)
    return float(values_n.mean()) if len(values_n) else 0.0


def _distinct(lists: Sequence[NDArray[np.generic]]) -> float:
    """Return the mean number of values of a list; items without a value do not count."""
    return float(np.mean([len(np.unique(values_n[values_n != -1])) for values_n in lists]))


def _share(allowed: Filter | None, results: Sequence[Result]) -> float:
    """Return the share of the lists' items that a rule allows; None allows all."""
    if allowed is None:
        return 1.0
    return _mean([np.array([item_id in allowed for item_id in result.item_ids], np.bool_) for result in results])
