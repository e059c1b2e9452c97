"""Memory that the rounds of one thread reuse."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Scratch(threading.local):
    """The arrays of each thread, by name and shape. New large arrays would be pages that the system clears at every round."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, tuple[int, ...]], NDArray[np.generic]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an array with any content. The next call of this thread with the same name and shape returns it again."""
        kept = self._arrays.get((name, shape))
        if kept is None:
            kept = self._arrays[name, shape] = np.empty(shape, dtype)
        return kept
