"""A request, the limits on it, the request while it is pending, and the result."""

from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode import BeamLevel
from leafbeam.engine.batcher import RequestSize
from leafbeam.engine.search_widths import SearchKind
from leafbeam.errors import RequestError, counted, short_repr
from leafbeam.ids import is_id
from leafbeam.index import Filter, Version
from leafbeam.retrieve import Reason

ItemId = int | str
UserId = int | str
Scoring = Literal["full", "allowed"]
Channel = Literal["model", "memory", "fused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Which items to recommend after a history, under rules.

    Args:
        history: Item ids, oldest first. Unknown ids are left out and reported.
        user: The user whose history it is. Only models with user tokens read it, and the result says whether the model did.
        num_items: The largest number of items to return; fewer are returned if fewer are allowed.
        rules: The names of rules of the catalog, all of which must hold.
        deny_item_ids: Items that must not be returned, in addition to the rules.
        num_beams: The number of beams of the search; None takes that of the engine. It is raised to num_items, because a beam
            finds one item.
        scoring: "full" normalises over a level's whole codebook (STATIC), "allowed" over the legal codes (xGR).
        filter: An expression over rule names that must hold too, such as "(fresh | promo) - adult" (see RuleSet.filter).
        channel: What ranks the items: the "model", the item "memory" (neighbours of the history, without a search), or both
            "fused". None takes fused if the engine has a memory, else the model.
        deadline_s: The number of seconds from submission in which an answer is of use; None takes that of the engine. A request
            that cannot meet its deadline is rejected as soon as that is clear.
        keep_history: Whether items of the history may be returned too.
        explain: Whether the result has the beams of each level. Such requests form batches of their own.

    Raises:
        RequestError: If a field has the wrong type or an invalid value.
    """

    history: tuple[ItemId, ...] = ()
    user: UserId | None = None
    num_items: int = 10
    rules: tuple[str, ...] = ()
    deny_item_ids: tuple[ItemId, ...] = ()
    num_beams: int | None = None
    scoring: Scoring = "full"
    filter: str | None = None
    channel: Channel | None = None
    deadline_s: float | None = None
    keep_history: bool = False
    explain: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "history", _item_ids("history", self.history))
        object.__setattr__(self, "deny_item_ids", _item_ids("deny_item_ids", self.deny_item_ids))
        object.__setattr__(self, "num_items", _positive("num_items", self.num_items))
        rules: Any = self.rules
        names: tuple[Any, ...] = tuple(rules) if isinstance(rules, Iterable) and not isinstance(rules, str) else (None,)
        if not all(isinstance(name, str) for name in names):
            raise RequestError(f"rules must be a list of rule names, not {short_repr(rules)}")
        object.__setattr__(self, "rules", names)
        if self.user is not None:
            object.__setattr__(self, "user", _user(self.user))
        if self.num_beams is not None:
            object.__setattr__(self, "num_beams", _positive("num_beams", self.num_beams))
        if self.filter is not None and not isinstance(self.filter, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"filter must be an expression over rule names as text, not {short_repr(self.filter)}")
        if self.deadline_s is not None:
            object.__setattr__(self, "deadline_s", _seconds("deadline_s", self.deadline_s))
        if self.scoring not in get_args(Scoring):
            raise RequestError(f"scoring must be 'full' or 'allowed', not {short_repr(self.scoring)}")
        if not isinstance(self.keep_history, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"keep_history must be True or False, not {short_repr(self.keep_history)}")
        if self.channel not in (None, *get_args(Channel)):
            raise RequestError(f"channel must be 'model', 'memory' or 'fused', not {short_repr(self.channel)}")
        if not isinstance(self.explain, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"explain must be True or False, not {short_repr(self.explain)}")

    def __repr__(self) -> str:
        parts = [f"{counted(len(self.history), 'item')} of history", f"num_items={self.num_items}"]
        parts += [f"deny {counted(len(self.deny_item_ids), 'item')}"] if self.deny_item_ids else []
        names = ("user", "rules", "filter", "num_beams", "channel", "deadline_s", "keep_history")
        parts += [f"{name}={short_repr(value)}" for name in names if (value := getattr(self, name))]
        return f"Request({', '.join(parts)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """The seconds of each stage of a request; prefill, rounds and constrain are those of its whole batch.

    Attributes:
        prepare: Looking up ids and resolving rules.
        queue: Waiting for a batch.
        prefill: The forward pass of the prompts.
        rounds: The forward passes of the beams.
        constrain: Choosing legal codes.
        postprocess: Turning codes into the result.
    """

    prepare: float
    queue: float
    prefill: float
    rounds: float
    constrain: float
    postprocess: float

    @property
    def model(self) -> float:
        """Return the seconds of all forward passes."""
        return self.prefill + self.rounds

    @property
    def total(self) -> float:
        """Return the sum of all stages."""
        return self.prepare + self.queue + self.prefill + self.rounds + self.constrain + self.postprocess


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The answer to a request. All its items are in the index and allowed.

    Attributes:
        item_ids: The items, best first, num_valid of them.
        codes: The Semantic ID of each item.
        scores: The score of each item. If the model alone ranks, scores are log probabilities, and items that share a SID are
            adjacent and have equal scores; otherwise they are sums of features (see Fusion, ItemMemory).
        channel: What ranked the items.
        reasons: The largest part of each item's score; empty if the model alone ranks. Allowed items that neither the memory
            nor the beams find fill up a short answer: they come last, the most popular first, with the reason "popular" and 0
            or the last score before them as their score.
        num_valid: The number of items: num_items of the request, or fewer if the rules allow fewer.
        empty_rules: If no item is left, the smallest set of the request's rules that leaves none: a rule, a pair that shares no
            item, or more; parts of the filter are given as text. If the rules leave items that "- deny_item_ids" and "-
            history" remove, these count as rules too. Otherwise empty.
        num_beams: The number of beams of the search, at the level that has the most in the first pass; 0 if no search ran.
        exact: Whether the model's items are proved to be the best allowed ones: no prefix that the search dropped scores above
            them. Always true unless the request or the engine sets num_beams, or the proof needs more than max_rows. For a
            fused ranking this refers to all items that the model contributes.
        num_exact: The number of first items of the model that are proved to be the best allowed ones.
        rows: The number of rows that the model computed: one for the prompt and one for each beam of each level.
        num_history_used: The number of items of the history that the model saw: the known ones, or the newest if not all fit. A
            deleted item is known until the index is compacted.
        num_history_left_out: The number of items that were not returned because they are in the history; 0 with keep_history.
        read_user: Whether the model read the user's token.
        ignored_history: The ids of the history that the index does not have, as sent.
        ignored_deny: The ids of deny_item_ids that the index does not have, as sent.
        index_version: The version of the index that answered.
        rules_generation: The generation of the rules that answered; None without a catalog.
        batch_size: The number of requests that ran together.
        timings: The seconds of each stage.
        levels: The beams of each level, if the request asked for them and a search ran.
    """

    item_ids: tuple[ItemId, ...]
    codes: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]
    channel: Channel
    reasons: tuple[Reason, ...]
    num_valid: int
    num_beams: int
    exact: bool
    num_exact: int
    rows: int
    num_history_used: int
    num_history_left_out: int
    read_user: bool
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]
    index_version: str
    rules_generation: int | None
    batch_size: int
    timings: Timings
    empty_rules: tuple[str, ...] = ()
    levels: tuple[BeamLevel, ...] = ()

    def __repr__(self) -> str:
        best = f", best {short_repr(self.item_ids[0])} at {self.scores[0]:.3f}" if self.num_valid else ""
        return f"Result({counted(self.num_valid, 'item')}{best}, {1e3 * self.timings.total:.1f} ms)"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PendingRequest:
    """A request with all that its search needs, under the rules and the index version of its submission.

    channel: what ranks the items. history: the known ids of its history. size: with the key of its batch, its arrival and its
    deadline; its beams are those of the widest level. num_beams: the beams of the last level. kind: of the search, if it proves
    its answer. widths: the beams that its search is expected to need, of each level but the last.
    codes: (n, L) int64, of the newest known items. deny: the known ids that must not be returned, num_left_out of the history
    among them. empty_rules: see `Result`. prepared: when it was ready to be queued.
    future: completed with the result; cancelling it withdraws the request, queued or running.
    """

    request: Request
    size: RequestSize
    num_beams: int
    kind: SearchKind | None
    widths: tuple[int, ...]
    version: Version
    item_filter: Filter | None
    rules_generation: int | None
    codes: NDArray[np.int64]
    deny: NDArray[Any] | None
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]
    prepared: float
    num_left_out: int = 0
    empty_rules: tuple[str, ...] = ()
    channel: Channel = "model"
    history: tuple[ItemId, ...] = ()
    future: "Future[Result]" = field(default_factory=Future)

    @property
    def num_ranked(self) -> int:
        """The number of items that the search ranks for this request."""
        if self.kind is not None:
            return self.kind.num_items
        return self.request.num_items if self.channel == "model" and not self.request.explain else self.num_beams

    @property
    def is_done(self) -> bool:
        """Return whether it was answered, refused or cancelled."""
        return self.future.done()

    def complete(self, outcome: Result | Exception) -> bool:
        """Set the future's result or error; False if it was done already."""
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            return False
        return True


