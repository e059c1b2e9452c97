"""Imports: any number of items in requests of bounded size."""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass

from leafbeam.client.calls import Call, encode_line, new_key, put_lines
from leafbeam.errors import ArgumentError, BatchError, ServerError
from leafbeam.serve.catalog_schema import ChangeAnswer

_MAX_CHUNK_ITEMS = 10_000  # that a server takes


class ImportedItems(ChangeAnswer, frozen=True, kw_only=True):
    """The counts of an import so far, and the key with which it can be run again."""

    key: str

    @property
    def num_items(self) -> int:
        """Return how many items are in place."""
        return self.inserted + self.updated


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """Lines of consecutive items. `first` is the number of items before them."""

    first: int
    lines: list[bytes]


def import_items(
    items: Iterable[Mapping[str, object]],
    *,
    chunk_items: int = 1_000,
    chunk_bytes: int = 4 << 20,
    key: str | None = None,
    on_chunk: Callable[[ImportedItems], object] | None = None,
) -> Generator[Call[ChangeAnswer], ChangeAnswer, ImportedItems]:
    """Insert or replace any number of items, in requests of bounded size: `PUT /v1/items`, chunk by chunk.

    A mistake ends the import; the chunks before it stay.

    Args:
        items: As for `put_items`. They are read as they are sent, so that one chunk is in memory at a time.
        chunk_items: The largest number of items of a request.
        chunk_bytes: The largest size of a request; a longer item is sent alone.
        key: The idempotency key of the import. If the same items are sent again with the same key, even after a crash,
            what is done already is not done twice.
        on_chunk: Called after each chunk.

    Raises:
        ServerError: If a chunk fails; its `lines` count the items of the whole import.
    """
    if not 1 <= chunk_items <= _MAX_CHUNK_ITEMS or chunk_bytes < 1:
        raise ArgumentError(f"chunk_items must be from 1 to {_MAX_CHUNK_ITEMS:,} and chunk_bytes at least 1")
    done = ImportedItems.nothing(key=key or new_key())
    for chunk in _chunks(items, chunk_items, chunk_bytes):
        body = b"\n".join(chunk.lines)
        # A chunk's key has its place and size: another division into chunks is another request.
        name = f"{done.key}-{chunk.first}-{len(chunk.lines)}"
        try:
            counts = yield put_lines(body, name)
        except ServerError as error:
            raise _moved(error, chunk, done.key) from error
        done = done.plus(counts)
        if on_chunk is not None:
            on_chunk(done)
    return done


def _chunks(items: Iterable[Mapping[str, object]], max_items: int, max_bytes: int) -> Generator[_Chunk]:
    first, lines, size = 0, list[bytes](), 0
    for number, item in enumerate(items, 1):
        line = encode_line(item, number)
        if lines and (len(lines) == max_items or size + len(line) + 1 > max_bytes):
            yield _Chunk(first=first, lines=lines)
            first, lines, size = first + len(lines), [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield _Chunk(first=first, lines=lines)


def _moved(error: ServerError, chunk: _Chunk, key: str) -> ServerError:
    """Return the error of a chunk with its line numbers counted from the start of the import."""
    fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    fields["lines"] = {chunk.first + number: problem for number, problem in error.lines.items()}
    what = str(BatchError(fields["lines"], len(chunk.lines))) if error.lines else str(error)
    last = chunk.first + len(chunk.lines)
    items = f"items {chunk.first + 1:,} to {last:,} of the import with key={key!r} (those before have been imported)"
    return type(error)(f"{items}: {what}", **fields)
