"""The third process of `changes`: sends batches of item changes until its input ends, then prints what became of them.

python -m benchmarks.serving.changes_client URL
"""

from __future__ import annotations

import itertools
import json
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from leafbeam.client import Client

__all__ = ["BATCH", "BATCHES_PER_S", "batches", "send_batches"]

BATCHES_PER_S, BATCH = 10, 100


def batches(known: Sequence[int | str], codebook_sizes: Sequence[int]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield (operation, rows) without end: new items with codes, prices of known ones, prices again, the new ones' removal."""
    rng, new = np.random.default_rng(5), list[str]()
    for number in itertools.count():
        if number % 4 == 0:
            new = [f"new-{number}-{row}" for row in range(BATCH)]
            codes = rng.integers(0, codebook_sizes, (BATCH, len(codebook_sizes))).tolist()
            yield "put", [{"item_id": item, "codes": row, "price": 5.0} for item, row in zip(new, codes, strict=True)]
        elif number % 4 == 3:
            yield "delete", [{"item_id": item} for item in new]
        else:
            yield "patch", [{"item_id": item, "price": float(number)} for item in known]


def send_batches(url: str, is_over: Callable[[float], bool]) -> dict[str, Any]:
    """Send a batch whenever one is due. is_over: waits for so many seconds, and says whether to end."""
    acknowledged_s = list[float]()
    with Client(url) as client:
        known = [item.item_id for item in client.find_items(limit=BATCH).items]
        made = batches(known, client.get_catalog().codebook_sizes)
        began = time.perf_counter()
        for number, (operation, rows) in enumerate(made):
            if is_over(max(0.0, began + number / BATCHES_PER_S - time.perf_counter())):
                break
            start = time.perf_counter()
            if operation == "put":
                client.put_items(rows)
            elif operation == "delete":
                client.delete_items([row["item_id"] for row in rows])
            else:
                client.patch_items(rows)
            acknowledged_s.append(time.perf_counter() - start)
        return {"took_s": time.perf_counter() - began, "acknowledged_s": acknowledged_s}


def _input_ends(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    print("begins", flush=True)
    print(json.dumps(send_batches(sys.argv[1], _input_ends)))
