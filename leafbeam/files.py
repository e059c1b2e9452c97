"""Files that appear under their name only once they are complete."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path beside this one, to be written in the block, which then takes its name; removed if the block raises.

    Its name cannot be guessed, so no link planted there is followed, and hidden, so that readers of the directory skip it.
    Raises OSError.

    >>> with replacing(Path("report.json")) as part: _ = part.write_text("{}")
    """
    part = path.with_name(f".{path.name}.{token_hex(8)}.part")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
