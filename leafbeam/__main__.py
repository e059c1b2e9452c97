"""The `leafbeam` command, also as `python -m leafbeam`."""

import logging
import os
import sys

from leafbeam.errors import MissingExtraError
from leafbeam.extras import require


def main() -> None:
    """Run the command line. Without typer and rich, one message and exit code 2."""
    try:
        require("the `leafbeam` command", "rich", "typer")
    except MissingExtraError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    from leafbeam.cli import app

    # Idle OpenMP threads sleep: spinning ones are ten times slower where other programs want the cores too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(format="%(message)s")
    for name in ("leafbeam.index", "leafbeam.jit"):
        logging.getLogger(name).setLevel(logging.INFO)
    app(prog_name="leafbeam")


if __name__ == "__main__":
    main()
