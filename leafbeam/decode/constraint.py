"""The beam loop, and what it asks of a constraint. Every search of this package runs `rounds`.

    for each round: logits = model(codes, parents); beams = constraint.step(beams, logits)

Shapes: S segments, B requests, K beams, V codes of a round, T rounds.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.config import SearchConfig
from leafbeam.decode.model_calls import JumpForward, ModelCalls, of_beams
from leafbeam.decode.spares import Spares, first_beams
from leafbeam.errors import LogitsError
from leafbeam.index import ItemColumn
from leafbeam.ops.backend import is_jax, namespace_of, to_kind_of, to_numpy
from leafbeam.ops.constrain import AnyArray, Beams

_OTHER_TOKENS = ", of {:,} codes and, last, the log-sum-exp of the logits of all other tokens, for scoring 'vocabulary'"
Launch = Callable[[int, Beams[Any], Any, int], tuple[Beams[Any], Any]]


class Constraint(Protocol):
    """The prefixes that the searches of one batch may find: those of a trie's items, or of an automaton's sequences.

    bad_T: for each round, 0 or one more than the number of a row that held NaN or +inf; empty if `step` raises LogitsError.
    rows_T: for each round of bad_T, the number of beams that it started from.
    """

    config: SearchConfig
    bad_T: list[Any]
    rows_T: list[int]

    def root(self) -> Beams[Any]:
        """Return the beams before the first round: one for each request."""
        ...

    def step(self, number: int, beams: Beams[AnyArray], logits: AnyArray) -> Beams[Any]:
        """Extend every live beam by every legal code and keep the best; waits for no device. Raises LogitsError."""
        ...

    def finished(self, beams: Beams[AnyArray]) -> Any:
        """Return which beams can take only the end code from here on, bool [B, K]; None if there is no end code."""
        ...

    def suffix(self, number: int, beams: Beams[AnyArray]) -> JumpForward | None:
        """Return the codes that all beams must take from round `number` on, None if one has a choice. Waits for a device."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A record of what a search did.

    rounds: (codes_BK, parents_BK) of each. max_beams: the smallest number of beams that a skipped round keeps.

    kept: by a round's number, the scores (B, K) of the beams that it kept, best first.
    bounds: by a round's number, a score (B,) that is at least that of each beam that the round dropped.
    spares: by a round's number, the beams that it dropped and that may still run.
    """

    beams: Beams[Any]
    rounds: list[tuple[Any, Any]]
    calls: int
    max_beams: int | None
    kept: dict[int, Any] = field(default_factory=dict[int, Any])
    bounds: dict[int, Any] = field(default_factory=dict[int, Any])
    spares: dict[int, Spares] = field(default_factory=dict[int, Spares])

    @property
    def rounds_saved(self) -> int:
        return len(self.rounds) - self.calls

    def codes(self) -> Any:
        """Return the codes of every beam, [B, K, T], found by going back from beam to parent; in jax if the beams are, else
        numpy."""
        on_jax = is_jax(self.beams.scores)
        xp = namespace_of(self.beams.scores) if on_jax else np
        batch_size, num_beams = self.beams.scores.shape
        beams_BK, requests_B1 = xp.arange(num_beams), xp.arange(batch_size)[:, None]
        codes: list[Any] = []
        for codes_BK, parents_BK in reversed(self.rounds):
            if not on_jax:
                codes_BK, parents_BK = to_numpy(codes_BK), to_numpy(parents_BK)
            position_BK = requests_B1 * codes_BK.shape[1] + beams_BK  # one index, see `JaxNamespace.at`
            codes.append(xp.take(codes_BK.reshape(-1), position_BK, mode="clip"))
            beams_BK = xp.take(parents_BK.reshape(-1), position_BK, mode="clip")
        return xp.stack(codes[::-1], axis=2)

    def bound(self, num_rounds: int) -> Any:
        """Return the highest possible score (B,) of a prefix dropped before round `num_rounds`; -inf if none was dropped."""
        xp = namespace_of(self.beams.scores)
        nothing_B = xp.full_like(self.beams.scores[:, 0], -np.inf)
        bounds = [bound_B for number, bound_B in self.bounds.items() if number < num_rounds]
        return functools.reduce(xp.maximum, bounds, nothing_B)

    def beams_needed(self, num_rounds: int, least_B: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return, for each round before the last, how many of its beams score at least `least_B`, (B, T - 1)."""
        needed: list[NDArray[np.int64]] = []
        for number in range(num_rounds - 1):
            if number in self.kept:
                scores_BK = to_numpy(self.kept[number])
                needed.append(((scores_BK >= least_B[:, None]) & (scores_BK > -np.inf)).sum(1))
            else:  # forced codes: as many as the round before
                needed.append(needed[-1])
        return np.stack(needed, 1) if needed else np.zeros((len(least_B), 0), np.int64)

    @property
    def num_valid_B(self) -> NDArray[np.int64]:
        num_valid_B = to_numpy(self.beams.num_valid).astype(np.int64)
        return num_valid_B if self.max_beams is None else np.minimum(num_valid_B, self.max_beams)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """The number of beams that each request keeps, if it is smaller than that of the search.

    Args:
        widths_BL: The number of beams of each request, for each level but the last; None keeps all.
        least_B: The score below which each request drops a beam, which waits for a device; None drops none.
    """

    widths_BL: NDArray[np.int64] | None = None
    least_B: NDArray[np.float32] | None = None

    def of(self, number: int, beams: Beams[Any], *, keeps_all: bool) -> tuple[Beams[Any], Any]:
        """Return the beams of a round that are kept, and a score (B,) that no dropped beam exceeds.

        keeps_all: whether every prefix has a beam; otherwise some may have been dropped that score as high as the last beam.
        """
        batch, num_beams = beams.scores.shape
        count_B = np.full(batch, num_beams) if self.widths_BL is None else np.minimum(num_beams, self.widths_BL[:, number])
        if self.least_B is not None:
            count_B = np.minimum(count_B, (to_numpy(beams.scores) >= self.least_B[:, None]).sum(1))
        highest_B = of_beams(beams.scores, np.minimum(count_B, num_beams - 1)[:, None])[:, 0]
        if keeps_all:
            is_whole_B = to_kind_of(count_B == num_beams, beams.scores)
            highest_B = namespace_of(beams.scores).where(is_whole_B, -np.inf, highest_B)
        return first_beams(beams, count_B), highest_B


def decode(constraint: Constraint, model: ModelCalls, *, watch: bool, cut: Cut | None = None) -> Trace:
    """Run a search.

    Args:
        constraint: The codes that beams may take.
        model: The calls of the model.
        watch: End the search once no beam has a choice, and jump over forced codes; this waits for a device every round.
            Without it no value is looked at, so that the loop can be traced and captured.
        cut: The beams that requests keep, where they differ.
    """
    return deque(rounds(constraint, model, watch=watch, cut=cut), maxlen=1).pop()


def rounds(constraint: Constraint, model: ModelCalls, *, watch: bool, cut: Cut | None = None) -> Iterator[Trace]:
    """Yield what a search has done after each call of the model, and at its end. Arguments as for `decode`.

    The traces share `rounds`, `kept`, `bounds` and `spares`, which grow.
    """
    config = constraint.config
    beams, done, max_beams = constraint.root(), list[tuple[Any, Any]](), None
    kept, bounds, spares = dict[int, Any](), dict[int, Any](), dict[int, Spares]()
    while (number := len(done)) < config.num_rounds:
        if watch and _is_over(constraint, beams):
            max_beams = min(config.num_beams[number:])
            break
        jump = constraint.suffix(number, beams) if model.can_jump(number) else None
        if jump is not None and config.scoring == "allowed":
            done += jump.rounds
            beams = jump.after(beams)
            if not jump.decides:
                max_beams = min(config.num_beams[number:])
                break
            logits = model.logits_after(jump, beams)
            beams = constraint.step(len(done), beams, logits)
        else:
            beams = constraint.step(number, beams, model.logits(number, beams, jump))
        number = len(done)
        if not config.keeps_all(number):
            bounds[number] = beams.scores[:, -1]
        if cut is not None and number < config.num_rounds - 1:
            before, lowest_B = beams, bounds.get(number)
            beams, bounds[number] = cut.of(number, before, keeps_all=config.keeps_all(number))
            if model.can_run_more:
                spares[number] = Spares.of(before, beams.num_valid, model.origins(before), lowest_B)
        kept[number] = beams.scores
        done.append((beams.code, beams.parent))
        yield Trace(beams=beams, rounds=done, calls=model.calls, max_beams=None, kept=kept, bounds=bounds, spares=spares)
    yield Trace(beams=beams, rounds=done, calls=model.calls, max_beams=max_beams, kept=kept, bounds=bounds, spares=spares)


