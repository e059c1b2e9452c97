"""The TypeScript client of examples/: up to date with the OpenAPI document, its types right, and right about a real server."""

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.typescript import generate as generator
from leafbeam.engine import Limits
from leafbeam.serve.openapi import document_of
from tests.serve.conftest import first_shop, shop  # noqa: F401
from tests.serve.running import live

FOLDER = Path(__file__).parent.parent / "examples" / "typescript"
PROGRAM = """
import { LeafbeamClient, LeafbeamError } from "file://%s";
const client = new LeafbeamClient(Deno.args[0], { deadlineMs: 20_000 });
const answer = await client.recommend({ history: [1003], rules: ["cheap"], num_items: 5 });
const item = { item_id: 7, codes: [1, 2], title: "new", price: 3 };
const first = await client.putItems(item, "k");
const again = await client.putItems(item, "k");
const found = await client.findItems({ query: "new", limit: 3, rule: ["cheap", "in_stock"] });
const failures = [];
for (const call of [() => client.getItem(8), () => client.getRule("no rule"), () => client.putItems([{ item_id: 9, codes: [99, 99] }])]) {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof LeafbeamError)) throw error;
    failures.push([error.status, error.code, error.requestId.length > 0, Object.keys(error.lines)]);
  }
}
console.log(JSON.stringify({
  valid: answer.num_valid, inserted: [first.inserted, again.inserted], price: (await client.getItem(7)).attributes["price"],
  found: found.items.map((one) => [one.item_id, one.allowed]), failures, ready: (await client.getReadiness()).ready,
  metrics: (await client.getMetrics()).includes("leafbeam_index_items 101.0"),
}));
"""  # noqa: E501


@pytest.fixture
def deno(tmp_path: Path) -> list[str]:
    """The command of Deno, which checks types and runs without a network of its own."""
    try:
        path = importlib.import_module("deno").find_deno_bin()
    except ImportError:
        path = shutil.which("deno")
    if path is None:
        pytest.skip("deno, which checks and runs TypeScript, is not installed")
    return [path]


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "DENO_DIR": str(folder), "NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_is_up_to_date_with_the_document() -> None:
    document = document_of(Limits(), has_text=True)
    assert generator.FILE.read_text(encoding="utf-8") == generator.written(document), (
        "out of date: run `python examples/typescript/generate.py`"
    )
    document["components"]["schemas"]["ChangeAnswer"]["properties"].pop("inserted")
    assert generator.FILE.read_text(encoding="utf-8") != generator.written(document)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}, "Array<number | string>"),
        ({"anyOf": [{"type": "number"}, {"type": "integer"}, {"type": "null"}]}, "number | null"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "Record<string, number>"),
        ({"enum": ["full", None]}, '"full" | null'),
        ({"$ref": "#/components/schemas/ItemBody"}, "ItemBody"),
        ({}, "unknown"),
    ],
)
def test_a_schema_as_a_type(schema: dict[str, Any], expected: str) -> None:
    assert generator.type_of(schema) == expected


@pytest.mark.slow
def test_its_types_are_right_and_it_talks_to_a_real_server(shop: Any, deno: list[str], tmp_path: Path) -> None:  # noqa: F811
    program = tmp_path / "program.ts"
    program.write_text(PROGRAM % (FOLDER / "leafbeam.ts"))
    with live(shop) as url:
        host = url.removeprefix("http://")
        said = json.loads(run([*deno, "run", "--check", f"--allow-net={host}", str(program), url], tmp_path / "deno"))
    assert said == {
        "valid": 5,
        "inserted": [1, 1],
        "price": 3,
        "found": [[7, False]],
        "failures": [[404, "RequestError", True, []], [404, "RequestError", True, []], [422, "BatchError", True, ["1"]]],
        "ready": True,
        "metrics": True,
    }
