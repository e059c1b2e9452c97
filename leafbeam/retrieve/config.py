"""How an item memory counts and scores."""

from dataclasses import dataclass

from leafbeam.errors import ArgumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig:
    """How transitions are counted, and how a history's items add up. The defaults suit every log that was measured.

    distances: two items of a history count as a pair up to this many positions apart. distance_decay: the count of a pair, for
    each position further. reverse: the count of the pair in the other direction. half_life_days: the count halves for each so
    many days before the newest interaction; None: all count alike. max_entries: the transitions that are kept of each item.
    history: the newest items of a history that are scored. history_decay: the weight of each older one. shrinkage: added to the
    largest log(1 + count) of an item before its transitions are divided by it, so that items with few interactions weigh less.
    text_weight: of the cosine of two texts, where the largest transition of an item weighs at most 1.

    Raises ArgumentError for a value out of range.
    """

    distances: int = 8
    distance_decay: float = 0.8
    reverse: float = 0.1
    half_life_days: float | None = None
    max_entries: int = 40
    history: int = 5
    history_decay: float = 0.6
    shrinkage: float = 0.5
    text_weight: float = 0.8

    def __post_init__(self) -> None:
        for name in ("distances", "max_entries", "history"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{name} must be an integer of at least 1, not {value!r}")
        for name in ("distance_decay", "reverse", "history_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ArgumentError(f"{name} must be from 0 to 1, not {getattr(self, name)!r}")
        for name in ("shrinkage", "text_weight"):
            if not 0 <= getattr(self, name) < 1e6:
                raise ArgumentError(f"{name} must be 0 or more, and below a million, not {getattr(self, name)!r}")
        if self.half_life_days is not None and not 0 < self.half_life_days < float("inf"):
            raise ArgumentError(f"half_life_days must be above 0, or None, not {self.half_life_days!r}")
