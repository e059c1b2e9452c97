"""The pages of one layer in a beam search: each prompt's once, a last page for each beam, and a block table for each.

Shapes: B requests, K beams, H query heads, G key heads, E values of a head, P tokens of a page, N pages of a beam, X pages, T
tokens of a prompt, S codes of a beam.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.block_tables import BlockTables
from benchmarks.peers.paged_kernels import paged_kernels

__all__ = ["PagedBeams"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PagedBeams:
    """key_XGPE, value_XGPE: the pages in use. table_BKN: int32, the pages of each beam. length: tokens of a beam, T + S."""

    key_XGPE: Tensor
    value_XGPE: Tensor
    table_BKN: Tensor
    length: int

    @classmethod
    def of(cls, key_BGET: Tensor, value_BGTE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, *, page: int = 16) -> PagedBeams:
        """Write the prompts to their pages, fork all beams, copy the partial page for each, and write its codes."""
        requests, beams, codes, _, _ = key_BKSGE.shape
        tokens = value_BGTE.shape[2]
        tables = BlockTables(np.full(requests, tokens), page, codes)
        prompt_BN = tables.table_RT
        copies_C2 = torch.from_numpy(tables.extend(np.zeros((requests, beams), np.int64), codes)).long()
        table_RN = torch.from_numpy(tables.table_RT).to(value_BGTE.device)
        stores: list[Tensor] = []
        for prompt_BGTE, slots_BKSGE in ((key_BGET.transpose(2, 3), key_BKSGE), (value_BGTE, value_BKSGE)):
            _, groups, _, size = prompt_BGTE.shape
            store_XPGE = prompt_BGTE.new_empty(tables.capacity, page, groups, size)
            for request in range(requests):
                position_T = np.arange(tokens)
                pages_T = torch.from_numpy(prompt_BN[request, position_T // page]).long()
                store_XPGE[pages_T, position_T % page] = prompt_BGTE[request].transpose(0, 1)
            store_XPGE[copies_C2[:, 1]] = store_XPGE[copies_C2[:, 0]]
            for code in range(codes):
                at, place = divmod(tokens + code, page)
                store_XPGE[table_RN[:, at].long(), place] = slots_BKSGE[:, :, code].flatten(0, 1)
            stores.append(store_XPGE.transpose(1, 2).contiguous())
        table_BKN = table_RN.unflatten(0, (requests, beams))
        return cls(key_XGPE=stores[0], value_XGPE=stores[1], table_BKN=table_BKN, length=tokens + codes)

    def transposed(self) -> Tensor:
        """Keys (X, G, E, P), as `attend` reads them."""
        return self.key_XGPE.transpose(2, 3).contiguous()

    def attend(self, query_BKHE: Tensor, key_XGEP: Tensor) -> Tensor:
        """(B, K, H, E), by numba's kernel, on a CPU in float32."""
        requests, beams, heads, size = query_BKHE.shape
        _, groups, page, _ = self.key_XGPE.shape
        rows, ratio = requests * beams, heads // groups
        query = (query_BKHE * size**-0.5).reshape(rows, groups, ratio, size).transpose(0, 1).contiguous()
        table_RN = self.table_BKN.flatten(0, 1)
        scores_GY = np.empty((groups, ratio * table_RN.shape[1] * page), np.float32)
        out_RQ = torch.empty(rows, heads * size)
        paged_kernels(groups, ratio, size, page).attend(
            query.numpy().reshape(-1),
            rows,
            table_RN.numpy(),
            np.full(rows, self.length),
            key_XGEP.numpy().reshape(-1),
            self.value_XGPE.numpy().reshape(-1),
            np.float32(np.inf),
            scores_GY,
            out_RQ.numpy(),
        )
        return out_RQ.view_as(query_BKHE)

    @property
    def nbytes(self) -> int:
        """What the pages take; one call reads a prompt's pages once for each beam."""
        return self.key_XGPE.nbytes + self.value_XGPE.nbytes
