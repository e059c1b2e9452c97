"""A small shop whose catalog is changed: six items with texts, an encoder, two rules and an item memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leafbeam.catalog import Catalog
from leafbeam.ingest import CatalogWriter, Lines, LiveDirectory
from leafbeam.ingest.answers import ChangeAnswer
from leafbeam.live import RequestKey
from leafbeam.retrieve import ItemMemory
from leafbeam.semid import ItemEncoder

TITLES = ["red shoe", "red boot", "blue shoe", "green tea", "old green tea", "black tea"]


class Crash(BaseException):
    """The end of the process, in the middle of a change."""


@dataclass(frozen=True, kw_only=True)
class Shop:
    folder: Path
    encoder: ItemEncoder
    codes: np.ndarray
    memory: ItemMemory

    @contextmanager
    def writer(self, **options: Any) -> Iterator[CatalogWriter]:
        with LiveDirectory.open(self.folder / "live", self.folder / "index.leafbeam") as live:
            rules = [{"cheap": "price < 20", "tea": "title LIKE '%tea%'"}, live.rules_file]
            with Catalog.open(self.folder / "items.duckdb", live.index, rules) as catalog:
                yield CatalogWriter(catalog, live, **{"encoder": self.encoder, "memory": self.memory} | options)


def state(writer: CatalogWriter) -> dict[str, Any]:
    """Codes and attributes of all items, and the items that each rule allows."""
    catalog = writer.catalog
    version = catalog.version()
    ids = sorted(version.all_items.item_ids().astype(str).tolist())
    codes = version.codes_of(ids).tolist()
    rows = catalog.lookup(ids).to_pylist()
    rules = {name: sorted(found.item_ids().astype(str).tolist()) for name, found in catalog.rules.filters.items()}
    return {"items": {row["item_id"]: (sid, row) for row, sid in zip(rows, codes, strict=True)}, "rules": rules}


def counts(*, inserted: int = 0, updated: int = 0, deleted: int = 0, ignored: int = 0, number: int) -> ChangeAnswer:
    """The answer to a change."""
    return ChangeAnswer(inserted=inserted, updated=updated, deleted=deleted, ignored=ignored, number=number)


def rows(*content: dict[str, Any]) -> Lines:
    return Lines.of_rows(content)


KEY = RequestKey(key="one", digest="d1")


def raising(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail
