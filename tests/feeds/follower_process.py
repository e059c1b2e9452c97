"""A process that follows a publication into a file of SQLite, and prints a line at each step.

python -m tests.feeds.follower_process FILE PUBLICATION DATABASE
"""

import json
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from leafbeam.feeds import Batch, Followed, PostgresFeed, Publication
from leafbeam.feeds.follower import make


class FileCatalog:
    """Items in a file; the position is written with the last change of a batch."""

    has_text_ids = False

    def __init__(self, path: str) -> None:
        self._file = sqlite3.connect(path)
        self._file.execute("CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY, item TEXT)")

    @property
    def position(self) -> dict[str, Any]:
        return self._items(-1).get(-1, {})

    @property
    def rows(self) -> dict[int, dict[str, Any]]:
        """The items by id."""
        return self._items(0, 1 << 60)

    def _items(self, begin: int, until: int = 0) -> dict[int, dict[str, Any]]:
        found = self._file.execute("SELECT id, item FROM items WHERE id BETWEEN ? AND ?", (begin, max(begin, until)))
        return {item_id: json.loads(item) for item_id, item in found}

    def move(self, position: Mapping[str, object]) -> None:
        with self._file:
            self._write(-1, position)

    def _write(self, item_id: int, item: Mapping[str, object]) -> None:
        self._file.execute("INSERT OR REPLACE INTO items VALUES (?, ?)", (item_id, json.dumps(item)))

    def send(self, operation: str, rows: Sequence[Any], batch: Batch, *, is_last: bool) -> Followed:
        """Make changes in one transaction (see Target)."""
        print(operation, flush=True)
        with self._file:
            for row in rows:
                item_id = row["item_id"]
                if operation == "delete":
                    self._file.execute("DELETE FROM items WHERE id = ?", (item_id,))
                else:
                    self._write(item_id, row if operation == "put" else self._items(item_id)[item_id] | row)
            if is_last:
                self._write(-1, batch.position)
        print("made", flush=True)
        return Followed.nothing()

    def close(self) -> None:
        self._file.close()


def main(path: str, publication: str, database: str) -> None:
    source = Publication(name=publication, slot=publication, database=database)
    catalog = FileCatalog(path)
    with closing(PostgresFeed(source, catalog.position, max_changes=3)) as feed:
        catalog.move(feed.position)
        while True:
            batch = feed.read(0.05)
            if batch is not None:
                make(feed.name, batch, catalog, Followed.nothing(), skip_bad=False)
                catalog.move(batch.position)
                feed.commit(batch)
                print("committed", flush=True)
            elif feed.is_at_end:
                print("end", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
