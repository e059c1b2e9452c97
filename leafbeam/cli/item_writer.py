"""Where `leafbeam items` makes its changes: in the directory of a run, or through the server of one."""

import itertools
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

from leafbeam.cli.run import RunDirectory
from leafbeam.errors import BatchError, ConflictError, DataError, LeafbeamError, LockedError, UnavailableError
from leafbeam.ingest import ChangeCounts, Lines

Operation = Literal["put", "delete"]
KEY = "LEAFBEAM_KEY"  # of the environment
_TRIES = 6
_TIMEOUT_S = 60.0


class ItemWriter(Protocol):
    """Takes batches of items. columns: their types by name. text_ids: whether item ids are text."""

    columns: Mapping[str, str]
    text_ids: bool

    def send(self, operation: Operation, rows: Sequence[Mapping[str, Any]], *, missing_ok: bool = False) -> ChangeCounts:
        """Make one change of all rows or of none. Raises BatchError, which names every bad one."""
        ...


@contextmanager
def items_of(run: Path, url: str | None) -> Generator[ItemWriter]:
    """The items of a run that no server has open, or those of a server."""
    if url is None:
        with _run_items(RunDirectory(run)) as writer:
            yield writer
    else:
        with _served_items(url) as writer:
            yield writer


class _RunItems:
    def __init__(self, writer: Any, columns: Mapping[str, str], text_ids: bool) -> None:
        self._writer, self.columns, self.text_ids = writer, columns, text_ids

    def send(self, operation: Operation, rows: Sequence[Mapping[str, Any]], *, missing_ok: bool = False) -> ChangeCounts:
        lines = Lines.of_rows(rows)
        return self._writer.put(lines) if operation == "put" else self._writer.delete(lines, missing_ok=missing_ok)


@contextmanager
def _run_items(paths: RunDirectory) -> Generator[_RunItems]:
    """Raises LockedError if a server has the run open."""
    from leafbeam.catalog import Catalog
    from leafbeam.engine import CatalogFiles
    from leafbeam.ingest import CatalogWriter
    from leafbeam.serve import ChangeFiles

    paths.check("trie", "catalog", "rules")
    files = CatalogFiles(index=paths.trie, catalog=paths.catalog, rules=paths.rules)
    place = ChangeFiles(directory=paths.live, encoder=paths.load_encoder(), changes="on")
    with ExitStack() as opened:
        try:
            changed = place.open(files, opened)
        except LockedError as error:
            raise LockedError(
                f"a server or another command has {paths.path} open: send the items through the server with --url, such as "
                f"--url http://127.0.0.1:8000 ({error})"
            ) from error
        assert isinstance(changed.source, Catalog)
        assert isinstance(changed.writer, CatalogWriter)
        columns = {field.name: str(field.type) for field in changed.source.schema()}
        yield _RunItems(changed.writer, columns, columns["item_id"] not in ("int64", "int32", "int16", "int8"))


class _ServedItems:
    def __init__(self, client: Any, columns: Mapping[str, str], text_ids: bool) -> None:
        self._client, self.columns, self.text_ids = client, columns, text_ids

    def send(self, operation: Operation, rows: Sequence[Mapping[str, Any]], *, missing_ok: bool = False) -> ChangeCounts:
        import msgspec

        path = "/v1/items?missing=ignore" if missing_ok else "/v1/items"
        content = b"\n".join(map(msgspec.json.encode, rows))
        headers = {"content-type": "application/x-ndjson", "idempotency-key": uuid4().hex}
        answer = _request(self._client, operation.upper(), path, content=content, headers=headers)
        return ChangeCounts(**answer)


@contextmanager
def _served_items(url: str) -> Generator[_ServedItems]:
    import httpx

    key = os.environ.get(KEY)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        client = httpx.Client(base_url=url, timeout=_TIMEOUT_S, headers=headers)
    except (httpx.InvalidURL, ValueError) as error:
        raise DataError(f"--url {url}: {error}; expected one such as http://127.0.0.1:8000") from error
    with client:
        found = _request(client, "GET", "/v1/catalog")
        yield _ServedItems(client, found["columns"], found["item_ids"] != "numbers")


def _request(client: Any, method: str, path: str, **options: Any) -> Any:
    """The JSON of an answer; again after 429, 503 or a broken connection, with the same key, so that nothing is made twice."""
    import httpx

    for attempt in itertools.count(1):
        wait_s = 0.1 * 2**attempt
        try:
            response = client.request(method, path, **options)
        except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
            failure: LeafbeamError = UnavailableError(f"{client.base_url} does not answer ({error}): is that the server?")
            is_lasting = isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol)
        else:
            if response.is_success:
                return response.json()
            failure, is_lasting = _error_of(response), response.status_code not in (429, 503)
            asked = response.headers.get("retry-after", "")
            wait_s = min(30.0, float(asked)) if asked.isdecimal() else wait_s
        if is_lasting or attempt == _TRIES:
            raise failure
        time.sleep(wait_s)
    raise AssertionError


def _error_of(response: Any) -> LeafbeamError:
    try:
        error = response.json()["error"]
        message = str(error["message"])
        if lines := error.get("lines"):
            return BatchError({int(number): str(problem) for number, problem in lines.items()}, len(lines))
    except (ValueError, KeyError, TypeError, AttributeError):
        message = response.text[:200]
    kind = {409: ConflictError, 429: UnavailableError, 503: UnavailableError}.get(response.status_code, DataError)
    return kind(f"{response.request.url.host} answered {response.status_code}: {message}")
