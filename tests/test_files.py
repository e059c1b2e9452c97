"""Files are complete under their name, no planted link is followed while they are written, and checksums are checked."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from leafbeam import Trie
from leafbeam.errors import CheckpointError
from leafbeam.files import CHECKSUMS, check_checksums, replacing, set_aside, write_checksums, write_json, write_tensors


def write(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write(path, "first")
    seen = []

    def fail() -> None:
        with replacing(path) as part:
            part.write_text("half")
            seen.append((part.name, path.read_text()))
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
    assert [text for _, text in seen] == ["first", "first"]
    assert len({name for name, _ in seen}) == 2
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("report.json", "first")]


def test_durable_content_is_synced_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps, sync, rename = tmp_path / "snapshot", list[str](), os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        steps.append("part" if name.endswith(".part") else name)
        sync(descriptor)

    def note_rename(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    with replacing(path, durable=True) as part:
        part.mkdir()
        (part / "content").write_text("whole")
    assert steps == ["part", "content", "rename to snapshot", tmp_path.name]
    with pytest.raises(OSError, match="not empty"), replacing(path, durable=True) as part:  # noqa: PT012
        part.mkdir()
        (part / "other").write_text("")
    assert [file.name for file in tmp_path.rglob("*")] == ["snapshot", "content"]
    steps.clear()
    write_json(tmp_path / "rules.json", {}, durable=True)
    assert steps == ["part", "rename to rules.json", tmp_path.name]


def test_what_is_set_aside_gets_the_first_free_number(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / "live").mkdir()
        assert set_aside(tmp_path / "live") == tmp_path / f"live.{number}"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_under_the_name_is_replaced_and_not_written_through(tmp_path: Path, link) -> None:
    victim, path = tmp_path / "victim", tmp_path / "index.leafbeam"
    victim.write_text("another user's file")
    link(victim, path)
    Trie.build([[0, 1], [1, 0]], [2, 2]).save(path)
    assert victim.read_text() == "another user's file"
    assert Trie.load(path).num_items == 2
    assert path.is_file()
    assert not path.is_symlink()


def test_a_file_that_differs_from_its_checksum_is_refused_by_name(tmp_path: Path) -> None:
    names = ("a.json", "b.bin")
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    check_checksums(tmp_path)  # a directory from elsewhere has none
    write_checksums(tmp_path, names)
    check_checksums(tmp_path)
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--status", CHECKSUMS], cwd=tmp_path, check=True)
    (tmp_path / "a.json").unlink()
    check_checksums(tmp_path)
    (tmp_path / "b.bin").write_bytes(b"b.bim")
    with pytest.raises(CheckpointError, match=r"b\.bin is not the file that was saved"):
        check_checksums(tmp_path)
    (tmp_path / CHECKSUMS).unlink()
    check_checksums(tmp_path)


@pytest.mark.parametrize("content", [b"\xff", b"no sums\n", b"abc\n", b"00  b.bin\n"])
def test_a_damaged_list_of_checksums_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.bin").write_bytes(b"b")
    (tmp_path / CHECKSUMS).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"leafbeam\.sha256"):
        check_checksums(tmp_path)


def test_checksums_name_files_of_the_directory_alone(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "directory" / CHECKSUMS).write_text("00  ../secret\n")
    with pytest.raises(CheckpointError, match="not a list"):
        check_checksums(tmp_path / "directory")


def test_tensors_are_as_readable_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_tensors(tmp_path / "tensors", {"a": np.zeros(3)}, save_file)
    assert (tmp_path / "tensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    with safe_open(tmp_path / "tensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_an_error_of_the_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_in_rust(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    path = tmp_path / "model.safetensors"
    with pytest.raises(OSError, match=f"No space left on device.*{path}"):
        write_tensors(path, {}, full_in_rust)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=f"No space left on device.*{path}"):
        write_json(path, {})
    assert not list(tmp_path.iterdir())
