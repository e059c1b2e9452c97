"""`ArrayNamespace` in torch: numbers and words are int64; stored words are int32, stored codes uint8, int16 or int32."""

# Each namespace takes only the arrays of its own library.
# pyright: reportIncompatibleMethodOverride=false
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.ops.constrain.namespaces import ArrayNamespace
from leafbeam.ops.constrain.types import Beams

_WORD = 0xFFFFFFFF


class TorchNamespace(ArrayNamespace):
    """`ArrayNamespace` in torch. `torch.compile` takes all functions without graph breaks."""

    library: Any = torch
    full_word: Any = _WORD

    def number(self, array: Tensor) -> Tensor:
        if array.dtype == torch.int16:  # codes up to 65,535 in the bits of uint16
            return array.long() & 0xFFFF
        return array.long() if array.dtype in (torch.int32, torch.uint8) else array

    def take_words(self, array: Tensor, *indices: Any) -> Tensor:
        words = array[indices]
        return words.long() & _WORD if words.dtype == torch.int32 else words

    def take_along(self, array_RN: Tensor, index_RM: Tensor) -> Tensor:
        return array_RN.gather(1, index_RM)

    def arange(self, size: int, like: Tensor) -> Tensor:
        return torch.arange(size, device=like.device)

    def popcount(self, words: Tensor) -> Tensor:
        words = words & _WORD
        words = words - ((words >> 1) & 0x55555555)
        words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
        words = (words + (words >> 4)) & 0x0F0F0F0F
        return ((words * 0x01010101) & _WORD) >> 24

    def unpack_bits(self, bytes_RH: Tensor) -> Tensor:
        bit_8 = 1 << torch.arange(8, dtype=torch.uint8, device=bytes_RH.device)
        return (bytes_RH[:, None, :] & bit_8[:, None] != 0).flatten(1)

    def sum(self, array: Tensor, axis: int) -> Tensor:
        return array.sum(axis)

    def max(self, array: Tensor, axis: int) -> Tensor:
        return array.amax(axis)

    def log_sum_exp(self, values_RN: Tensor, words_RH: Tensor | None = None) -> Tensor:
        return (values_RN if words_RH is None else self.masked(values_RN, words_RH).reshape(len(values_RN), -1)).logsumexp(1)

    def top_k(self, values_RN: Tensor, count: int) -> tuple[Tensor, Tensor]:
        # torch's top-k leaves the order of ties open: rank keys of 64 bits, the value made sortable above the position.
        bits = (values_RN + 0.0).view(torch.int32)  # + 0.0 makes -0.0 equal to 0.0
        ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
        keys = (ordered << 32) - torch.arange(values_RN.shape[1], device=values_RN.device)
        positions = keys.topk(count, dim=1).indices
        return values_RN.gather(1, positions), positions

    def sort(self, numbers_RN: Tensor) -> Tensor:
        return numbers_RN.sort(dim=1).values

    def search_sorted(self, sorted_N: Tensor, numbers: Tensor) -> Tensor:
        return torch.searchsorted(sorted_N, numbers.to(sorted_N.dtype))

    def scatter(self, index_RN: Tensor, values_RN: Tensor, size: int, fill: float) -> Tensor:
        return values_RN.new_full((len(index_RN), size), fill).scatter_(1, index_RN, values_RN)

    def scatter_sum(self, index_RN: Tensor, values_RN: Tensor, size: int) -> Tensor:
        return values_RN.new_zeros(len(index_RN), size).scatter_add_(1, index_RN, values_RN)

    def pad(self, array: Tensor, count: int, value: float) -> Tensor:
        return torch.nn.functional.pad(array, (0, count), value=value)

    def float32(self, array: Tensor) -> Tensor:
        return array.float()

    def device(self, device: Any) -> torch.device:
        return torch.device(device or "cpu")

    def asarray(self, array: NDArray[np.generic], device: Any) -> Tensor:
        signed = {"uint32": np.int32, "uint16": np.int16}.get(array.dtype.name)
        return torch.from_numpy(array if signed is None else array.view(signed)).to(device)

    def inputs(self, beams: Beams[Any], logits: object, device: Any) -> tuple[Beams[Tensor], Tensor]:
        lo, hi = (torch.as_tensor(array, device=device).long() for array in (beams.lo, beams.hi))
        scores = torch.as_tensor(beams.scores, device=device).float()
        return replace(beams, lo=lo, hi=hi, scores=scores), torch.as_tensor(logits, device=device)

    def set_rows(self, stacks: dict[str, Tensor], rows_n: Tensor, fresh: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: stack.index_copy(0, rows_n.long(), fresh[name]) for name, stack in stacks.items()}

    def copy_row(
        self, stacks: dict[str, Tensor], row: int, source: int, changed: dict[str, tuple[Tensor, ...]]
    ) -> dict[str, Tensor]:
        copies = {name: stack.clone() for name, stack in stacks.items()}
        for name, stack in copies.items():
            positions_n, elements_n = changed[name]
            stack[row] = stack[source]
            stack[row].view(-1)[positions_n.long()] = elements_n
        return copies
