"""Values of items come into a catalog as they were written, or are refused by line: files and HTTP."""

import csv
import json
import os
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.cli.items import KEY
from leafbeam.cli.run import RunDirectory
from tests.fixtures.items_run import IDS, TITLES, call, ids_of, served

CHANGED = [
    ("csv", "item_id,title,exact\nnew,red shoe,0012345678901234567890.12\n", "line 2: exact: "),
    ("csv", "item_id,title,day\nnew,red shoe,null\n", "line 2: day: 'null' is not"),
    ("csv", "item_id,title,day\nnew,red shoe,2026-W01-1\n", "line 2: day: '2026-W01-1' is not"),
    ("csv", "item_id,title,codes\nnew,red shoe,null\n", "line 2: codes must be a list of whole numbers"),
    ("csv", 'item_id,title,part\nnew,red shoe,"{""n"":1,""n"":2}"\n', "line 2: part: "),
    ("csv", 'item_id,title,sizes\nnew,red shoe,"[1e-400, 1.5]"\n', "line 2: sizes: '[1e-400, 1.5]' is not"),
    ("jsonl", '{"item_id": "new", "title": "red shoe", "exact": 12345678901234567890.12}', "may have lost digits"),
    ("jsonl", '{"item_id": "new", "title": "red shoe", "part": {"n": 1, "zzz": 2}}', "part: there is no field 'zzz'"),
    ("json", '[{"item_id": "new", "title": "red shoe", "part": {"n": 1.5}}]', "part: field 'n': 1.5 is not a whole number"),
    ("jsonl", '{"item_id": "new", "title": "red shoe", "counts": {"k": 1.9}}', "counts: value of 'k': 1.9 is not"),
]


@pytest.fixture
def exact_run(run: Path) -> Path:
    """A run whose catalog has columns of exact numbers, dates, lists, objects and maps."""
    columns = {
        "exact": pa.array([None] * 6, pa.decimal128(38, 2)),
        "day": pa.array([None] * 6, pa.date32()),
        "sizes": pa.array([None] * 6, pa.list_(pa.float64())),
        "part": pa.array([None] * 6, pa.struct([("n", pa.int64()), ("at", pa.timestamp("us"))])),
        "counts": pa.array([None] * 6, pa.map_(pa.string(), pa.int64())),
    }
    Catalog.create(RunDirectory(run).catalog, pa.table({"item_id": sorted(IDS), "title": TITLES, **columns}), overwrite=True)
    (run / "rules.toml").write_text("[rules]\n")
    return run


@pytest.mark.parametrize(("form", "content", "problem"), CHANGED)
def test_a_value_that_the_catalog_would_change_is_refused_by_line(
    exact_run: Path, tmp_path: Path, form: str, content: str, problem: str
) -> None:
    """D2, D4, D10, D12: and nothing is written."""
    (tmp_path / f"items.{form}").write_text(content)
    result = call("import", str(tmp_path / f"items.{form}"), "--run", str(exact_run))
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())
    assert ids_of(exact_run) == IDS


@pytest.mark.parametrize("door", ["csv", "jsonl", "http"])
def test_exact_values_are_kept_through_every_door(
    exact_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    """D2, D12: decimals with all digits, times in objects, maps; floats of too many digits are refused over HTTP too."""
    row = {"item_id": "new", "title": "red shoe", "exact": "12345678901234567890.12", "day": "2026-11-22",
           "part": {"n": 1, "at": "2026-01-01T00:00:00"}, "counts": {"k": 1}}  # fmt: skip
    path = tmp_path / f"items.{door}"
    with served(exact_run, monkeypatch) as url:
        headers = {"Authorization": f"Bearer {os.environ[KEY]}", "Content-Type": "application/json"}
        if door == "http":
            content = json.dumps(row)
            assert httpx.put(f"{url}/v1/items", content=content, headers=headers, timeout=120).status_code == 200
            content = content.replace('"12345678901234567890.12"', "12345678901234567890.12")
            answer = httpx.put(f"{url}/v1/items", content=content, headers=headers, timeout=120)
            assert answer.status_code == 422
            assert "may have lost digits" in answer.text
        else:
            if door == "csv":
                with path.open("w", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerows([row, [value if isinstance(value, str) else json.dumps(value) for value in row.values()]])
            else:
                path.write_text(json.dumps(row))
            result = call("import", str(path), "--url", url)
            assert result.exit_code == 0, result.stderr
        found = httpx.get(f"{url}/v1/items/new", headers=headers, timeout=120).json()["attributes"]
    assert {name: found[name] for name in ("exact", "day", "part")} == {name: row[name] for name in ("exact", "day", "part")}
    assert dict(found["counts"]) == row["counts"]
