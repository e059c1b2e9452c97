"""A batch of texts in progress.

Shapes: B requests, K texts of each.
"""

import codecs
from collections.abc import Sequence

from leafbeam.decode import SequenceRun
from leafbeam.text.request import Generation, TextRequest
from leafbeam.text.tokenizer import TextTokenizer


class TextRun:
    """A batch of requests that the model continues together, call by call.

    texts: of each request, so far. model_calls, calls_saved: see `GenerationResult`.

    >>> run = generator.start([request])        # doctest: +SKIP
    >>> while run.advance():                    # doctest: +SKIP
    ...     print(run.pieces(0)[0])
    """

    def __init__(self, requests: Sequence[TextRequest], run: SequenceRun, tokenizer: TextTokenizer) -> None:
        self.requests, self._run, self._tokenizer = tuple(requests), run, tokenizer
        self._results: list[tuple[Generation, ...] | None] = [None] * len(requests)
        self.model_calls = self.calls_saved = self._num_rounds = 0
        # Texts that grow token by token are followed; those of many beams are read from the search when they are over.
        self._growing = [
            [_Text(request, tokenizer) for _ in range(request.num_texts if request.is_stepwise else 0)] for request in requests
        ]

    def is_over(self, b: int) -> bool:
        """Whether the texts of a request will not change any more."""
        return self._results[b] is not None

    @property
    def texts(self) -> tuple[tuple[Generation, ...], ...]:
        """The texts of each request, so far; none of a search of many beams that is not over."""
        growing = (tuple(text.generation for text in texts) for texts in self._growing)
        return tuple(texts if result is None else result for result, texts in zip(self._results, growing, strict=True))

    def advance(self) -> bool:
        """Call the model once more; False where nothing was left to do. Raises LogitsError."""
        if None not in self._results:
            return False
        trace = next(self._run.rounds)
        self.model_calls, self.calls_saved = trace.calls, trace.rounds_saved
        new_rounds, self._num_rounds = trace.rounds[self._num_rounds :], len(trace.rounds)
        result = None
        for b, (request, texts) in enumerate(zip(self.requests, self._growing, strict=True)):
            if self._results[b] is not None:
                continue
            for k, text in enumerate(texts):
                for codes_BK, _ in new_rounds:
                    text.add(int(codes_BK[b, k]), float(trace.beams.scores[b, k]))
            if texts and all(text.is_over for text in texts):
                self._results[b] = tuple(text.generation for text in texts)
            elif not texts and (self._num_rounds >= request.max_tokens or not self._run.is_going_on(trace)[b]):
                result = result or self._run.result(trace)
                self._results[b] = tuple(
                    self._cut(request, tokens.tolist(), bool(result.finished[b, k]), float(result.scores[b, k]))
                    for k, tokens in enumerate(result.tokens[b])
                )
        return True

    def pieces(self, b: int) -> tuple[str, ...]:
        """What is new of each text of a request since the last call: whole characters, and nothing that may begin a stop.

        Empty for a search of many beams, whose texts are known at its end.
        """
        return tuple(text.piece() for text in self._growing[b])

    def cut_off(self, b: int) -> None:
        """Go on without a request; its texts stay as they are."""
        if self._results[b] is not None:
            return
        for text in self._growing[b]:
            text.is_over = True
        self._results[b] = self.texts[b]

    def _cut(self, request: TextRequest, tokens: list[int], finished: bool, score: float) -> Generation:
        """A text of a search that may have gone on for others after this request's last token."""
        finished = finished and len(tokens) < request.max_tokens
        kept = tokens[: request.max_tokens]
        return Generation(text=self._tokenizer.decode(kept), tokens=tuple(kept), score=score, finished=finished)


class _Text:
    """A text that grows token by token."""

    def __init__(self, request: TextRequest, tokenizer: TextTokenizer) -> None:
        self._tokenizer, self._max_tokens = tokenizer, request.max_tokens
        self._stops = {text.encode(): text for text in request.stop}
        self._longest_stop = max(map(len, self._stops), default=0)
        self._tokens: list[int] = []
        self._bytes, self._num_read = bytearray(), 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._score, self._has_ended, self._stop = 0.0, False, None
        self.is_over = False

    def add(self, token: int, score: float) -> None:
        """The next token, and the log-probability of the text with it; nothing once the text is over."""
        if self.is_over:
            return
        self._score = score
        if token == self._tokenizer.end:
            self._has_ended = self.is_over = True
            return
        self._tokens.append(token)
        self.is_over = len(self._tokens) >= self._max_tokens
        begin = max(0, len(self._bytes) - self._longest_stop + 1)
        self._bytes += self._tokenizer.token_bytes[token] or b""
        found = {at: text for stop, text in self._stops.items() if (at := self._bytes.find(stop, begin)) >= 0}
        if found:
            self._stop, self.is_over = found[min(found)], True
            del self._bytes[min(found) :]

    @property
    def generation(self) -> Generation:
        text = self._bytes.decode("utf-8", "replace")
        return Generation(text=text, tokens=tuple(self._tokens), score=self._score, finished=self._has_ended, stop=self._stop)

    def piece(self) -> str:
        end = len(self._bytes) if self.is_over else len(self._bytes) - self._held_back()
        piece = self._decoder.decode(bytes(self._bytes[self._num_read : end]), final=self.is_over)
        self._num_read = max(self._num_read, end)
        return piece

    def _held_back(self) -> int:
        """The length of the longest end of the text that may begin a stop."""
        lengths = range(min(self._longest_stop - 1, len(self._bytes)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(bytes(self._bytes[-n:])) for stop in self._stops)), 0)
