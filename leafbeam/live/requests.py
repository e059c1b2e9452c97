"""Requests that clients may repeat, and their first answers (see the IETF's draft of the Idempotency-Key header)."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leafbeam.errors import ConflictError

MAX_KNOWN = 10_000  # requests whose answers are kept


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestKey:
    """The identity of a request that may be repeated.

    Args:
        key: The client's key.
        digest: The hash of the whole request.
    """

    key: str
    digest: str


class KnownRequests:
    """The answers to the newest requests that had a key. An answer is a value that JSON can hold."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[str, object]] = OrderedDict()

    def find(self, request: RequestKey | None) -> Any:
        """Return the answer to an earlier request with this key, or None.

        Raises:
            ConflictError: If the earlier request had other content.
        """
        if request is None or (entry := self._answers.get(request.key)) is None:
            return None
        digest, answer = entry
        if digest != request.digest:
            raise ConflictError(
                f"Idempotency-Key {request.key[:80]!r} belongs to an earlier request with other content: use a new key"
            )
        return answer

    def note(self, request: RequestKey | None, answer: object) -> None:
        """Keep an answer. Beyond 10,000 answers, the oldest is dropped."""
        if request is not None:
            self._answers[request.key] = (request.digest, answer)
            self._answers.move_to_end(request.key)
            while len(self._answers) > MAX_KNOWN:
                self._answers.popitem(last=False)

    def forget(self, key: str) -> None:
        """Drop the answer to a key."""
        self._answers.pop(key, None)

    def to_json(self) -> list[dict[str, object]]:
        """Return the requests, oldest first, as `load` reads them."""
        return [{"key": key, "digest": digest, "answer": answer} for key, (digest, answer) in self._answers.items()]

    def load(self, content: Mapping[str, Any]) -> None:
        """Keep the request of one entry of `to_json`, or of another record with its fields.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field has the wrong type.
        """
        if content.get("key") is not None:
            self.note(RequestKey(key=str(content["key"]), digest=str(content["digest"])), content["answer"])
