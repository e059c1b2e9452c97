"""The sorted runs of a build in a file with a name, so that the next build goes on where one was ended.

PATH        the words, rows and ids of each run
PATH.list   a line for each run: where its arrays are, their checksums, and what the run was made of
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from leafbeam.errors import IndexFileError, counted
from leafbeam.files import replacing
from leafbeam.index.external_sort import Run, SpilledArray, SpillFile
from leafbeam.json_reader import Json


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """A run that is on disk, the ids of its rows, and the number of rows of the table up to its end."""

    num_rows: int
    run: Run
    ids: tuple[SpilledArray, ...]


class SavedRuns:
    """The file in which `TrieBuilder` keeps its sorted rows, and the list of what is in it.

    A run is used again if its arrays have the checksums of the list, and if all parts of the table up to its end and the
    settings of the build are those of the run. The first run that is not ends what is used again.

    Args:
        path: The file of rows. The list is beside it, under a name that ends in `.list`.
        parts: The name of each part of the table in order, which changes with the part's content, and its number of rows.

    Examples:
        >>> saved = SavedRuns(folder / "x.runs", [(f"{file} {file.stat().st_mtime_ns}", num_rows) for file, num_rows in files])
        >>> with TrieBuilder([256] * 4, memory_limit=1 << 30, saved=saved) as builder:
        ...     for codes, item_ids in chunks_behind(builder.num_items):
        ...         builder.add(codes, item_ids)
        ...     builder.finish().save(path)
        >>> saved.remove()
    """

    def __init__(self, path: Path, parts: Sequence[tuple[str, int]]) -> None:
        self.path = path
        self.notice = ""
        self._list = path.with_name(f"{path.name}.list")
        self._parts = tuple(parts)
        self._settings = ""

    @property
    def has_runs(self) -> bool:
        """Return whether a build has left runs, of whatever table."""
        return self._list.exists() and self._list.stat().st_size > 0

    def restore(self, file: SpillFile, settings: str) -> Iterator[SavedRun]:
        """Yield the runs that can be used again, and forget the others; `notice` then says which and why.

        Args:
            file: The file at `path`.
            settings: The settings of the build on which its runs depend.

        Raises:
            OSError: If a file cannot be read or written.
        """
        self._settings, self.notice = settings, ""
        lines = self._list.read_bytes().splitlines(keepends=True) if self._list.exists() else []
        kept: list[bytes] = []
        end = 0
        for line in lines:
            try:
                entry = _entry_of(line)
                if entry["inputs"] != self._digest(int(entry["num_rows"])):
                    self._forget(len(lines) - len(kept), "made of other files or with other options")
                    break
                arrays = [file.restore(fields) for fields in (*entry["words"], entry["rows"], *entry["ids"])]
                num_words = len(entry["words"])
                run = Run.read(arrays[:num_words], arrays[num_words])
            except (ValueError, LookupError, TypeError, OverflowError, MemoryError):  # of any content of the two files
                self._forget(len(lines) - len(kept), "damaged")
                break
            kept.append(line)
            end = max(end, *(array.end for array in arrays))
            yield SavedRun(num_rows=int(entry["num_rows"]), run=run, ids=tuple(arrays[num_words + 1 :]))
        file.truncate(end)
        with replacing(self._list) as part:
            part.write_bytes(b"".join(kept))

    def begin(self, file: SpillFile, settings: str) -> None:
        """Begin with no run. Raises OSError if a file cannot be written."""
        self._settings = settings
        self._list.unlink(missing_ok=True)
        file.truncate(0)

    def append(self, num_rows: int, run: Run, ids: Sequence[SpilledArray]) -> None:
        """Add a run to the list, once its arrays are in the file.

        Args:
            num_rows: The number of rows of the table up to the run's end.
            run: The run.
            ids: The ids of its rows.

        Raises:
            IndexFileError: If the list cannot be written.
        """
        entry = {
            "num_rows": num_rows,
            "inputs": self._digest(num_rows),
            "words": [word.fields for word in run.words_P],
            "rows": run.rows.fields,
            "ids": [part.fields for part in ids],
        }
        text = json.dumps(entry).encode()
        try:
            with self._list.open("ab") as file:
                file.write(_checksum(text) + b" " + text + b"\n")
        except OSError as error:
            raise IndexFileError(f"{self._list} cannot be written ({error.strerror}): free some space there") from error

    def remove(self) -> None:
        """Delete both files."""
        for path in (self._list, self.path):
            path.unlink(missing_ok=True)

    def _forget(self, num_runs: int, reason: str) -> None:
        verb = "is" if num_runs == 1 else "are"
        self.notice = f"{counted(num_runs, 'run')} of sorted rows in {self.path} {verb} {reason}: sorting those rows again"

    def _digest(self, num_rows: int) -> str:
        """Return a hash of the settings and of the parts that hold the first rows of the table."""
        state, begin = blake2b(self._settings.encode(), digest_size=16), 0
        for name, size in self._parts:
            if begin >= num_rows:
                break
            state.update(json.dumps([name, size]).encode())
            begin += size
        return state.hexdigest()


def _checksum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode()


def _entry_of(line: bytes) -> Json:
    """Return the content of a line; ValueError where it is not what was written."""
    checksum, _, text = line.partition(b" ")
    if not text.endswith(b"\n") or checksum != _checksum(text[:-1]):
        raise ValueError("the line is not what was written")
    return json.loads(text)


def open_runs(path: Path) -> SpillFile:
    """Open or make the file of rows, for this process alone. Raises IndexFileError if another one builds with it."""
    try:
        return SpillFile(path.parent, path)
    except BlockingIOError as error:
        raise IndexFileError(f"another build is writing {path}: wait until it ends, or name another --scratch") from error
