"""Limits: the upper bounds of one request."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from leafbeam.errors import ArgumentError, RequestError, counted, short_repr

if TYPE_CHECKING:
    from leafbeam.engine.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Upper bounds of one request. A request beyond a bound is rejected, never shortened.

    Args:
        max_items: The largest number of items that a request may ask for.
        max_beams: The largest number of beams that a request may ask for; it must be at least max_items.
        max_history: The largest number of ids in the history of a request, including unknown ones.
        max_deny: The largest number of ids that a request may exclude, including unknown ones.
        max_rules: The largest number of rules that a request may name.
        max_deadline_s: The longest deadline of a request, in seconds.
    """

    max_items: int = 256
    max_beams: int = 512
    max_history: int = 2048
    max_deny: int = 10_000
    max_rules: int = 16
    max_deadline_s: int = 60

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{limit.name} must be an integer of at least 1, not {value!r}")
        if self.max_items > self.max_beams:
            raise ArgumentError(
                f"max_items={self.max_items} needs at least as many beams, but max_beams={self.max_beams}: raise max_beams"
            )

    def check(self, request: "Request") -> None:
        """Check a request against the limits.

        Raises:
            RequestError: If the request is beyond a limit, or is not a Request.
        """
        from leafbeam.engine.request import Request  # loads numpy, which the settings of a command do without

        if not isinstance(request, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"expected a Request, such as Request(history=('i1',)), got {type(request).__name__}")
        if request.deadline_s is not None:
            if request.deadline_s <= 0:
                message = f"the deadline passed {-request.deadline_s:g} s before the request arrived: allow more time"
                raise RequestError(message, reason="deadline_past")
            if request.deadline_s > self.max_deadline_s:
                raise RequestError(f"a deadline may be up to {self.max_deadline_s:g} s away, not {request.deadline_s:g} s")
        counts = ("num_items", request.num_items, self.max_items), ("num_beams", request.num_beams or 1, self.max_beams)
        for name, value, limit in counts:
            if value > limit:
                hint = f"the server's limits.max_{name.removeprefix('num_')} allows more"
                raise RequestError(f"{name} must be from 1 to {limit:,}, not {short_repr(value)}: {hint}")
        for name, values, limit in (
            ("history", request.history, self.max_history),
            ("deny_item_ids", request.deny_item_ids, self.max_deny),
            ("rules", request.rules, self.max_rules),
        ):
            if len(values) > limit:
                raise RequestError(f"{name} may hold up to {counted(limit, 'entry', 'entries')}, not {len(values):,}")
