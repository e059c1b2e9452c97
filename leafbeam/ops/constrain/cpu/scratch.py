"""Memory that the rounds of one thread reuse."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Scratch(threading.local):
    """Arrays of each thread by name and shape. Large fresh ones are pages that the system clears at every round."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, tuple[int, ...]], NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array that is not cleared, until this thread asks for the same one again."""
        kept = self._arrays.get((name, shape))
        if kept is None:
            kept = self._arrays[name, shape] = np.empty(shape, dtype)
        return kept
