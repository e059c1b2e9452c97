"""A request, the limits on it, the request while it is pending, and the result."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode import BeamLevel
from leafbeam.decode.policy import Policy
from leafbeam.engine.batcher import RequestSize
from leafbeam.engine.objectives import Objectives
from leafbeam.engine.search_widths import SearchKind
from leafbeam.errors import RequestError, counted, short_repr
from leafbeam.ids import is_id
from leafbeam.index import Filter, Version
from leafbeam.ops.constrain import Scoring
from leafbeam.retrieve import Reason

ItemId = int | str
UserId = int | str
Channel = Literal["model", "memory", "fused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request for items after a history, under rules.

    Args:
        history: Item ids, oldest first. Ids that the index does not have are left out and reported.
        user: The user of the history, for models with user tokens. `read_user` of the answer says whether the model read it.
        num_items: The largest number of items to return. If the rules allow fewer items, fewer are returned.
        rules: Names of rules of the catalog. Every item returned is allowed by all of them.
        deny_item_ids: Items that must not be returned, on top of the rules.
        num_beams: A fixed number of beams. It is raised to `num_items` if it is smaller, because a beam finds one item.
            Default: the server's number, or as many beams as it takes to prove that the answer is the best allowed list.
        scoring: `full`: log probabilities over each level's whole codebook. `allowed`: over the legal codes only.
            `vocabulary`: over all tokens of the model, as in `generate` of transformers, which takes longer.
        filter: An expression over rule names that must hold too: `&` and, `|` or, `-` and not, and parentheses, with the
            precedence of Python, such as `(fresh | promo) & in_stock - adult`. A `-` needs a space on its left.
        channel: The source of the ranking: `model` is the search, `memory` the item memory without a search, `fused` both.
            Default: `fused` if the server has an item memory, else `model`.
        deadline_s: The number of seconds from submission within which an answer is useful. Default: the engine's. A request
            that cannot meet its deadline is rejected, as early as that is clear.
        boosts: The boosts that are added to the score, by name, each with its weight: an item's score is the channel's plus the
            weighted sum of its boosts.
        at_most: For each column of the catalog, the largest number of items with the same value. Items without a value are not
            limited.
        at_least: For each rule, the number of its items that the list must have, if so many are allowed; see `unmet`.
            Each rule's best items are taken first; the rest of the list is filled best first.
        keep_history: Whether items of the history may be returned too.
        explain: Whether the answer has `levels`. Such requests run in batches of their own, and take longer.

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
    boosts: Mapping[str, float] = field(default_factory=dict[str, float])
    at_most: Mapping[str, int] = field(default_factory=dict[str, int])
    at_least: Mapping[str, int] = field(default_factory=dict[str, int])
    keep_history: bool = False
    explain: bool = False

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, read(name, value))
        rules = cast("object", self.rules)
        is_list = isinstance(rules, Iterable) and not isinstance(rules, str)
        names = tuple(cast("Iterable[object]", rules)) if is_list else (None,)
        if not all(isinstance(name, str) for name in names):
            raise RequestError(f"rules must be a list of rule names, not {short_repr(rules)}")
        object.__setattr__(self, "rules", names)
        if self.filter is not None and not isinstance(self.filter, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"filter must be an expression over rule names as text, not {short_repr(self.filter)}")
        if self.scoring not in get_args(Scoring):
            raise RequestError(f"scoring must be 'full', 'allowed' or 'vocabulary', not {short_repr(self.scoring)}")
        if self.channel not in (None, *get_args(Channel)):
            raise RequestError(f"channel must be 'model', 'memory' or 'fused', not {short_repr(self.channel)}")
        for name in ("keep_history", "explain"):
            if not isinstance(value := getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, not {short_repr(value)}")
        self._check_objectives()

    @property
    def has_objectives(self) -> bool:
        """Return whether the request has boosts, caps or quotas."""
        return bool(self.boosts) or self.has_policy

    @property
    def has_policy(self) -> bool:
        """Return whether the request has caps or quotas."""
        return bool(self.at_most or self.at_least)

    def _check_objectives(self) -> None:
        if not self.has_objectives:
            return
        num_required = sum(self.at_least.values())
        if num_required > self.num_items:
            raise RequestError(
                f"at_least asks for {counted(num_required, 'item')}, and num_items is {self.num_items:,}: raise it"
            )
        if self.has_policy and self.scoring == "allowed":
            raise RequestError(
                "at_most and at_least need the scoring 'full' or 'vocabulary': with 'allowed' the score of an item depends on "
                "what else is allowed"
            )

    def __repr__(self) -> str:
        parts = [f"{counted(len(self.history), 'item')} of history", f"num_items={self.num_items}"]
        parts += [f"deny {counted(len(self.deny_item_ids), 'item')}"] if self.deny_item_ids else []
        names = (
            "user",
            "rules",
            "filter",
            "num_beams",
            "channel",
            "deadline_s",
            "boosts",
            "at_most",
            "at_least",
            "keep_history",
        )
        parts += [f"{name}={short_repr(value)}" for name in names if (value := getattr(self, name))]
        return f"Request({', '.join(parts)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """The seconds of each stage of a request; prefill, rounds and constrain are those of its whole batch.

    Attributes:
        prepare: Looking up ids, resolving rules.
        queue: Waiting for a batch.
        prefill: The forward pass of the prompts.
        rounds: The forward passes of the beams.
        constrain: Choosing legal codes.
        postprocess: From codes to item ids.
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
        item_ids: The items, best first.
        codes: The Semantic ID of each item: one code per level.
        scores: If `model` ranked, log probabilities: items that share a SID share a score. Otherwise sums of features, which
            can be compared only within one answer.
        channel: The source of the ranking: `model`, `memory` or `fused`.
        reasons: The largest part of each score, one for each item; empty if `model` ranked. A short answer of `memory` or
            `fused` is filled up with other allowed items: they come last, the most popular first, with the channel `popular`.
        num_valid: The number of items that are returned, `num_items` or fewer; 0 if none is left, see `empty_rules`.
        empty_rules: If no item is left: the rule, the pair of rules, or the smallest set of rules that together allow no
            item; parts of `filter` are given as text. If the rules alone allow items, `- deny_item_ids` and `- history`,
            which exclude them, are named like rules. Empty if an item is left.
        num_beams: The largest number of beams of a level in the search's first pass; 0 without a search.
        exact: Whether the items that the model found are proved to be its best allowed ones; `fused` ranks only these. Always
            true, unless the request or the server sets a number of beams, or the proof needs more than `engine.max_rows`
            prefixes of a level.
        num_exact: The number of the model's first items that are proved to be its best allowed ones.
        rows: Rows that the model computed: one for the prompt, and one for each beam of each level.
        num_history_used: The number of items of the history that the model saw, deleted ones too until a compaction.
        num_history_left_out: The number of items of the history that the answer leaves out; 0 with `keep_history`.
        read_user: Whether the model read the user's token.
        ignored_history: Ids of the history that the index does not have.
        ignored_deny: Ids of `deny_item_ids` that the index does not have.
        index_version: The version of the index that answered.
        rules_generation: 1 at start, one more after each reload of the rules.
        batch_size: The number of requests that ran together.
        timings: The seconds of each stage.
        levels: With `explain`: the beams of each level; empty if no search ran. Their scores include the largest boost below
            each beam.
        boosts: The weighted sum of each item's boosts, which `scores` includes; empty without boosts.
        unmet: For each rule of `at_least` that is not met, the number of items that are missing.
    """

    item_ids: tuple[ItemId, ...]
    codes: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]
    channel: Channel
    reasons: tuple[Reason, ...]
    num_valid: int
    num_history_used: int
    num_history_left_out: int
    read_user: bool
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]
    index_version: str
    rules_generation: int | None
    timings: Timings
    batch_size: int = 1
    num_beams: int = 0
    exact: bool = False
    num_exact: int = 0
    rows: int = 0
    empty_rules: tuple[str, ...] = ()
    levels: tuple[BeamLevel, ...] = ()
    boosts: tuple[float, ...] = ()
    unmet: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def model_scores(self) -> tuple[float, ...]:
        """Return the score of each item without its boosts."""
        if not self.boosts:
            return self.scores
        return tuple(score - boost for score, boost in zip(self.scores, self.boosts, strict=True))

    def __repr__(self) -> str:
        best = f", best {short_repr(self.item_ids[0])} at {self.scores[0]:.3f}" if self.num_valid else ""
        return f"Result({counted(self.num_valid, 'item')}{best}, {1e3 * self.timings.total:.1f} ms)"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PendingRequest:
    """A request with all that its search needs, under the rules and the index version of its submission.

    channel: what ranks the items. history: the known ids of its history. size: with the key of its batch, its arrival and its
    deadline; its beams are those of the widest level. num_beams: the beams of the last level. kind: of the search, if it proves
    its answer. widths: the beams that its search is expected to need, of each level but the last.
    item_filter: the items that may be returned; num_left_out of the others are from the history.
    codes: (n, L) int64, of the newest known items. empty_rules: see `Result`. prepared: when it was ready to be queued.
    objectives: what it prefers. decoders: its model's, one for each worker. reads_user: whether the model reads its user.
    future: completed with the result; cancelling it withdraws the request, queued or running.
    """

    request: Request
    size: RequestSize
    num_beams: int
    kind: SearchKind | None
    widths: tuple[int, ...]
    version: Version
    item_filter: Filter
    rules_generation: int | None
    codes: NDArray[np.int64]
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]
    prepared: float
    num_left_out: int = 0
    empty_rules: tuple[str, ...] = ()
    channel: Channel = "model"
    history: tuple[ItemId, ...] = ()
    objectives: Objectives = field(default_factory=Objectives)
    decoders: Sequence[object] = ()
    reads_user: bool = False
    future: "Future[Result]" = field(default_factory=Future)

    @property
    def num_ranked(self) -> int:
        """Return the number of items that the search ranks for this request."""
        if self.kind is not None:
            return self.kind.num_items
        return self.request.num_items if self.channel == "model" and not self.request.explain else self.num_beams

    @property
    def searched_policy(self) -> Policy | None:
        """Return the caps and quotas that the search obeys; an item memory takes them from what it has ranked."""
        return self.objectives.policy if self.channel == "model" else None

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


def _item_ids(name: str, values: object) -> tuple[ItemId, ...]:
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


def _user(name: str, value: object) -> UserId:
    user = value.item() if isinstance(value, np.generic) else value
    if not is_id(user):
        raise RequestError(f"{name} must be an id (an integer or text), not {short_repr(user)}")
    if isinstance(user, str) and not is_valid_unicode(user):
        raise RequestError(f"{name} must be valid Unicode, not {short_repr(user)}")
    return user


def is_valid_unicode(text: str) -> bool:
    """Return False for half a surrogate pair, which JSON can spell but UTF-8 cannot encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _seconds(name: str, value: object) -> float:
    number = value.item() if isinstance(value, np.number) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e9:
        raise RequestError(f"{name} must be a number of seconds, not {short_repr(value)}")
    return float(number)


