"""A small shop: items with a price and a stock."""

import numpy as np
import pyarrow as pa

from leafbeam.catalog import Catalog
from leafbeam.index import ItemColumn, Trie

NUM_ITEMS = 300
IDS = [f"é{i:03d}" for i in range(NUM_ITEMS)]
TRIE = Trie.build([[i % 8, i % 31] for i in range(NUM_ITEMS)], [8, 31], item_ids=IDS)
RULES = {"cheap": "price < 20", "in_stock": {"where": "stock > 0", "refresh": "60s"}, "rare": {"where": "stock = 2"}}


def items() -> pa.Table:
    return pa.table(
        {"item_id": IDS, "price": [float(i % 40) for i in range(NUM_ITEMS)], "stock": [i % 3 for i in range(NUM_ITEMS)]}
    )


def names(catalog: Catalog, rule: str) -> set:
    return set(catalog.rules.filters[rule].item_ids().tolist())


def expected(predicate) -> set:
    return {IDS[i] for i in range(NUM_ITEMS) if predicate(i)}


def change(catalog: Catalog, sql: str) -> None:
    """What other code does to a table in memory."""
    with catalog._table.writing() as writing:
        writing.connection.execute(sql)
        writing.connection.commit()


def numbers(catalog: Catalog, column: ItemColumn) -> dict[str, float]:
    """The number of each live item by its id."""
    version = catalog.rules.version
    assert column.index.identity == version.identity
    ids = version.all_items.item_ids()
    segment_n, row_n = version.locate(ids)
    found = [
        column.at(version.segments[segment].trie.items.ordinal_N[[row]].astype(np.int64), segment)[0]
        for segment, row in zip(segment_n, row_n, strict=True)
    ]
    return dict(zip(ids.tolist(), np.array(found).tolist(), strict=True))


def groups(catalog: Catalog, column: str) -> dict[str, str | None]:
    names = [*catalog.rules.group_names(column), None]
    return {item_id: names[int(number)] for item_id, number in numbers(catalog, catalog.rules.groups(column)).items()}
