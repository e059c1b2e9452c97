"""The log of `leafbeam serve`: text or one JSON object a line, without what clients sent."""

import copy
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from leafbeam.errors import ItemIdError, LeafbeamError, RequestError, UnknownRuleError

LogFormat = Literal["text", "json"]
# Their messages are the system's or ours: a full disk, a device without memory, a damaged file. Others may quote an id.
_PRINTED = (LeafbeamError, OSError, MemoryError, RuntimeError)
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_OF_REQUESTS = (RequestError, ItemIdError, UnknownRuleError, RecursionError, NotImplementedError)


class LogFormatter(logging.Formatter):
    """Time, level and message, with the frames of an exception.

    as_json: one object a line: `time` (UTC), `level`, `logger`, `message`, the fields of a request, `exception`. values: print
    the message of every exception; by default one that may quote an item or a user is left out.
    """

    def __init__(self, *, as_json: bool, values: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        self.as_json, self._values = as_json, values

    def format(self, record: logging.LogRecord) -> str:
        if not self.as_json:
            record = copy.copy(record)
            record.exc_text = None  # another handler's, with all messages
            # A message may quote a value, such as one that a rule cannot convert: it begins no line and moves no cursor.
            return super().format(record).translate(_CONTROL).replace("\n", "\n  ")
        fields: dict[str, object] = getattr(record, "fields", {})
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": getattr(record, "message_of_fields", None) or record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)

    def formatException(self, ei: Any) -> str:
        import traceback  # only for errors

        parts: list[str] = []
        error: BaseException | None = ei[1]
        while error is not None and len(parts) < 10:
            shown = self._values or (isinstance(error, _PRINTED) and not isinstance(error, _OF_REQUESTS))
            message = str(error) if shown else "(its message may quote a request: log_requests=histories prints it)"
            parts.append("".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__qualname__}: {message}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n\ncaused by:\n".join(parts)


def configure_log(log_format: LogFormat, *, values: bool = False, level: int = logging.INFO) -> None:
    """Write the log of this process to stderr, in place of what was configured before. Arguments as of `LogFormatter`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(as_json=log_format == "json", values=values))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def current_format() -> LogFormat:
    """Return the format in which this process writes its log."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    return "json" if any(isinstance(formatter, LogFormatter) and formatter.as_json for formatter in formatters) else "text"
