"""After the warm-up no request waits for a kernel to be compiled, which takes seconds on a new machine."""

from itertools import product
from typing import get_args

import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.engine import Channel, Engine, Request
from leafbeam.ops.constrain import Scoring
from tests.compilations import compilations, printed_alone
from tests.engine.conftest import ITEM_IDS, RULES, make_shop
from tests.fixtures.memories import make_memory


@pytest.mark.slow
def test_no_request_and_no_change_after_the_warm_up_compiles_a_kernel():
    assert printed_alone(__name__, "compiled_late") == "[]"


def compiled_late() -> list[str]:
    """The kernels that requests of all kinds, and changes, compile after the warm-up."""
    shop = make_shop()
    catalog = Catalog.in_memory(pa.Table.from_pylist(shop.rows), shop.trie, RULES)
    engine = Engine(shop.model, catalog, memory=make_memory())
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
    with compilations() as compiled:
        engine.warm_up(changes=True)
        assert compiled, "the warm-up compiled nothing: does numba still call the hook?"
        compiled.clear()
        engine.recommend(requests)
        catalog.insert([shop.codes_NL[14], [7, 7, 3]], ["new", "newer"], [{"title": "new", "price": 5.0, "stock": 1}] * 2)
        engine.recommend(requests)
        catalog.delete(["é15", "new"])
        engine.recommend(requests)
        catalog.compact(wait=True)
        engine.recommend(requests)
        return list(compiled)
