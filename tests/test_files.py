"""Files are complete under their name, and no planted link is followed while they are written."""

import os
from pathlib import Path

import pytest

from leafbeam import Trie
from leafbeam.files import replacing


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


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_under_the_name_is_replaced_and_not_written_through(tmp_path: Path, link) -> None:
    victim, path = tmp_path / "victim", tmp_path / "index.leafbeam"
    victim.write_text("somebody's own file")
    link(victim, path)
    Trie.build([[0, 1], [1, 0]], [2, 2]).save(path)
    assert victim.read_text() == "somebody's own file"
    assert Trie.load(path).num_items == 2
    assert path.is_file()
    assert not path.is_symlink()
