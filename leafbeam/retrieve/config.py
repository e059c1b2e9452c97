"""The settings of an item memory."""

from dataclasses import dataclass

from leafbeam.errors import ArgumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig:
    """The settings that say how transitions are counted and how the items of a history are weighted.

    The defaults suit every log that was measured.

    Args:
        distances: The largest number of positions between two items of a history that count as a pair.
        distance_decay: The factor by which a pair counts less for each further position.
        reverse: The count of the pair in the other direction.
        half_life_days: The age, in days before the newest interaction, at which an interaction counts half; with None
            all count the same.
        max_entries: The number of transitions that are kept of each item.
        history: The number of newest items of a history that are scored.
        history_decay: The weight of each older item relative to the next newer one.
        shrinkage: A number that is added to the largest log(1 + count) of an item before its transitions are divided by it, so
            that items with few interactions weigh less.
        text_weight: The weight of the cosine of two texts; the largest transition of an item weighs at most 1.

    Raises:
        ArgumentError: If a value is out of range.
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
