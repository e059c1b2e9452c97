"""Servers that the playground meets: one that takes changes, one whose items have texts, one without a catalog."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leafbeam.engine import CatalogFiles, Engine
from leafbeam.model import load_model
from leafbeam.retrieve import ItemMemory
from leafbeam.semid import ItemEncoder
from leafbeam.serve import Server
from leafbeam.serve.changes import open_changed
from tests.fixtures.shops import shop_files, write_fitted_shop
from tests.serve.running import thread

RULES = """[rules]
under_10 = 'price < 10'
under_20 = 'price < 20'
since_june = "day >= DATE '2026-06-01'"
since_july = "day >= DATE '2026-07-01'"
"""
KINDS = ["red shoe", "green tea", "blue lamp", "white chair"]
ENCODER = "there is no encoder here"


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a server, where its changes are kept, and what gives new items codes."""

    catalog: CatalogFiles
    model: Path
    changes: Path
    encoder: ItemEncoder | str = ENCODER


@contextmanager
def running(files: Files, *, changes: Any = "auto", **options: Any) -> Iterator[Server]:
    """A server of files, as `serve` puts it together."""
    with ExitStack() as opened:
        changed = open_changed(files.catalog, files.changes, opened, encoder=files.encoder, changes=changes)
        engine = Engine(load_model(files.model), changed.source, memory=changed.memory)
        opened.callback(engine.close)
        yield opened.enter_context(thread(engine, writer=changed.writer, **options))


def files_of(shop: Any, *, learn: bool = False) -> Files:
    """The files of a shop of tests/serve, whose items have numbers as ids; learn: with an item memory that counts."""
    model, index, catalog, rules = shop.files
    memory = None
    if learn:
        memory = shop.directory / "memory.leafbeam"
        ItemMemory.fit(list(shop.item_ids), np.array([0, 2]), np.array([0, 1])).save(memory)
    served = CatalogFiles(index=index, catalog=catalog, rules=rules, memory=memory, learn=learn)
    return Files(catalog=served, model=model, changes=shop.directory / "live")


def texts(directory: Path, ids: list[Any]) -> Files:
    """A shop in which the text of an item gives it codes; item n costs n and came on a day of June or July."""
    rows = [
        {"item_id": one, "title": f"{KINDS[n % 4]} {n}", "price": float(n), "day": f"2026-0{6 + n % 2}-15"}
        for n, one in enumerate(ids)
    ]
    items = pa.Table.from_pylist(rows)
    items = items.set_column(3, "day", items["day"].cast(pa.date32()))
    return Files(
        catalog=shop_files(directory),
        model=directory / "model",
        changes=directory / "live",
        encoder=write_fitted_shop(directory, items, RULES, (4, 8)).encoder,
    )
