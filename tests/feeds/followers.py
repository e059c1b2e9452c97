"""Rows of a followed table, and copies of a shop for the servers that follow it."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def row(item: int, price: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"item_id": item, "codes": [item % 8, item % 16], "title": f"new {item}", "price": price, "stock": 1} | more


def copy_of(shop: Any, name: str) -> Any:
    """The run of another server of the same shop, without its changes."""
    directory = shop.directory.parent / f"{shop.directory.name}-{name}"
    shutil.copytree(shop.directory, directory, ignore=shutil.ignore_patterns("live"))
    return replace(shop, directory=directory)


def wait_for(condition: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    return found