def _is_over(constraint: Constraint, beams: Beams[Any]) -> bool:
    """Return whether every beam is dead or finished."""
    finished_BK = constraint.finished(beams)
    return not (beams.num_valid if finished_BK is None else (beams.scores > -np.inf) & ~finished_BK).any()


class BatchBoosts(NamedTuple):
    """The boosts of a batch.

    columns: the boost of each request, None for one without. root_B1: the largest boost of all items, on the beams' device.
    """

    columns: Sequence[ItemColumn | None]
    root_B1: AnyArray


class TrieConstraint:
    """A constraint that allows the items of an index under a batch's filters, on any device; `launch` runs a round.

    hi_SB: how many leaves of each segment a request starts from; the beams are arrays of its kind, on its device.
    launch(number, beams, logits_BKV, num_beams) -> (beams, bad): bad as in `Constraint.bad_T`, None if it raises LogitsError.
    suffix: finds forced codes, see `Constraint.suffix`. boosts: what is added to the scores, if the batch has boosts.
    """

    def __init__(
        self,
        config: SearchConfig,
        hi_SB: AnyArray,
        launch: Launch,
        suffix: Callable[[int, Beams[AnyArray]], JumpForward | None] | None = None,
        boosts: BatchBoosts | None = None,
    ) -> None:
        self.config, self.bad_T, self.rows_T, self.boosts = config, [], [], boosts
        self._hi_SB, self._launch, self._suffix = hi_SB, launch, suffix

    def root(self) -> Beams[Any]:
        xp, hi_SB1 = namespace_of(self._hi_SB), self._hi_SB[:, :, None]
        root_B1 = xp.zeros_like(hi_SB1[0], dtype=xp.float32) if self.boosts is None else self.boosts.root_B1
        return Beams.start(hi_SB1 * 0, hi_SB1, root_B1)

    def step(self, number: int, beams: Beams[AnyArray], logits: AnyArray) -> Beams[Any]:
        num_rows = beams.scores.shape[1]
        beams, bad = self._launch(number, beams, self.read(number, beams, logits), self.config.num_beams[number])
        if bad is not None:
            missing = number - len(self.bad_T)  # rounds that raise their errors themselves
            self.bad_T += [bad * 0] * missing + [bad]
            self.rows_T += [1] * missing + [num_rows]
        return beams

    def read(self, number: int, beams: Beams[AnyArray], logits: AnyArray) -> Any:
        """Return the model's logits, checked and on the beams' device; a finished beam can take only the end code."""
        config, end_code = self.config, self.config.end_code
        hint = _OTHER_TOKENS.format(config.code_sizes[number]) if config.scoring == "vocabulary" else ""
        logits_BKV = check_logits(logits, number, (*beams.scores.shape, config.num_columns(number)), beams.scores, hint=hint)
        return logits_BKV if end_code is None or not number else _certain(logits_BKV, self.finished(beams), end_code)

    def finished(self, beams: Beams[Any]) -> Any:
        return None if self.config.end_code is None else beams.code == self.config.end_code

    def suffix(self, number: int, beams: Beams[AnyArray]) -> JumpForward | None:
        return None if self._suffix is None else self._suffix(number, beams)


