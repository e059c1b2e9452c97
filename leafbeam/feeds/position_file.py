"""The file of a position: where the follower of a table goes on, as JSON."""

from collections.abc import Mapping
from pathlib import Path

from leafbeam.errors import FeedError
from leafbeam.files import read_json, write_json
from leafbeam.json_reader import Json

_FORMAT = 1


def save_position(path: Path, content: Mapping[str, object]) -> None:
    """Write a position durably. Raises FeedError."""
    try:
        write_json(path, {"format": _FORMAT, **content}, durable=True)
    except OSError as error:
        raise FeedError(f"cannot write the position to {path}: {error.strerror or error}") from error


def load_position(position: Path | Mapping[str, object], name: str) -> tuple[Json | None, str]:
    """Return a position, None where nothing is followed yet, and where it is, for messages.

    Args:
        position: The file that `save_position` wrote; or what the catalog keeps, empty at first.
        name: The source.

    Raises:
        FeedError: If the file is not that of a position.
    """
    if not isinstance(position, Path):
        return dict(position) or None, f"what the catalog says of {name}"
    return _content_of(position), str(position)


def _content_of(path: Path) -> Json | None:
    try:
        content = read_json(path)
        if content.pop("format") != _FORMAT:
            raise ValueError("it is of another version of leafbeam")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise invalid_position(path, error) from error
    return content


def invalid_position(where: str | Path, error: Exception) -> FeedError:
    """Return the error for a content that is not a position. where: it is."""
    return FeedError(
        f"{where} is not a position in a followed table ({error}): restore it, or remove it to put every row again"
    )
