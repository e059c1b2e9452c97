"""Servers that the playground meets: one that takes changes, one whose items have texts, one without a catalog."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leafbeam.catalog import Catalog
from leafbeam.engine import CatalogFiles, Engine
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, Transformer, Vocabulary, load_model
from leafbeam.retrieve import ItemMemory
from leafbeam.semid import ItemEncoder, QuantiserConfig, fit_sids
from leafbeam.serve import Server
from leafbeam.serve.changes import open_changed
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
    fit = fit_sids(items, None, quantiser=QuantiserConfig(codebook_sizes=(4, 8), collision_strategy="spread"))
    index, catalog, rules, model = (directory / name for name in ("index.leafbeam", "shop.duckdb", "rules.toml", "model"))
    Trie.build(fit.table.codes, fit.table.codebook_sizes, fit.table.item_ids).save(index)
    Catalog.create(catalog, items)
    rules.write_text(RULES)
    save_model(model, fit.table.codebook_sizes)
    return Files(
        catalog=CatalogFiles(index=index, catalog=catalog, rules=rules),
        model=model,
        changes=directory / "live",
        encoder=fit.encoder,
    )


def save_model(path: Path, codebook_sizes: tuple[int, ...]) -> None:
    """A model of random weights."""
    vocabulary = Vocabulary(codebook_sizes=codebook_sizes)
    config = ModelConfig(
        vocab_size=vocabulary.size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    Transformer(config, vocabulary).save_pretrained(path)
