"""docs/reference/http.md has the routes and fields of the OpenAPI document."""

from docs import http_reference as reference
from leafbeam.engine import Limits
from leafbeam.serve.openapi import document_of


def test_the_page_has_the_routes_and_fields_of_the_code() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    assert reference.written(page) == page, "out of date: run `python docs/http_reference.py`"
    changed = page.replace("| `num_items` |", "| `items` |")
    assert changed != page
    assert reference.written(changed) == page


def test_every_route_is_on_the_page() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    for path, methods in document_of(Limits(), has_text=True)["paths"].items():
        assert all(f"`{method.upper()} {path}`" in page for method in methods)
