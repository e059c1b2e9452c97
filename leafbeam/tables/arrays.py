"""Arrays of NumPy in files: read without running anything that the file holds."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import DataError
from leafbeam.files import open_regular


def read_array(path: Path) -> NDArray[np.generic]:
    """Read a `.npy` file.

    Raises:
        DataError: If the file is damaged, or holds Python objects.
    """
    try:
        with open_regular(path) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:  # the parser of its header raises any
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path} cannot be read as an array of NumPy: {reason}") from error
