"""A follower that ends at a chosen point, as by kill -9: nothing that it would do afterwards happens."""

from collections.abc import Sequence
from typing import Any

from leafbeam.feeds import Batch


def in_index(client: Any, ids: Sequence[int]) -> list[bool]:
    """Which items may be recommended."""
    chunks = [ids[begin : begin + 200] for begin in range(0, len(ids), 200)]
    found = {item.item_id for chunk in chunks for item in client.find_items(item_ids=chunk).items if item.in_index}
    return [one in found for one in ids]


class Killed(BaseException):
    """No Exception, so that nothing handles it."""


class Point:
    """Ends the follower at its n-th step."""

    def __init__(self, number: int) -> None:
        self._left = number

    def step(self) -> None:
        if self._left == 0:
            raise Killed
        self._left -= 1


class DyingFeed:
    """A feed with a step before and after each of its calls."""

    def __init__(self, feed: Any, point: Point) -> None:
        self._feed, self._point, self.name = feed, point, feed.name

    @property
    def is_at_end(self) -> bool:
        return self._feed.is_at_end

    def read(self, wait_s: float) -> Batch | None:
        batch = self._feed.read(wait_s)
        if batch is not None:
            self._point.step()
        return batch

    def commit(self, batch: Batch) -> None:
        self._point.step()
        self._feed.commit(batch)
        self._point.step()

    def close(self) -> None:
        self._feed.close()


class DyingClient:
    """A client with a step before and after each change. keys: under which each content was sent. answers: by key."""

    def __init__(self, client: Any) -> None:
        self._client, self.point = client, Point(1 << 60)
        self.keys: dict[str, set[str]] = {}
        self.answers: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name not in ("import_items", "patch_items", "delete_items"):
            return method

        def call(content: Any, *, key: str, **options: Any) -> Any:
            self.point.step()
            answer = method(content, key=key, **options)
            self.keys.setdefault(f"{name} {content}", set()).add(key)
            self.answers.setdefault(key, []).append(answer)
            self.point.step()
            return answer

        return call

    def check_once(self) -> None:
        """What was sent again had the key of before, so that the server answered as before and changed nothing."""
        assert {len(keys) for keys in self.keys.values()} == {1}
        assert all(answer == answers[0] for answers in self.answers.values() for answer in answers)
