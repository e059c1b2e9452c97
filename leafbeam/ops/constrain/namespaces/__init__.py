"""The array operations that `fixed_shape` and `static` use; `namespaces.jax` and `namespaces.torch` complete them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from leafbeam.ops.constrain.types import Beams

NEG_INF = -float("inf")
CHUNK = 32  # codes of a word of a mask


class Array(Protocol):
    """An array of JAX or torch, with the operations that both have."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> "Array": ...
    def reshape(self, *shape: int) -> "Array": ...
    def any(self, axis: int, /) -> "Array": ...
    def __invert__(self) -> "Array": ...
    def __add__(self, other: "Array | float", /) -> "Array": ...
    def __radd__(self, other: int, /) -> "Array": ...
    def __sub__(self, other: "Array | float", /) -> "Array": ...
    def __rsub__(self, other: int, /) -> "Array": ...
    def __mul__(self, other: "Array | int", /) -> "Array": ...
    def __floordiv__(self, other: int, /) -> "Array": ...
    def __mod__(self, other: int, /) -> "Array": ...
    def __and__(self, other: "Array | int", /) -> "Array": ...
    def __or__(self, other: "Array | int", /) -> "Array": ...
    def __lshift__(self, other: "Array | int", /) -> "Array": ...
    def __rlshift__(self, other: int, /) -> "Array": ...
    def __rshift__(self, other: "Array | int", /) -> "Array": ...
    def __lt__(self, other: "Array | float", /) -> "Array": ...
    def __le__(self, other: "Array | float", /) -> "Array": ...
    def __gt__(self, other: "Array | float", /) -> "Array": ...
    def __ge__(self, other: "Array | float", /) -> "Array": ...
    def __eq__(self, other: object, /) -> "Array": ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __ne__(self, other: object, /) -> "Array": ...  # pyright: ignore[reportIncompatibleMethodOverride]


