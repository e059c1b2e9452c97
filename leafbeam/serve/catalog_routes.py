"""Routes that change and show a catalog: items, snapshots, rules, boosts. A batch is one change, made as a whole or not."""

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.catalog import Boost, Catalog, Rule
from leafbeam.engine import Engine
from leafbeam.errors import BatchError, DataError, short_repr
from leafbeam.ids import is_possible, parse_id
from leafbeam.ingest import CatalogWriter, Lines
from leafbeam.ingest.lines import JsonError
from leafbeam.serve.catalog_schema import (
    BoostAnswer,
    BoostBody,
    CatalogAnswer,
    ChangeAnswer,
    ItemAnswer,
    RollbackBody,
    RuleAnswer,
    RuleBody,
    SnapshotBody,
)
from leafbeam.serve.errors import BodyError, Handler, answering, catalog_error_response
from leafbeam.serve.exchange import BoundedExecutor, Bounds, decode_body, json_response, key_of, read_body
from leafbeam.serve.item_search import ItemSearchRoute, attributes_of
from leafbeam.serve.metrics import Metrics

_READERS: dict[str, Callable[[bytes], Lines]] = {
    "application/x-ndjson": Lines.of_json_lines,
    "application/jsonl": Lines.of_json_lines,
    "application/json": Lines.of_json,
}
S = TypeVar("S", bound=msgspec.Struct)
Kind = type[Rule] | type[Boost]
_BODIES: dict[Kind, type[RuleBody] | type[BoostBody]] = {Rule: RuleBody, Boost: BoostBody}


