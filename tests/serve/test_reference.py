"""docs/reference/http.md has the routes and fields of the OpenAPI document."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from leafbeam.engine import Limits
from leafbeam.serve.openapi import document_of

SCRIPT = Path(__file__).parents[2] / "docs" / "http_reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("http_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_routes_and_fields_of_the_code(reference: ModuleType) -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    assert reference.written(page) == page, "out of date: run `python docs/http_reference.py`"
    changed = page.replace("| `num_items` |", "| `items` |")
    assert changed != page
    assert reference.written(changed) == page


def test_every_route_is_on_the_page(reference: ModuleType) -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    for path, methods in document_of(Limits(), has_text=True)["paths"].items():
        assert all(f"`{method.upper()} {path}`" in page for method in methods)