def check_logits(
    logits: AnyArray, number: int, shape: tuple[int, ...], like: AnyArray, what: str = "logits", *, hint: str = ""
) -> Any:
    """Return the model's logits (or hidden states: `what`) as [B, K, V], with the library and the device of `like`.

    Round 0 may leave out K. hint: what follows the expected shape in the error.

    float32 for numpy; on a device half precisions stay as they are. Raises LogitsError, which says what shape was expected.
    """
    array, on_host = logits if hasattr(logits, "ndim") else np.asarray(logits), isinstance(like, np.ndarray)
    if on_host and hasattr(array, "detach"):
        array = to_numpy(array)  # the dtype of a numpy array is read faster
    if number == 0 and array.ndim == 2:
        array = array[:, None]
    if tuple(array.shape) != shape:
        raise LogitsError(f"step_fn returned {what} of shape {tuple(array.shape)} at level {number}: expected {shape}{hint}")
    # Integers become floating point numbers, but jax converts none. The text of a dtype takes 5 µs.
    if (
        getattr(array.dtype, "kind", "") != "f"
        and "float" not in str(array.dtype)
        and ("int" not in str(array.dtype) or is_jax(array))
    ):
        raise LogitsError(f"step_fn returned {what} of dtype {array.dtype} at level {number}: expected floating point numbers")
    if on_host:
        return np.ascontiguousarray(to_numpy(array), np.float32)
    array = to_kind_of(array, like)
    if hasattr(array, "detach"):
        # Kernels read float32 and half precisions, with a row's codes side by side.
        array = (array if array.dtype.itemsize <= 4 and array.is_floating_point() else array.float()).contiguous()
    return array


def _certain(logits_BKV: AnyArray, finished_BK: Any, end_code: int) -> Any:
    """Logits of which finished beams have 0 for the end code and -inf elsewhere: log p = 0 in every scoring."""
    if isinstance(logits_BKV, np.ndarray):
        if finished_BK.any():
            logits_BKV = logits_BKV.copy()  # it may be the caller's
            logits_BKV[finished_BK] = -np.inf
            logits_BKV[finished_BK, end_code] = 0
        return logits_BKV
    xp = namespace_of(logits_BKV)
    row_V = logits_BKV[0, 0]
    before_V, end_V, after_V = row_V[:end_code], row_V[end_code : end_code + 1], row_V[end_code + 1 :]
    certain_V = xp.concatenate([xp.full_like(before_V, -np.inf), xp.zeros_like(end_V), xp.full_like(after_V, -np.inf)])
    return xp.where(finished_BK[:, :, None], certain_V, logits_BKV)


def raise_if_bad(constraint: Constraint, where: str = "at level") -> None:
    """Raise LogitsError for the first bad row of a search, if there is one. On a device this waits for it, once."""
    if constraint.bad_T:
        bad_T = to_numpy(namespace_of(constraint.bad_T[0]).stack(constraint.bad_T))
        raise_first_bad(bad_T[None], constraint.rows_T, where=where)


def raise_first_bad(
    bad_DT: NDArray[np.int64], rows_T: Sequence[int], requests_per_device: int = 0, where: str = "at level"
) -> None:
    """Raise LogitsError for the first bad row of several devices D, each of which searched for its own requests.

    Args:
        bad_DT: The marks of the rounds, as in `Constraint.bad_T`.
        rows_T: The number of beams that each round started from.
        requests_per_device: The number of requests of each device.
        where: The words before the round's number in the message.
    """
    rounds = np.flatnonzero(bad_DT.any(axis=0))
    if rounds.size:
        number = int(rounds[0])
        device = int(np.flatnonzero(bad_DT[:, number])[0])
        request, beam = divmod(int(bad_DT[device, number]) - 1, rows_T[number])
        raise LogitsError.not_finite(device * requests_per_device + request, beam, f"{where} {number}")
