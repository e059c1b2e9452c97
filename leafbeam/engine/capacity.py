"""The size of a batch, and the largest size allowed."""

from dataclasses import dataclass

from leafbeam.errors import ArgumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """A batch in numbers: requests, prompt tokens in total, tokens of the longest prompt, beams of each request."""

    requests: int
    tokens: int
    longest: int
    num_beams: int

    @classmethod
    def of(cls, requests: int, tokens: int, num_beams: int) -> "BatchSize":
        """A batch of `requests` prompts with `tokens` tokens each."""
        return cls(requests=requests, tokens=requests * tokens, longest=tokens, num_beams=num_beams)

    @property
    def padded_tokens(self) -> int:
        """Prompt tokens when every prompt is padded to the longest."""
        return self.requests * self.longest

    @property
    def beam_rows(self) -> int:
        """Rows of each decode step after the first."""
        return self.requests * self.num_beams

    def with_prompt(self, tokens: int) -> "BatchSize":
        """The size after adding one prompt."""
        longest = max(self.longest, tokens)
        return BatchSize(requests=self.requests + 1, tokens=self.tokens + tokens, longest=longest, num_beams=self.num_beams)


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """Upper bounds of a batch. Memory is about (tokens + beam_rows x levels) x bytes of one key and value.

    requests: requests in a batch. tokens: prompt tokens, padded to the longest prompt. beam_rows: requests x beams.
    """

    requests: int = 16
    tokens: int = 32_768
    beam_rows: int = 8_192

    def __post_init__(self) -> None:
        for name, value in (("requests", self.requests), ("tokens", self.tokens), ("beam_rows", self.beam_rows)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ArgumentError(f"{name} of a batch must be an integer of at least 1, not {value!r}")

    def holds(self, size: BatchSize) -> bool:
        """Whether a batch of this size is within the bounds."""
        return size.requests <= self.requests and size.padded_tokens <= self.tokens and size.beam_rows <= self.beam_rows

    def max_requests(self, tokens: int, num_beams: int) -> int:
        """How many requests of equal size fit into one batch; at least 1."""
        return max(1, min(self.requests, self.tokens // max(1, tokens), self.beam_rows // max(1, num_beams)))