class ArrayNamespace(ABC):
    """Array operations with the same meaning in JAX and in torch.

    A number (code, leaf, node, position) is int32 in JAX, int64 in torch. A word is 32 bits: uint32 in JAX; int64 in torch,
    which has no unsigned arithmetic. Indices must be inside their array; axes are positional. Methods without a body differ
    between the libraries.

    Args:
        library: The module, `jax.numpy` or `torch`.
        full_word: A word with all 32 bits set.
    """

    library: Any
    full_word: Any

    def at(self, array: Array, *indices: Array | int) -> Array:
        """Return array[indices], in the array's dtype."""
        return array[indices]

    @abstractmethod
    def number(self, array: Array) -> Array:
        """Convert stored integers (int32, uint8, uint16, uint32) to numbers; other dtypes stay as they are."""

    def take(self, array: Array, *indices: Array | int) -> Array:
        """Return number(array[indices])."""
        return self.number(self.at(array, *indices))

    def take_words(self, array: Array, *indices: Array | int) -> Array:
        """Return array[indices] of stored or computed words."""
        return self.at(array, *indices)

    def take_along(self, array_RN: Array, index_RM: Array) -> Array:
        """Return array_RN[row, index_RM], in the array's dtype."""
        return self.at(array_RN, self.arange(len(array_RN), index_RM)[:, None], index_RM)

    def repeat(self, array_B: Array, count: int) -> Array:
        """Return each entry `count` times in a row; unlike a look-up, a compiler computes this in place."""
        tail = array_B.shape[1:]
        return self.library.broadcast_to(array_B[:, None], (len(array_B), count, *tail)).reshape(-1, *tail)

    @abstractmethod
    def arange(self, size: int, like: Array) -> Array:
        """Return the numbers 0 to size - 1 on the device of `like`."""

    def word(self, numbers: Array) -> Array:
        """Convert non-negative numbers to words."""
        return numbers

    @abstractmethod
    def popcount(self, words: Array) -> Array:
        """Return the number of set bits of each word."""

    def has_bit(self, words: Array, position: Array) -> Array:
        """Return whether bit `position % 32` of each word is set."""
        return (words >> self.word(position & 31)) & 1 != 0

    @abstractmethod
    def unpack_bits(self, bytes_RH: Array) -> Array:
        """Return each row's bits as booleans [R, 8 H]: first the lowest bits of all uint8, last the highest."""

    def where(self, condition: Array, chosen: Array | float, other: Array | float) -> Array:
        return self.library.where(condition, chosen, other)

    @abstractmethod
    def sum(self, array: Array, axis: int) -> Array:
        """Return sums of words, numbers or booleans (which count as numbers)."""

    @abstractmethod
    def max(self, array: Array, axis: int) -> Array:
        """Return maxima of numbers or float32; NaN is the largest."""

    def larger(self, array: Array, other: Array) -> Array:
        """Return the larger of each two numbers, not NaN."""
        return self.where(array > other, array, other)

    def running_sum(self, numbers: Array, axis: int) -> Array:
        """Return the sum of the numbers up to each one along an axis."""
        return self.library.cumsum(numbers, axis)

    @abstractmethod
    def log_sum_exp(self, values_RN: Array, words_RH: Array | None = None) -> Array:
        """Return the log-sum-exp of each row: -inf if all values are -inf; NaN or +inf if one is NaN or +inf.

        words_RH: masks of the values that count, 32 a word; None takes all.
        """

    def masked(self, values_RN: Array, words_RH: Array) -> Any:
        """Return the values under masks, [R, H, CHUNK]; -inf for those that the masks leave out."""
        (num_rows, size), num_chunks = values_RN.shape, words_RH.shape[1]
        tail = num_chunks * CHUNK - size
        whole_RV = self.pad(values_RN, tail, NEG_INF) if tail else values_RN
        is_in_RHC = self.has_bit(words_RH[:, :, None], self.arange(CHUNK, values_RN))
        return self.where(is_in_RHC, whole_RV.reshape(num_rows, num_chunks, CHUNK), NEG_INF)

    def scan(self, logits_RV: Array, words_RH: Array | None, *, full: bool) -> tuple[Array, Any]:
        """Read whole rows of logits under masks of legal codes, 32 a word; None is without masks.

        Returns the log-sum-exp of each row, of all codes if `full` and else of the legal ones, and the largest legal logit of
        each `CHUNK` of codes, -inf if there is none; NaN as in `max`.
        """
        lse_R = self.log_sum_exp(logits_RV, None if full else words_RH)
        return lse_R, None if words_RH is None else self.max(self.masked(logits_RV, words_RH), 2)

    @abstractmethod
    def top_k(self, values_RN: Array, count: int) -> tuple[Array, Array]:
        """Return (values, positions) of each row's largest, descending; equal values in order of position."""

    @abstractmethod
    def sort(self, numbers_RN: Array) -> Array:
        """Sort each row, ascending."""

    @abstractmethod
    def search_sorted(self, sorted_N: Array, numbers: Array) -> Array:
        """Return the first position whose stored integer is not smaller than the number."""

    @abstractmethod
    def scatter(self, index_RN: Array, values_RN: Array, size: int, fill: float) -> Array:
        """Return [R, size] of `fill` with the values at their indices, which differ within a row."""

    @abstractmethod
    def scatter_sum(self, index_RN: Array, values_RN: Array, size: int) -> Array:
        """Return [R, size] of 0 with the values added at their indices."""

    @abstractmethod
    def pad(self, array: Array, count: int, value: float) -> Array:
        """Append `count` times `value` along the last axis."""

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        return self.library.concatenate([*arrays], axis)

    @abstractmethod
    def float32(self, array: Array) -> Array: ...

    def barrier(self, *arrays: Array) -> tuple[Array, ...]:
        """Return the same arrays, and make a compiler compute each of them only once, not again for every use."""
        return arrays

    def device(self, device: object) -> object:
        """Return a device of the library by its name; None is the default."""
        return device

    @abstractmethod
    def asarray(self, array: NDArray[Any], device: object) -> Array:
        """Return a copy of a numpy array on a device."""

    @abstractmethod
    def inputs(self, beams: Beams[Any], logits: object, device: object) -> tuple[Beams[Array], Array]:
        """Return (beams, logits) as a compiled function takes them: on the device, as numbers and float32."""

    @abstractmethod
    def set_rows(self, stacks: dict[str, Array], rows_n: Array, fresh: dict[str, Array]) -> dict[str, Array]:
        """Return copies of the stacks in which the same rows of each are replaced."""

    @abstractmethod
    def copy_row(
        self, stacks: dict[str, Array], row: int, source: int, changed: dict[str, tuple[Array, ...]]
    ) -> dict[str, Array]:
        """Return copies of the stacks in which a row is that of `source` with other elements: (positions, elements) of each."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with this namespace as its first argument, compiled where that pays.

        function: takes (namespace, arrays..., num_beams=, scoring=).
        """
        return partial(function, self)
