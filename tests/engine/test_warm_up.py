"""After the warm-up no request waits for a kernel to be compiled, which takes seconds on a new machine."""

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from numba.core.dispatcher import Dispatcher

from leafbeam.catalog import Catalog
from leafbeam.engine import Channel, Engine, Request
from leafbeam.ops.constrain import Scoring
from tests.engine.conftest import ITEM_IDS, RULES, make_shop
from tests.engine.test_channels import make_memory


def test_no_request_after_the_warm_up_compiles_a_kernel():
    # In a process of its own, because other tests have compiled for this one.
    command = [sys.executable, "-c", "from tests.engine.test_warm_up import compiled_late; print(compiled_late())"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stdout[-2000:] + done.stderr[-2000:]


def compiled_late() -> list[str]:
    """The kernels that requests of all kinds compile or load after the warm-up, with their argument types."""
    compiled, compile_for = list[str](), Dispatcher.compile

    def compile_and_count(self: Any, sig: Any) -> Any:
        if sig not in self.overloads:
            compiled.append(f"{self.py_func.__module__}.{self.py_func.__name__}{sig}")
        return compile_for(self, sig)

    Dispatcher.compile = compile_and_count
    shop = make_shop()
    catalog = Catalog.in_memory(pa.Table.from_pylist(shop.rows), shop.trie, RULES)
    engine = Engine(shop.model, catalog, memory=make_memory())
    engine.warm_up(changes=True)
    assert compiled, "the warm-up compiled nothing: is the hook still called?"
    compiled.clear()
    requests = [
        Request(
            history=tuple(ITEM_IDS[:length]),
            num_items=num_items,
            channel=channel,
            scoring=scoring,
            rules=rules,
            deny_item_ids=("é40", "é41")[:length],
            keep_history=length % 2 == 0,
            explain=explain and channel != "memory",
        )
        for length, num_items, channel, scoring, rules, explain in product(
            (0, 1, 2, 9), (1, 25), get_args(Channel), get_args(Scoring), [(), ("cheap",), ("rare",), ("none",)], (False, True)
        )
    ]
    engine.recommend(requests)
    catalog.insert([shop.codes_NL[14], [7, 7, 3]], ["new", "newer"], [{"title": "new", "price": 5.0, "stock": 1}] * 2)
    engine.recommend(requests)
    catalog.delete(["é15", "new"])
    engine.recommend(requests)
    catalog.compact(wait=True)
    engine.recommend(requests)
    return compiled
