"""Log-probabilities from an HTTP server: deadlines, retries, and answers of which nothing is believed."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

from leafbeam.errors import ArgumentError, InferenceError, counted
from leafbeam.extras import optional_imports
from leafbeam.integrations.logprobs import Answers, Logprobs, TokenQuery, batches_of, in_slices
from leafbeam.json_reader import DoubledKeyError
from leafbeam.json_reader import parse_json as parse_strictly

with optional_imports("clients of inference servers"):
    import httpx

_BUSY = (429, 503)


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """How a client talks to its server.

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
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.timeout_s > 0 or self.retries < 0 or min(self.max_connections, self.max_prompts, self.max_bytes) < 1:
            raise ArgumentError(f"{self}: expected numbers above 0, and retries of 0 or more")


class HttpLogprobs(ABC):
    """A server that tells log-probabilities of next tokens; close it, or use it in a `with`. Threads may share one.

    url: where the server listens ("http://localhost:8000"), without a route.
    """

    path: str
    max_tokens: int | None = None  # of one request, over all of its prompts
    same_tokens = True  # whether all prompts of a request are asked the same tokens

    def __init__(self, url: str, options: HttpOptions | None = None, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url, self.options = url, options or HttpOptions()
        count = self.options.max_connections
        limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
        try:
            self._endpoint = httpx.URL(f"{url.rstrip('/')}{self.path}")
        except httpx.InvalidURL as error:
            raise ArgumentError(f"url is {url!r}: {error}") from None
        if self._endpoint.scheme not in ("http", "https") or not self._endpoint.host:
            raise ArgumentError(f"url is {url!r}: expected http://HOST:PORT")
        self._client = httpx.Client(headers=dict(self.options.headers), limits=limits, transport=transport)
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
        self._client.close()

    @abstractmethod
    def _body(self, queries: Sequence[TokenQuery]) -> dict[str, Any]:
        """The JSON object that asks for these queries."""

    @abstractmethod
    def read(self, answer: Any, queries: Sequence[TokenQuery]) -> list[Logprobs | InferenceError]:
        """What a JSON answer says of each query. Raises InferenceError where it says nothing of any."""

    def logprobs(self, queries: Sequence[TokenQuery]) -> Answers:
        """See `LogprobModel`. Requests that fail take their queries' answers with them, and no others."""
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
        asked = [[parts[number] for number in batch] for batch in batches]
        found = self._pool.map(self._ask_once, asked) if len(asked) > 1 else map(self._ask_once, asked)
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
        """The answer of the first attempt that has one. Raises InferenceError."""
        until = time.monotonic() + self.options.timeout_s
        for attempt in range(self.options.retries + 1):
            pause = 0.1 * 2**attempt
            try:
                status, retry_after, answer = self._attempt(body, until)
                if status == 200:
                    return answer
                said = answer[:500].decode("utf-8", "replace")
                failure = InferenceError(f"{self._endpoint} answered {status}: {said}{self._remedy(said)}", reason="refused")
                if status not in _BUSY:
                    raise failure
                pause = max(pause, retry_after)
            except httpx.TimeoutException:
                raise self._late() from None
            except httpx.TransportError as error:
                failure = InferenceError(f"{self._endpoint} cannot be reached: {error}", reason="unreachable")
            if attempt == self.options.retries or time.monotonic() + pause >= until:
                raise failure
            time.sleep(pause)
        raise AssertionError

    def _attempt(self, body: bytes, until: float) -> tuple[int, float, bytes]:
        """(status, seconds to wait, body). Raises httpx.TransportError, InferenceError for a late or endless body."""
        headers, timeout = {"Content-Type": "application/json"}, max(until - time.monotonic(), 1e-3)
        chunks, size = [], 0
        with self._client.stream("POST", self._endpoint, content=body, headers=headers, timeout=timeout) as response:
            try:
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > self.options.max_bytes:
                        raise InferenceError(f"{self._endpoint} answered more than max_bytes, {self.options.max_bytes:,}")
                    if time.monotonic() > until:  # the client's own timeout is for each chunk
                        raise self._late()
            except httpx.DecodingError as error:
                raise InferenceError(f"the body of {self._endpoint} cannot be decoded: {error}") from error
            return response.status_code, _seconds(response.headers.get("Retry-After", "")), b"".join(chunks)

    def _remedy(self, said: str) -> str:
        """Return what to change in this client after a refusal that says this; nothing where that is not known."""
        return ""

    def _late(self) -> InferenceError:
        seconds = f"{self.options.timeout_s:g}"
        return InferenceError(f"{self._endpoint} gave no whole answer within timeout_s={seconds}", reason="timeout")


def _seconds(text: str) -> float:
    """A Retry-After in seconds; 0 for a date."""
    return min(float(text), 3600.0) if text.isdecimal() else 0.0


def parse_json(body: bytes) -> Any:
    """The JSON of an answer. Raises InferenceError, also where an object has a key twice."""
    try:
        return parse_strictly(body)
    except DoubledKeyError as error:
        raise InferenceError(f"in the server's answer, {error}", reason="duplicate") from None
    except (ValueError, RecursionError) as error:
        raise InferenceError(f"the server's answer is not JSON ({error}): {body[:80]!r}") from None


def by_index(choices: Any, count: int) -> list[dict[str, Any] | InferenceError]:
    """The choice of each prompt, by its `index`; an error where there is none, or more than one. Raises InferenceError."""
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise InferenceError(f"the server's answer has the choices {str(choices)[:80]}: expected a list of objects")
    found: list[dict[str, Any] | InferenceError] = [
        InferenceError(f"the server answered {len(choices)} of {counted(count, 'prompt')}", reason="missing_answer")
        for _ in range(count)
    ]
    seen: set[int] = set()
    for choice in choices:
        index = choice.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            raise InferenceError(
                f"the server's answer has a choice with the index {index!r:.80}: "
                f"{counted(count, 'prompt was', 'prompts were')} asked"
            )
        found[index] = choice
        if index in seen:
            found[index] = InferenceError(f"the server answered prompt {index} twice: expected once", reason="duplicate")
        seen.add(index)
    return found