class CatalogRoutes:
    """The routes of an engine's catalog.

    writer: changes the catalog, or the reason why it cannot be changed. bounds: those of a batch. writes, reads: threads that
    make changes, and threads that read the table.
    """

    def __init__(
        self,
        engine: Engine,
        writer: CatalogWriter | str,
        metrics: Metrics,
        bounds: Bounds,
        *,
        writes: BoundedExecutor,
        reads: BoundedExecutor,
    ) -> None:
        self._engine, self._writer, self._metrics, self._bounds = engine, writer, metrics, bounds
        self._writes, self._reads = writes, reads

    @property
    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by operation."""
        handlers = {
            "put_items": self._change,
            "patch_items": self._change,
            "delete_items": self._change,
            "delete_item": self._delete_one,
            "get_item": self._item,
            "get_catalog": self._catalog,
            "reload_catalog": self._reload,
            "compact_catalog": self._compact,
            "save_snapshot": self._snapshot,
            "roll_back": self._rollback,
            "delete_snapshot": self._delete_snapshot,
            "find_items": ItemSearchRoute(self._engine, self._reads).answer,
        }
        for kind in (Rule, Boost):
            handlers |= {
                f"list_{kind.noun}s": partial(self._list, kind),
                f"get_{kind.noun}": partial(self._get, kind),
                f"put_{kind.noun}": partial(self._put, kind),
                f"delete_{kind.noun}": partial(self._delete, kind),
            }
        return {name: answering(answer, catalog_error_response) for name, answer in handlers.items()}

    async def _change(self, http: HttpRequest) -> Response:
        """Read the lines of a body, and make one change of them: put, patch or delete, as the method says."""
        missing = http.query_params.get("missing", "error")
        if http.method == "DELETE" and missing not in ("error", "ignore"):
            raise BodyError(f"missing must be 'error' or 'ignore', not {missing[:40]!r}")
        writer = self._writable()
        delete = partial(writer.delete, missing_ok=missing == "ignore")
        change = {"PUT": writer.put, "PATCH": writer.patch, "DELETE": delete}[http.method]
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        reader = _READERS.get(kind)
        if reader is None:
            raise BodyError(
                f"the body: expected items with Content-Type: {', '.join(_READERS)}", status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            )
        body = await read_body(http, self._bounds)
        request = key_of(http, body)

        def make() -> ChangeAnswer:
            try:
                lines = reader(body)
            except DataError as error:  # of the client's body, not of the server's files
                is_json = not isinstance(error, JsonError)
                status = HTTPStatus.UNPROCESSABLE_ENTITY if is_json else HTTPStatus.BAD_REQUEST
                raise BodyError(str(error), status=status) from None
            return change(lines, request)

        return json_response(await self._writes.run(make))

    async def _delete_one(self, http: HttpRequest) -> Response:
        writer, item_id, request = self._writable(), self._id_of(http), key_of(http, b"")
        try:
            counts = await self._writes.run(lambda: writer.delete(Lines.of_rows([{"item_id": item_id}]), request))
        except BatchError:
            raise _no_item(item_id) from None
        return json_response(counts)

    async def _item(self, http: HttpRequest) -> Response:
        catalog, item_id = self._served(), self._id_of(http)
        rules = catalog.rules
        if not rules.version.knows([item_id])[0]:
            raise _no_item(item_id)
        (row,) = await self._reads.run(lambda: attributes_of(catalog.lookup([item_id])))
        answer = ItemAnswer(
            item_id=row.pop("item_id"),
            codes=tuple(rules.version.codes_of([item_id])[0].tolist()),
            attributes=row,
            rules=tuple(name for name, allowed in rules.filters.items() if item_id in allowed),
            index_version=rules.version.name,
        )
        return json_response(answer)

    async def _catalog(self, http: HttpRequest) -> Response:
        catalog, writer = self._served(), self._writer
        schema, status, version = await self._reads.run(catalog.schema), catalog.index.status, catalog.version()
        encoder = writer if isinstance(writer, str) else writer.encoder
        answer = CatalogAnswer(
            index_version=version.name,
            num_items=version.num_items,
            num_changed=status.num_deleted + status.num_delta,
            is_compacting=status.is_compacting,
            codebook_sizes=version.codebook_sizes,
            item_ids=None if (kind := version.id_kind) is None else "numbers" if kind == "i" else "text",
            columns={field.name: str(field.type) for field in schema if field.name != "item_id"},
            text_columns=() if isinstance(encoder, str) else encoder.columns,
            writable=not isinstance(writer, str),
            reason=encoder if isinstance(encoder, str) else None,
            snapshots=() if isinstance(writer, str) else tuple(writer.snapshots),
        )
        return json_response(answer)

    async def _reload(self, http: HttpRequest) -> Response:
        self._metrics.observe_reload(await self._writes.run(self._served().reload))
        return await self._list(Rule, http)

    async def _compact(self, http: HttpRequest) -> Response:
        await self._writes.run(self._writable().compact)
        return await self._catalog(http)

    async def _snapshot(self, http: HttpRequest) -> Response:
        writer, body = self._writable(), await self._body(http, SnapshotBody)
        return json_response(await self._writes.run(lambda: writer.snapshot(body.name)))

    async def _rollback(self, http: HttpRequest) -> Response:
        writer, body = self._writable(), await self._body(http, RollbackBody)
        request = key_of(http, msgspec.json.encode(body))
        counts = await self._writes.run(lambda: writer.rollback(body.snapshot, request))
        return json_response(counts)

    async def _delete_snapshot(self, http: HttpRequest) -> Response:
        writer, name = self._writable(), http.path_params["name"]
        await self._writes.run(lambda: writer.delete_snapshot(name))
        return await self._catalog(http)

    async def _list(self, kind: Kind, http: HttpRequest) -> Response:
        catalog = self._served()
        names = [name for name, definition in catalog.rules.definitions.items() if isinstance(definition, kind)]
        answers = [_answer_of(catalog, name, kind) for name in names]
        return json_response({f"{kind.noun}s": answers})

    async def _get(self, kind: Kind, http: HttpRequest) -> Response:
        return json_response(_answer_of(self._served(), http.path_params["name"], kind))

    async def _put(self, kind: Kind, http: HttpRequest) -> Response:
        writer, name, body = self._writable(), http.path_params["name"], await self._body(http, _BODIES[kind])
        sql = body.where if isinstance(body, RuleBody) else body.expression
        await self._writes.run(lambda: writer.put_definition(kind, name, sql, body.refresh))
        return json_response(_answer_of(writer.catalog, name, kind))

    async def _delete(self, kind: Kind, http: HttpRequest) -> Response:
        writer, name = self._writable(), http.path_params["name"]
        answer = _answer_of(writer.catalog, name, kind)
        await self._writes.run(lambda: writer.delete_definition(kind, name))
        return json_response(answer)

    async def _body(self, http: HttpRequest, kind: type[S]) -> S:
        body = await read_body(http, self._bounds)
        return decode_body(body, http.headers.get("content-type", ""), msgspec.json.Decoder(kind))

    def _served(self) -> Catalog:
        if self._engine.catalog is None:
            raise BodyError("this server has an index without a catalog", status=HTTPStatus.NOT_FOUND)
        return self._engine.catalog

    def _writable(self) -> CatalogWriter:
        if isinstance(self._writer, str):
            raise BodyError(self._writer, status=HTTPStatus.CONFLICT, reason="read_only")
        return self._writer

    def _id_of(self, http: HttpRequest) -> int | str:
        """Return the item id of a path, in the index's own type."""
        text: str = http.path_params["item_id"]
        item_id = parse_id(text, self._engine.version.id_kind)
        if item_id is None or not is_possible(item_id, 1 << 10):
            raise _no_item(text)
        return item_id


def _no_item(item_id: int | str) -> BodyError:
    return BodyError(f"the index has no item {short_repr(item_id)}", status=HTTPStatus.NOT_FOUND)


def _answer_of(catalog: Catalog, name: str, kind: Kind) -> RuleAnswer | BoostAnswer:
    """Return a rule or a boost with its status. Raises BodyError if there is none of this name."""
    rules = catalog.rules
    status = next((status for status in catalog.status if status.name == name), None)
    definition = rules.definitions.get(name)
    if status is None or not isinstance(definition, kind):
        names = ", ".join(sorted(rules.filters if kind is Rule else rules.boosts)) or "none"
        message = f"there is no {kind.noun} {name[:80]!r}; the {kind.noun}s are: {names}"
        raise BodyError(message, status=HTTPStatus.NOT_FOUND)
    fields = {field: getattr(status, field) for field in ("name", "num_items", "error", "age_s")}
    fields["refresh_s"] = status.refresh
    is_rule = isinstance(definition, Rule)
    return RuleAnswer(where=definition.sql, **fields) if is_rule else BoostAnswer(expression=definition.sql, **fields)
