"""Durations as rules and settings are written, such as "60s" or "5m". The command line imports this module, so it is light."""

import re

from leafbeam.errors import RuleError

MAX_RULE_S = 86_400.0
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_MIN_SECONDS = 0.1  # more often, evaluations would leave no time to requests
_MAX_SECONDS = 365 * 86_400.0


def parse_duration(duration: object, what: str = "a duration") -> float:
    """Return the seconds of a text such as "500ms", "60s", "5m", "1h" or "1d", from 100 ms to a year. Raises RuleError."""
    match = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        example = 'a text such as "500ms", "60s", "5m", "1h" or "1d"'
        raise RuleError(f"{what} has to be {example}, from 100 ms to a year, not {duration!r}")
    return seconds
