"""How much one batch is, and how much it may be."""

from dataclasses import dataclass

from leafbeam.errors import ArgumentError

__all__ = ["BatchSize", "Capacity"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """A batch as the model sees it: requests, the tokens of all their prompts, the longest prompt's, beams of each request."""

    requests: int
    tokens: int
    longest: int
    width: int

    @classmethod
    def of_one(cls, tokens: int, width: int) -> "BatchSize":
        return cls(requests=1, tokens=tokens, longest=tokens, width=width)

    @classmethod
    def of_equal(cls, requests: int, tokens: int, width: int) -> "BatchSize":
        """So many prompts of `tokens` each."""
        return cls(requests=requests, tokens=requests * tokens, longest=tokens, width=width)

    @property
    def padded_tokens(self) -> int:
        """Tokens of the prompts when each is as long as the longest: what a cache of dense slots holds at most."""
        return self.requests * self.longest

    @property
    def beam_rows(self) -> int:
        """Rows of every round after the first."""
        return self.requests * self.width

    def joined(self, tokens: int) -> "BatchSize":
        """The batch with one more prompt of so many tokens."""
        longest = max(self.longest, tokens)
        return BatchSize(requests=self.requests + 1, tokens=self.tokens + tokens, longest=longest, width=self.width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The most that one batch holds; a bound on memory: about (tokens + beam_rows x rounds) x bytes of a key and value.

    requests: searches that run together. tokens: of their prompts, padded to the longest. beam_rows: requests x beams.
    """

    requests: int = 16
    tokens: int = 32_768
    beam_rows: int = 8_192

    def __post_init__(self) -> None:
        for name, value in (("requests", self.requests), ("tokens", self.tokens), ("beam_rows", self.beam_rows)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ArgumentError(f"a batch's {name} has to be a whole number of at least 1, not {value!r}")

    def holds(self, size: BatchSize) -> bool:
        return size.requests <= self.requests and size.padded_tokens <= self.tokens and size.beam_rows <= self.beam_rows

    def most(self, longest: int, width: int) -> int:
        """How many requests alike fit into one batch; at least 1."""
        return max(1, min(self.requests, self.tokens // max(1, longest), self.beam_rows // max(1, width)))
