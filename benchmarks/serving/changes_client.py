"""The third process of `changes`: sends batches of item changes until its input ends, then prints what became of them.

python -m benchmarks.serving.changes_client URL
"""

from __future__ import annotations

import itertools
import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from leafbeam.client import Client

__all__ = ["BATCH", "BATCHES_PER_S", "send_batches"]

BATCHES_PER_S, BATCH = 10, 100


def send_batches(url: str, is_over: Callable[[float], bool]) -> dict[str, Any]:
    """Send a batch whenever one is due. is_over: waits for so many seconds, and says whether to end."""
    rng, new, acknowledged_s = np.random.default_rng(5), list[Any](), list[float]()
    with Client(url) as client:
        catalog = client.get_catalog()
        known = [item.item_id for item in client.find_items(limit=BATCH).items]
        began = time.perf_counter()
        for number in itertools.count():
            if is_over(max(0.0, began + number / BATCHES_PER_S - time.perf_counter())):
                break
            start = time.perf_counter()
            if number % 4 == 0:
                new = [f"new-{number}-{row}" for row in range(BATCH)]
                codes = rng.integers(0, catalog.codebook_sizes, (BATCH, len(catalog.codebook_sizes))).tolist()
                client.put_items({"item_id": item, "codes": row, "price": 5.0} for item, row in zip(new, codes, strict=True))
            elif number % 4 == 3:
                client.delete_items(new)
            else:
                client.patch_items({"item_id": item, "price": float(number)} for item in known)
            acknowledged_s.append(time.perf_counter() - start)
        return {"took_s": time.perf_counter() - began, "acknowledged_s": acknowledged_s}


def _input_ends(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    print("begins", flush=True)
    print(json.dumps(send_batches(sys.argv[1], _input_ends)))
