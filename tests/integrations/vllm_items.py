"""What a vLLM of the tests samples from; imported in vLLM's process."""

import numpy as np

from leafbeam.integrations.served_items import ServedItems
from leafbeam.integrations.vllm_processor import ItemLogitsProcessor

from .tiny import EOS, Shop


def items() -> ServedItems:
    shop = Shop("version")  # 3, 4 and 5 are deleted
    filters = {"third": shop.index.filter(item_ids=np.arange(6, 300, 3)), "few": shop.index.filter(item_ids=[9, 12, 200])}
    return ServedItems(index=shop.index, code_tokens=shop.tokens, eos_token_id=EOS, filters=filters)


class Items(ItemLogitsProcessor):
    @classmethod
    def served_items(cls) -> ServedItems:
        return items()