def _positive(name: str, value: object) -> int:
    number = value.item() if isinstance(value, np.integer) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise RequestError(f"{name} must be an integer of at least 1, not {short_repr(value)}")
    return number


def _weights(name: str, values: object) -> Mapping[str, float]:
    return _numbers(name, values, "a finite number", lambda value: abs(value) < 1e6)


def _counts(name: str, values: object) -> Mapping[str, float]:
    return _numbers(name, values, "an integer of at least 1", lambda value: isinstance(value, int) and value >= 1)


def _numbers(name: str, values: object, expected: str, is_valid: Callable[[float], bool]) -> Mapping[str, float]:
    """Return a mapping of names to numbers. Raises RequestError, which says what was expected of a number."""
    if not isinstance(values, Mapping):
        raise RequestError(f"{name} must map names to numbers, not {short_repr(values)}")
    numbers: dict[str, float] = {}
    for key, value in cast("Mapping[object, object]", values).items():
        number = value.item() if isinstance(value, np.generic) else value
        if not isinstance(key, str):
            raise RequestError(f"{name} must map names, as text, to numbers, not {short_repr(key)}")
        if isinstance(number, bool) or not isinstance(number, int | float) or not is_valid(number):
            raise RequestError(f"{name} of {short_repr(key)} must be {expected}, not {short_repr(value)}")
        numbers[key] = number
    return numbers


_READERS: Mapping[str, Callable[[str, object], object]] = {
    "history": _item_ids,
    "deny_item_ids": _item_ids,
    "num_items": _positive,
    "user": _user,
    "num_beams": _positive,
    "deadline_s": _seconds,
    "boosts": _weights,
    "at_most": _counts,
    "at_least": _counts,
}
_OPTIONAL = ("user", "num_beams", "deadline_s")
