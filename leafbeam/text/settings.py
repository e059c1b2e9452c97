"""TextSettings: how texts are served."""

from dataclasses import dataclass, fields

from leafbeam.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How texts are served.

    Args:
        max_queue: Requests that may wait or be prepared; one more gets 429.
        max_rows: Texts of one batch.
        max_batches: Batches that run in turns: a short text need not wait for a long one.
        max_tokens: Tokens that all running batches together may have, prompts included; it bounds the memory of keys and
            values.
        timeout_s: Seconds from arrival; a text that is not whole then is cut off.
    """

    max_queue: int = 64
    max_rows: int = 16
    max_batches: int = 2
    max_tokens: int = 16_384
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for setting in fields(self):
            if not (value := getattr(self, setting.name)) > 0:
                raise ArgumentError(f"{setting.name} is {value!r}: expected more than 0")
