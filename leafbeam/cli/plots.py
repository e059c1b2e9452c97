"""The option `--plot` of several commands."""

from pathlib import Path

from leafbeam.errors import ArgumentError
from leafbeam.extras import require

PLOT_FORMATS = (".pdf", ".png", ".svg")


def check_plot(path: Path) -> None:
    """Check that a plot can be written, before the work begins.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        ArgumentError: If the ending is not that of a plot.
    """
    require("--plot", "matplotlib")
    if path.suffix not in PLOT_FORMATS:
        raise ArgumentError(f"--plot {path}: expected a file name that ends in {', '.join(PLOT_FORMATS)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"--plot {path}: the directory {path.parent} does not exist")
