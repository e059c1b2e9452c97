"""What is asked of the engine, how much may be asked, and what it answers."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from leafbeam.errors import ArgumentError, RequestError

ItemId = int | str
UserId = int | str
Scoring = Literal["full", "allowed"]
_PLAIN = frozenset((int, str))


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One question: what to show next to someone with this history, under these rules.

    history: item ids, oldest first; unknown ones are left out and reported.
    user: whose history it is, for a model that has tokens for users; others do not look at it, and the result says so.
    num_items: how many items to answer at most; fewer come back when the rules allow no more.
    rules: names of rules of the catalog; all of them hold.
    filter: an expression over such names that holds too, such as "(fresh | promo) - adult" (see RuleSet.filter).
    deny_item_ids: items that must not come back, on top of the rules.
    num_beams: width of the search. None takes the engine's; less than num_items is raised to it, since a beam finds one
        item, and the result says what was used.
    scoring: "full" normalises over a level's whole codebook (STATIC), "allowed" over the legal codes (xGR).
    deadline_s: how soon an answer is of use, from submission; None takes the engine's. A request that cannot be answered by
        then is refused, as early as that is clear.

    Raises RequestError for a field that cannot be meant.
    """

    history: tuple[ItemId, ...] = ()
    user: UserId | None = None
    num_items: int = 10
    rules: tuple[str, ...] = ()
    deny_item_ids: tuple[ItemId, ...] = ()
    num_beams: int | None = None
    scoring: Scoring = "full"
    filter: str | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "history", _item_ids("history", self.history))
        object.__setattr__(self, "user", None if self.user is None else _user(self.user))
        object.__setattr__(self, "deny_item_ids", _item_ids("deny_item_ids", self.deny_item_ids))
        object.__setattr__(self, "num_items", _positive("num_items", self.num_items))
        if self.num_beams is not None:
            object.__setattr__(self, "num_beams", _positive("num_beams", self.num_beams))
        object.__setattr__(self, "rules", _names(self.rules))
        if self.filter is not None and not isinstance(self.filter, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"filter has to be the text of an expression over rule names, not {_shown(self.filter)}")
        if self.deadline_s is not None:
            object.__setattr__(self, "deadline_s", _seconds("deadline_s", self.deadline_s))
        if self.scoring not in get_args(Scoring):
            raise RequestError(f"scoring has to be 'full' or 'allowed', not {_shown(self.scoring)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much one request may ask for. Each is refused beyond, never cut.

    max_history and max_deny count ids as sent, known or not. max_deadline_s: the longest deadline, in seconds.
    """

    max_items: int = 256
    max_beams: int = 512
    max_history: int = 2048
    max_deny: int = 10_000
    max_rules: int = 16
    max_deadline_s: int = 60

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{field.name} has to be a whole number above 0, not {value!r}")
        if self.max_items > self.max_beams:
            raise ArgumentError(
                f"max_items={self.max_items} needs at least as many beams, but max_beams={self.max_beams}: raise it"
            )

    def check(self, request: Request) -> None:
        """Raise RequestError if the request asks for more than this."""
        asked = {
            "num_items": (request.num_items, self.max_items),
            "num_beams": (request.num_beams or 1, self.max_beams),
        }
        if request.deadline_s is not None:
            if request.deadline_s <= 0:
                message = f"the deadline passed {-request.deadline_s:g} s before the request came: allow more time"
                raise RequestError(message, reason="deadline_past")
            if request.deadline_s > self.max_deadline_s:
                raise RequestError(f"a deadline may be up to {self.max_deadline_s:g} s away, not {request.deadline_s:g} s")
        for name, (value, limit) in asked.items():
            if value > limit:
                raise RequestError(f"{name} has to be from 1 to {limit:,}, not {_shown(value)}")
        counted = {
            "history": (len(request.history), self.max_history),
            "deny_item_ids": (len(request.deny_item_ids), self.max_deny),
            "rules": (len(request.rules), self.max_rules),
        }
        for name, (count, limit) in counted.items():
            if count > limit:
                raise RequestError(f"{name} may hold up to {limit:,} entries, not {count:,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """Where a request's time went, in seconds; prefill, rounds and constrain are those of its whole batch.

    prepare: reading ids, choosing filters. queue: waiting for its batch. prefill: the prompts' forward pass. rounds: those of
    the beams. constrain: choosing legal codes. postprocess: waiting for and doing codes to item ids.
    """

    prepare: float
    queue: float
    prefill: float
    rounds: float
    constrain: float
    postprocess: float

    @property
    def model(self) -> float:
        """All forward passes."""
        return self.prefill + self.rounds

    @property
    def total(self) -> float:
        return self.prepare + self.queue + self.prefill + self.rounds + self.constrain + self.postprocess


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of a request: items best first, every one of them in the index and allowed.

    item_ids, sids, scores: n entries each; sids are L codes, scores log probabilities. Items that share a SID follow
        each other with one score.
    num_valid: n, at most num_items; less if the rules allow no more items (0: none).
    num_beams: the width that was used.
    num_history_used: how many items of the history the model saw: the known ones, the newest if all do not fit it.
    read_user: whether the model was told whose history it is: one was given, and it has tokens for users.
    ignored_history, ignored_deny: ids as sent that the index does not know.
    index_version, rules_generation: which catalog answered; the generation is None without a catalog.
    batch_size: how many requests ran together.
    """

    item_ids: tuple[ItemId, ...]
    sids: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]
    num_valid: int
    num_beams: int
    num_history_used: int
    read_user: bool
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]
    index_version: str
    rules_generation: int | None
    batch_size: int
    timings: Timings


def _names(values: Any) -> tuple[str, ...]:
    if isinstance(values, Iterable) and not isinstance(values, str):
        names: tuple[Any, ...] = tuple(values)
        if all(isinstance(name, str) for name in names):
            return names
    raise RequestError(f"rules has to be a list of names, not {_shown(values)}")


def _item_ids(name: str, values: Any) -> tuple[ItemId, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise RequestError(f"{name} has to be a list of item ids, not {_shown(values)}")
    ids = tuple(values)
    if set(map(type, ids)) <= _PLAIN:
        return ids
    ids = tuple(value.item() if isinstance(value, np.generic) else value for value in ids)
    for value in ids:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise RequestError(f"{name} has to hold item ids (whole numbers or text), not {_shown(value)}")
    return ids


def _user(value: Any) -> UserId:
    user = value.item() if isinstance(value, np.generic) else value
    if isinstance(user, bool) or not isinstance(user, int | str):
        raise RequestError(f"user has to be an id (a whole number or text), not {_shown(user)}")
    if isinstance(user, str) and not is_whole(user):
        raise RequestError(f"user has to be whole characters, not {_shown(user)}")
    return user


def is_whole(text: str) -> bool:
    """False for half a surrogate pair, which JSON can spell and which has no bytes: nothing could be answered with it."""
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
        raise RequestError(f"{name} has to be a number of seconds, not {_shown(value)}")
    return float(number)


def _positive(name: str, value: Any) -> int:
    number = value.item() if isinstance(value, np.integer) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise RequestError(f"{name} has to be a whole number of at least 1, not {_shown(value)}")
    return number


def _shown(value: object) -> str:
    """A value in an error message: short, whatever was sent."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
