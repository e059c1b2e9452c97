"""`GET /v1/items`: items found by title or by id, and which rules allow them."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.catalog import Expression
from leafbeam.catalog.items_table import title_column
from leafbeam.engine import Engine, ItemId
from leafbeam.errors import counted, short_repr
from leafbeam.ids import is_possible, parse_id
from leafbeam.index import Version
from leafbeam.index.items import decode_ids
from leafbeam.serve.catalog_schema import MAX_CHARACTERS, MAX_ITEMS, FoundItem, FoundItems
from leafbeam.serve.errors import BodyError
from leafbeam.serve.exchange import BoundedExecutor
from leafbeam.tables.as_json import rows_of

_MAX_BYTES = 4 << 20  # of the attributes in an answer, as Arrow has them
_PARAMETERS = frozenset(["query", "id", "limit", "rule", "filter"])


class ItemSearchRoute:
    """`GET /v1/items` of an engine; without a catalog, items have ids alone. lookups: reads the table."""

    def __init__(self, engine: Engine, lookups: BoundedExecutor) -> None:
        self._engine, self._lookups = engine, lookups

    async def answer(self, http: HttpRequest) -> Response:
        return Response(await self._found(http), media_type="application/json")

    async def _found(self, http: HttpRequest) -> bytes:
        catalog, values = self._engine.catalog, http.query_params
        if unknown := sorted(set(values) - _PARAMETERS):
            raise BodyError(f"there is no parameter {unknown[0][:80]!r}: expected {', '.join(sorted(_PARAMETERS))}")
        if doubled := [name for name in ("query", "limit", "filter") if len(values.getlist(name)) > 1]:
            raise BodyError(f"{doubled[0]} occurs twice: send it once")
        query, names, limit = values.get("query", ""), values.getlist("rule"), _limit_of(values.get("limit", "20"))
        if len(query) > MAX_CHARACTERS or "\0" in query:
            raise BodyError(f"query may have up to {MAX_CHARACTERS} characters, none of them NUL")
        if len(names) > self._engine.limits.max_rules:
            raise BodyError(f"rule may be given up to {counted(self._engine.limits.max_rules, 'time')}")
        expression = Expression.of(names, values.get("filter") or None) or ()
        if len(values.getlist("id")) > MAX_ITEMS:
            raise BodyError(f"id may be given up to {MAX_ITEMS} times, not {len(values.getlist('id')):,}")
        if catalog is None:
            if expression:
                raise BodyError("this server has an index without a catalog, so there are no rules")
            return msgspec.json.encode(_bare(self._engine.version, query.strip(), values.getlist("id"), limit))
        rules = catalog.rules
        allowed = rules.filter(expression)
        ids = [_id_of(text, rules.version) for text in values.getlist("id")]

        def read() -> bytes:  # in a thread
            column = title_column(catalog.schema())
            table = catalog.lookup(ids) if ids else catalog.search(query, column=column, limit=limit)
            items: list[FoundItem] = []
            for row in attributes_of(table):
                item_id = row.pop("item_id")
                in_index = _knows(rules.version, item_id)
                item = FoundItem(
                    item_id=item_id,
                    attributes=row,
                    in_index=in_index,
                    rules=tuple(name for name, of_rule in rules.filters.items() if in_index and item_id in of_rule),
                    allowed=in_index and (allowed is None or item_id in allowed),
                )
                items.append(item)
            answer = FoundItems(
                items=tuple(items),
                num_allowed=rules.version.num_items if allowed is None else len(allowed),
                num_items=rules.version.num_items,
                title_column=column,
                index_version=rules.version.name,
            )
            return msgspec.json.encode(answer)

        return await self._lookups.run(read)


def attributes_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table for an answer. Raises BodyError for too many bytes."""
    if table.nbytes > _MAX_BYTES:
        message = (
            f"the attributes of {counted(table.num_rows, 'item')} have {counted(table.nbytes, 'byte')}: "
            f"an answer has at most {_MAX_BYTES:,}; ask for fewer items at once (limit, id)"
        )
        raise BodyError(message, reason="long_answer")
    return rows_of(table, exact=False)


def _bare(version: Version, query: str, texts: list[str], limit: int) -> FoundItems:
    """Return items of an index without a catalog: those of the ids, or the one whose id the query is, or the first ones."""
    if texts:
        ids = [_id_of(text, version) for text in texts]
    elif query:
        item_id = parse_id(query, version.id_kind)
        ids = [item_id][:limit] if item_id is not None and _knows(version, item_id) else []
    else:
        table = version.segments[0].trie.items
        ids = decode_ids(table.ids_of(np.arange(min(limit, table.num_items)))).tolist()
    items = [
        FoundItem(item_id=one, attributes={}, in_index=known, rules=(), allowed=known)
        for one, known in ((one, _knows(version, one)) for one in ids)
    ]
    count = version.num_items
    return FoundItems(items=tuple(items), num_allowed=count, num_items=count, title_column=None, index_version=version.name)


def _knows(version: Version, item_id: ItemId) -> bool:
    return is_possible(item_id, 1 << 20) and bool(version.knows([item_id])[0])


def _limit_of(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 3 or not 0 <= int(text) <= MAX_ITEMS:
        raise BodyError(f"limit must be a number from 0 to {MAX_ITEMS}, not {short_repr(text)}")
    return int(text)


def _id_of(text: str, version: Version) -> ItemId:
    """Return an id of the query in the index's own type. Raises BodyError."""
    item_id = parse_id(text, version.id_kind)
    if item_id is None:
        raise BodyError(f"id must be a whole number of 64 bits, as the item ids of this index are, not {text[:80]!r}")
    return item_id