def _item_ids(name: str, values: Any) -> tuple[ItemId, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise RequestError(f"{name} must be a list of item ids, not {short_repr(values)}")
    ids = tuple(values)
    if set(map(type, ids)) <= {int, str}:
        return ids
    ids = tuple(value.item() if isinstance(value, np.generic) else value for value in ids)
    for value in ids:
        if not is_id(value):
            raise RequestError(f"{name} must hold item ids (integers or text), not {short_repr(value)}")
    return ids


def _user(value: Any) -> UserId:
    user = value.item() if isinstance(value, np.generic) else value
    if not is_id(user):
        raise RequestError(f"user must be an id (an integer or text), not {short_repr(user)}")
    if isinstance(user, str) and not is_valid_unicode(user):
        raise RequestError(f"user must be valid Unicode, not {short_repr(user)}")
    return user


def is_valid_unicode(text: str) -> bool:
    """False for half a surrogate pair, which JSON can spell but UTF-8 cannot encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _seconds(name: str, value: Any) -> float:
    number = value.item() if isinstance(value, np.number) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e9:
        raise RequestError(f"{name} must be a number of seconds, not {short_repr(value)}")
    return float(number)


def _positive(name: str, value: Any) -> int:
    number = value.item() if isinstance(value, np.integer) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise RequestError(f"{name} must be an integer of at least 1, not {short_repr(value)}")
    return number
