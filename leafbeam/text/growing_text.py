"""A text that grows token by token."""

import codecs
from collections.abc import Sequence

from leafbeam.text.request import Generation, TextRequest
from leafbeam.text.tokenizer import TextTokenizer


class GrowingText:
    """A text that grows token by token."""

    def __init__(self, request: TextRequest, tokenizer: TextTokenizer) -> None:
        self._tokenizer, self._max_tokens = tokenizer, request.max_tokens
        self._stops = {text.encode(): text for text in request.stop}
        self._begun, self._num_seen = [BegunStop(stop) for stop in self._stops], 0
        self._longest_stop = max(map(len, self._stops), default=0)
        self.tokens: list[int] = []
        self._bytes, self._num_read = bytearray(), 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._score, self._has_ended, self._stop = 0.0, False, None
        self._has_end_token = False
        self.is_over = False

    def add(self, token: int | None, score: float, *, ends: bool) -> None:
        """Add the next token (None is the end token) and the new log-probability. A text that has ended ignores the
        call.

        Args:
            token: The token.
            score: The log-probability of the text with it.
            ends: Whether the text is complete with it.
        """
        if self.is_over:
            return
        self._score = score
        if token is not None:
            self.replace(len(self.tokens), [token])
        if ends:
            self.end(has_end_token=token is None)

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens so far, the end token included."""
        return len(self.tokens) + self._has_end_token

    def bytes_from(self, first: int) -> bytes:
        """Return the bytes of the tokens from position `first` on."""
        return self._tokenizer.bytes_of(self.tokens[first:])

    def end(self, *, has_end_token: bool = True) -> None:
        """End the text as complete, unless a stop has cut it off; `has_end_token` says whether a token that is not text follows
        it.
        """
        if self._stop is None:
            self._has_ended, self._has_end_token = True, has_end_token
        self.is_over = True

    def replace(self, first: int, tokens: Sequence[int]) -> None:
        """Replace the tokens from position `first` on by others, which begin with the same bytes."""
        old = self.bytes_from(first)
        self.tokens[first:] = tokens
        new = self.bytes_from(first)
        assert new.startswith(old)
        self.is_over = len(self.tokens) >= self._max_tokens
        begin = max(0, len(self._bytes) - self._longest_stop + 1)
        self._bytes += new[len(old) :]
        stops = {at: text for stop, text in self._stops.items() if (at := self._bytes.find(stop, begin)) >= 0}
        if stops:
            self._stop, self.is_over = stops[min(stops)], True
            del self._bytes[min(stops) :]

    @property
    def generation(self) -> Generation:
        text = self._bytes.decode("utf-8", "replace")
        return Generation(text=text, tokens=tuple(self.tokens), score=self._score, finished=self._has_ended, stop=self._stop)

    def piece(self) -> str:
        end = len(self._bytes) if self.is_over else len(self._bytes) - self._held_back()
        piece = self._decoder.decode(bytes(self._bytes[self._num_read : end]), final=self.is_over)
        self._num_read = max(self._num_read, end)
        return piece

    def _held_back(self) -> int:
        """Return the length of the longest suffix of the text that may begin a stop."""
        new, self._num_seen = bytes(self._bytes[self._num_seen :]), len(self._bytes)
        return max((begun.read(new) for begun in self._begun), default=0)


class BegunStop:
    """A matcher of one stop in a growing text: it knows how much of the stop the text's end already is (Knuth, Morris
    and Pratt).

    >>> begun = BegunStop(b"aab"); begun.read(b"caa"), begun.read(b"a"), begun.read(b"c")
    (2, 2, 0)
    """

    def __init__(self, stop: bytes) -> None:
        self._stop, self._length = stop, 0
        self._shorter = [0]  # for each length, the next shorter beginning of the stop that it ends with
        for byte in stop[1:]:
            self._shorter.append(self._longer(self._shorter[-1], byte))

    def read(self, text: bytes) -> int:
        """Return the length of the longest suffix of the text so far with which the stop begins.

        The cost is linear in the new bytes.
        """
        for byte in text:
            self._length = self._longer(self._length, byte)
        return self._length

    def _longer(self, length: int, byte: int) -> int:
        while length and self._stop[length] != byte:
            length = self._shorter[length - 1]
        return length + (self._stop[length] == byte)
