"""Messy files through the commands: what was read is shown, mistakes are refused in one line, imports can be repeated."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.fixtures.command_line import call, flat

LOG = "user_id,item_id,timestamp\n" + "".join(f"u{n % 5},{n % 12},{1_700_000_000 + n}\n" for n in range(60))
EANS = [4006381333931000000000 + n for n in range(12)]
ITEMS = "item_id,title,ean,zip,new,released,note\n" + "".join(
    f"{n},green tea {n},{ean},{n:05},{'TRUE' if n % 2 else 'FALSE'},2026-11-{n + 1:02},\n" for n, ean in enumerate(EANS)
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve items, and the output of `fit-sids`."""
    folder = tmp_path_factory.mktemp("messy")
    (folder / "interactions.csv").write_text(LOG)
    (folder / "items.csv").write_text(ITEMS)
    run = folder / "run"
    shown = call("fit-sids", "--data", folder, "--run", run, "--codebooks", "4,4")
    assert shown.exit_code == 0, shown.output
    (folder / "shown").write_text(shown.stdout)
    assert call("build", "--run", run).exit_code == 0
    return run


def test_fit_sids_shows_the_types_it_read(run: Path) -> None:
    """D12: columns, types and how many values are empty."""
    shown = (run.parent / "shown").read_text()
    assert (
        "Read as: item_id whole number · title text · ean text · zip text · new true/false · released date · "
        "note text (12 empty)"
    ) in shown


def test_items_import_takes_the_csv_that_fit_sids_read(run: Path, tmp_path: Path) -> None:
    """D5: the very same file; and other zips without zeros stay text."""
    shown = call("items", "import", run.parent / "items.csv", "--run", run)
    assert shown.exit_code == 0, shown.output
    assert "0 items added, 12 replaced" in shown.stdout
    assert "ean text · zip text · new true/false · released date" in flat(shown.stdout)
    (tmp_path / "one.csv").write_bytes("item_id,title,zip\n3 ,café,90210\n".encode("latin-1"))
    refused = call("items", "import", tmp_path / "one.csv", "--run", run)
    assert refused.exit_code == 2
    assert "line 2, column 'title': 'caf\u00e9' is not UTF-8 (byte 0xE9): pass --encoding latin-1" in flat(refused.stderr)
    assert call("items", "import", tmp_path / "one.csv", "--run", run, "--encoding", "latin-1").exit_code == 0


def test_fit_sids_warns_of_ids_that_never_match(tmp_path: Path) -> None:
    """D9: with one id of each table."""
    (tmp_path / "interactions.csv").write_text(LOG)
    (tmp_path / "items.csv").write_text("item_id,title\n" + "".join(f"{n:05},tea {n}\n" for n in range(12)))
    shown = call("fit-sids", "--data", tmp_path, "--run", tmp_path / "run", "--codebooks", "4,8")
    assert shown.exit_code == 0, shown.output
    assert "Warning: no item of the log, such as '0', is in" in shown.stdout
    assert "which has '00000'" in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--user-column", "item_id"), "expected a column for each (--user-column, --item-column, --time-column)"),
        (("--encoding", "klingon"), "expected the name of an encoding, such as utf-8, latin-1 or utf-16"),
        (("--format", "amazon", "--encoding", "latin-1"), "--encoding needs --format tables"),
    ],
)
def test_settings_that_cannot_be_right_are_refused_at_once(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    """D11: by `fit-sids`, not later by `build`."""
    (tmp_path / "interactions.csv").write_text(LOG)
    refused = call("fit-sids", "--data", tmp_path, "--run", tmp_path / "run", *words)
    assert refused.exit_code == 2
    assert message in flat(refused.stderr)


def test_semantic_ids_are_imported_again_with_a_log(tmp_path: Path) -> None:
    """L5: the message says "import it again with --data", and that works; other Semantic IDs are refused."""
    (tmp_path / "sids.json").write_text('{"1": [0, 1], "2": [1, 0], "3": [1, 1]}')
    (tmp_path / "log.csv").write_text("user_id,item_id,timestamp\na,1,1700000000\na,2,1700000001\na,3,1700000002\n")
    run = tmp_path / "run"
    shown = call("import", "--sids", tmp_path / "sids.json", "--run", run)
    assert "import it again with --model or --data" in flat(shown.stdout)
    again = call("import", "--sids", tmp_path / "sids.json", "--run", run, "--data", tmp_path / "log.csv")
    assert again.exit_code == 0, again.output
    assert "leafbeam train" in flat(again.stdout)
    (tmp_path / "sids.json").write_text('{"1": [0, 1], "2": [1, 0], "3": [0, 0]}')
    refused = call("import", "--sids", tmp_path / "sids.json", "--run", run, "--data", tmp_path / "log.csv")
    assert refused.exit_code == 2
    assert "has other Semantic IDs: name another --run" in flat(refused.stderr)


def test_items_may_be_separated_and_encoded_as_said(tmp_path: Path) -> None:
    """D3: `import --items` too."""
    (tmp_path / "sids.csv").write_bytes("item_id;c0;c1\nä;0;1\nb;1;0\n".encode("cp1252"))
    (tmp_path / "items.csv").write_bytes("item_id;title\nä;grüner Tee\nb;tea\n".encode("cp1252"))
    words = ("import", "--sids", tmp_path / "sids.csv", "--items", tmp_path / "items.csv", "--run", tmp_path / "run")
    refused = call(*words)
    assert refused.exit_code == 2
    shown = call(*words, "--delimiter", ";", "--encoding", "cp1252")
    assert shown.exit_code == 0, shown.output
    assert pq.read_table(tmp_path / "run" / "imported_items.parquet")["title"].to_pylist() == ["grüner Tee", "tea"]
    assert "Read as: item_id text · title text" in shown.stdout
