"""TextSettings: the limits of requests for text."""

from dataclasses import asdict, dataclass

from leafbeam.errors import check_number


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The limits of requests for text, and of their batches.

    Args:
        max_queue: The number of requests that may wait or be in preparation; further requests get 429.
        max_rows: The largest number of texts in one batch.
        max_batches: The largest number of batches that run in turns, so that a short text need not wait for a long one.
        max_tokens: The largest number of tokens of all running batches together, prompts included; it bounds the memory of
            keys and values.
        timeout_s: The number of seconds from a request's arrival after which its text is cut off, if it is not complete.
    """

    max_queue: int = 64
    max_rows: int = 16
    max_batches: int = 2
    max_tokens: int = 16_384
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_number(exclusive=True, **asdict(self))
