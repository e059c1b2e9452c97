"""The array operations that `fixed_shape` and `static` use; `namespaces.jax` and `namespaces.torch` complete them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from leafbeam.ops.constrain.types import Beams

NEG_INF = -float("inf")
CHUNK = 32  # codes of a word of a mask


class ArrayNamespace:
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

    def at(self, array: Any, *indices: Any) -> Any:
        """Return array[indices], in the array's dtype."""
        return array[indices]

    def number(self, array: Any) -> Any:
        """Convert stored integers (int32, uint8, uint16, uint32) to numbers; other dtypes stay as they are."""

    def take(self, array: Any, *indices: Any) -> Any:
        """Return number(array[indices])."""
        return self.number(self.at(array, *indices))

    def take_words(self, array: Any, *indices: Any) -> Any:
        """Return array[indices] of stored or computed words."""
        return self.at(array, *indices)

    def take_along(self, array_RN: Any, index_RM: Any) -> Any:
        """Return array_RN[row, index_RM], in the array's dtype."""
        return self.at(array_RN, self.arange(len(array_RN), index_RM)[:, None], index_RM)

    def arange(self, size: int, like: Any) -> Any:
        """Return the numbers 0 to size - 1 on the device of `like`."""

    def word(self, numbers: Any) -> Any:
        """Convert non-negative numbers to words."""
        return numbers

    def popcount(self, words: Any) -> Any:
        """Return the number of set bits of each word."""

    def has_bit(self, words: Any, position: Any) -> Any:
        """Return whether bit `position % 32` of each word is set."""
        return (words >> self.word(position & 31)) & 1 != 0

    def unpack_bits(self, bytes_RH: Any) -> Any:
        """Return each row's bits as booleans [R, 8 H]: first the lowest bits of all uint8, last the highest."""

    def where(self, condition: Any, chosen: Any, other: Any) -> Any:
        return self.library.where(condition, chosen, other)

    def sum(self, array: Any, axis: int) -> Any:
        """Return sums of words, numbers or booleans (which count as numbers)."""

    def max(self, array: Any, axis: int) -> Any:
        """Return maxima of numbers or float32; NaN is the largest."""

    def log_sum_exp(self, values_RN: Any) -> Any:
        """Return the log-sum-exp of each row: -inf if all values are -inf; NaN or +inf if one is NaN or +inf."""

    def scan(self, logits_RV: Any, words_RH: Any, *, full: bool) -> tuple[Any, Any]:
        """Read whole rows of logits under masks of legal codes, 32 a word; None is without masks.

        Returns the log-sum-exp of each row, of all codes if `full` and else of the legal ones, and the largest legal logit of
        each `CHUNK` of codes, -inf if there is none; NaN as in `max`.
        """
        if words_RH is None:
            return self.log_sum_exp(logits_RV), None
        (num_rows, size), num_chunks = logits_RV.shape, words_RH.shape[1]
        tail = num_chunks * CHUNK - size
        whole_RV = self.pad(logits_RV, tail, NEG_INF) if tail else logits_RV
        legal_RHC = self.has_bit(words_RH[:, :, None], self.arange(CHUNK, logits_RV))
        masked_RHC = self.where(legal_RHC, whole_RV.reshape(num_rows, num_chunks, CHUNK), NEG_INF)
        return self.log_sum_exp(logits_RV if full else masked_RHC.reshape(num_rows, -1)), self.max(masked_RHC, 2)

    def top_k(self, values_RN: Any, count: int) -> Any:
        """Return (values, positions) of each row's largest, descending; equal values in order of position."""

    def sort(self, numbers_RN: Any) -> Any:
        """Sort each row, ascending."""

    def search_sorted(self, sorted_N: Any, numbers: Any) -> Any:
        """Return the first position whose stored integer is not smaller than the number."""

    def scatter(self, index_RN: Any, values_RN: Any, size: int, fill: float) -> Any:
        """Return [R, size] of `fill` with the values at their indices, which differ within a row."""

    def scatter_sum(self, index_RN: Any, values_RN: Any, size: int) -> Any:
        """Return [R, size] of 0 with the values added at their indices."""

    def pad(self, array: Any, count: int, value: float) -> Any:
        """Append `count` times `value` along the last axis."""

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.library.concatenate([*arrays], axis)

    def float32(self, array: Any) -> Any: ...

    def barrier(self, *arrays: Any) -> tuple[Any, ...]:
        """Return the same arrays, and make a compiler compute each of them only once, not again for every use."""
        return arrays

    def device(self, device: Any) -> Any:
        """Return a device of the library by its name; None is the default."""
        return device

    def asarray(self, array: NDArray[Any], device: Any) -> Any:
        """Return a copy of a numpy array on a device."""

    def inputs(self, beams: Beams[Any], logits: Any, device: Any) -> Any:
        """Return (beams, logits) as a compiled function takes them: on the device, as numbers and float32."""

    def set_rows(self, stacks: dict[str, Any], rows_n: Any, fresh: dict[str, Any]) -> Any:
        """Return copies of the stacks in which the same rows of each are replaced."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with this namespace as its first argument, compiled where that pays.

        function: takes (namespace, arrays..., num_beams=, scoring=).
        """
        return partial(function, self)
