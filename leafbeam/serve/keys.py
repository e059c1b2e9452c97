"""Keys: who may send what to a server, by their hashes in a file that is read again when it changes.

    {"keys": [{"name": "shop", "scope": "read", "sha256": "9f86d0...", "rate": 50.0}]}

A key has 256 random bits, so that one hash of it tells nothing. The file never holds a key.
"""

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from leafbeam.errors import ArgumentError, DataError
from leafbeam.files import read_json, write_json

log = logging.getLogger("leafbeam.serve")

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # each may do what those before it may
_PREFIX = "lb_"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}")
_MAX_KEYS = 10_000
_LOOK_S = 1.0  # between two looks at the file


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A key and what it may do. rate: requests a second; None means the server's. Raises DataError if a field is invalid."""

    name: str
    scope: Scope
    sha256: str = field(repr=False)
    rate: float | None = None

    def __post_init__(self) -> None:
        fields: dict[str, object] = {name: getattr(self, name) for name in ("name", "scope", "sha256", "rate")}
        if not isinstance(fields["name"], str) or not _NAME.fullmatch(self.name):
            raise DataError(
                "a key's name must begin with a letter or digit, and have at most 63 more letters, digits, _, . or -, not "
                f"{self.name!r:.90}"
            )
        if self.scope not in SCOPES:
            raise DataError(f"key {self.name!r}: scope must be one of {', '.join(SCOPES)}, not {self.scope!r:.90}")
        if not isinstance(fields["sha256"], str) or not _HASH.fullmatch(self.sha256):
            raise DataError(f"key {self.name!r}: sha256 must be 64 hexadecimal digits")
        rate = fields["rate"]
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e9):
            raise DataError(f"key {self.name!r}: rate must be a number of requests a second above 0, not {rate!r:.90}")

    def may(self, scope: Scope) -> bool:
        """Return whether the key may do what needs this scope."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


class KeyFile:
    """The keys of a file, read again within a second of its change, and the rate of each.

    A file that cannot be read any more leaves the keys as they were, and is logged. A key may send a second's worth of requests
    at once.

    Args:
        path: The file.
        rate: The requests a second of keys that name no rate of their own; None for no limit.
        clock: The time in seconds.

    Raises:
        DataError: If the file cannot be read now.
    """

    def __init__(self, path: Path, *, rate: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        if rate is not None and not 0 < rate <= 1e9:
            raise ArgumentError(f"the rate must be a number of requests a second above 0, not {rate}")
        self.path, self._rate, self._clock = path, rate, clock
        self._lock = threading.Lock()
        self._state = _state_of(path)
        self._keys = _by_hash(read_keys(path))
        self._looked = clock()
        self._left: dict[str, tuple[float, float]] = {}  # by name: requests that it may send now, and when that was so

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, authorization: str | None) -> Key | None:
        """Return the key of a header `Authorization: Bearer KEY`, None for an unknown one.

        Cost: one hash and one look-up, however many keys there are. The time tells nothing of a key: what is compared is a hash
        of what came, whose first digits cannot be chosen without trying as many keys.
        """
        kind, _, secret = (authorization or "").partition(" ")
        return self._current().get(digest_of(secret.strip())) if kind.lower() == "bearer" else None

    def wait_s(self, key: Key) -> float:
        """Count a request of a key, and return 0, or the seconds after which it may be sent again."""
        rate = key.rate or self._rate
        if rate is None:
            return 0.0
        burst = max(1.0, rate)
        with self._lock:
            now = self._clock()
            left, before = self._left.get(key.name, (burst, now))
            left = min(burst, left + (now - before) * rate)
            self._left[key.name] = (left - 1.0 if left >= 1.0 else left, now)
        return 0.0 if left >= 1.0 else (1.0 - left) / rate

    def _current(self) -> dict[str, Key]:
        with self._lock:
            now = self._clock()
            if now - self._looked >= _LOOK_S:
                self._looked = now
                state = _state_of(self.path)
                if state != self._state:
                    self._state = state
                    self._read_again()
            return self._keys

    def _read_again(self) -> None:
        try:
            self._keys = _by_hash(read_keys(self.path))
        except DataError as error:
            log.error("the keys stay as they were: %s", error)
            return
        names = {key.name for key in self._keys.values()}
        self._left = {name: left for name, left in self._left.items() if name in names}
        log.info("%d keys read from %s", len(names), self.path)


def _by_hash(keys: Sequence[Key]) -> dict[str, Key]:
    return {key.sha256: key for key in keys}


def digest_of(secret: str) -> str:
    """Return the hash of a key."""
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file. Raises DataError."""
    try:
        entries = read_json(path)["keys"]
        if not isinstance(entries, list) or len(entries) > _MAX_KEYS:
            raise TypeError(f"expected a list of up to {_MAX_KEYS:,} keys")
        keys = tuple(Key(**entry) for entry in entries)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{path} holds no keys ({str(error)[:200]}): make it with `leafbeam keys add`") from None
    names = [key.name for key in keys]
    if len(set(names)) < len(names):
        raise DataError(f"{path} has two keys of the same name: rename or remove one of them")
    names_by_hash: dict[str, str] = {}
    for key in keys:
        if (other := names_by_hash.setdefault(key.sha256, key.name)) != key.name:
            raise DataError(f"{path}: {other!r} and {key.name!r} have the same sha256: remove one of them")
    return keys


def add_key(path: Path, name: str, scope: Scope, rate: float | None = None) -> str:
    """Add a key to a file, which is made if it does not exist, and return the key, which is stored nowhere.

    Raises ArgumentError for a name that exists already, DataError, OSError.
    """
    keys = read_keys(path) if path.exists() else ()
    if any(key.name == name for key in keys):
        raise ArgumentError(f"{path} has a key {name!r} already: remove it first, or choose another name")
    secret = _PREFIX + secrets.token_urlsafe(32)
    _write(path, [*keys, Key(name=name, scope=scope, sha256=digest_of(secret), rate=rate)])
    return secret


def remove_key(path: Path, name: str) -> None:
    """Remove a key from a file. Raises ArgumentError if it is not there, DataError, OSError."""
    keys = read_keys(path)
    left = [key for key in keys if key.name != name]
    if len(left) == len(keys):
        names = ", ".join(key.name for key in keys[:20]) or "none"
        raise ArgumentError(f"{path} has no key {name!r}; it has: {names}")
    _write(path, left)


def _write(path: Path, keys: Sequence[Key]) -> None:
    write_json(path, {"keys": [asdict(key) for key in keys]})
    path.chmod(0o600)


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
