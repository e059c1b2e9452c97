"""Files: written so that they appear only once they are complete, read only if they are regular ones, with checksums."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from hashlib import file_digest
from io import BufferedReader
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

from leafbeam.errors import CheckpointError
from leafbeam.json_reader import parse_json

CHECKSUMS = "leafbeam.sha256"
_MAX_TEXT_BYTES = 64 << 20


class Closing:
    """An object that the end of a `with` block closes."""

    def close(self) -> None:
        """Release what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Generator[Path]:
    """Yield a path beside this one, to be written in the block, which then takes its name; removed if the block raises.

    The block may also make a directory there, for a name that nothing has yet. durable: what was written survives a power cut
    once the block has ended. The path's name cannot be guessed, so no link planted there is followed, and is hidden, so that
    readers of the directory skip it. Raises OSError, with this path where the system names none, as for a full disk.

    >>> with replacing(Path("report.json")) as part: _ = part.write_text("{}")
    """
    part = path.with_name(f".{path.name}.{token_hex(8)}.part")
    try:
        yield part
        if durable:
            for file in (part, *part.rglob("*")):
                sync_path(file)
        os.replace(part, path)
        if durable:
            sync_path(path.parent)
    except BaseException as error:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def sync_path(path: Path) -> None:
    """Return once a file, or the names in a directory, survive a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Rename a file or directory to the first free name of `path.1`, `path.2` and so on, which is returned. Raises OSError."""
    aside = next(name for number in count(1) if not (name := path.with_name(f"{path.name}.{number}")).exists())
    path.rename(aside)
    sync_path(aside.parent)
    return aside


def write_json(path: Path, content: Mapping[str, object], *, durable: bool = False) -> None:
    """Write a JSON object, atomically. Raises OSError, and ValueError for a NaN or an infinity."""
    with replacing(path, durable=durable) as part:
        part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_tensors(
    path: Path, tensors: Mapping[str, object], save_file: Callable[..., None], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors with `save_file` of safetensors.numpy or safetensors.torch, atomically. Raises OSError.

    metadata: by default what transformers needs of a model. The file's mode is that of any new file.
    """
    from safetensors import SafetensorError  # with the caller's save_file, not with leafbeam

    with replacing(path) as part:
        part.touch()
        mode = stat.S_IMODE(part.stat().st_mode)
        try:
            save_file(tensors, part, metadata={"format": "pt"} if metadata is None else dict(metadata))
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from error
        part.chmod(mode)  # safetensors lets the owner alone read, and a server often runs as another user


def read_tensors(path: Path, framework: str = "np") -> tuple[dict[str, str], dict[str, Any]]:
    """Return the metadata of a file and its tensors, in numpy or, with "pt", in torch.

    Raises OSError, and what a dtype raises.
    """
    from safetensors import SafetensorError, safe_open

    open_regular(path).close()  # safetensors would wait for a FIFO
    try:
        with safe_open(path, framework) as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, to be read. A FIFO or a device is refused at once, not waited for. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, as `parse_json` does of the text that `read_text` returns. Raises what both raise."""
    return parse_json(read_text(path))


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8, of at most 64 MiB. Raises OSError, UnicodeDecodeError."""
    with open_regular(path) as file:
        data = file.read(_MAX_TEXT_BYTES + 1)
    if len(data) > _MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"{path.name} is larger than {_MAX_TEXT_BYTES >> 20} MiB")
    return data.decode("utf-8")


def write_checksums(directory: Path, names: Iterable[str]) -> None:
    """Write the hashes of these files of a directory as `sha256sum` does, for `check_checksums`. Raises OSError."""
    lines = [f"{_sha256(directory / name)}  {name}\n" for name in names]
    with replacing(directory / CHECKSUMS) as part:
        part.write_text("".join(lines), encoding="utf-8")


def check_checksums(directory: Path) -> None:
    """Raise CheckpointError for a file that is not the one that was saved; missing files, and directories without sums, pass.

    Cost: one read of the files, about 1.5 GB/s.
    """
    path = directory / CHECKSUMS
    if not path.exists():
        return
    try:
        sums = {name: expected for expected, name in (line.split("  ", 1) for line in read_text(path).splitlines())}
        if any(Path(name).name != name for name in sums):
            raise ValueError("a name is not one of this directory")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a list of checksums ({error}): copy the directory again") from error
    for name, expected in sums.items():
        if (directory / name).is_file() and _sha256(directory / name) != expected:
            raise CheckpointError(
                f"{directory / name} is not the file that was saved ({CHECKSUMS} has another hash): copy the directory again, "
                f"or delete {CHECKSUMS} if you changed the file yourself"
            )


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return file_digest(file, "sha256").hexdigest()
