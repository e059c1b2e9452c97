"""Log-probabilities from an HTTP server. Its answers are checked in every part before they are used."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

from leafbeam.errors import ArgumentError, InferenceError, NoAnswerError, ServerError, counted
from leafbeam.extras import optional_imports
from leafbeam.integrations.logprobs import Answers, Logprobs, TokenQuery, answer_to, batches_of, in_slices
from leafbeam.json_reader import DoubledKeyError
from leafbeam.json_reader import parse_json as parse_strictly

with optional_imports("clients of inference servers", "client"):
    import httpx

    from leafbeam.client.calls import Call
    from leafbeam.client.retries import Retries
    from leafbeam.client.transport import BlockingTransport

# Why there is no answer: the reason of an InferenceError by the code of a NoAnswerError.
_REASONS = {"unreachable": "unreachable", "cut": "unreachable", "late": "timeout"}


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """The deadlines, retries, limits and headers of a client's requests.

    Args:
        timeout_s: The seconds of a whole answer, with its retries.
        retries: The number of further attempts if the server was not reached, hung up or was busy (429, 503; it may name a
            pause). There is none after a timeout, because the server may still compute the answer. Asking twice changes nothing
            on the server.
        max_connections: The largest number of requests at once.
        max_prompts: The largest number of prompts of one request.
        max_bytes: The largest size of an answer.
        headers: Headers of each request, such as {"Authorization": "Bearer ..."}.
        extra: Fields to add to every request body.
    """

    timeout_s: float = 60.0
    retries: int = 2
    max_connections: int = 8
    max_prompts: int = 256
    max_bytes: int = 64 << 20
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    extra: Mapping[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        if not self.timeout_s > 0 or self.retries < 0 or min(self.max_connections, self.max_prompts, self.max_bytes) < 1:
            raise ArgumentError(f"{self}: expected numbers above 0, and retries of 0 or more")


class HttpLogprobs(ABC):
    """A server that returns log-probabilities of next tokens; close it, or use it in a `with`. Threads may share one.

    Args:
        url: The address of the server, such as "http://localhost:8000", without a route.
        options: Deadlines, retries and bounds.
    """

    path: str
    max_tokens: int | None = None  # of one request, over all of its prompts
    same_tokens = True  # whether all prompts of a request are asked the same tokens

    def __init__(self, url: str, options: HttpOptions | None = None) -> None:
        self.url, self.options = url, options or HttpOptions()
        count = self.options.max_connections
        limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
        self._transport = BlockingTransport(
            httpx.Client(limits=limits),
            url,
            headers=self.options.headers,
            retries=Retries(deadline_s=self.options.timeout_s, attempts=self.options.retries + 1),
            max_bytes=self.options.max_bytes,
        )
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="logprobs")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A search that still runs fails."""
        self._pool.shutdown(cancel_futures=True)
        self._transport.close()

    @abstractmethod
    def _body(self, queries: Sequence[TokenQuery]) -> dict[str, object]:
        """Return the JSON object that asks for these queries."""

    @abstractmethod
    def read(self, answer: object, queries: Sequence[TokenQuery]) -> list[Logprobs | InferenceError]:
        """Return what a JSON answer says of each query. Raises InferenceError if it says nothing of any."""

    def logprobs(self, queries: Sequence[TokenQuery]) -> Answers:
        """Return the log-probabilities of each query (see `LogprobModel`). A request that fails fails only its own queries."""
        while True:
            answers = in_slices(queries, self.max_tokens, self._ask)
            limits = [self._smaller_limit(answer) for answer in answers if isinstance(answer, InferenceError)]
            if not any(limits):
                return answers
            self.max_tokens = min(limit for limit in limits if limit)

    def _smaller_limit(self, error: InferenceError) -> int | None:
        """Return the `max_tokens` with which to ask again, if the server refused a request for its number of tokens."""
        return None

    def _ask(self, parts: Sequence[TokenQuery]) -> Answers:
        union = self.max_tokens if self.same_tokens else None
        batches = batches_of(parts, max_prefixes=self.options.max_prompts, max_tokens=union)
        requests = [[parts[number] for number in batch] for batch in batches]
        found = self._pool.map(self._ask_once, requests) if len(requests) > 1 else map(self._ask_once, requests)
        answers = {
            number: answer for batch, got in zip(batches, found, strict=True) for number, answer in zip(batch, got, strict=True)
        }
        return [answers[number] for number in range(len(parts))]

    def _ask_once(self, queries: Sequence[TokenQuery]) -> list[Logprobs | InferenceError]:
        try:
            body = json.dumps(self._body(queries) | dict(self.options.extra)).encode()
            return self.read(parse_json(self._post(body)), queries)
        except InferenceError as error:
            return [error] * len(queries)

    def _post(self, body: bytes) -> bytes:
        """Return the answer of the first attempt that has one. Raises InferenceError."""
        try:
            return self._transport.run(Call(method="POST", target=self.path, answer=bytes, body=body))
        except NoAnswerError as error:
            raise InferenceError(f"{self.url}: {error}", reason=_REASONS.get(error.code, "malformed")) from None
        except ServerError as error:
            said = error.body.decode("utf-8", "replace")
            message = f"{self.url}{self.path} answered {error.status}: {said}{self._remedy(said)}"
            raise InferenceError(message, reason="refused") from None

    def _remedy(self, said: str) -> str:
        """Return what to change in this client after a refusal that says this; nothing where that is not known."""
        return ""


def parse_json(body: bytes) -> object:
    """Return the JSON of an answer. Raises InferenceError, also where an object has a key twice."""
    try:
        return parse_strictly(body)
    except DoubledKeyError as error:
        raise InferenceError(f"in the server's answer, {error}", reason="duplicate") from None
    except (ValueError, RecursionError) as error:
        raise InferenceError(f"the server's answer is not JSON ({error}): {body[:80]!r}") from None


def by_index(choices: object, count: int) -> list[dict[str, object] | InferenceError]:
    """Return the choice of each prompt, by its `index`; an error where there is none, or more than one.

    Raises InferenceError if the choices cannot be read.
    """
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise InferenceError(f"the server's answer has the choices {str(choices)[:80]}: expected a list of objects")
    choice_or_error: list[dict[str, object] | InferenceError] = [
        InferenceError(f"the server answered {len(choices)} of {counted(count, 'prompt')}", reason="missing_answer")
        for _ in range(count)
    ]
    seen: set[int] = set()
    for choice in choices:
        index = choice.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            raise InferenceError(
                f"the server's answer has a choice with the index {index!r:.80}: "
                f"{counted(count, 'prompt was', 'prompts were')} sent"
            )
        choice_or_error[index] = choice
        if index in seen:
            choice_or_error[index] = InferenceError(
                f"the server answered prompt {index} twice: expected one answer for each prompt", reason="duplicate"
            )
        seen.add(index)
    return choice_or_error


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
            raise ArgumentError(
                f"num_logprobs is {num_logprobs}: expected the number of log-probabilities to ask for, or -1 for all"
            )
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
