"""`POST /v1/completions` of OpenAI and of servers like it, as the language model of a search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from leafbeam.errors import ArgumentError, InferenceError
from leafbeam.integrations.http_logprobs import HttpLogprobs, HttpOptions, by_index
from leafbeam.integrations.logprobs import Logprobs, TokenQuery, answer_to

_TOKEN_ID = re.compile(r"token_id:(\d{1,18})", re.ASCII)


class OpenAIServer(HttpLogprobs):
    """Any server with OpenAI's completions that takes prompts as token ids and returns the most likely tokens.

    It is exact or fails: if not all tokens of a query are among the `num_logprobs` most likely, the query ends in an
    InferenceError ("missing_tokens"), so `num_logprobs` should be the vocabulary's size, or as many as the server
    allows.

    Args:
        url: The server's address.
        model: The name under which it serves the model.
        num_logprobs: The value of the field `logprobs`.
        token_ids: The text of each token, by which servers name tokens that do not follow vLLM's `return_tokens_as_token_ids`;
            texts must be distinct.
        options: How to talk to the server.

    Raises:
        ArgumentError: If an argument is invalid.
    """

    path = "/v1/completions"

    def __init__(
        self,
        url: str,
        *,
        model: str,
        num_logprobs: int,
        token_ids: Mapping[str, int] | None = None,
        options: HttpOptions | None = None,
    ) -> None:
        if num_logprobs < -1 or num_logprobs == 0:
            raise ArgumentError(f"num_logprobs is {num_logprobs}: expected how many log-probabilities to ask for, -1 for all")
        self.model, self.num_logprobs, self._token_ids = model, num_logprobs, dict(token_ids or {})
        super().__init__(url, options)

    def _body(self, queries: Sequence[TokenQuery]) -> dict[str, object]:
        return {
            "model": self.model,
            "prompt": [list(query.prefix) for query in queries],
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": self.num_logprobs,
            "return_tokens_as_token_ids": True,
        }

    def read(self, answer: object, queries: Sequence[TokenQuery]) -> list[Logprobs | InferenceError]:
        """Return the log-probabilities of each query in an answer."""
        if not isinstance(answer, dict):
            raise InferenceError(f"the server's answer is {str(answer)[:80]}: expected an object with `choices`")
        choices = by_index(answer.get("choices"), len(queries))
        return [
            choice if isinstance(choice, InferenceError) else self._answer(choice, query)
            for choice, query in zip(choices, queries, strict=True)
        ]

    def _remedy(self, said: str) -> str:
        return f" ({self._advice()})" if "logprobs" in said else ""

    def _advice(self) -> str:
        """Return advice on the option that decides what the server returns."""
        return (
            f"num_logprobs is {self.num_logprobs}: pass as many as the model has tokens, or -1, and let the server allow it: "
            "vLLM has --max-logprobs"
        )

    def _answer(self, choice: Mapping[str, object], query: TokenQuery) -> Logprobs | InferenceError:
        logprobs = choice.get("logprobs")
        top = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
        first = top[0] if isinstance(top, list) and top else None
        if not isinstance(first, dict):
            return InferenceError("the server returned no `top_logprobs` for a prompt", reason="no_logprobs")
        known = [(token, value) for text, value in first.items() if (token := self._token_of(text)) is not None]
        try:
            return answer_to(query, [token for token, _ in known], [value for _, value in known])
        except InferenceError as error:
            missing = error.reason == "missing_tokens"
            return InferenceError(f"{error}; {self._advice()}", reason=error.reason) if missing else error

    def _token_of(self, text: str) -> int | None:
        named = _TOKEN_ID.fullmatch(text)
        return int(named[1]) if named else self._token_ids.get(text)
